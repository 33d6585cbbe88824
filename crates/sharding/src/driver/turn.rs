//! How long a crew has been at it without letting anybody else have their turn.
//!
//! Entities are called where the crew is, one after the other. One that takes long for each message,
//! without awaiting anything, would keep orders, timers and everything else on that thread waiting. So
//! the crew looks at the clock, seldom enough that it costs nothing: after one call, two, four, and
//! then after every few. When a turn has taken long, the calls after it are timed one by one, to find out
//! whose they are: the next call of such an entity goes into a task of its own.

use std::time::Duration;

use tokio::time::Instant;

#[derive(Default)]
pub(super) struct Turn {
    /// When the first call was made.
    began: Option<Instant>,
    calls: u32,
    /// After how many calls to look at the clock.
    look_at: u32,
    over: bool,
}

impl Turn {
    /// Whether it has taken long enough. To be asked before each call.
    #[inline]
    pub(super) fn is_over(&mut self) -> bool {
        self.calls += 1;
        if self.calls > self.look_at {
            self.look();
        }
        self.over
    }

    /// Whether it was when that was last asked.
    pub(super) fn was_over(&self) -> bool {
        self.over
    }

    #[cold]
    fn look(&mut self) {
        self.look_at += self.look_at.clamp(1, SELDOM);
        let now = Instant::now();
        self.over |= now - *self.began.get_or_insert(now) >= LONG;
    }
}

/// How many calls there are from one look to the next, at most.
const SELDOM: u32 = 32;
/// Then others have their turn.
pub(super) const LONG: Duration = Duration::from_millis(1);
