//! The names of all metrics of the transport, in one place. No label is chosen by a stranger.

use metrics::{counter, gauge};
use tenure_lease::telemetry::Metric;

use super::refusal::Refusal;
use super::{Direction, Lane};
use crate::telemetry::Depth;

/// Gauge, by `lane` and `direction`: links that are up.
pub const LINKS: &str = "tenure_transport_links";
/// Gauge: connections that have not yet shown who they are.
pub const HANDSHAKES: &str = "tenure_transport_handshakes";
/// Counter, by `reason`: connections to us that were refused.
pub const REFUSED: &str = "tenure_transport_refused_total";
/// Counter, by `reason`: connections that we dialed and that came to nothing.
pub const FAILED: &str = "tenure_transport_failed_total";
/// Counter, by `reason` (`full`, `stale`, `other_node`, `too_long`, `too_many` links): control
/// frames dropped unsent.
pub const CONTROL_DROPPED: &str = "tenure_transport_control_dropped_total";
/// Counter: messages that may or may not have arrived when their link was cut.
pub const UNKNOWN: &str = "tenure_transport_unknown_total";
/// Counter: messages that were accepted for sending and that certainly did not leave.
pub const UNSENT: &str = "tenure_transport_unsent_total";
/// Counter: messages that had arrived at a process that is gone, and that it has not settled.
pub const UNSETTLED: &str = "tenure_transport_unsettled_total";
/// Counter, by `lane` and `direction`: bytes, frames' lengths included.
pub const BYTES: &str = "tenure_transport_bytes_total";
/// Gauge, by `lane`: bytes that wait to be sent, to all peers together.
pub const QUEUED: &str = "tenure_transport_queued_bytes";
/// Gauge, by `file` (`node.pem`, and `ca.pem` for the authority of that): seconds until this node's
/// certificate expires; less than 0 when it has.
pub const CERTIFICATE: &str = "tenure_transport_certificate_expires_seconds";

/// All metrics of the transport.
pub const METRICS: &[Metric] = &[
    Metric::gauge(LINKS, &["lane", "direction"], "Links that are up"),
    Metric::gauge(HANDSHAKES, &[], "Connections that have not yet shown who they are"),
    Metric::counter(REFUSED, &["reason"], "Connections to this node that were refused"),
    Metric::counter(FAILED, &["reason"], "Connections from this node that came to nothing"),
    Metric::counter(CONTROL_DROPPED, &["reason"], "Control frames that were dropped unsent"),
    Metric::counter(UNKNOWN, &[], "Messages that may or may not have arrived at a cut"),
    Metric::counter(UNSENT, &[], "Messages accepted for sending that certainly did not leave"),
    Metric::counter(UNSETTLED, &[], "Messages that were in the memory of nodes that are gone"),
    Metric::counter(BYTES, &["lane", "direction"], "Bytes on links, lengths of frames included"),
    Metric::gauge(QUEUED, &["lane"], "Bytes that wait to be sent, to all peers together"),
    Metric::gauge(CERTIFICATE, &["file"], "Seconds until this node's certificate expires"),
];

pub(crate) fn up(lane: Lane, direction: Direction, change: f64) {
    gauge!(LINKS, "lane" => lane.word(), "direction" => direction.word()).increment(change);
}

pub(crate) fn handshakes(count: usize) {
    gauge!(HANDSHAKES).set(count as f64);
}

pub(crate) fn refused(refusal: &Refusal) {
    counter!(REFUSED, "reason" => refusal.reason()).increment(1);
}

pub(crate) fn failed(refusal: &Refusal) {
    counter!(FAILED, "reason" => refusal.reason()).increment(1);
}

pub(crate) fn control_dropped(reason: &'static str, count: u64) {
    if count > 0 {
        counter!(CONTROL_DROPPED, "reason" => reason).increment(count);
    }
}

pub(crate) fn lost(unknown: u64, unsent: u64) {
    counter!(UNKNOWN).increment(unknown);
    counter!(UNSENT).increment(unsent);
}

pub(crate) fn unsettled(messages: u64) {
    counter!(UNSETTLED).increment(messages);
}

pub(crate) fn certificate_expires(file: &'static str, seconds: i64) {
    gauge!(CERTIFICATE, "file" => file).set(seconds as f64);
}

pub(crate) fn queued(lane: Lane) -> Depth {
    Depth::new(gauge!(QUEUED, "lane" => lane.word()))
}

pub(crate) fn bytes(lane: Lane, direction: Direction) -> metrics::Counter {
    counter!(BYTES, "lane" => lane.word(), "direction" => direction.word())
}
