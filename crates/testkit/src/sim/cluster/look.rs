//! Looks at everybody from outside: do the invariants hold, and what was met on the way?

use tenure_cluster::wire::Control;
use tenure_cluster::{Event, Membership, Status, View};

use super::Sim;
use super::invariants::Looked;

impl Sim {
    /// Checks what everybody believes, and counts what is worth meeting.
    pub fn look(&mut self) {
        let processes = self.places.iter().flat_map(|place| &place.processes);
        let looked: Vec<Looked<'_>> = processes
            .filter_map(|process| {
                let view = process.membership.view()?;
                let owes_verdict = process.membership.owes_verdict();
                Some(Looked { process: process.id, who: &process.node, view, owes_verdict })
            })
            .collect();
        self.invariants.look(self.now, &self.truth, &looked);
        let mut met = Vec::new();
        let leads = |one: &&Looked<'_>| one.view.leader() == Some(one.who);
        let leaders: Vec<&Looked<'_>> = looked.iter().filter(leads).collect();
        for (index, one) in leaders.iter().enumerate() {
            for other in &leaders[..index] {
                let same = one.view.cluster() == other.view.cluster();
                met.push(if same && one.who != other.who { "two leaders" } else { "two clusters" });
            }
        }
        for one in &looked {
            let count = one.view.tombstones();
            if self.tombstones.insert(one.process, count).is_some_and(|before| count < before) {
                met.push("tombstone collected");
            }
        }
        for what in met {
            self.meet(what);
        }
        self.look_for_cluster();
    }

    /// Counts what a message that is about to be received will meet.
    pub(super) fn meet_message(&mut self, place: usize, which: usize, message: &Control) {
        let membership = &self.places[place].processes[which].membership;
        let met = match message {
            Control::State(state) => self.meets_ghost(membership, &state.view),
            Control::Prove(_) => Some("proof of an address asked for"),
            Control::Removed { .. } => Some("told that it was removed"),
            _ => None,
        };
        if let Some(what) = met {
            self.meet(what);
        }
    }

    /// Whether a view lists somebody who was removed here.
    fn meets_ghost(&self, membership: &Membership, view: &View) -> Option<&'static str> {
        let ours = membership.view()?;
        if ours.cluster() != view.cluster() || ours.digest() == view.digest() {
            return None;
        }
        let mut unknown = view.members().filter(|(node, _)| ours.member(node).is_none());
        unknown.find_map(|(node, member)| {
            if ours.is_removed(node) {
                return Some("removed one refused");
            }
            let ghost = (1..=ours.highest_up()).contains(&member.up_number);
            ghost.then_some("ghost refused")
        })
    }

    /// Counts what a process told.
    pub(super) fn meet_event(&mut self, event: &Event) {
        if let Event::Unreachable(node) = event {
            self.meet("unreachable");
            if self.process(node).is_some_and(|process| process.paused) {
                self.meet("pause noticed");
            }
        }
    }

    /// Whether somebody is on its way in, or out, in the view of anybody.
    pub(super) fn anybody_is(&self, status: Status) -> bool {
        let mut views = self.places.iter().flat_map(|place| &place.processes);
        views.any(|process| {
            let view = process.membership.view();
            view.is_some_and(|view| view.members().any(|(_, member)| member.status == status))
        })
    }

    /// Whether everybody who runs believes the same, in every detail.
    pub fn believes_the_same(&self) -> bool {
        let mut views = self.running().filter_map(|index| self.view(index));
        let Some(first) = views.next() else { return false };
        views.all(|view| view.says_the_same(first))
    }

    /// The ids of the clusters in which a full member runs who means to stay. One in which everybody
    /// left is only joining is over: they start over.
    pub(super) fn clusters(&self) -> Vec<u64> {
        let processes = self.running().filter_map(|index| self.places[index].processes.first());
        let staying = processes.filter(|process| !self.truth.of(&process.node).leaving);
        let full = staying.filter(|process| process.is_full_member());
        full.filter_map(|process| process.membership.cluster()).collect()
    }
}
