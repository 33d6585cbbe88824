//! A node that is itself slow doubts itself before it accuses others (after Lifeguard).

use std::time::Duration;

use tenure_lease::Moment;

/// How late this node's own timers are.
#[derive(Clone, Debug, Default)]
pub(super) struct Health {
    /// How many of the latest timers came too late, more or less.
    late: u32,
}

impl Health {
    /// A timer that was due at `due` fires now. Returns for how long the node stood still, if it
    /// did.
    pub(super) fn timer(&mut self, due: Moment, now: Moment, tolerated: Duration) -> Duration {
        let pause = now.since(due);
        if pause > tolerated {
            self.late = (self.late + 1).min(MOST);
            pause
        } else {
            self.late = self.late.saturating_sub(1);
            Duration::ZERO
        }
    }

    /// By how much to stretch what is acceptable of others.
    pub(super) fn patience(&self) -> u32 {
        1 + self.late
    }
}

/// At most five times the acceptable pause: a node that is slow for ever still notices the dead.
const MOST: u32 = 4;
