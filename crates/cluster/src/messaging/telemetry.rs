//! What is measured, in one place. No label is chosen by a stranger.

use metrics::{counter, gauge};
use tenure_lease::telemetry::Metric;

use super::Lost;
use crate::telemetry::Depth;

/// Counter, by `reason`: messages of this node that were lost.
pub const DEAD: &str = "tenure_messages_dead_total";
/// Counter: dead letters that a slow listener did not see.
pub const DEAD_MISSED: &str = "tenure_messages_dead_letters_missed_total";
/// Counter, by `reason`: messages of other nodes that this one refused.
pub const REFUSED: &str = "tenure_messages_refused_total";
/// Counter: how often a full mailbox made senders wait, on this node or all of another node.
pub const WAITED: &str = "tenure_messages_waits_total";
/// Counter: frames that are not understood; a newer version may send them.
pub const IGNORED: &str = "tenure_messages_ignored_total";
/// Counter: answers that came when nobody waited any more.
pub const LATE: &str = "tenure_messages_late_answers_total";
/// Counter: refusals that could not be told to the sender, because the way back was full.
pub const UNTOLD: &str = "tenure_messages_refusals_untold_total";
/// Gauge: messages that wait in the mailboxes of this node, all together.
pub const WAITING: &str = "tenure_messages_waiting";

/// All metrics of messages.
pub const METRICS: &[Metric] = &[
    Metric::counter(DEAD, &["reason"], "Messages of this node that were lost"),
    Metric::counter(DEAD_MISSED, &[], "Dead letters that a slow listener did not see"),
    Metric::counter(REFUSED, &["reason"], "Messages of other nodes that this one refused"),
    Metric::counter(WAITED, &[], "How often a full mailbox made senders wait"),
    Metric::counter(IGNORED, &[], "Message frames that were not understood"),
    Metric::counter(LATE, &[], "Answers that came when nobody waited any more"),
    Metric::counter(UNTOLD, &[], "Refusals that the sender could not be told"),
    Metric::gauge(WAITING, &[], "Messages that wait in mailboxes of this node"),
];

pub(super) fn waiting() -> Depth {
    Depth::new(gauge!(WAITING))
}

pub(super) fn dead(why: Lost, count: u64) {
    counter!(DEAD, "reason" => why.word()).increment(count);
}

pub(super) fn dead_letters_missed(count: u64) {
    counter!(DEAD_MISSED).increment(count);
}

pub(super) fn refused(why: Lost, count: u64) {
    counter!(REFUSED, "reason" => why.word()).increment(count);
}

pub(super) fn waited() {
    counter!(WAITED).increment(1);
}

pub(super) fn ignored() {
    counter!(IGNORED).increment(1);
}

pub(super) fn late() {
    counter!(LATE).increment(1);
}

pub(super) fn untold() {
    counter!(UNTOLD).increment(1);
}
