//! What the model remembers: the nodes with their views, the arbitration record, the network.
//!
//! Millions of these are kept, so everything is as small as it can be.

use super::network::Links;
use crate::node_set::NodeSet;

/// One state of the verdict model.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct State {
    pub(super) nodes: [Node; NODES_MAX],
    /// The arbitration lease's record in the store.
    pub(super) record: Record,
    /// The links that are cut. Always empty if the network is left out of the model.
    pub(super) cut: Links,
    /// How often the network may still change for the worse.
    pub(super) cuts_left: u8,
    pub(super) crashes_left: u8,
    pub(super) joiners_left: u8,
    pub(super) leavers_left: u8,
}

impl State {
    pub(super) fn alive(&self) -> NodeSet {
        (0..NODES_MAX).filter(|node| self.nodes[*node].is_alive()).collect()
    }

    pub(super) fn is_alive(&self, node: usize) -> bool {
        self.nodes[node].is_alive()
    }

    /// The members as `node` counts them, if they are all alive and count the same ones.
    pub(super) fn settled_around(&self, node: usize) -> Option<NodeSet> {
        let members = self.nodes[node].counted();
        let agrees = |member| self.is_alive(member) && self.nodes[member].counted() == members;
        (members.contains(node) && members.iter().all(agrees)).then_some(members)
    }

    /// Whether two living nodes have the same view, verdict and announcement included.
    pub(super) fn same_view(&self, one: usize, other: usize) -> bool {
        let [one, other] = [&self.nodes[one], &self.nodes[other]];
        one.statuses == other.statuses
            && one.generation == other.generation
            && one.asked == other.asked
    }

    /// Whether each of `nodes` is alive and has the same view as `node`.
    pub(super) fn all_see_view_of(&self, node: usize, nodes: NodeSet) -> bool {
        nodes.iter().all(|other| self.is_alive(other) && self.same_view(node, other))
    }
}

/// The arbitration lease's record. The verdict is its note.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Record {
    /// 0: there was no verdict yet.
    pub(super) generation: u8,
    pub(super) survivors: NodeSet,
    pub(super) holder: Option<u8>,
}

/// One incarnation of a node, and its view.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Node {
    pub(super) life: Life,
    /// What it believes each node's status to be.
    pub(super) statuses: [Status; NODES_MAX],
    /// The generation of the last verdict that it knows.
    pub(super) generation: u8,
    /// The survivors of that verdict.
    pub(super) survivors: NodeSet,
    /// The highest generation that somebody announced to ask for.
    pub(super) asked: u8,
    /// Who counted when it last saw everybody agree.
    pub(super) converged: NodeSet,
    /// Its acquisition of the arbitration lease. It outlives its sender while it is under way.
    pub(super) request: Option<Request>,
}

impl Node {
    pub(super) const ABSENT: Self = Self {
        life: Life::NotStarted,
        statuses: [Status::Absent; NODES_MAX],
        generation: 0,
        survivors: NodeSet::EMPTY,
        asked: 0,
        converged: NodeSet::EMPTY,
        request: None,
    };

    pub(super) fn is_alive(&self) -> bool {
        self.life == Life::Alive
    }

    /// The members that a count counts.
    pub(super) fn counted(&self) -> NodeSet {
        self.with_status(|status| matches!(status, Status::Up | Status::Leaving))
    }

    pub(super) fn joining(&self) -> NodeSet {
        self.with_status(|status| status == Status::Joining)
    }

    /// Everybody known who is not Down.
    pub(super) fn members(&self) -> NodeSet {
        self.with_status(|status| !matches!(status, Status::Absent | Status::Down))
    }

    fn with_status(&self, is_wanted: impl Fn(Status) -> bool) -> NodeSet {
        (0..NODES_MAX).filter(|node| is_wanted(self.statuses[*node])).collect()
    }

    pub(super) fn set_status(&mut self, nodes: NodeSet, status: Status) {
        nodes.iter().for_each(|node| self.statuses[node] = status);
    }

    /// The process ends. What it sent may still arrive.
    pub(super) fn die(&mut self) {
        let under_way = self.request.filter(|request| request.answer == Answer::Pending);
        *self = Self { life: Life::Dead, request: under_way, ..Self::ABSENT };
    }
}

/// Whether a node's process runs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub(super) enum Life {
    NotStarted,
    Alive,
    Dead,
}

/// A node's status in somebody's view. Merging takes the higher one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub(super) enum Status {
    /// Unknown here.
    Absent,
    Joining,
    Up,
    Leaving,
    Down,
}

/// An acquisition of the arbitration lease, with the verdict that it would write.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Request {
    pub(super) generation: u8,
    pub(super) survivors: NodeSet,
    pub(super) answer: Answer,
}

/// What became of a request. Its sender learns it when it hears the answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub(super) enum Answer {
    /// Under way: the store has not seen it yet.
    Pending,
    Won,
    /// Won, and the answer says that the record it replaced was not the one that was read.
    WonOverNewer,
}

/// How many nodes the state has room for.
pub(super) const NODES_MAX: usize = 5;
