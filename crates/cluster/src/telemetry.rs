//! The names of the metrics of membership and downing, in one place; those of the transport and of
//! messages are beside them. No label is chosen by a stranger.

use std::collections::BTreeMap;

use metrics::{counter, gauge};
use tenure_lease::telemetry::Metric;
use tenure_wire::Unreadable;

use crate::view::{MemberVersions, Status, View};
use crate::{Ending, Node};

/// Gauge, by `status`: members, as this node sees them.
pub const MEMBERS: &str = "tenure_cluster_members";
/// Gauge, by `protocol` and `version`: members that speak this protocol and run this version of the
/// application.
pub const VERSIONS: &str = "tenure_cluster_versions";
/// Gauge: how many pairs of observer and subject there are of which one cannot reach the other.
pub const UNREACHABLE: &str = "tenure_cluster_unreachable_pairs";
/// Gauge: 1 while this node is a full member.
pub const MEMBER: &str = "tenure_cluster_member";
/// Gauge: 1 while this node takes itself for the leader.
pub const LEADER: &str = "tenure_cluster_leader";
/// Gauge: 1 while all members are known to believe what this node believes.
pub const CONVERGED: &str = "tenure_cluster_converged";
/// Gauge: whether this node's leases could be had when it was last tried.
pub const LEASES_USABLE: &str = "tenure_cluster_leases_usable";
/// Counter, by `reason`: how often this process was out of the cluster again.
pub const ENDED: &str = "tenure_cluster_ended_total";
/// Counter, by `why`: control messages that were skipped. A `newer` version may send them; nobody should send
/// `malformed` ones.
pub const UNREADABLE: &str = "tenure_cluster_control_unreadable_total";
/// Gauge, by `kind`: what this node warns of; the log and the status have the sentences.
pub const WARNINGS: &str = "tenure_cluster_warnings";
/// Counter: how often the record of the arbitration lease was read and not understood.
pub const VERDICT_UNREADABLE: &str = "tenure_downing_verdict_unreadable_total";
/// Counter: how often the note of the formation lease was read and not understood.
pub const NOTE_UNREADABLE: &str = "tenure_cluster_note_unreadable_total";
/// Counter, by `strategy` and `outcome`: what this node decided about a split, or learnt from a verdict.
pub const DECISIONS: &str = "tenure_downing_decisions_total";
/// Counter, by `outcome`: attempts of this node to win the arbitration lease.
pub const ASKED: &str = "tenure_downing_lease_asked_total";

/// All metrics of membership and downing.
pub const METRICS: &[Metric] = &[
    Metric::gauge(MEMBERS, &["status"], "Members by status, as this node sees them"),
    Metric::gauge(VERSIONS, &["protocol", "version"], "Members by what they run"),
    Metric::gauge(UNREACHABLE, &[], "Pairs of members of which one cannot reach the other"),
    Metric::gauge(MEMBER, &[], "1 while this node is a full member"),
    Metric::gauge(LEADER, &[], "1 while this node takes itself for the leader"),
    Metric::gauge(CONVERGED, &[], "1 while all members are known to see the same"),
    Metric::gauge(LEASES_USABLE, &[], "1 if this node's leases could be had when last tried"),
    Metric::counter(ENDED, &["reason"], "How often this process was out of the cluster again"),
    Metric::counter(UNREADABLE, &["why"], "Control messages that were skipped"),
    Metric::gauge(WARNINGS, &["kind"], "What this node warns of"),
    Metric::counter(
        NOTE_UNREADABLE,
        &[],
        "Reads of the formation lease's note that were not understood",
    ),
    Metric::counter(
        VERDICT_UNREADABLE,
        &[],
        "Reads of the arbitration lease's record that were not understood",
    ),
    Metric::counter(
        DECISIONS,
        &["strategy", "outcome"],
        "Decisions about splits that this node made or learnt from a verdict",
    ),
    Metric::counter(ASKED, &["outcome"], "Attempts to win the arbitration lease"),
];

/// All metrics of this crate.
pub fn all() -> impl Iterator<Item = &'static Metric> {
    METRICS
        .iter()
        .chain(crate::messaging::telemetry::METRICS)
        .chain(crate::transport::telemetry::METRICS)
}

