//! Formation: how a cluster comes to be, and comes back when nobody is left of it.
//!
//! # The protocol
//!
//! A node that is in no cluster looks for one: it asks the addresses that it discovers and the
//! *contact points* in the note of the formation lease. If it wins that lease it may form a cluster
//! itself. The id of the cluster is the term of the tenure that formed it. A winner that finds an
//! id in the note first asks the contact points for one time to live: that cluster may live on. It
//! writes its own id into the note before it forms. The leader of a cluster keeps the lease, wins it again under the same id if it was lost, and writes
//! id and members into the note.
//!
//! A cluster whose leader cannot reach the store, and whose members the winner cannot reach, may
//! thus live on beside a new one. When members of the two meet, or one reads the other's id in the
//! note, the lower id gives way: its nodes end, start again and join.
//!
//! # The abstraction
//!
//! What happens within a cluster is left out, and with it every verdict: a node that belongs to a
//! cluster may end at any time ([`Scenario::ends`]), because it crashed or because its side lost. A
//! minority that waits is a node that belongs to a cluster and is cut off from the others. A node
//! that ended starts again at once and belongs to no cluster. The network splits into two and
//! heals. The lease is a safe one: its holder stops before somebody else can win it. It is lost at
//! any time, and then free at once.
//!
//! Asking takes as long as it takes: a winner may form once every member that could have answered
//! was unreachable at least once since it won.
//!
//! # What is not modelled
//!
//! - Time, and the wait for the lease as part of the ask.
//! - Requests to the store under way, and claims: the sessions model has them.
//! - Terms above [`Scenario::term_max`]. States there count as good.
//!
//! # What must be
//!
//! [`Violation`] lists what must never happen. For liveness, every state can go on, without another
//! fault, to one in which all nodes belong to one cluster: after everybody ended too, and after two
//! clusters were formed.

use std::fmt;

use crate::engine::{Model, Steps};
use crate::node_set::NodeSet;

/// The formation model, with the rules that its nodes follow and the faults that they meet.
#[derive(Clone, Copy, Debug)]
pub struct Formation {
    /// What the nodes and the store do.
    pub rules: Rules,
    /// What may go wrong, and how far to look.
    pub scenario: Scenario,
}

/// The rules of the protocol. Each closes a hole that is open without it.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Only who holds the lease forms a cluster. Otherwise whoever is cut off forms one.
    pub only_the_holder_forms: bool,
    /// A winner asks before it forms. Otherwise it forms a second cluster beside one that it could
    /// have joined.
    pub winner_asks_first: bool,
    /// A winner writes its id into the note before it forms. Otherwise it may form, lose the lease,
    /// and the next winner finds nobody to ask.
    pub note_is_written_first: bool,
    /// The note outlives the lease. Otherwise a winner does not know that there is somebody to ask.
    pub note_is_kept: bool,
    /// Of two clusters that meet, the one with the lower id ends. Otherwise both live for ever.
    pub lower_gives_way: bool,
}

impl Rules {
    /// The protocol as it is.
    pub const ALL: Self = Self {
        only_the_holder_forms: true,
        winner_asks_first: true,
        note_is_written_first: true,
        note_is_kept: true,
        lower_gives_way: true,
    };
}

/// How many nodes, how often each fault may happen, and the bounds of the exploration.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Up to four. None of them belongs to a cluster at first.
    pub nodes: u8,
    /// A node of a cluster ends and starts again.
    pub ends: u8,
    /// The holder loses the lease.
    pub losses: u8,
    /// The network splits, or splits differently.
    pub splits: u8,
    /// Whether nodes discover each other. Otherwise they know only the contact points in the note.
    pub discovery: bool,
    /// The lease gets no term above this one.
    pub term_max: u8,
}

/// What must never happen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Violation {
    /// A cluster is formed though the leader of another one holds the formation lease.
    FormedBesideGuarded,
    /// A cluster is formed by a node that could have reached a member of another one ever since it
    /// began to ask.
    FormedBesideReachable,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FormedBesideGuarded => "a cluster is formed beside one that holds the lease",
            Self::FormedBesideReachable => "a cluster is formed beside one within reach",
        })
    }
}

/// One state of the formation model.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct State {
    nodes: [Node; NODES_MAX],
    record: Record,
    /// These nodes are cut from all others. Never node 0.
    cut: NodeSet,
    /// The nodes of clusters that whoever holds the lease and belongs to none has reached ever
    /// since it won.
    within_reach: NodeSet,
    ends_left: u8,
    losses_left: u8,
    splits_left: u8,
    violation: Option<Violation>,
}

/// One process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Node {
    /// The id of the cluster that it belongs to.
    cluster: Option<u8>,
    /// Whether it holds the formation lease.
    holds: bool,
}

