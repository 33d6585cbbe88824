//! What a coordinator needs to know of the view, and who takes part.
//!
//! A member *takes part* once it has said something about this kind that only a host says: it has
//! introduced itself, greeted, reported as a host, or was named as the home of a shard. A member that
//! has not within `stable_after`, in which it was in reach and was asked, is *absent*: it has a proxy
//! only, or another program. Nobody waits for whoever is absent. Whoever takes part is waited for, however
//! slow it is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tenure_cluster::view::Digest;
use tenure_cluster::{Node, Role, Status, View};
use tenure_lease::Moment;

use crate::{Host, Roster, RosterEntry};

#[derive(Clone, Debug)]
pub(super) struct Members {
    me: Node,
    digest: Option<Digest>,
    cluster: u64,
    highest_up: u64,
    /// Since when this node has been in this cluster.
    since: Moment,
    /// For how long a member that is in reach may say nothing.
    patience: Duration,
    members: BTreeMap<Node, Member>,
    /// Those of the role that are up, the oldest first.
    by_age: Vec<Node>,
    /// Who is no member any more.
    gone: BTreeMap<Node, Gone>,
}

#[derive(Clone, Copy, Debug)]
struct Gone {
    since: Moment,
    /// It was not absent.
    may_host: bool,
}

#[derive(Clone, Debug)]
struct Member {
    /// What people call it, if it has said so.
    name: Option<Arc<str>>,
    status: Status,
    up_number: u64,
    reachable: bool,
    has_role: bool,
    takes_part: bool,
    /// When it is absent, unless it takes part by then.
    absent_at: Moment,
}

impl Member {
    fn is_absent(&self, now: Moment) -> bool {
        !self.takes_part && self.absent_at <= now
    }
}

impl Members {
    pub(super) fn new(me: Node, patience: Duration) -> Self {
        Self {
            me,
            digest: None,
            cluster: 0,
            highest_up: 0,
            since: Moment::ZERO,
            patience,
            members: BTreeMap::new(),
            by_age: Vec::new(),
            gone: BTreeMap::new(),
        }
    }

    /// Whether anything is different now.
    pub(super) fn update(&mut self, view: Option<&View>, role: Option<&Role>, now: Moment) -> bool {
        if self.digest == view.map(View::digest) {
            return false;
        }
        self.digest = view.map(View::digest);
        let Some(view) = view else {
            self.members.clear();
            self.by_age.clear();
            return true;
        };
        if self.cluster != view.cluster() {
            self.cluster = view.cluster();
            self.since = now;
        }
        self.highest_up = view.highest_up();
        let unreachable: BTreeSet<&Node> =
            view.observations().map(|(_, subject)| subject).collect();
        let before = std::mem::take(&mut self.members);
        self.members = view
            .members()
            .map(|(node, member)| {
                let reachable = *node == self.me || !unreachable.contains(node);
                let has_role = role.is_none_or(|role| member.roles.contains(role));
                let (status, up_number) = (member.status, member.up_number);
                let known = before.get(node);
                let takes_part = *node == self.me || known.is_some_and(|it| it.takes_part);
                // While it is out of reach it can say nothing. What is known of it stays known.
                let absent_at = match known {
                    Some(known) if known.is_absent(now) => known.absent_at,
                    Some(known) if known.reachable && reachable => known.absent_at,
                    _ if reachable => now + self.patience,
                    _ => Moment::NEVER,
                };
                let name = member.name().cloned();
                let member =
                    Member { name, status, up_number, reachable, has_role, takes_part, absent_at };
                (node.clone(), member)
            })
            .collect();
        self.by_age = view.by_age(role).cloned().collect();
        let gone = before.into_iter().filter(|(node, _)| !self.members.contains_key(node));
        let gone = gone.map(|(node, it)| (node, Gone { since: now, may_host: !it.is_absent(now) }));
        self.gone.extend(gone);
        while self.gone.len() > GONE_MAX {
            let Some(oldest) = self.gone.iter().min_by_key(|(_, it)| it.since) else { break };
            let oldest = oldest.0.clone();
            self.gone.remove(&oldest);
        }
        true
    }

    /// As [`View::candidate`].
    pub(super) fn candidate(&self, is_able: impl Fn(&Node) -> bool) -> Option<&Node> {
        self.by_age.iter().find(|node| self.is_reachable(node) && is_able(node))
    }

    /// The oldest that is not absent.
    pub(super) fn oldest(&self, now: Moment) -> Option<&Node> {
        self.by_age.iter().find(|node| !self.is_absent(node, now))
    }

    /// It has said something that only a host says; whether that is new.
    pub(super) fn takes_part(&mut self, node: &Node) -> bool {
        let member = self.members.get_mut(node);
        member.is_some_and(|member| !std::mem::replace(&mut member.takes_part, true))
    }

