//! The names of all metrics, in one place. Units and labels follow Prometheus's conventions.
//!
//! Labels are bounded: `lease` is the name of a lease or of a session, never of an attached lease,
//! of which there may be tens of thousands.

use std::time::Duration;

use metrics::{counter, gauge, histogram};

use crate::backend::{Answer, StoreErrorKind};
use crate::{LeaseName, Loss};

/// Gauge, 1 or 0, by `lease`: whether this process holds it.
pub const HELD: &str = "tenure_lease_held";
/// Gauge, seconds, by `lease`: from the last renewal to the deadline.
pub const DEADLINE: &str = "tenure_lease_deadline_seconds";
/// Counter, by `lease`: tenures won by this process.
pub const WON: &str = "tenure_lease_won_total";
/// Counter, by `lease` and `reason`: tenures that ended.
pub const LOST: &str = "tenure_lease_lost_total";
/// Histogram, seconds, by `store` and `operation`: how long the store took to answer.
pub const LATENCY: &str = "tenure_store_request_seconds";
/// Counter, by `store`, `operation` and `kind`: requests that were not answered.
pub const UNKNOWN: &str = "tenure_store_unknown_total";
/// Gauge, by `session`: how many attached leases this process holds.
pub const ATTACHED: &str = "tenure_session_attached_leases";

pub(crate) fn won(name: &LeaseName) {
    counter!(WON, "lease" => name.to_string()).increment(1);
    gauge!(HELD, "lease" => name.to_string()).set(1);
}

pub(crate) fn renewed(name: &LeaseName, left: Duration) {
    gauge!(DEADLINE, "lease" => name.to_string()).set(left.as_secs_f64());
}

pub(crate) fn lost(name: &LeaseName, loss: &Loss) {
    counter!(LOST, "lease" => name.to_string(), "reason" => loss.reason()).increment(1);
    gauge!(HELD, "lease" => name.to_string()).set(0);
    gauge!(DEADLINE, "lease" => name.to_string()).set(0);
}

pub(crate) fn attached(session: &LeaseName, count: usize) {
    gauge!(ATTACHED, "session" => session.to_string()).set(count as f64);
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
