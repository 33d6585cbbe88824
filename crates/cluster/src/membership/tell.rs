//! What has happened, for the users of this node.

use std::collections::BTreeSet;

use super::{Effect, Event, Membership, Phase};
use crate::Node;
use crate::view::{Change, Status};

impl Membership {
    pub(super) fn tell_changes(&mut self, changes: Vec<Change>) {
        for Change { node, before, after } in changes {
            self.tell_change(before, after, node);
        }
    }

    /// Every step on the way, also those that this node has not seen.
    pub(super) fn tell_change(
        &mut self,
        before: Option<Status>,
        after: Option<Status>,
        node: Node,
    ) {
        let steps = [
            (Status::Joining, Event::Joined(node.clone())),
            (Status::Up, Event::Up(node.clone())),
            (Status::Leaving, Event::Leaving(node.clone())),
            (Status::Exiting, Event::Exiting(node.clone())),
            (Status::Down, Event::Downed(node.clone())),
        ];
        let member = self.view().and_then(|view| view.member(&node));
        let never_up = member.is_some_and(|member| member.up_number == 0);
        match after {
            Some(after) => {
                for (status, event) in steps {
                    // One that goes down, or leaves, while it is joining was never up.
                    let passed = status == after || status <= Status::Up && status < after;
                    let skipped = status == Status::Up && (after == Status::Down || never_up);
                    if before.is_none_or(|before| before < status) && passed && !skipped {
                        self.effects.push(Effect::Tell(event));
                    }
                }
            }
            None => self.effects.push(Effect::Tell(Event::Removed(node))),
        }
    }

    pub(super) fn tell_reachability(&mut self, unreachable: BTreeSet<Node>) {
        let Phase::Inside(view) = &self.phase else { return };
        let (leader, oldest) = (view.leader().cloned(), view.oldest(None).cloned());
        if unreachable != self.told.unreachable {
            let lost = unreachable.difference(&self.told.unreachable).cloned();
            self.effects.extend(lost.map(|node| Effect::Tell(Event::Unreachable(node))));
            let back = self.told.unreachable.difference(&unreachable).cloned();
            let back =
                back.filter(|node| view.member(node).is_some_and(|m| m.status < Status::Down));
            self.effects.extend(back.map(|node| Effect::Tell(Event::Reachable(node))));
            self.told.unreachable = unreachable;
        }
        if leader != self.told.leader {
            self.effects.push(Effect::Tell(Event::LeaderChanged(leader.clone())));
            self.told.leader = leader;
        }
        if oldest != self.told.oldest {
            self.effects.push(Effect::Tell(Event::OldestChanged(oldest.clone())));
            self.told.oldest = oldest;
        }
    }
}
