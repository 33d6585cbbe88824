//! What is counted. The names are the users': they stay.

use std::sync::Arc;

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

pub(crate) fn started(singleton: &Arc<str>) {
    metrics::gauge!(HOSTING, "singleton" => singleton.clone()).set(1);
    metrics::counter!(STARTED, "singleton" => singleton.clone()).increment(1);
}

pub(crate) fn stopped(singleton: &Arc<str>, reason: &StopReason) {
    let reason = match reason {
        StopReason::LeaseLost(_) => "lease_lost",
        StopReason::HandOver(_) => "hand_over",
        StopReason::Leaving => "leaving",
        StopReason::OutOfCluster => "out_of_cluster",
    };
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