    /// It has said that it hosts nothing, and never will.
    pub(super) fn is_no_host(&mut self, node: &Node, now: Moment) {
        if let Some(member) = self.members.get_mut(node).filter(|member| !member.takes_part) {
            member.absent_at = member.absent_at.min(now);
        }
    }

    /// Whether it is known not to take part, as far as its silence says.
    pub(super) fn is_absent(&self, node: &Node, now: Moment) -> bool {
        self.members.get(node).is_some_and(|member| member.is_absent(now))
    }

    /// Those of whom it is not known yet whether they take part.
    pub(super) fn unknown(&self, now: Moment) -> impl Iterator<Item = (&Node, Moment)> {
        let is_unknown = move |member: &Member| {
            let counts = member.has_role && member.reachable && member.status < Status::Down;
            counts && !member.takes_part && now < member.absent_at
        };
        let unknown = self.members.iter().filter(move |(_, member)| is_unknown(member));
        unknown.map(|(node, member)| (node, member.absent_at))
    }

    /// Whether this node is one of so many that would coordinate first.
    pub(super) fn is_among_first(&self, count: usize, now: Moment) -> bool {
        let comes_next = |node: &&Node| self.is_reachable(node) && !self.is_absent(node, now);
        self.by_age.iter().filter(comes_next).take(count).any(|node| *node == self.me)
    }

    /// What people call it, if it has said so.
    pub(super) fn name(&self, node: &Node) -> Option<&Arc<str>> {
        self.members.get(node)?.name.as_ref()
    }

    pub(super) fn is_up(&self, node: &Node) -> bool {
        self.members.get(node).is_some_and(|member| member.status == Status::Up)
    }

    /// A member that is not down, and that nobody calls unreachable.
    pub(super) fn is_reachable(&self, node: &Node) -> bool {
        let counts = |member: &Member| member.reachable && member.status < Status::Down;
        self.members.get(node).is_some_and(counts)
    }

    /// A member that is not down.
    pub(super) fn contains(&self, node: &Node) -> bool {
        self.members.get(node).is_some_and(|member| member.status < Status::Down)
    }

    /// Whether shards may go to it.
    pub(super) fn may_host(&self, node: &Node) -> bool {
        let may =
            |member: &Member| member.status == Status::Up && member.reachable && member.has_role;
        self.members.get(node).is_some_and(may)
    }

    /// On its way out: its shards go to others.
    pub(super) fn is_leaving(&self, node: &Node) -> bool {
        let leaving = |member: &Member| (Status::Leaving..Status::Down).contains(&member.status);
        self.members.get(node).is_some_and(leaving)
    }

    /// All that are not down.
    pub(super) fn all(&self) -> impl Iterator<Item = &Node> {
        self.members.iter().filter(|(_, member)| member.status < Status::Down).map(|(node, _)| node)
    }

    pub(super) fn others(&self) -> impl Iterator<Item = &Node> {
        self.all().filter(|node| **node != self.me)
    }

    /// All that shards may go to.
    pub(super) fn hosts(&self) -> impl Iterator<Item = &Node> {
        self.all().filter(|node| self.may_host(node))
    }

    /// What the roster should say of it.
    pub(super) fn entry(&self, node: &Node) -> RosterEntry {
        let up_number = self.members.get(node).map_or(0, |member| member.up_number);
        RosterEntry { cluster: self.cluster, up_number }
    }

    /// Since when a host has been removed, if it has. That it is not in the view is not enough: the
    /// view may be older than the host.
    pub(super) fn removed_since(&self, node: &Node, entry: RosterEntry) -> Option<Moment> {
        let knew = entry.cluster != self.cluster || entry.up_number <= self.highest_up;
        let is_gone = self.digest.is_some() && !self.members.contains_key(node) && knew;
        is_gone.then(|| self.gone.get(node).map_or(self.since, |it| it.since))
    }

    /// Everybody who may host something, where no note says so: those who are members, or were
    /// until lately, and are not absent.
    pub(super) fn roster(&self, now: Moment, margin: Duration) -> Roster {
        let mut roster = Roster::default();
        for (node, member) in &self.members {
            let is_up = (Status::Up..Status::Down).contains(&member.status);
            if member.has_role && is_up && !member.is_absent(now) {
                roster.insert(Host::node(node.clone()), self.entry(node));
            }
        }
        for (node, it) in &self.gone {
            if it.may_host && now < it.since + margin {
                roster.insert(Host::node(node.clone()), self.entry(node));
            }
        }
        roster
    }
}

/// Of how many former members the time is remembered.
const GONE_MAX: usize = 1024;