pub(crate) fn view(view: &View, me: &Node, up: bool, converged: bool) {
    let mut counts = [0_u32; ALL.len()];
    for (_, member) in view.members() {
        if let Some(index) = ALL.iter().position(|status| *status == member.status) {
            counts[index] += 1;
        }
    }
    for (status, count) in ALL.iter().zip(counts) {
        gauge!(MEMBERS, "status" => status.word()).set(count);
    }
    gauge!(UNREACHABLE).set(view.observations().count() as f64);
    gauge!(MEMBER).set(f64::from(u8::from(up)));
    gauge!(LEADER).set(f64::from(u8::from(view.leader() == Some(me))));
    gauge!(CONVERGED).set(f64::from(u8::from(converged)));
}

/// Counts members by what they run. `told` is what was told last, so that a version that is gone is zero.
pub(crate) fn versions(view: &View, told: &mut BTreeMap<MemberVersions, u32>) {
    told.retain(|_, count| std::mem::take(count) > 0);
    for (_, member) in view.members() {
        *told.entry(member.versions()).or_default() += 1;
    }
    for (MemberVersions { protocol, application }, count) in told {
        let version = application.clone().unwrap_or_default();
        gauge!(VERSIONS, "protocol" => protocol.clone(), "version" => version).set(*count);
    }
}

/// This node is out of the cluster: it sees nobody.
pub(crate) fn ended(ending: &Ending) {
    let reason = match ending {
        Ending::Left => "left",
        Ending::Downed => "downed",
        Ending::Removed => "removed",
        Ending::LostWhileJoining => "lost_while_joining",
        Ending::OtherCluster(_) => "other_cluster",
        Ending::Refused(_) => "refused",
        Ending::Failed(_) => "failed",
    };
    counter!(ENDED, "reason" => reason).increment(1);
    for status in ALL {
        gauge!(MEMBERS, "status" => status.word()).set(0);
    }
    for name in [UNREACHABLE, MEMBER, LEADER, CONVERGED] {
        gauge!(name).set(0);
    }
    for kind in WARNING_KINDS {
        warnings(kind, 0);
    }
}

pub(crate) fn leases_usable(usable: bool) {
    gauge!(LEASES_USABLE).set(f64::from(u8::from(usable)));
}

pub(crate) fn unreadable(error: &Unreadable) {
    let why = match error {
        Unreadable::Newer(_) => "newer",
        Unreadable::Malformed(_) => "malformed",
    };
    counter!(UNREADABLE, "why" => why).increment(1);
}

pub(crate) fn warnings(kind: &'static str, count: usize) {
    gauge!(WARNINGS, "kind" => kind).set(count as f64);
}

pub(crate) fn note_unreadable() {
    counter!(NOTE_UNREADABLE).increment(1);
}

pub(crate) fn verdict_unreadable() {
    counter!(VERDICT_UNREADABLE).increment(1);
}

pub(crate) fn decided(strategy: &'static str, survives: bool) {
    let outcome = if survives { "survive" } else { "down_self" };
    counter!(DECISIONS, "strategy" => strategy, "outcome" => outcome).increment(1);
}

pub(crate) fn asked(outcome: &'static str) {
    counter!(ASKED, "outcome" => outcome).increment(1);
}

/// How full something is, as part of a gauge that counts many such. Said when it has changed by an
/// eighth, so that what passes through quickly costs next to nothing.
pub(crate) struct Depth {
    gauge: metrics::Gauge,
    told: usize,
}

impl Depth {
    pub(crate) fn new(gauge: metrics::Gauge) -> Self {
        Self { gauge, told: 0 }
    }

    #[inline]
    pub(crate) fn set(&mut self, now: usize) {
        if now.abs_diff(self.told) * 8 > self.told {
            self.gauge.increment(now as f64 - self.told as f64);
            self.told = now;
        }
    }
}

impl Drop for Depth {
    fn drop(&mut self) {
        self.gauge.decrement(self.told as f64);
    }
}

impl std::fmt::Debug for Depth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Depth({})", self.told)
    }
}

/// What a node can warn of.
pub(crate) const WARNING_KINDS: [&str; 3] = ["role_missing", "verdict_unreadable", "lane_stuck"];
const ALL: [Status; 5] =
    [Status::Joining, Status::Up, Status::Leaving, Status::Exiting, Status::Down];
