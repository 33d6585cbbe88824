//! What one node believes: the members, their status and age, and who cannot reach whom.
//!
//! A view is a join-semilattice. Two nodes that tell each other their views believe the same
//! afterwards, whichever of them spoke first and however often: merging is commutative,
//! associative and idempotent. Nothing in it is ever taken back: a status only rises, a row of the
//! reachability table is replaced only by a newer row of the same observer, and a removed
//! incarnation leaves a tombstone that refuses it.
//!
//! Two views are compared by their [`Digest`], which is kept up to date row by row.

mod digest;
mod member;
mod merge;
mod survivors;
mod table;
mod verdict;
mod wire;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tenure_lease::Moment;

pub use digest::Digest;
pub use member::{Facts, Member, MemberVersions, Role, Roles, Status};
pub(crate) use member::{bounded_facts, facts_of};
pub use merge::Change;
pub use survivors::{Survivors, SurvivorsError};
pub use table::Row;
pub use verdict::{Verdict, VerdictError};

use crate::Node;

/// What one node believes.
#[derive(Clone, Debug)]
pub struct View {
    /// The tenure of the formation lease that formed this cluster; higher is newer.
    cluster: u64,
    members: BTreeMap<Node, Member>,
    /// The highest up-number that is known to have been given, also to members that are gone.
    highest_up: u64,
    /// Up-numbers up to this one are not given any more: somebody may have them.
    skipped_up: u64,
    rows: BTreeMap<Node, Row>,
    /// The last verdict of the resolver that this node knows.
    verdict: Verdict,
    /// The highest generation that a side has announced to ask for, or that was decided.
    asked: u64,
    /// Removed incarnations, and since when by this node's clock. Not part of the digest: they only
    /// refuse, and each node collects them by itself.
    tombstones: BTreeMap<Node, Moment>,
    digest: Digest,
}

impl View {
    /// Of a cluster in which nobody is yet.
    pub fn new(cluster: u64) -> Self {
        Self {
            cluster,
            members: BTreeMap::new(),
            highest_up: 0,
            skipped_up: 0,
            rows: BTreeMap::new(),
            verdict: Verdict::default(),
            asked: 0,
            tombstones: BTreeMap::new(),
            digest: Digest::of_cluster(cluster),
        }
    }

    /// A view with these members, in which these observers cannot reach these subjects: to test what
    /// is built on views.
    pub fn of(
        members: impl IntoIterator<Item = (Node, Member)>,
        unreachable: impl IntoIterator<Item = (Node, Node)>,
    ) -> Self {
        let mut view = Self::new(1);
        for (node, member) in members {
            view.set_member(&node, member);
        }
        for (observer, subject) in unreachable {
            let mut row = view.rows.get(&observer).cloned().unwrap_or_default();
            Arc::make_mut(&mut row.unreachable).insert(subject);
            view.set_row(&observer, row);
        }
        view
    }

    /// The id of the cluster.
    pub fn cluster(&self) -> u64 {
        self.cluster
    }

    /// Equal for views that say the same.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Whether two views say the same in every detail; their digests then are equal too. Slow, for
    /// checking that it also holds the other way round.
    pub fn says_the_same(&self, other: &Self) -> bool {
        let numbers = |view: &Self| (view.cluster, view.highest_up, view.skipped_up, view.asked);
        numbers(self) == numbers(other)
            && (&self.members, &self.rows, &self.verdict)
                == (&other.members, &other.rows, &other.verdict)
    }

    /// Every member, in the order of addresses.
    pub fn members(&self) -> impl ExactSizeIterator<Item = (&Node, &Member)> + Clone {
        self.members.iter()
    }

    /// One member.
    pub fn member(&self, node: &Node) -> Option<&Member> {
        self.members.get(node)
    }

