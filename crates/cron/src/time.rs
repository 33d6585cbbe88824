//! The wall clock, as drivers read it. It decides which slots are due, and nothing else.

use std::time::Duration;

use crate::Slot;

/// A time of a wall clock: milliseconds since 1970-01-01T00:00:00Z. It may jump, and differs between
/// machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WallTime(i64);

impl WallTime {
    /// The time that is so many milliseconds after 1970-01-01T00:00:00Z.
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    /// Milliseconds since 1970-01-01T00:00:00Z.
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// When this slot is due.
    pub fn of(slot: Slot) -> Self {
        Self(slot.as_unix().saturating_mul(1000))
    }

    /// The second that it is in.
    pub fn second(self) -> Slot {
        Slot::from_unix(self.0.div_euclid(1000))
    }

    /// This much later.
    pub fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)))
    }

    /// How long after `earlier` this is; zero if it is not.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}