/// The formation lease's record.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Record {
    /// Of the last tenure.
    term: u8,
    /// Whether somebody holds it, or held it and has ended since.
    held: bool,
    note: Option<Note>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Note {
    cluster: u8,
    contacts: NodeSet,
}

impl Model for Formation {
    type State = State;
    type Violation = Violation;

    fn initial(&self) -> Vec<State> {
        assert!(
            usize::from(self.scenario.nodes) <= NODES_MAX,
            "there is no room for so many nodes"
        );
        vec![State {
            nodes: [OUTSIDE; NODES_MAX],
            record: Record { term: 0, held: false, note: None },
            cut: NodeSet::EMPTY,
            within_reach: NodeSet::EMPTY,
            ends_left: self.scenario.ends,
            losses_left: self.scenario.losses,
            splits_left: self.scenario.splits,
            violation: None,
        }]
    }

    fn steps(&self, state: &State, steps: &mut Steps<'_, State>) {
        self.network_steps(state, steps);
        self.lease_ends(state, steps);
        for node in self.nodes().iter() {
            match state.nodes[node].cluster {
                None => self.outside_steps(state, node, steps),
                Some(cluster) => self.inside_steps(state, node, cluster, steps),
            }
        }
    }

    fn violation(&self, state: &State) -> Option<Violation> {
        state.violation
    }

    fn good(&self, state: &State) -> bool {
        let first = state.nodes[0].cluster;
        let all_in_one = self.nodes().iter().all(|node| state.nodes[node].cluster == first);
        state.record.term >= self.scenario.term_max || first.is_some() && all_in_one
    }

    fn describe(&self, state: &State) -> String {
        let Record { term, held, note } = state.record;
        let mut text = format!("term {term}, {}", if held { "held" } else { "free" });
        if let Some(Note { cluster, contacts }) = note {
            text += &format!(", note {cluster} {contacts}");
        }
        if !state.cut.is_empty() {
            text += &format!("; {} cut off", state.cut);
        }
        for number in self.nodes().iter() {
            let Node { cluster, holds } = state.nodes[number];
            let place = cluster.map_or("no cluster".into(), |cluster| format!("cluster {cluster}"));
            text += &format!("; {number} in {place}{}", if holds { ", holder" } else { "" });
        }
        text
    }
}

impl Formation {
    fn nodes(&self) -> NodeSet {
        NodeSet::first(usize::from(self.scenario.nodes))
    }

    fn network_steps(&self, state: &State, steps: &mut Steps<'_, State>) {
        if state.splits_left > 0 {
            let others = self.nodes() - NodeSet::first(1);
            for cut in others.subsets().filter(|cut| !cut.is_empty()) {
                let mut next = *state;
                next.cut = cut;
                next.splits_left -= 1;
                next.forget_unreachable();
                steps.fault(next, format_args!("the network splits: {cut} is cut off"));
            }
        }
        let mut next = *state;
        next.cut = NodeSet::EMPTY;
        steps.step(next, format_args!("the network heals"));
    }

    /// The lease runs out: a living holder loses it, a dead one leaves it behind.
    fn lease_ends(&self, state: &State, steps: &mut Steps<'_, State>) {
        if !state.record.held {
            return;
        }
        let mut next = *state;
        next.free_lease(&self.rules);
        match state.holder() {
            None => steps.step(next, format_args!("the lease of one who ended expires")),
            Some(holder) if state.losses_left > 0 => {
                next.losses_left -= 1;
                steps.fault(next, format_args!("{holder} loses the lease"));
            }
            Some(_) => {}
        }
    }

    /// What a node does that belongs to no cluster.
    fn outside_steps(&self, state: &State, node: usize, steps: &mut Steps<'_, State>) {
        let Node { holds, .. } = state.nodes[node];
        for contact in (self.contacts(state) & state.inside() & state.reachable(node)).iter() {
            let cluster = state.nodes[contact].cluster;
            let mut next = *state;
            if holds {
                next.free_lease(&self.rules);
            }
            next.nodes[node].cluster = cluster;
            steps.step(next, format_args!("{node} joins through {contact}"));
        }
        if !state.record.held {
            self.win(state, node, steps);
        }
        if !holds {
            if !self.rules.only_the_holder_forms {
                self.form(state, node, steps);
            }
            return;
        }
        let own = Note { cluster: state.record.term, contacts: NodeSet::from_iter([node]) };
        let has_written = state.record.note == Some(own);
        if has_written || !self.rules.note_is_written_first && self.has_asked(state) {
            self.form(state, node, steps);
        } else if self.has_asked(state) {
            let mut next = *state;
            next.record.note = Some(own);
            steps.step(next, format_args!("{node} writes the note: {}", own.cluster));
        }
    }

