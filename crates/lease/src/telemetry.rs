//! The names of all metrics, in one place; and the news that go with them. Units and labels follow Prometheus's conventions.
//!
//! Labels are bounded: `lease` is the name of a lease or of a session, never of an attached lease,
//! of which there may be tens of thousands.

use std::time::Duration;

use metrics::{Unit, counter, gauge, histogram};

use crate::backend::{Answer, StoreErrorKind};
use crate::{LeaseEvent, LeaseName, Loss, Record, Token, news};

/// One metric: what exporters and people are told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// What kind of number it is.
    pub kind: Kind,
    /// The labels that it always has.
    pub labels: &'static [&'static str],
    /// What it counts, in a sentence.
    pub help: &'static str,
}

/// What kind of number a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only rises.
    Counter,
    /// Rises and falls.
    Gauge,
    /// A distribution, of seconds.
    Histogram,
}

impl Metric {
    /// A counter.
    pub const fn counter(
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Self {
        Self { name, kind: Kind::Counter, labels, help }
    }

    /// A gauge.
    pub const fn gauge(
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Self {
        Self { name, kind: Kind::Gauge, labels, help }
    }

    /// A histogram.
    pub const fn histogram(
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Self {
        Self { name, kind: Kind::Histogram, labels, help }
    }

    /// Tells the process's recorder what it is. To be done once, after the recorder was installed.
    pub fn describe(&self) {
        match self.kind {
            Kind::Counter => metrics::describe_counter!(self.name, self.help),
            Kind::Gauge => metrics::describe_gauge!(self.name, self.help),
            Kind::Histogram => metrics::describe_histogram!(self.name, Unit::Seconds, self.help),
        }
    }
}

/// All metrics of this crate.
pub const METRICS: &[Metric] = &[
    Metric::gauge(HELD, &["lease"], "1 while this process holds the lease"),
    Metric::gauge(DEADLINE, &["lease"], "Seconds until the lease is lost unless it is renewed"),
    Metric::counter(WON, &["lease"], "Tenures that this process won"),
    Metric::counter(LOST, &["lease", "reason"], "Tenures of this process that ended, by reason"),
    Metric::histogram(LATENCY, &["store", "operation"], "How long the store took to answer"),
    Metric::counter(
        UNKNOWN,
        &["store", "operation", "kind"],
        "Requests to the store that were not answered, or with an error",
    ),
    Metric::counter(HEDGED, &["store"], "Renewals sent because an earlier one had no answer yet"),
    Metric::gauge(ATTACHED, &["session"], "Leases held that are attached to the session"),
];

/// Gauge, 1 or 0, by `lease`: whether this process holds it.
pub const HELD: &str = "tenure_lease_held";
/// Gauge, seconds, by `lease`: until the lease is lost unless it is renewed; said again about once a second.
pub const DEADLINE: &str = "tenure_lease_deadline_seconds";
/// Counter, by `lease`: tenures won by this process.
pub const WON: &str = "tenure_lease_won_total";
/// Counter, by `lease` and `reason`: tenures that ended.
pub const LOST: &str = "tenure_lease_lost_total";
/// Histogram, seconds, by `store` and `operation`: how long the store took to answer.
pub const LATENCY: &str = "tenure_store_request_seconds";
/// Counter, by `store`, `operation` and `kind`: requests that were not answered.
pub const UNKNOWN: &str = "tenure_store_unknown_total";
/// Counter, by `store`: renewals that were sent while an earlier one had no answer.
pub const HEDGED: &str = "tenure_store_hedged_total";
/// Gauge, by `session`: how many attached leases this process holds.
pub const ATTACHED: &str = "tenure_session_attached_leases";

pub(crate) fn won(name: &LeaseName, token: Token, former: Option<&Record>) {
    let expired = || former.and_then(Record::owner).cloned();
    news::tell(name, || LeaseEvent::Won { token, expired: expired() });
    counter!(WON, "lease" => name.to_string()).increment(1);
    gauge!(HELD, "lease" => name.to_string()).set(1);
}

/// It is contended for: there is something to see, also before it is won.
pub(crate) fn wanted(name: &LeaseName) {
    // Not set to 0: somebody else in this process may hold it.
    gauge!(HELD, "lease" => name.to_string()).increment(0);
    gauge!(DEADLINE, "lease" => name.to_string()).increment(0);
}

pub(crate) fn left(name: &LeaseName, left: Duration) {
    gauge!(DEADLINE, "lease" => name.to_string()).set(left.as_secs_f64());
}

pub(crate) fn lost(name: &LeaseName, loss: &Loss) {
    news::tell(name, || LeaseEvent::Lost(loss.clone()));
    counter!(LOST, "lease" => name.to_string(), "reason" => loss.reason()).increment(1);
    gauge!(HELD, "lease" => name.to_string()).set(0);
    gauge!(DEADLINE, "lease" => name.to_string()).set(0);
}

pub(crate) fn attached(session: &LeaseName, count: usize) {
    gauge!(ATTACHED, "session" => session.to_string()).set(count as f64);
}

pub(crate) fn hedged(store: &'static str) {
    counter!(HEDGED, "store" => store).increment(1);
}

pub(crate) fn answered(store: &'static str, answer: &Answer, took: Duration) {
    let operation = match answer {
        Answer::Acquire(_) => "acquire",
        Answer::Renew(_) => "renew",
        Answer::Release(_) => "release",
        Answer::Read(_) => "read",
    };
    histogram!(LATENCY, "store" => store, "operation" => operation).record(took.as_secs_f64());
    if let Some(error) = answer.error() {
        let kind = match error.kind() {
            StoreErrorKind::Unavailable => "unavailable",
            StoreErrorKind::Denied => "denied",
            StoreErrorKind::Unsuitable => "unsuitable",
            StoreErrorKind::Damaged => "damaged",
            StoreErrorKind::NewerFormat => "newer_format",
        };
        counter!(UNKNOWN, "store" => store, "operation" => operation, "kind" => kind).increment(1);
    }
}
