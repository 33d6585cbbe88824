//! How many requests of attached leases may be under way. Thousands that are attached at the same moment
//! make a store slow, and the session's own renewal is behind them there, whatever connection it has. So
//! there are a few at first, more as long as renewals are quick, fewer while they take long, and a couple
//! while one waits for longer than it should: a lease that is given back must not wait for that.

use std::time::Duration;

use crate::Settings;
use crate::clock::Moment;

pub(super) struct Window {
    most: usize,
}

impl Default for Window {
    fn default() -> Self {
        Self { most: FLIGHTS_AT_FIRST }
    }
}

impl Window {
    /// How many may be under way now; `renewing` says since when a renewal of the session has no answer.
    pub(super) fn most(&self, now: Moment, renewing: Option<Moment>, settings: &Settings) -> usize {
        let is_late = renewing.is_some_and(|since| now.since(since) >= slow(settings));
        if is_late { FLIGHTS_MIN } else { self.most }
    }

    /// A renewal of the session took so long.
    pub(super) fn renewed(&mut self, took: Duration, settings: &Settings) {
        if took >= slow(settings) {
            self.most = (self.most / 2).max(FLIGHTS_MIN);
        } else if took <= slow(settings) / 2 {
            self.most = (self.most * 2).min(FLIGHTS_MAX);
        }
    }
}

/// Half of the pause after which a renewal is surely hedged.
fn slow(settings: &Settings) -> Duration {
    settings.hedge_interval() / 2
}

const FLIGHTS_AT_FIRST: usize = 8;
const FLIGHTS_MAX: usize = 64;
const FLIGHTS_MIN: usize = 2;