    /// The members at an address; more than one while an older incarnation is on its way out.
    pub fn at_address<'a>(
        &'a self,
        node: &'a Node,
    ) -> impl Iterator<Item = (&'a Node, &'a Member)> {
        self.members.range(lowest_at(node)..).take_while(|(other, _)| other.address == node.address)
    }

    /// Whether this incarnation was removed, and is refused.
    pub fn is_removed(&self, node: &Node) -> bool {
        self.tombstones.contains_key(node)
    }

    /// How many removed incarnations are remembered.
    pub fn tombstones(&self) -> usize {
        self.tombstones.len()
    }

    /// The highest up-number that is known to have been given.
    pub fn highest_up(&self) -> u64 {
        self.highest_up
    }

    /// The up-number that is given next.
    pub fn next_up(&self) -> u64 {
        self.highest_up.max(self.skipped_up) + 1
    }

    /// Whether some member that counts cannot reach it.
    pub fn is_unreachable(&self, node: &Node) -> bool {
        self.observations().any(|(_, subject)| subject == node)
    }

    /// Who cannot reach whom: observer and subject, both members that are not [`Status::Down`].
    pub fn observations(&self) -> impl Iterator<Item = (&Node, &Node)> {
        let counts = |node: &Node| self.members.get(node).is_some_and(|m| m.status < Status::Down);
        self.rows
            .iter()
            .filter(move |(observer, row)| !row.unreachable.is_empty() && counts(observer))
            .flat_map(move |(observer, row)| {
                row.unreachable
                    .iter()
                    .filter(move |subject| counts(subject))
                    .map(move |subject| (observer, subject))
            })
    }

    /// Who leads: the reachable [`Status::Up`] member with the lowest address. If nobody is, the
    /// first of those who leave, and then of those who join, so that the last one out can finish.
    pub fn leader(&self) -> Option<&Node> {
        let unreachable: BTreeSet<&Node> =
            self.observations().map(|(_, subject)| subject).collect();
        self.members
            .iter()
            .filter(|(node, member)| member.status < Status::Down && !unreachable.contains(node))
            .min_by_key(|(_, member)| member.status.leads_before())
            .map(|(node, _)| node)
    }

    /// The member that has been up for longest, of those that are [`Status::Up`] and have the role.
    pub fn oldest(&self, role: Option<&Role>) -> Option<&Node> {
        self.members
            .iter()
            .filter(|(_, member)| {
                member.status == Status::Up && role.is_none_or(|role| member.roles.contains(role))
            })
            .min_by_key(|(node, member)| (member.up_number, *node))
            .map(|(node, _)| node)
    }

    /// Who should host what only one may: the oldest member of the role that is [`Status::Up`],
    /// reachable as far as `me` knows, and able. `me` is always reachable from itself, so two nodes
    /// that do not reach each other may each take themselves for it: a lease decides between them.
    pub fn candidate(
        &self,
        me: &Node,
        role: Option<&Role>,
        able: impl Fn(&Node) -> bool,
    ) -> Option<&Node> {
        let mut unreachable: BTreeSet<&Node> =
            self.observations().map(|(_, subject)| subject).collect();
        unreachable.remove(me);
        self.by_age(role).find(|node| !unreachable.contains(node) && able(node))
    }

    /// The members that are [`Status::Up`] and have the role, the oldest first.
    pub fn by_age(&self, role: Option<&Role>) -> impl Iterator<Item = &Node> {
        let up = |member: &Member| {
            member.status == Status::Up && role.is_none_or(|role| member.roles.contains(role))
        };
        let mut members: Vec<(u64, &Node)> = self
            .members
            .iter()
            .filter(|(_, member)| up(member))
            .map(|(node, member)| (member.up_number, node))
            .collect();
        members.sort_unstable();
        members.into_iter().map(|(_, node)| node)
    }

    /// The last verdict of the resolver that this node knows.
    pub fn verdict(&self) -> &Verdict {
        &self.verdict
    }

    /// The highest generation that a side has announced to ask for.
    pub fn asked(&self) -> u64 {
        self.asked
    }

    /// Changes when a member, a status or an observation does, not when views merely spread.
    pub(crate) fn picture(&self) -> u128 {
        digest::of_picture(self)
    }

    /// What this observer wrote about whom it cannot reach.
    pub(crate) fn row(&self, observer: &Node) -> Option<&Row> {
        self.rows.get(observer)
    }

    /// Adds a member, or raises the status of one.
    pub(crate) fn set_member(&mut self, node: &Node, member: Member) {
        self.raise_highest_up(member.up_number);
        if let Some(before) = self.members.get(node) {
            self.digest.remove(digest::of_member(node, before));
        }
        self.digest.add(digest::of_member(node, &member));
        self.members.insert(node.clone(), member);
    }

    /// Somebody is declared down who may have led, and given up-numbers of which this node has not
    /// heard: one to each member that has none here, at most. They are not given again, since a
    /// number that two members have makes a ghost of one of them. But they do not count as known:
    /// the losers of a split skip as well, and would take those whom the winners let in for ghosts.
    pub(crate) fn skip_up_numbers(&mut self) {
        let without = self.members.values().filter(|member| member.up_number == 0).count();
        self.raise_skipped_up(self.next_up() - 1 + without as u64);
    }

    pub(crate) fn raise_skipped_up(&mut self, number: u64) {
        if number > self.skipped_up {
            self.digest.remove(digest::of_skipped_up(self.skipped_up));
            self.skipped_up = number;
            self.digest.add(digest::of_skipped_up(self.skipped_up));
        }
    }

    pub(crate) fn raise_highest_up(&mut self, number: u64) {
        if number > self.highest_up {
            self.digest.remove(digest::of_highest_up(self.highest_up));
            self.highest_up = number;
            self.digest.add(digest::of_highest_up(self.highest_up));
        }
    }

    /// Replaces an observer's row.
    pub(crate) fn set_row(&mut self, observer: &Node, row: Row) {
        if let Some(before) = self.rows.get(observer) {
            self.digest.remove(digest::of_row(observer, before));
        }
        self.digest.add(digest::of_row(observer, &row));
        self.rows.insert(observer.clone(), row);
    }

    /// Takes a member out, for good.
    pub(crate) fn remove(&mut self, node: &Node, since: Moment) {
        if let Some(before) = self.members.remove(node) {
            self.digest.remove(digest::of_member(node, &before));
        }
        if let Some(before) = self.rows.remove(node) {
            self.digest.remove(digest::of_row(node, &before));
        }
        let known = self.tombstones.entry(node.clone()).or_insert(since);
        *known = since.min(*known);
    }

    /// The removed incarnations, and for how long.
    pub(crate) fn removed(&self, now: Moment) -> Vec<(Node, Duration)> {
        self.tombstones.iter().map(|(node, since)| (node.clone(), now.since(*since))).collect()
    }

    /// Forgets removed incarnations that were removed before this moment. To be called only when
    /// every member has seen this view: then nobody is left who could bring one of them back.
    pub(crate) fn forget_removed_before(&mut self, moment: Moment) {
        self.tombstones.retain(|_, removed| *removed >= moment);
    }
}

fn lowest_at(node: &Node) -> Node {
    Node { address: node.address.clone(), incarnation: crate::Incarnation(0) }
}
