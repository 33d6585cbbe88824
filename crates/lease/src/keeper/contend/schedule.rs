//! When a contender takes its next step.

use std::time::Duration;

use super::session::SessionSight;
use super::{Contender, FlightKind, News};
use crate::clock::Moment;
use crate::keeper::sight::Sight;

impl Contender {
    pub(super) fn backoff(&mut self) -> Duration {
        self.random.backoff(self.failures, self.settings.renew_interval)
    }

    /// When to look again: after the look interval, or when the record in sight is due.
    pub(super) fn schedule(&mut self, now: Moment) {
        let look_interval = self.pace.look_interval(&self.settings, self.allowed);
        let look_at = now + self.random.around(look_interval);
        self.known_since = self.news.take();
        if let Some(news) = self.known_since {
            self.vain = 0;
            let is_push = news == News::MayHaveChanged;
            // Pushes come in bursts.
            let pause = if is_push { self.random.around(RETRY_PAUSE) } else { Duration::ZERO };
            self.next_at = now + pause;
            return;
        }
        let due = self.due(now);
        // Never in a tight loop: the loser of a race, or a store that is late with an expiry.
        self.vain = if due <= now { self.vain.saturating_add(1) } else { 0 };
        let pause = match self.vain {
            1 if self.attempted => self.random.around(RETRY_PAUSE),
            0 | 1 => Duration::ZERO,
            vain => self.random.backoff(vain - 1, self.settings.renew_interval),
        };
        // All who wait for this record are due at the same moment.
        self.next_at = look_at.min(due.max(now + pause) + self.spread());
    }

    /// A random part of the time over which contenders spread their attempts.
    fn spread(&mut self) -> Duration {
        let most = self.herd_pause();
        self.random.up_to(most)
    }

    /// Some latencies, doubled with each race that was lost.
    fn herd_pause(&self) -> Duration {
        let latencies = SPREAD_LATENCIES << self.races_lost.min(SPREAD_DOUBLINGS);
        let most = SPREAD_MAX.min(self.settings.ttl / 100);
        (self.usual_latency.unwrap_or_default() * latencies).min(most)
    }

    /// When there will be something to do about what is in sight.
    fn due(&self, now: Moment) -> Moment {
        if self.allowed {
            let sight = self.session.as_ref().map_or(&self.sight, |session| &session.sight);
            return sight.due(now, &self.settings);
        }
        // Its clock on a session starts when it first sees it; the rest has time until it is
        // allowed.
        let unseen = |session: &SessionSight| matches!(session.sight, Sight::Nothing);
        if self.session_in_the_way().is_some_and(unseen) { now } else { Moment::NEVER }
    }

    /// Whether it may take the lease. While it may not, it only looks.
    pub(in crate::keeper) fn allow(&mut self, now: Moment, yes: bool) {
        if yes && !self.allowed {
            // What it is looking for, an attempt finds out as well.
            self.flight.take_if(|flight| matches!(flight.kind, FlightKind::Look));
            self.resume(now);
        }
        self.allowed = yes;
    }

    /// Attempts to take the lease at once.
    pub(in crate::keeper) fn resume(&mut self, now: Moment) {
        self.known_since = Some(News::MayBeFree);
        self.next_at = now;
        self.vain = 0;
    }

    /// The store says that the record may have changed: looks at it, unless the store is failing.
    pub(in crate::keeper) fn woken(&mut self, now: Moment) {
        if self.flight.is_some() {
            self.news.get_or_insert(News::MayHaveChanged);
        } else if self.failures == 0 {
            self.known_since = Some(News::MayHaveChanged);
            self.next_at = self.next_at.min(now);
        }
    }

    /// Somebody knows that the lease may be free: attempts to take it at once, unless the store is
    /// failing.
    pub(in crate::keeper) fn hurry(&mut self, now: Moment) {
        if self.flight.is_some() {
            self.news = Some(News::MayBeFree);
        } else if self.failures == 0 {
            self.known_since = Some(News::MayBeFree);
            self.next_at = self.next_at.min(now);
        }
    }
}

/// Before the next step when the last one was an attempt, or another change was pushed meanwhile.
const RETRY_PAUSE: Duration = Duration::from_millis(5);
/// Over how many latencies contenders spread their attempts at first, and how often that doubles.
const SPREAD_LATENCIES: u32 = 8;
const SPREAD_DOUBLINGS: u32 = 3;
const SPREAD_MAX: Duration = Duration::from_millis(150);
