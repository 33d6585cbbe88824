//! What a contender knows of a record, by its own clock.

use std::time::Duration;

use crate::Settings;
use crate::clock::Moment;
use crate::record::{Expiry, Record};
use crate::settings::Rule;

#[allow(clippy::large_enum_variant)] // There are two of them in a contender.
pub(super) enum Sight {
    Nothing,
    /// `since`: it has this version since then at the latest; `read`: when it was last read.
    Seen {
        record: Record,
        since: Moment,
        read: Moment,
    },
    /// It was there, and is gone: to be waited out.
    Vanished {
        since: Moment,
        wait: Duration,
    },
}

impl Sight {
    /// Takes in what was read. `now` is when the answer came: the record may have been renewed until
    /// then. `wait` says how long to wait if it has vanished.
    pub(super) fn see(
        &mut self,
        now: Moment,
        record: Option<Record>,
        settings: &Settings,
        wait: impl Fn(&Record) -> Duration,
    ) {
        match (record, &mut *self) {
            (Some(new), Self::Seen { record, read, .. }) if new.version == record.version => {
                *record = new;
                *read = now;
            }
            (Some(record), _) => *self = Self::Seen { record, since: now, read: now },
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
            Self::Seen { record, read, .. } if record.holder.is_some() => match record.expiry {
                Expiry::ByStore(remaining) if now.since(*read) >= remaining => Some(record),
                Expiry::ByStore(_) | Expiry::ByObservation => None,
            },
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
            Self::Seen { record, since, read } => {
                let watched_out = *since + observe_for(record, settings);
                match record.expiry {
                    Expiry::ByStore(remaining) if is_foreign(record) => *read + remaining,
                    Expiry::ByStore(remaining) => watched_out.min(*read + remaining),
                    Expiry::ByObservation => watched_out,
                }
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

fn observe_for(record: &Record, settings: &Settings) -> Duration {
    if settings.obeys(Rule::ObserveWholeTtl) { record.ttl } else { record.ttl / 2 }
}
