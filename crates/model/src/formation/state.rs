use super::{Rules, Violation};
use crate::node_set::NodeSet;

/// One state of the formation model.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct State {
    pub(super) nodes: [Node; NODES_MAX],
    pub(super) record: Record,
    /// This node is never reached by another, nor reaches one.
    pub(super) outsider: Option<usize>,
    /// These nodes are cut from all others. Never node 0.
    pub(super) cut: NodeSet,
    pub(super) ends_left: u8,
    pub(super) losses_left: u8,
    pub(super) splits_left: u8,
    pub(super) violation: Option<Violation>,
}

/// One process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Node {
    /// The id of the cluster that it belongs to.
    pub(super) cluster: Option<u8>,
    /// Whether it holds the formation lease.
    pub(super) holds: bool,
    /// Whether it does not reach the store.
    pub(super) away: bool,
    /// Of a candidate that has won the lease since it last saw a member hold it: the nodes of
    /// clusters that it has reached ever since.
    pub(super) first_win: Option<NodeSet>,
    /// Of a candidate: whether a period has passed since it last saw a member hold the lease.
    pub(super) waited: bool,
    /// Of a candidate: whether a period has passed in which it reached the store and no leader did,
    /// and no leader has taken the lease since. Nothing depends on it but [`Violation`].
    pub(super) excused: bool,
}

/// The formation lease's record.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Record {
    /// Of the last tenure.
    pub(super) term: u8,
    /// Whether somebody holds it, or held it and has ended since.
    pub(super) held: bool,
    pub(super) note: Option<Note>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Note {
    pub(super) cluster: u8,
    pub(super) contacts: NodeSet,
    /// The term under which a member held the lease and wrote this.
    pub(super) member: u8,
}

impl Node {
    /// A process that has just started.
    pub(super) const OUTSIDE: Self = Self {
        cluster: None,
        holds: false,
        away: false,
        first_win: None,
        waited: false,
        excused: false,
    };

    /// A candidate that sees, or cannot rule out, that a member holds the lease.
    pub(super) fn restart_wait(&mut self) {
        self.first_win = None;
        self.waited = false;
    }
}

impl State {
    /// The nodes that belong to a cluster.
    pub(super) fn inside(&self) -> NodeSet {
        (0..NODES_MAX).filter(|node| self.nodes[*node].cluster.is_some()).collect()
    }

    pub(super) fn holder(&self) -> Option<usize> {
        self.nodes.iter().position(|node| node.holds)
    }

    pub(super) fn reachable(&self, node: usize) -> NodeSet {
        let side =
            if self.cut.contains(node) { self.cut } else { NodeSet::first(NODES_MAX) - self.cut };
        let outsider: NodeSet = self.outsider.into_iter().collect();
        if outsider.contains(node) { outsider } else { side - outsider }
    }

    pub(super) fn members_reached(&self, node: usize, cluster: u8) -> NodeSet {
        let reached = self.reachable(node).iter();
        reached.filter(|other| self.nodes[*other].cluster == Some(cluster)).collect()
    }

    /// Whoever asks has missed those of a cluster that it does not reach now.
    pub(super) fn forget_unreachable(&mut self) {
        for node in 0..NODES_MAX {
            if let Some(reached) = self.nodes[node].first_win {
                self.nodes[node].first_win = Some(reached & self.reachable(node) & self.inside());
            }
        }
    }

    /// A process ends. Its successor knows nothing, and the lease is left behind.
    pub(super) fn end(&mut self, node: usize) {
        self.nodes[node] = Node { away: self.nodes[node].away, ..Node::OUTSIDE };
        self.forget_unreachable();
    }

    pub(super) fn free_lease(&mut self, rules: &Rules) {
        self.nodes.iter_mut().for_each(|node| node.holds = false);
        self.record.held = false;
        if !rules.note_is_kept {
            self.record.note = None;
        }
    }
}

/// How many nodes the state has room for.
pub(super) const NODES_MAX: usize = 4;
