//! How often a keeper asks a particular store.

use std::time::Duration;

use crate::Settings;
use crate::backend::StoreInfo;

/// What a store's kind means for the pace of requests.
#[derive(Clone, Copy)]
pub(super) struct Pace {
    /// The store has no connections that could hang: another renewal would find what the first found.
    is_local: bool,
    /// The store wakes waiters at every renewal.
    pushes_renewals: bool,
    /// A read of many records costs what a read of all costs.
    reads_everything: bool,
}

impl Pace {
    /// A server that does not push.
    pub(super) const POLLED: Self =
        Self { is_local: false, pushes_renewals: false, reads_everything: false };

    pub(super) fn of(store: &StoreInfo) -> Self {
        let StoreInfo { pushes_renewals, reads_everything, .. } = *store;
        Self { is_local: store.is_local(), pushes_renewals, reads_everything }
    }

    /// How many records are read at once.
    pub(super) fn batch(self) -> usize {
        if self.reads_everything { usize::MAX } else { BATCH }
    }

    /// How long a read of a batch may be unanswered before it is sent again, if the last one took so
    /// long. One of everything is work for the store and for whoever reads it, and several at once would
    /// only delay each other.
    pub(super) fn read_again_pause(self, settings: &Settings, usual: Option<Duration>) -> Duration {
        if !self.reads_everything {
            return settings.hedge_interval();
        }
        let usual = usual.unwrap_or_default().min(settings.proof_interval / 4);
        (settings.hedge_interval() * 2).max(usual * 2)
    }

    /// How long the answer to a read of a batch counts: one of everything as long as it can prove
    /// anything. Another one would not be quicker.
    pub(super) fn read_timeout(self, settings: &Settings) -> Duration {
        match self.reads_everything {
            true => settings.proof_interval.saturating_sub(settings.stop_budget),
            false => settings.operation_timeout,
        }
    }

    /// Whether a renewal is followed by others while it is under way.
    pub(super) fn hedges(self) -> bool {
        !self.is_local
    }

    /// How long a renewal may be unconfirmed before the next one is sent, when this many before it
    /// are unconfirmed too: a few times the store's usual latency, then doubling up to the hedge
    /// interval.
    pub(super) fn hedge_pause(
        self,
        settings: &Settings,
        unconfirmed: usize,
        usual_latency: Option<Duration>,
    ) -> Duration {
        if self.is_local {
            return settings.operation_timeout;
        }
        let most = settings.hedge_interval();
        let usual = usual_latency.unwrap_or_default() * USUAL_LATENCIES;
        let first = FIRST_HEDGE.max(usual).min(most);
        let doublings = u32::try_from(unconfirmed).unwrap_or(u32::MAX).min(16);
        (first * 2_u32.pow(doublings)).min(most)
    }

    /// How long a waiter goes without looking at the record that it waits for. Where the store
    /// pushes renewals, looking is only for pushes that were lost. Elsewhere a waiter measures a dead holder's
    /// ttl from its own look at the last renewal, so this is how late it may be; whoever may not take
    /// the lease now looks less often.
    pub(super) fn look_interval(self, settings: &Settings, is_allowed: bool) -> Duration {
        let is_urgent = is_allowed && !self.pushes_renewals;
        if is_urgent { settings.look_interval() } else { settings.renew_interval }
    }

    /// How long the answer to a renewal counts: until the deadline, where others follow it meanwhile.
    pub(super) fn renew_timeout(self, settings: &Settings) -> Duration {
        if self.is_local { settings.operation_timeout } else { settings.held_for() }
    }
}

/// How many records one request reads at most, where that saves work.
pub(super) const BATCH: usize = 1_000;
const FIRST_HEDGE: Duration = Duration::from_millis(250);
const USUAL_LATENCIES: u32 = 4;

#[cfg(test)]
mod tests {
    use super::super::renewals::NONCES_MAX;
    use super::*;

    #[test]
    fn hedges_start_early_double_and_follow_a_slow_store() {
        let settings = Settings::new(Duration::from_secs(15));
        let pause = |unconfirmed, usual| {
            let pause = Pace::POLLED.hedge_pause(&settings, unconfirmed, usual);
            pause.as_millis()
        };
        assert_eq!([0, 1, 2, 9].map(|n| pause(n, None)), [250, 500, 1_000, 1_000]);
        assert_eq!(pause(0, Some(Duration::from_millis(2))), 250);
        assert_eq!(pause(0, Some(Duration::from_millis(100))), 400);
        assert_eq!(pause(0, Some(Duration::from_secs(3))), 1_000);
        let short = Settings::new(Duration::from_secs(2));
        let pause = Pace::POLLED.hedge_pause(&short, 0, None);
        assert_eq!(pause, short.ttl / 15);
    }

    #[test]
    fn hedges_until_the_deadline_stay_below_what_is_remembered() {
        for ttl in [1, 5, 15, 60, 600].map(Duration::from_secs) {
            let settings = Settings::new(ttl);
            // Jitter shortens an interval or a pause by a fifth at most.
            let (mut passed, mut sent) = (settings.renew_interval.mul_f64(0.8), 0);
            while passed < settings.held_for() {
                passed += Pace::POLLED.hedge_pause(&settings, sent, None).mul_f64(0.8);
                sent += 1;
            }
            assert!(sent < NONCES_MAX, "{sent} renewals within {ttl:?}");
        }
    }
}
