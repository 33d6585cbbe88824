//! What is counted. The names are the users': they stay.

use std::sync::Arc;

use tenure_cluster::messaging::Lost;
use tenure_lease::telemetry::Metric;

use crate::StopReason;

/// How many shards are hosted on this node.
pub const HOSTING: &str = "tenure_sharding_hosting";
/// 1 while the coordinator of this node gives orders.
pub const COORDINATING: &str = "tenure_sharding_coordinating";
/// Shards started on this node.
pub const STARTED: &str = "tenure_sharding_started_total";
/// Shards stopped on this node, by reason.
pub const STOPPED: &str = "tenure_sharding_stopped_total";
/// Entities that failed on this node: panics, errors, stops that took too long.
pub const FAILED: &str = "tenure_sharding_entities_failed_total";
/// Messages that were refused on this node, by reason: a full mailbox or buffer, or the end.
pub const REFUSED: &str = "tenure_sharding_refused_total";
/// How many entities there are on this node.
pub const ENTITIES: &str = "tenure_sharding_entities";
/// How many messages wait on this node until their shard has a place.
pub const WAITING: &str = "tenure_sharding_waiting";
/// Messages that shards of this node took in.
pub const RECEIVED: &str = "tenure_sharding_received_total";

/// Counter, by `kind`: how often the roster, in the note of the coordinator's lease, was not understood.
pub const ROSTER_UNREADABLE: &str = "tenure_sharding_roster_unreadable_total";

/// All metrics of this crate.
pub const METRICS: &[Metric] = &[
    Metric::gauge(HOSTING, &["kind"], "Shards that are hosted on this node"),
    Metric::gauge(COORDINATING, &["kind"], "1 while the coordinator of this node gives orders"),
    Metric::counter(STARTED, &["kind"], "Shards started on this node"),
    Metric::counter(STOPPED, &["kind", "reason"], "Shards stopped on this node"),
    Metric::gauge(ENTITIES, &["kind"], "Entities on this node"),
    Metric::counter(ROSTER_UNREADABLE, &["kind"], "Rosters that were not understood"),
    Metric::counter(FAILED, &["kind"], "Failures of entities on this node"),
    Metric::counter(RECEIVED, &["kind"], "Messages that shards of this node took in"),
    Metric::gauge(WAITING, &["kind"], "Messages that wait here until their shard has a place"),
    Metric::counter(REFUSED, &["kind", "reason"], "Messages refused on this node"),
];

/// Said now and then, not with every message.
pub(crate) fn traffic(kind: &Arc<str>, entities: usize, waiting: usize, received: u64) {
    metrics::gauge!(ENTITIES, "kind" => kind.clone()).set(entities as f64);
    metrics::gauge!(WAITING, "kind" => kind.clone()).set(waiting as f64);
    metrics::counter!(RECEIVED, "kind" => kind.clone()).increment(received);
}

pub(crate) fn hosting(kind: &Arc<str>, shards: usize) {
    metrics::gauge!(HOSTING, "kind" => kind.clone()).set(shards as f64);
}

pub(crate) fn coordinating(kind: &Arc<str>, active: bool) {
    metrics::gauge!(COORDINATING, "kind" => kind.clone()).set(u8::from(active));
}

pub(crate) fn started(kind: &Arc<str>) {
    metrics::counter!(STARTED, "kind" => kind.clone()).increment(1);
}

pub(crate) fn stopped(kind: &Arc<str>, reason: &StopReason) {
    metrics::counter!(STOPPED, "kind" => kind.clone(), "reason" => reason.word()).increment(1);
}

pub(crate) fn roster_unreadable(kind: &Arc<str>) {
    metrics::counter!(ROSTER_UNREADABLE, "kind" => kind.clone()).increment(1);
}

pub(crate) fn failed(kind: &Arc<str>) {
    metrics::counter!(FAILED, "kind" => kind.clone()).increment(1);
}

pub(crate) fn refused(kind: &Arc<str>, why: Lost) {
    let reason = match why {
        Lost::Full => "full",
        Lost::Unfinished => "unfinished",
        Lost::Late => "late",
        _ => "ended",
    };
    metrics::counter!(REFUSED, "kind" => kind.clone(), "reason" => reason).increment(1);
}
