//! What the leader does, and only the leader.

use tenure_lease::Moment;

use super::{Effect, Ending, Event, Membership, Phase};
use crate::Node;
use crate::settings::Rule;
use crate::view::{Member, Status};

impl Membership {
    /// Moves members on: joining ones up, leaving ones out, those that are down away. Only on a
    /// view that everybody has seen, only while nobody who counts is unreachable, and not while there
    /// is still a verdict to come.
    pub(super) fn lead(&mut self, now: Moment) {
        self.note_convergence();
        let Phase::Inside(view) = &self.phase else { return };
        let waits = |(_, member): (&Node, &Member)| {
            matches!(member.status, Status::Joining | Status::Leaving | Status::Down)
        };
        if self.leader() != Some(&self.me) || !view.members().any(waits) {
            return;
        }
        let split = view.observations().next().is_some();
        if split && self.settings.obeys(Rule::NobodyUpDuringSplit) {
            return;
        }
        if self.owes_verdict() {
            return;
        }
        if !self.is_converged() && self.settings.obeys(Rule::ActOnlyOnConvergence) {
            return;
        }
        let Phase::Inside(view) = &mut self.phase else { return };
        let members: Vec<(Node, Member)> =
            view.members().map(|(node, member)| (node.clone(), member.clone())).collect();
        let mut told = Vec::new();
        for (node, member) in members {
            let (status, up_number) = match member.status {
                Status::Joining => (Status::Up, view.next_up()),
                Status::Leaving => (Status::Exiting, member.up_number),
                Status::Down if node != self.me => {
                    view.remove(&node, now);
                    told.push(Event::Removed(node));
                    continue;
                }
                _ => continue,
            };
            view.set_member(&node, Member { status, up_number, ..member });
            told.push(match status {
                Status::Up => Event::Up(node),
                _ => Event::Exiting(node),
            });
        }
        if !told.is_empty() {
            self.effects.extend(told.into_iter().map(Effect::Tell));
            self.changed(now);
        }
    }

    /// The leader declares those down who were only joining and do not answer: they have no say, so
    /// no verdict is needed, and nobody can go on while they are in the way. But if a full member
    /// does not answer either, it may lead the other side of a split, and have let them become full
    /// members just before; then they wait for the same verdict as it.
    pub(super) fn give_up_lost_joiners(&mut self, now: Moment) {
        let Phase::Inside(view) = &self.phase else { return };
        if self.told.unreachable.is_empty() && self.lost_joiners.is_empty() {
            return;
        }
        let lost = |node: &&Node| view.member(node).is_some_and(|member| !member.is_full());
        let lost: Vec<Node> = self.told.unreachable.iter().filter(lost).cloned().collect();
        self.lost_joiners.retain(|node, _| lost.contains(node) || *node == self.me);
        let split = lost.len() < self.told.unreachable.len();
        let leads = view.leader() == Some(&self.me) && !split;
        for node in lost {
            let since = *self.lost_joiners.entry(node.clone()).or_insert(now);
            if leads && now.since(since) >= self.settings.joining_patience {
                self.raise(&node, Status::Down, now);
            }
        }
    }

    /// A joining node starts over when no full member is within reach: nobody can make it one, and
    /// other joining ones have no say. So does one that nobody knows.
    pub(super) fn start_over_if_lost(&mut self, now: Moment) {
        let Phase::Inside(view) = &self.phase else { return };
        if !self.is_joining() {
            return;
        }
        // What others say may be what somebody said who is dead.
        let unreachable = |node: &Node| match self.watch.finds_unreachable(node) {
            Some(unreachable) => unreachable,
            None => self.told.unreachable.contains(node),
        };
        let alone = view
            .members()
            .filter(|(_, member)| member.is_full())
            .all(|(node, _)| unreachable(node));
        if !alone {
            self.lost_joiners.remove(&self.me);
        }
        let lost = alone.then(|| *self.lost_joiners.entry(self.me.clone()).or_insert(now));
        let since = [lost, self.disowned].into_iter().flatten().min();
        if since.is_some_and(|since| now.since(since) >= self.settings.joining_patience) {
            self.end(Ending::LostWhileJoining);
        }
    }

    /// Forgets incarnations that were removed long ago, once everybody has seen that they were.
    pub(super) fn collect_tombstones(&mut self, now: Moment) {
        if self.view().is_some_and(|view| view.tombstones() > 0)
            && self.told.unreachable.is_empty()
            && self.is_converged()
        {
            let before = now - self.settings.keep_removed;
            if let Some(view) = self.view_mut() {
                view.forget_removed_before(before);
            }
        }
    }
}
