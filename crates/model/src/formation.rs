//! Formation: how a cluster comes to be, and comes back when nobody is left of it.
//!
//! # The protocol
//!
//! A node that is in no cluster, a *candidate*, looks for one: it asks the addresses that it
//! discovers and the *contact points* in the note of the formation lease. If it wins that lease it
//! may form a cluster itself. The id of the cluster is the term of the tenure that formed it. It
//! writes its own id into the note before it forms. The leader of a cluster keeps the lease, wins it
//! again under the same id if it was lost, and writes id and members into the note, and the term
//! under which it holds the lease as a *member*.
//!
//! A candidate that finds an id in the note gives the lease back at its first win, since that cluster
//! may live on, and its next leader may be about to take the lease. It forms a cluster at a later
//! win: when it has asked the contact points since the first, and one *period* has passed in which
//! it looked at the record and no member held the lease. A sight of the lease held by a member
//! begins all of this anew. The period is one time to live and the time in which a dead leader is
//! noticed: in it a leader that lives and reaches the store takes the lease.
//!
//! A cluster whose leader cannot reach the store, and whose members the winner cannot reach, may
//! thus live on beside a new one. When members of the two meet, or one reads the other's id in the
//! note, the lower id gives way: its nodes end, start again and join.
//!
//! # The abstraction
//!
//! What happens within a cluster is left out, and with it every verdict: a node that belongs to a
//! cluster may end at any time ([`Scenario::ends`]), because it crashed, left, or because its side
//! lost. A minority that waits is a node that belongs to a cluster and is cut off from the others. A
//! node that ended starts again at once and belongs to no cluster. The network splits into two and
//! heals; an *outsider* never reaches anybody but the store. The lease is a safe one: its holder
//! stops before somebody else can win it. A node loses the store at any time; the lease that it held
//! is then free at once.
//!
//! Time is one step, a period, which does not pass while anybody who contends for the lease could
//! have it. Asking takes as long as it takes: a candidate has asked enough once every member that
//! could have answered was unreachable at least once since its first win.
//!
//! # What is not modelled
//!
//! - The successor that a leader names when it leaves: it only spares an outsider a win that it
//!   would give back.
//! - A candidate that ends between its first win and giving the lease back: that costs a time to
//!   live. A leader that ends between its win and its note: its tenure looks like a candidate's.
//! - Requests to the store under way, and claims: the sessions model has them.
//! - Terms above [`Scenario::term_max`]. States there count as good.
//!
//! # What must be
//!
//! [`Violation`] lists what must never happen. For liveness, every state can go on, without another
//! fault, to one in which all nodes belong to one cluster: after everybody ended too, and after two
//! clusters were formed.

mod state;

use std::fmt;

use crate::engine::{Model, Steps};
use crate::node_set::NodeSet;
pub use state::State;
use state::{NODES_MAX, Node, Note, Record};

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
    /// A candidate lets a period pass before it forms. Otherwise it is quicker than the next leader.
    pub candidate_waits: bool,
    /// A member that is seen to hold the lease restarts the wait. Otherwise an outsider that once
    /// waited long enough wins when the leader changes.
    pub member_restarts_wait: bool,
    /// A candidate that may not form yet gives the lease back. Otherwise the next leader cannot take
    /// it while the candidate waits.
    pub candidate_gives_back: bool,
    /// A period counts only for a candidate that looked at the record in it. Otherwise an outsider
    /// has waited long enough when the store was away from everybody.
    pub blind_wait_is_void: bool,
    /// A candidate that holds the lease proves nothing. Otherwise candidates keep each other waiting
    /// for ever.
    pub only_members_prove: bool,
    /// The note says under which term a member holds the lease. Otherwise what a dead member wrote
    /// makes the next candidate look like a member.
    pub note_names_tenure: bool,
}

impl Rules {
    /// The protocol as it is.
    pub const ALL: Self = Self {
        only_the_holder_forms: true,
        winner_asks_first: true,
        note_is_written_first: true,
        note_is_kept: true,
        lower_gives_way: true,
        candidate_waits: true,
        member_restarts_wait: true,
        candidate_gives_back: true,
        blind_wait_is_void: true,
        only_members_prove: true,
        note_names_tenure: true,
    };
}