    /// Whether the holder, which belongs to no cluster, has asked for long enough.
    fn has_asked(&self, state: &State) -> bool {
        let answering = state.within_reach & self.contacts(state);
        let nobody_to_ask = state.record.note.is_none();
        !self.rules.winner_asks_first || nobody_to_ask || answering.is_empty()
    }

    fn form(&self, state: &State, node: usize, steps: &mut Steps<'_, State>) {
        let mut next = *state;
        let holds = state.nodes[node].holds;
        if !holds {
            // Without the rule, ids come from elsewhere: at least they are different.
            next.record.term += 1;
        }
        if next.record.term > self.scenario.term_max {
            return;
        }
        let cluster = next.record.term;
        let guarded = state.holder().is_some_and(|holder| state.inside().contains(holder));
        if guarded {
            next.violation = Some(Violation::FormedBesideGuarded);
        } else if holds && !state.within_reach.is_empty() {
            next.violation = Some(Violation::FormedBesideReachable);
        }
        next.nodes[node].cluster = Some(cluster);
        next.within_reach = NodeSet::EMPTY;
        steps.step(next, format_args!("{node} forms cluster {cluster}"));
    }

    /// What a node does that belongs to `cluster`.
    fn inside_steps(&self, state: &State, node: usize, cluster: u8, steps: &mut Steps<'_, State>) {
        if state.ends_left > 0 {
            let mut next = *state;
            next.ends_left -= 1;
            next.end(node);
            steps.fault(next, format_args!("{node} ends and starts again"));
        }
        let members = state.members_reached(node, cluster);
        let mut next = *state;
        if state.nodes[node].holds {
            next.record.note = Some(Note { cluster, contacts: members });
            steps.step(next, format_args!("{node} writes the note: {cluster} {members}"));
        } else if members.lowest() == Some(node) && !state.record.held {
            self.win(state, node, steps);
        }
        if self.rules.lower_gives_way {
            self.give_way(state, node, cluster, steps);
        }
    }

    fn give_way(&self, state: &State, node: usize, own: u8, steps: &mut Steps<'_, State>) {
        let met = state.reachable(node).iter().filter_map(|other| state.nodes[other].cluster);
        let noted = state.record.note.map(|note| note.cluster);
        let Some(higher) = met.chain(noted).max().filter(|highest| *highest > own) else { return };
        let mut next = *state;
        if next.nodes[node].holds {
            next.free_lease(&self.rules);
        }
        next.end(node);
        steps.step(next, format_args!("{node} of cluster {own} gives way to {higher}"));
    }

    /// `node` wins the lease, which is free.
    fn win(&self, state: &State, node: usize, steps: &mut Steps<'_, State>) {
        let term = state.record.term + 1;
        if term > self.scenario.term_max {
            return;
        }
        let mut next = *state;
        next.record.held = true;
        next.record.term = term;
        next.nodes[node].holds = true;
        if state.nodes[node].cluster.is_none() {
            next.within_reach = state.inside() & state.reachable(node);
        }
        steps.step(next, format_args!("{node} wins the lease, term {term}"));
    }

    /// Whom a node that looks for a cluster asks.
    fn contacts(&self, state: &State) -> NodeSet {
        let noted = state.record.note.map_or(NodeSet::EMPTY, |note| note.contacts);
        if self.scenario.discovery { self.nodes() } else { noted }
    }
}

impl State {
    /// The nodes that belong to a cluster.
    fn inside(&self) -> NodeSet {
        (0..NODES_MAX).filter(|node| self.nodes[*node].cluster.is_some()).collect()
    }

    fn holder(&self) -> Option<usize> {
        self.nodes.iter().position(|node| node.holds)
    }

    fn reachable(&self, node: usize) -> NodeSet {
        if self.cut.contains(node) { self.cut } else { NodeSet::first(NODES_MAX) - self.cut }
    }

    fn members_reached(&self, node: usize, cluster: u8) -> NodeSet {
        let reached = self.reachable(node).iter();
        reached.filter(|other| self.nodes[*other].cluster == Some(cluster)).collect()
    }

    /// Whoever asks has missed those of a cluster that it does not reach now.
    fn forget_unreachable(&mut self) {
        if let Some(holder) = self.holder() {
            self.within_reach = self.within_reach & self.reachable(holder) & self.inside();
        }
    }

    /// A process ends. Its successor knows nothing, and the lease is left behind.
    fn end(&mut self, node: usize) {
        self.nodes[node] = OUTSIDE;
        self.forget_unreachable();
    }

    fn free_lease(&mut self, rules: &Rules) {
        self.nodes.iter_mut().for_each(|node| node.holds = false);
        self.within_reach = NodeSet::EMPTY;
        self.record.held = false;
        if !rules.note_is_kept {
            self.record.note = None;
        }
    }
}

/// A process that has just started.
const OUTSIDE: Node = Node { cluster: None, holds: false };

/// How many nodes the state has room for.
const NODES_MAX: usize = 4;
