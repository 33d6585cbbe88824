//! When something is to be done about shards, or their entities.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use tokio::task;
use tokio::time::Instant;

use tenure_lease::Token;

use crate::Shard;
use crate::id::EntityId;

/// The timers of a crew.
#[derive(Default)]
pub(super) struct Timers(BinaryHeap<Reverse<Timer>>);

pub(super) struct Timer {
    pub(super) at: Instant,
    pub(super) shard: Shard,
    pub(super) token: Token,
    pub(super) due: Due,
}

/// What is to be done then.
pub(super) enum Due {
    /// An entity that failed may be made again.
    Restart(EntityId),
    /// An entity must have been passivated, if it is still at that: the same id may be at another by
    /// then.
    Passivation(EntityId, task::Id),
    /// More of the entities that are remembered may be made.
    Remembered,
    /// The shard must have stopped, or goes on with that.
    Stop,
}

impl Timers {
    pub(super) fn set(&mut self, timer: Timer) {
        self.0.push(Reverse(timer));
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.0.peek().map(|Reverse(timer)| timer.at)
    }

    pub(super) fn due(&mut self, now: Instant) -> Option<Timer> {
        if self.next()? > now { None } else { self.0.pop().map(|Reverse(timer)| timer) }
    }
}

impl PartialEq for Timer {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl Eq for Timer {}

impl PartialOrd for Timer {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Timer {
    fn cmp(&self, other: &Self) -> Ordering {
        self.at.cmp(&other.at)
    }
}
