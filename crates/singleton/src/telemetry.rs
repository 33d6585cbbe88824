//! What is counted. The names are the users': they stay.

use std::sync::Arc;
use std::time::Duration;

use tenure_lease::telemetry::Metric;

use crate::StopReason;

/// 1 while this node hosts the singleton.
pub const HOSTING: &str = "tenure_singleton_hosting";
/// Starts on this node.
pub const STARTED: &str = "tenure_singleton_started_total";
/// Stops on this node, by reason.
pub const STOPPED: &str = "tenure_singleton_stopped_total";
/// Failures on this node: panics, errors, stops that took too long.
pub const FAILED: &str = "tenure_singleton_failed_total";
/// Messages that wait on this node because nobody hosts the singleton.
pub const WAITING: &str = "tenure_singleton_waiting";
/// Messages that were refused on this node because too many waited.
pub const REFUSED: &str = "tenure_singleton_refused_total";
/// Histogram, seconds: from when this node heard that the host is gone until it heard of the next.
pub const GAP: &str = "tenure_singleton_failover_gap_seconds";

/// All metrics of this crate.
pub const METRICS: &[Metric] = &[
    Metric::gauge(HOSTING, &["singleton"], "1 while this node hosts the singleton"),
    Metric::counter(STARTED, &["singleton"], "Starts of the singleton on this node"),
    Metric::counter(STOPPED, &["singleton", "reason"], "Stops of the singleton on this node"),
    Metric::counter(FAILED, &["singleton"], "Failures of the singleton on this node"),
    Metric::gauge(WAITING, &["singleton"], "Messages that wait here because nobody hosts it"),
    Metric::counter(REFUSED, &["singleton"], "Messages refused here because too many waited"),
    Metric::histogram(GAP, &["singleton"], "How long this node knew of no host, until the next"),
];

/// There is a manager here: there is something to see, also before it hosts.
pub(crate) fn managed(singleton: &Arc<str>) {
    metrics::gauge!(HOSTING, "singleton" => singleton.clone()).set(0);
}

pub(crate) fn gap(singleton: &Arc<str>, gap: Duration) {
    metrics::histogram!(GAP, "singleton" => singleton.clone()).record(gap.as_secs_f64());
}

pub(crate) fn started(singleton: &Arc<str>) {
    metrics::gauge!(HOSTING, "singleton" => singleton.clone()).set(1);
    metrics::counter!(STARTED, "singleton" => singleton.clone()).increment(1);
}

pub(crate) fn stopped(singleton: &Arc<str>, reason: &StopReason) {
    let reason = reason.word();
    metrics::counter!(STOPPED, "singleton" => singleton.clone(), "reason" => reason).increment(1);
}

pub(crate) fn ended(singleton: &Arc<str>) {
    metrics::gauge!(HOSTING, "singleton" => singleton.clone()).set(0);
}

pub(crate) fn failed(singleton: &Arc<str>) {
    metrics::counter!(FAILED, "singleton" => singleton.clone()).increment(1);
}

pub(crate) fn waiting(singleton: &Arc<str>, count: usize) {
    metrics::gauge!(WAITING, "singleton" => singleton.clone()).set(count as f64);
}

pub(crate) fn refused(singleton: &Arc<str>) {
    metrics::counter!(REFUSED, "singleton" => singleton.clone()).increment(1);
}
