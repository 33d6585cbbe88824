//! What a contender knows of a record, by its own clock.

use std::time::Duration;

use crate::Settings;
use crate::clock::Moment;
use crate::record::{Expiry, Record};
use crate::settings::Rule;

#[allow(clippy::large_enum_variant)] // There are two of them in a contender.
pub(super) enum Sight {
    Nothing,
    Seen {
        record: Record,
        /// It has this version since then at the latest.
        since: Moment,
        /// When the store will have freed it by itself, as far as it has said.
        frees_at: Moment,
    },
    /// It was there, and is gone: to be waited out.
    Vanished {
        since: Moment,
        wait: Duration,
    },
}

impl Sight {
    /// Takes in what was read. `now` is when the answer came: the record may have been renewed until
    /// then. `attempted`: it is the answer to an attempt, so the store has not freed it yet. `wait`
    /// says how long to wait if it has vanished.
    pub(super) fn see(
        &mut self,
        now: Moment,
        record: Option<Record>,
        attempted: bool,
        settings: &Settings,
        wait: impl Fn(&Record) -> Duration,
    ) {
        match (record, &mut *self) {
            (Some(new), Self::Seen { record, frees_at, .. }) if new.version == record.version => {
                // Some stores know only how long it takes at most: a look must not put that off.
                let said = freed_by_store(&new, now);
                *frees_at = if attempted { said } else { said.min(*frees_at) };
                *record = new;
            }
            (Some(record), _) => {
                let frees_at = freed_by_store(&record, now);
                *self = Self::Seen { record, since: now, frees_at };
            }
            (None, Self::Seen { record, .. }) => {
                *self = Self::vanished(now, wait(record), settings);
            }
            (None, Self::Nothing | Self::Vanished { .. }) => {}
        }
    }

    pub(super) fn vanished(now: Moment, wait: Duration, settings: &Settings) -> Self {
        let wait = if settings.obeys(Rule::WaitVanished) { wait } else { Duration::ZERO };
        Self::Vanished { since: now, wait }
    }

    pub(super) fn record(&self) -> Option<&Record> {
        match self {
            Self::Seen { record, .. } => Some(record),
            Self::Nothing | Self::Vanished { .. } => None,
        }
    }

    /// The held record that has stood still for its own ttl: its version may be taken over, also
    /// before a store that expires records itself has come to it (a new leader of etcd, say, gives
    /// every lease its whole ttl again).
    pub(super) fn watched_out(&self, now: Moment, settings: &Settings) -> Option<&Record> {
        match self {
            Self::Seen { record, since, .. }
                if record.holder.is_some()
                    && !is_foreign(record)
                    && now.since(*since) >= observe_for(record, settings) =>
            {
                Some(record)
            }
            _ => None,
        }
    }

    /// The held record that the store has said it will have freed by now.
    pub(super) fn store_expired(&self, now: Moment) -> Option<&Record> {
        match self {
            Self::Seen { record, frees_at, .. } if record.holder.is_some() && now >= *frees_at => {
                Some(record)
            }
            _ => None,
        }
    }

    /// How long a vanished record was to be waited for, once that time is over.
    pub(super) fn waited_out(&self, now: Moment) -> Option<Duration> {
        match self {
            Self::Vanished { since, wait } if now.since(*since) >= *wait => Some(*wait),
            _ => None,
        }
    }

    /// Whether an attempt at this moment follows from what was seen: the record was free.
    pub(super) fn is_due(&self, at: Moment, settings: &Settings) -> bool {
        matches!(self, Self::Seen { .. }) && self.due(at, settings) <= at
    }

    /// When there will be something to do about it.
    pub(super) fn due(&self, now: Moment, settings: &Settings) -> Moment {
        match self {
            Self::Nothing => now,
            Self::Seen { record, .. } if record.holder.is_none() => now,
            Self::Seen { record, frees_at, .. } if is_foreign(record) => *frees_at,
            Self::Seen { record, since, frees_at } => {
                (*since + observe_for(record, settings)).min(*frees_at)
            }
            Self::Vanished { since, wait } => *since + *wait,
        }
    }
}

/// Held by somebody who need not write the record to keep it: that it stands still says nothing.
fn is_foreign(record: &Record) -> bool {
    matches!(record.expiry, Expiry::ByStore(_))
        && record.holder.as_ref().is_some_and(|holder| holder.claim.is_none())
}

fn freed_by_store(record: &Record, now: Moment) -> Moment {
    match record.expiry {
        Expiry::ByStore(remaining) => now + remaining,
        Expiry::ByObservation => Moment::NEVER,
    }
}

fn observe_for(record: &Record, settings: &Settings) -> Duration {
    if settings.obeys(Rule::ObserveWholeTtl) { record.ttl } else { record.ttl / 2 }
}
