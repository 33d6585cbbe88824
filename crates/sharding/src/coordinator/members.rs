//! What a coordinator needs to know of the view.

use std::collections::{BTreeMap, BTreeSet};
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
    members: BTreeMap<Node, Member>,
    /// Those of the role that are up, the oldest first.
    by_age: Vec<Node>,
    /// Who is no member any more, and since when.
    gone: BTreeMap<Node, Moment>,
}

#[derive(Clone, Debug)]
struct Member {
    status: Status,
    up_number: u64,
    reachable: bool,
    has_role: bool,
}

impl Members {
    pub(super) fn new(me: Node) -> Self {
        Self {
            me,
            digest: None,
            cluster: 0,
            highest_up: 0,
            since: Moment::ZERO,
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
                (node.clone(), Member { status, up_number, reachable, has_role })
            })
            .collect();
        self.by_age = view.by_age(role).cloned().collect();
        let gone = before.into_keys().filter(|node| !self.members.contains_key(node));
        self.gone.extend(gone.map(|node| (node, now)));
        while self.gone.len() > GONE_MAX {
            let Some(oldest) = self.gone.iter().min_by_key(|(_, since)| **since) else { break };
            let oldest = oldest.0.clone();
            self.gone.remove(&oldest);
        }
        true
    }

    /// As [`View::candidate`].
    pub(super) fn candidate(&self, is_able: impl Fn(&Node) -> bool) -> Option<&Node> {
        self.by_age.iter().find(|node| self.is_reachable(node) && is_able(node))
    }

    pub(super) fn oldest(&self) -> Option<&Node> {
        self.by_age.first()
    }

    /// Whether this node is one of so many that would coordinate first.
    pub(super) fn is_among_first(&self, count: usize) -> bool {
        let first = self.by_age.iter().filter(|node| self.is_reachable(node)).take(count);
        first.into_iter().any(|node| *node == self.me)
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
        is_gone.then(|| self.gone.get(node).copied().unwrap_or(self.since))
    }

    /// Everybody who may host something, where no note says so: those who are members, or were
    /// until lately.
    pub(super) fn roster(&self, now: Moment, margin: Duration) -> Roster {
        let mut roster = Roster::default();
        for (node, member) in &self.members {
            if member.has_role && (Status::Up..Status::Down).contains(&member.status) {
                roster.insert(Host::node(node.clone()), self.entry(node));
            }
        }
        for (node, since) in &self.gone {
            if now < *since + margin {
                roster.insert(Host::node(node.clone()), self.entry(node));
            }
        }
        roster
    }
}

/// Of how many former members the time is remembered.
const GONE_MAX: usize = 1024;
