//! Leaving: tell the others, hand over, be gone.

use std::time::Duration;

use tenure_lease::Moment;

use super::{Effect, Ending, Membership, Phase};
use crate::Node;
use crate::view::Status;

/// How far this node has come on its way out.
#[derive(Clone, Debug)]
pub(super) enum Leaving {
    /// Waits until everybody knows, at most until then.
    Announced { until: Moment },
    /// What it hosts is being handed over.
    HandingOver,
    /// Has declared itself down; goes once somebody has heard of it, at the latest then.
    Down { until: Moment },
}

impl Leaving {
    pub(super) fn next_wake(&self) -> Moment {
        match self {
            Self::Announced { until } | Self::Down { until } => *until,
            Self::HandingOver => Moment::NEVER,
        }
    }
}

impl Membership {
    /// Leaves the cluster. [`Effect::HandOver`] says when to hand over.
    pub fn leave(&mut self, now: Moment) {
        match &self.phase {
            Phase::Ended => {}
            Phase::Outside { .. } => self.end(Ending::Left),
            Phase::Inside(_) => {
                let me = self.me.clone();
                self.raise(&me, Status::Leaving, now);
            }
        }
    }

    /// Asks another member to leave.
    pub fn ask_to_leave(&mut self, node: &Node, now: Moment) {
        self.raise(node, Status::Leaving, now);
    }

    /// Everything that this node hosted is somebody else's now.
    pub fn handed_over(&mut self, now: Moment) {
        if matches!(self.leaving, Some(Leaving::HandingOver)) {
            self.leaving = Some(Leaving::Down { until: now + FAREWELL });
            let me = self.me.clone();
            self.raise(&me, Status::Down, now);
            for _ in 0..FAREWELLS {
                let Some(partner) = self.any_member() else { break };
                self.push_state(&partner, true, now);
            }
            self.leave_if_due(now);
        }
    }

    /// Takes the next step if this node's own status asks for it.
    pub(super) fn exiting(&mut self, now: Moment) {
        let own = self.view().and_then(|view| view.member(&self.me)).map(|member| member.status);
        if own == Some(Status::Leaving) && self.leaving.is_none() {
            self.leaving = Some(Leaving::Announced { until: now + self.settings.leave_timeout });
        }
        if own == Some(Status::Exiting)
            && matches!(self.leaving, None | Some(Leaving::Announced { .. }))
        {
            self.hand_over();
        }
    }

    pub(super) fn leave_if_due(&mut self, now: Moment) {
        match self.leaving {
            Some(Leaving::Announced { until }) if until <= now => self.hand_over(),
            Some(Leaving::Down { until }) => {
                let heard = self.seen.len() > 1 || self.any_member().is_none();
                if until <= now || heard {
                    self.end(Ending::Left);
                }
            }
            _ => {}
        }
    }

    fn hand_over(&mut self) {
        self.leaving = Some(Leaving::HandingOver);
        self.effects.push(Effect::HandOver);
    }

    /// Somebody else who is not down, by chance, rather somebody who answers.
    fn any_member(&mut self) -> Option<Node> {
        let Phase::Inside(view) = &self.phase else { return None };
        let others: Vec<&Node> = view
            .members()
            .filter(|(node, member)| **node != self.me && member.status < Status::Down)
            .map(|(node, _)| node)
            .collect();
        let answering: Vec<&Node> =
            others.iter().copied().filter(|node| !self.told.unreachable.contains(*node)).collect();
        let from = if answering.is_empty() { others } else { answering };
        if from.is_empty() {
            return None;
        }
        let index = self.random.next() as usize % from.len();
        Some(from[index].clone())
    }
}

/// How long to wait for somebody to hear that this node is down.
const FAREWELL: Duration = Duration::from_secs(2);
/// How many are told at once.
const FAREWELLS: usize = 3;
