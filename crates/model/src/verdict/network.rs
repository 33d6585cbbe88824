//! Which nodes reach each other, and which of them make up a side.

use std::fmt;

use super::state::{NODES_MAX, State};
use super::{LeaseMajority, Network, Sides};
use crate::engine::Steps;
use crate::node_set::NodeSet;

impl LeaseMajority {
    /// The network gets worse, a fault, or heals, which time does by itself.
    pub(super) fn network_steps(&self, state: &State, steps: &mut Steps<'_, State>) {
        let (calm, heals) = match self.scenario.network {
            Network::Arbitrary => return,
            Network::Splits { calm, .. } => (calm, true),
            Network::PartialCuts { calm, heals, .. } => (calm, heals),
        };
        if state.cuts_left > 0 && (!calm || state.is_calm()) {
            for cut in self.possible_cuts() {
                let mut next = *state;
                next.cut = cut;
                next.cuts_left -= 1;
                steps.fault(next, format_args!("the network is cut: {cut}"));
            }
        }
        if heals && !state.cut.is_empty() {
            let mut next = *state;
            next.cut = Links::NONE;
            steps.step(next, format_args!("the network heals"));
        }
    }

    fn possible_cuts(&self) -> Vec<Links> {
        let nodes = usize::from(self.scenario.nodes + self.scenario.joiners);
        match self.scenario.network {
            Network::Arbitrary => Vec::new(),
            Network::Splits { .. } => {
                let others = NodeSet::first(nodes) - NodeSet::first(1);
                let sides = others.subsets().filter(|side| !side.is_empty());
                sides.map(|side| Links::between(side, NodeSet::first(nodes) - side)).collect()
            }
            Network::PartialCuts { only: Some(cut), .. } => vec![cut],
            Network::PartialCuts { only: None, .. } => Links::combinations(nodes).collect(),
        }
    }

    /// The members that decide together with `node`, if it is one of those who decide.
    ///
    /// Everybody whom a chain of links connects has the same picture of the links between them.
    pub(super) fn side_of(&self, state: &State, node: usize) -> NodeSet {
        let cut = state.cut;
        let candidates = state.nodes[node].counted() & state.alive();
        match self.rules.sides {
            Sides::MostCutDropped => cut.most_cut_dropped(cut.connected_to(node, candidates)),
            Sides::LargestKept => cut.largest_kept(cut.connected_to(node, candidates)),
            Sides::OwnReach => candidates & cut.reachable_from(node),
        }
    }
}

impl State {
    /// Nothing is cut, and all who live agree on who does.
    fn is_calm(&self) -> bool {
        let alive = self.alive();
        self.cut.is_empty()
            && alive.iter().all(|node| {
                self.nodes[node].members() == alive && self.all_see_view_of(node, alive)
            })
    }
}

/// A set of links between two nodes each.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Links(u16);

impl Links {
    pub(super) const NONE: Self = Self(0);

    /// The links between these pairs of nodes.
    pub fn from_pairs(pairs: impl IntoIterator<Item = (usize, usize)>) -> Self {
        Self(pairs.into_iter().fold(0, |links, (one, other)| links | link(one, other)))
    }

    /// All sets of links between the first `nodes`, but for the empty one.
    pub fn combinations(nodes: usize) -> impl Iterator<Item = Self> {
        // The links of the first nodes have the lowest bits.
        (1..1 << (nodes * (nodes - 1) / 2)).map(Self)
    }

    fn between(side: NodeSet, others: NodeSet) -> Self {
        Self::from_pairs(side.iter().flat_map(|one| others.iter().map(move |other| (one, other))))
    }

    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether the link between two nodes is one of these.
    pub fn contains(self, one: usize, other: usize) -> bool {
        one != other && self.0 & link(one, other) != 0
    }

    /// Whom `node` reaches while these links are cut, itself included.
    pub(super) fn reachable_from(self, node: usize) -> NodeSet {
        if self.is_empty() {
            return NodeSet::first(NODES_MAX);
        }
        (0..NODES_MAX).filter(|other| !self.contains(node, *other)).collect()
    }

    /// Whether all of `nodes` reach each other while these links are cut.
    pub(super) fn leave_whole(self, nodes: NodeSet) -> bool {
        self.is_empty() || nodes.iter().all(|node| nodes.is_subset_of(self.reachable_from(node)))
    }

    /// Those of `nodes` to whom a chain of them leads from `node` while these links are cut.
    fn connected_to(self, node: usize, nodes: NodeSet) -> NodeSet {
        let mut connected = nodes & NodeSet::from_iter([node]);
        loop {
            let known = connected;
            for member in known.iter() {
                connected = connected | (self.reachable_from(member) & nodes);
            }
            if connected == known {
                return connected;
            }
        }
    }

    /// `nodes` without the most cut, of several the youngest, and so on until the rest is whole.
    fn most_cut_dropped(self, nodes: NodeSet) -> NodeSet {
        let mut rest = nodes;
        while !self.leave_whole(rest) {
            let cuts_of = |node: &usize| (rest - self.reachable_from(*node)).len();
            let Some(most_cut) = rest.iter().max_by_key(cuts_of) else { break };
            rest.remove(most_cut);
        }
        rest
    }

    /// The largest part of `nodes` that is whole, of several the one with the oldest nodes.
    fn largest_kept(self, nodes: NodeSet) -> NodeSet {
        let whole = nodes.subsets().filter(|part| self.leave_whole(*part));
        whole.max_by_key(|part| (part.len(), part.seniority())).unwrap_or(NodeSet::EMPTY)
    }
}

/// `0-1 0-3`.
impl fmt::Display for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pairs = (0..NODES_MAX).flat_map(|one| (one + 1..NODES_MAX).map(move |two| (one, two)));
        let cut = pairs.filter(|&(one, other)| self.contains(one, other));
        let names: Vec<String> = cut.map(|(one, other)| format!("{one}-{other}")).collect();
        f.write_str(&names.join(" "))
    }
}

/// The bit of a link: those of nodes 0-1, 0-2, 1-2, 0-3, …, in this order.
fn link(one: usize, other: usize) -> u16 {
    let (low, high) = (one.min(other), one.max(other));
    1 << (high * (high - 1) / 2 + low)
}