/// How many nodes, how often each fault may happen, and the bounds of the exploration.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Up to four. None of them belongs to a cluster at first.
    pub nodes: u8,
    /// Whether the last node reaches the store and never anybody else.
    pub outsider: bool,
    /// A node of a cluster ends and starts again.
    pub ends: u8,
    /// A node loses the store; it reaches it again later.
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
    /// A cluster is formed though the leader of another one reaches the store, and there was no
    /// period in which the one who forms did and that leader did not.
    FormedBesideLiving,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FormedBesideGuarded => "a cluster is formed beside one that holds the lease",
            Self::FormedBesideReachable => "a cluster is formed beside one within reach",
            Self::FormedBesideLiving => "a cluster is formed beside one that reaches the store",
        })
    }
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
            nodes: [Node::OUTSIDE; NODES_MAX],
            record: Record { term: 0, held: false, note: None },
            outsider: self.scenario.outsider.then(|| usize::from(self.scenario.nodes) - 1),
            cut: NodeSet::EMPTY,
            ends_left: self.scenario.ends,
            losses_left: self.scenario.losses,
            splits_left: self.scenario.splits,
            violation: None,
        }]
    }

    fn steps(&self, state: &State, steps: &mut Steps<'_, State>) {
        self.network_steps(state, steps);
        self.store_steps(state, steps);
        self.period_passes(state, steps);
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

    /// All belong to one cluster; an outsider need not, and may have formed one of its own after
    /// everybody else ended.
    fn good(&self, state: &State) -> bool {
        let first = state.nodes[0].cluster;
        let others = self.nodes().iter().filter(|node| Some(*node) != state.outsider);
        let all_in_one = others.into_iter().all(|node| state.nodes[node].cluster == first);
        let outsider_formed = state.outsider.is_some_and(|it| state.nodes[it].cluster.is_some());
        state.record.term >= self.scenario.term_max
            || first.is_some() && all_in_one
            || outsider_formed
    }

    fn describe(&self, state: &State) -> String {
        let Record { term, held, note } = state.record;
        let mut text = format!("term {term}, {}", if held { "held" } else { "free" });
        if let Some(Note { cluster, contacts, member }) = note {
            text += &format!(", note {cluster} {contacts} by a member in term {member}");
        }
        if !state.cut.is_empty() {
            text += &format!("; {} cut off", state.cut);
        }
        for number in self.nodes().iter() {
            let Node { cluster, holds, away, first_win, waited, .. } = state.nodes[number];
            let place = cluster.map_or("no cluster".into(), |cluster| format!("cluster {cluster}"));
            text += &format!("; {number} in {place}{}", if holds { ", holder" } else { "" });
            text += if away { ", without the store" } else { "" };
            text += if first_win.is_some() { ", has won once" } else { "" };
            text += if waited { ", has waited" } else { "" };
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

    /// The lease of a dead holder expires; nodes lose the store, and reach it again.
    fn store_steps(&self, state: &State, steps: &mut Steps<'_, State>) {
        if state.record.held && state.holder().is_none() {
            let mut next = *state;
            next.free_lease(&self.rules);
            steps.step(next, format_args!("the lease of one who ended expires"));
        }
        for node in self.nodes().iter() {
            let mut next = *state;
            if state.nodes[node].away {
                next.nodes[node].away = false;
                steps.step(next, format_args!("{node} reaches the store again"));
            } else if state.losses_left > 0 {
                next.losses_left -= 1;
                next.nodes[node].away = true;
                if state.nodes[node].holds {
                    next.free_lease(&self.rules);
                }
                steps.fault(next, format_args!("{node} loses the store"));
            }
        }
    }

    /// One time to live, and the time in which a dead leader is noticed.
    fn period_passes(&self, state: &State, steps: &mut Steps<'_, State>) {
        let is_due = match state.holder() {
            // It expires in that time.
            None if state.record.held => true,
            None => self.nodes().iter().any(|node| self.contends(state, node)),
            // It writes the note, or forms, or gives the lease back.
            Some(holder) => match state.nodes[holder].cluster {
                Some(cluster) => state
                    .record
                    .note
                    .is_none_or(|note| (note.cluster, note.member) != (cluster, state.record.term)),
                None => self.may_form(state, holder),
            },
        };
        if is_due {
            return;
        }
        let guarded = self.is_held_by_member(state);
        let leaderless = self.leaders(state).is_empty();
        let mut next = *state;
        for node in self.nodes().iter().filter(|node| state.nodes[*node].cluster.is_none()) {
            let Node { away, .. } = state.nodes[node];
            let candidate = &mut next.nodes[node];
            match (away, guarded) {
                (true, _) if self.rules.blind_wait_is_void => candidate.restart_wait(),
                (false, true) if self.rules.member_restarts_wait => candidate.restart_wait(),
                (false, true) => {}
                (true, _) | (false, false) => candidate.waited = true,
            }
            candidate.excused |= !away && leaderless;
        }
        steps.step(next, format_args!("a period passes"));
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
            next.nodes[node] = Node { cluster, away: state.nodes[node].away, ..Node::OUTSIDE };
            steps.step(next, format_args!("{node} joins through {contact}"));
        }
        if !state.record.held && self.contends(state, node) {
            self.win_as_candidate(state, node, steps);
        }
        if !holds {
            if !self.rules.only_the_holder_forms {
                self.form(state, node, steps);
            }
            return;
        }
        let contacts = NodeSet::from_iter([node]);
        let (cluster, member) = (state.record.term, state.record.term);
        let own = Note { cluster, contacts, member };
        let has_written = state.record.note == Some(own);
        if has_written || !self.rules.note_is_written_first && self.may_form(state, node) {
            self.form(state, node, steps);
        } else if self.may_form(state, node) {
            let mut next = *state;
            next.record.note = Some(own);
            steps.step(next, format_args!("{node} writes the note: {cluster}"));
        }
    }

    /// Whether this node wants the lease, and reaches the store.
    fn contends(&self, state: &State, node: usize) -> bool {
        let Node { cluster, away, first_win, .. } = state.nodes[node];
        let wants = match cluster {
            Some(cluster) => state.members_reached(node, cluster).lowest() == Some(node),
            None => first_win.is_none() || self.may_form(state, node),
        };
        wants && !away
    }

    /// Whether a node that belongs to no cluster has found out enough to form one, if it won.
    fn may_form(&self, state: &State, node: usize) -> bool {
        let Node { first_win, waited, .. } = state.nodes[node];
        let Some(reached) = first_win else { return state.record.note.is_none() };
        let nobody_answers = (reached & self.contacts(state)).is_empty();
        let has_asked = nobody_answers || !self.rules.winner_asks_first;
        state.record.note.is_none()
            || state.record.note.is_some_and(|note| note.cluster == state.record.term)
                && state.nodes[node].holds
            || has_asked && (waited || !self.rules.candidate_waits)
    }

    fn form(&self, state: &State, node: usize, steps: &mut Steps<'_, State>) {
        let mut next = *state;
        let Node { holds, first_win, excused, away, .. } = state.nodes[node];
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
        } else if holds && first_win.is_some_and(|reached| !reached.is_empty()) {
            next.violation = Some(Violation::FormedBesideReachable);
        } else if holds && !excused && !self.leaders(state).is_empty() {
            next.violation = Some(Violation::FormedBesideLiving);
        }
        next.nodes[node] = Node { cluster: Some(cluster), holds, away, ..Node::OUTSIDE };
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
            let member = state.record.term;
            next.record.note = Some(Note { cluster, contacts: members, member });
            steps.step(next, format_args!("{node} writes the note: {cluster} {members}"));
        } else if !state.record.held && self.contends(state, node) {
            self.win_as_member(state, node, cluster, steps);
        }
        if self.rules.lower_gives_way {
            self.give_way(state, node, cluster, steps);
        }
    }

    fn give_way(&self, state: &State, node: usize, own: u8, steps: &mut Steps<'_, State>) {
        let met = state.reachable(node).iter().filter_map(|other| state.nodes[other].cluster);
        let noted = state.record.note.map(|note| note.cluster).filter(|_| !state.nodes[node].away);
        let Some(higher) = met.chain(noted).max().filter(|highest| *highest > own) else { return };
        let mut next = *state;
        if next.nodes[node].holds {
            next.free_lease(&self.rules);
        }
        next.end(node);
        steps.step(next, format_args!("{node} of cluster {own} gives way to {higher}"));
    }

    /// The leader of `cluster` wins the lease, which is free, and says so in the note. That note is
    /// read by every candidate before it wins, however short the tenure was.
    fn win_as_member(&self, state: &State, node: usize, cluster: u8, steps: &mut Steps<'_, State>) {
        let term = state.record.term + 1;
        if term > self.scenario.term_max {
            return;
        }
        let mut next = *state;
        let contacts = state.members_reached(node, cluster);
        next.record =
            Record { term, held: true, note: Some(Note { cluster, contacts, member: term }) };
        next.nodes[node].holds = true;
        for other in self.nodes().iter() {
            next.nodes[other].excused = false;
            if self.rules.member_restarts_wait {
                next.nodes[other].restart_wait();
            }
        }
        steps.step(next, format_args!("{node} wins the lease, term {term}"));
    }

    /// A node that is in no cluster wins the lease, which is free. If that is too early, it gives
    /// the lease back in the same step.
    fn win_as_candidate(&self, state: &State, node: usize, steps: &mut Steps<'_, State>) {
        let mut next = *state;
        let reached = state.inside() & state.reachable(node);
        next.nodes[node].first_win.get_or_insert(reached);
        // While a candidate holds it, does it look as if a member did?
        let looks_like_member = !self.rules.only_members_prove
            || !self.rules.note_names_tenure && state.record.note.is_some();
        if looks_like_member {
            for other in self.nodes().iter().filter(|other| *other != node) {
                next.nodes[other].restart_wait();
            }
        }
        if self.rules.candidate_gives_back && !self.may_form(&next, node) {
            steps.step(next, format_args!("{node} wins the lease, and gives it back"));
            return;
        }
        let term = state.record.term + 1;
        if term > self.scenario.term_max {
            return;
        }
        next.record.held = true;
        next.record.term = term;
        next.nodes[node].holds = true;
        steps.step(next, format_args!("{node} wins the lease, term {term}"));
    }

    /// Whether the record shows that a member holds the lease.
    fn is_held_by_member(&self, state: &State) -> bool {
        let named = state.record.note.is_some_and(|note| note.member == state.record.term);
        state.record.held && named
    }

    /// The leaders of clusters that reach the store.
    fn leaders(&self, state: &State) -> NodeSet {
        let is_leader =
            |node: &usize| state.nodes[*node].cluster.is_some() && self.contends(state, *node);
        self.nodes().iter().filter(is_leader).collect()
    }

    /// Whom a node that looks for a cluster asks.
    fn contacts(&self, state: &State) -> NodeSet {
        let noted = state.record.note.map_or(NodeSet::EMPTY, |note| note.contacts);
        if self.scenario.discovery { self.nodes() } else { noted }
    }
}
