//! Exchanging views.

use std::sync::Arc;

use tenure_lease::Moment;

use super::{Effect, Membership, Phase};
use crate::Node;
use crate::view::Status;
use crate::wire::{Control, Seen, State, Summary};

impl Membership {
    /// Exchanges summaries with somebody.
    pub(super) fn gossip(&mut self, now: Moment) {
        let settled = self.is_converged() && self.told.unreachable.is_empty();
        let interval = self.settings.gossip_interval;
        let pause = if settled { interval } else { interval / IN_A_HURRY };
        self.gossip_at = now + self.random.around(pause);
        self.gossiped_at = now;
        if let Some(partner) = self.choose_partner() {
            self.send_summary(&partner);
        }
    }

    /// There is news: exchange it soon, though not more often than ten times per interval.
    pub(super) fn hurry(&mut self, now: Moment) {
        let soonest = now.max(self.gossiped_at + self.settings.gossip_interval / (2 * IN_A_HURRY));
        self.gossip_at = self.gossip_at.min(soonest);
    }

    /// Mostly somebody who has not seen the news. Sometimes somebody who does not answer, so that
    /// both sides notice the end of a cut, and sometimes somebody who is down and may not know.
    fn choose_partner(&mut self) -> Option<Node> {
        let Phase::Inside(view) = &self.phase else { return None };
        let mut groups: [Vec<&Node>; 3] = Default::default();
        for (node, member) in view.members() {
            let group = if *node == self.me {
                continue;
            } else if member.status == Status::Down || self.told.unreachable.contains(node) {
                SILENT
            } else if self.seen.contains(node) {
                SAME
            } else {
                OTHER
            };
            groups[group].push(node);
        }
        let roll = self.random.next() % 100;
        let order = match roll {
            0..25 => [SILENT, OTHER, SAME],
            25..40 => [SAME, OTHER, SILENT],
            _ => [OTHER, SAME, SILENT],
        };
        let group =
            order.into_iter().map(|group| &groups[group]).find(|group| !group.is_empty())?;
        let index = self.random.next() as usize % group.len();
        Some(group[index].clone())
    }

    pub(super) fn send_summary(&mut self, to: &Node) {
        self.push_summary(to, false);
    }

    fn push_summary(&mut self, to: &Node, answer: bool) {
        let Some(view) = self.view() else { return };
        let (cluster, digest) = (view.cluster(), view.digest());
        let summary = Summary { cluster, digest, seen: self.seen_bits(), answer };
        self.effects.push(Effect::Send(to.clone(), Control::Summary(summary)));
    }

    pub(super) fn push_state(&mut self, to: &Node, answer: bool, now: Moment) {
        if let Some(state) = self.state(answer, now) {
            self.effects.push(Effect::Send(to.clone(), Control::State(state)));
        }
    }

    pub(super) fn state(&self, answer: bool, now: Moment) -> Option<State> {
        let mut view = self.view()?.clone();
        let removed = view.removed(now).into();
        // Their moments are by this node's clock; their ages travel beside the view.
        view.forget_removed_before(Moment::NEVER);
        Some(State { view: Arc::new(view), removed, seen: self.seen_bits(), answer })
    }

    pub(super) fn receive_summary(&mut self, from: &Node, summary: Summary, now: Moment) {
        if !self.listens_to(from, summary.cluster, !summary.answer, now) {
            return;
        }
        if self.view().is_some_and(|view| view.digest() != summary.digest) {
            return self.push_state(from, true, now);
        }
        self.hears_of_itself(true, now);
        let members = self.add_seen(from, &summary.seen);
        if !summary.answer && members.is_some_and(|theirs| theirs < self.seen.len()) {
            self.push_summary(from, true);
        }
        self.lead(now);
        self.leave_if_due(now);
    }

    pub(super) fn receive_state(&mut self, from: &Node, state: State, now: Moment) {
        if !self.listens_to(from, state.view.cluster(), state.answer, now) {
            return;
        }
        self.hears_of_itself(state.view.member(&self.me).is_some(), now);
        let Phase::Inside(view) = &mut self.phase else { return };
        let (before, generation) = (view.digest(), view.verdict().generation);
        let changes = view.merge(&state.view, &state.removed, now, &self.settings);
        if view.verdict().generation > generation {
            self.owe_for_survivors();
        }
        let Phase::Inside(view) = &self.phase else { return };
        let after = view.digest();
        if after != before {
            self.seen.clear();
            self.seen.insert(self.me.clone());
        }
        let agrees = after == state.view.digest();
        if agrees {
            self.add_seen(from, &state.seen);
        }
        self.tell_changes(changes);
        if after != before {
            self.after_change(now);
        }
        if state.answer {
            // So that the other one knows that this node has seen its view; or what it lacks.
            if agrees { self.push_summary(from, true) } else { self.push_state(from, false, now) }
        }
        self.lead(now);
        self.leave_if_due(now);
    }

    /// Whether others list this node. They may not know it yet; but if it goes on, whoever let it in
    /// died before telling anybody, or all have forgotten that it was given up.
    fn hears_of_itself(&mut self, known: bool, now: Moment) {
        self.disowned = if known { None } else { self.disowned.or(Some(now)) };
    }

    /// Whether what this node says about the cluster counts. Somebody who is down or was removed
    /// may believe anything, that everybody else is down among others; it is told what became of
    /// it, if it asked: two that do not listen to each other would never end. So is a cluster with a
    /// lower id.
    fn listens_to(&mut self, from: &Node, cluster: u64, asked: bool, now: Moment) -> bool {
        let Some(view) = self.view() else { return false };
        let ours = view.cluster();
        if cluster > ours {
            self.give_way(from, cluster);
            return false;
        }
        if cluster < ours {
            self.effects.push(Effect::Send(from.clone(), Control::Pong { cluster: ours }));
            return false;
        }
        match view.member(from) {
            Some(member) if member.status < Status::Down => true,
            None if view.is_removed(from) => {
                self.effects.push(Effect::Send(from.clone(), Control::Removed { cluster: ours }));
                false
            }
            _ => {
                if asked {
                    self.push_state(from, false, now);
                }
                false
            }
        }
    }

    /// Adds those that believe the same as this node, according to one that does; returns how many
    /// that one knew of, itself included.
    pub(super) fn add_seen(&mut self, from: &Node, bits: &Seen) -> Option<usize> {
        let Phase::Inside(view) = &self.phase else { return None };
        if self.seen.len() == view.members().len() {
            return Some(bits.len()); // As nearly always; the rest is slow for a thousand.
        }
        let mut known = 0;
        for (index, (node, _)) in view.members().enumerate() {
            if bits.contains(index) || node == from {
                known += 1;
                if !self.seen.contains(node) {
                    self.seen.insert(node.clone());
                }
            }
        }
        Some(known)
    }

    fn seen_bits(&self) -> Seen {
        let Phase::Inside(view) = &self.phase else { return Seen::default() };
        if self.seen.len() == view.members().len() {
            return Seen::all(self.seen.len());
        }
        Seen::new(view.members().map(|(node, _)| node), |node| self.seen.contains(node))
    }
}

/// How many times faster news is exchanged while views differ.
const IN_A_HURRY: u32 = 5;
/// Those who are down or unreachable.
const SILENT: usize = 0;
/// Those who are known to believe the same.
const SAME: usize = 1;
/// The rest.
const OTHER: usize = 2;
