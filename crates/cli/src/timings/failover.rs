//! How long nobody does what a dead member of a cluster did.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use tenure_cluster::MembershipSettings;
use tenure_cluster::downing::default_stable_after;
use tenure_sharding::Setup;

use super::millis;
use crate::duration;

#[derive(clap::Args)]
pub(super) struct ClusterArgs {
    /// How many members the cluster has; `stable_after` follows from it
    #[arg(long, default_value_t = 10, value_name = "COUNT")]
    members: usize,
    /// How long after its last sign of life a member counts as unreachable [default: as membership
    /// settings have it]
    #[arg(long, value_parser = duration::parse, value_name = "DURATION")]
    detection: Option<Duration>,
    /// For how long a view must be stable before the resolver decides [default: by --members]
    #[arg(long, value_parser = duration::parse, value_name = "DURATION")]
    stable_after: Option<Duration>,
    /// How long to wait after a removal, without a lease [default: that of singletons, and that of
    /// shards]
    #[arg(long, value_parser = duration::parse, value_name = "DURATION")]
    removal_margin: Option<Duration>,
}

impl ClusterArgs {
    pub(super) fn failover(&self, ttl: Duration) -> InCluster {
        let detection = self.detection.unwrap_or_else(|| MembershipSettings::default().detection());
        let stable_after = self.stable_after.unwrap_or_else(|| default_stable_after(self.members));
        InCluster::of(ttl, detection, stable_after, self.removal_margin)
    }
}

/// From a member's last sign of life to the start of its successor; the start itself comes on top.
#[derive(Serialize)]
pub(super) struct InCluster {
    ttl_ms: u64,
    detection_ms: u64,
    stable_after_ms: u64,
    removal_ms: u64,
    singleton_margin_ms: u64,
    shards_margin_ms: u64,
    /// The lease excludes, so its end and the notice that the member is gone are enough.
    with_lease_ms: u64,
    /// Everything must be over: notice, decision, removal, and the margin of singletons.
    singleton_without_lease_ms: u64,
    /// The same with that of shards.
    shards_without_lease_ms: u64,
    /// If detection is what takes longest.
    #[serde(skip_serializing_if = "Option::is_none")]
    warning: Option<String>,
}

impl InCluster {
    fn of(
        ttl: Duration,
        detection: Duration,
        stable_after: Duration,
        removal_margin: Option<Duration>,
    ) -> Self {
        let singleton = tenure_singleton::Settings::default().removal_margin;
        let shards = tenure_sharding::Settings::new(Setup::Gossip, 1).removal_margin;
        let (singleton, shards) =
            (removal_margin.unwrap_or(singleton), removal_margin.unwrap_or(shards));
        let removed = detection + stable_after + REMOVAL;
        let warning = (detection > ttl).then(|| {
            format!(
                "detection takes longer than the lease: max(ttl {ttl:?}, detection {detection:?}) \
                 = {detection:?}; a shorter ttl than {detection:?} gains nothing"
            )
        });
        Self {
            ttl_ms: millis(ttl),
            detection_ms: millis(detection),
            stable_after_ms: millis(stable_after),
            removal_ms: millis(REMOVAL),
            singleton_margin_ms: millis(singleton),
            shards_margin_ms: millis(shards),
            with_lease_ms: millis(ttl.max(detection)),
            singleton_without_lease_ms: millis(removed + singleton),
            shards_without_lease_ms: millis(removed + shards),
            warning,
        }
    }
}

impl fmt::Display for InCluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |millis| format!("{:?}", Duration::from_millis(millis));
        let removed = format!(
            "detection {} + stable after {} + removal {}",
            shown(self.detection_ms),
            shown(self.stable_after_ms),
            shown(self.removal_ms),
        );
        write!(
            f,
            "What a dead member of a cluster hosted starts elsewhere:\n  \
             with a lease               {}, the longer of ttl {} and detection {}.\n  \
             a singleton without one    {}: {removed} + removal_margin {}.\n  \
             shards without one         {}: {removed} + removal_margin {}.",
            shown(self.with_lease_ms),
            shown(self.ttl_ms),
            shown(self.detection_ms),
            shown(self.singleton_without_lease_ms),
            shown(self.singleton_margin_ms),
            shown(self.shards_without_lease_ms),
            shown(self.shards_margin_ms),
        )?;
        match &self.warning {
            Some(warning) => write!(f, "\n  warning: {warning}."),
            None => Ok(()),
        }
    }
}

/// Until all that are left have heard of a decision and the leader has acted on it: some rounds of
/// gossip, which are quick while there is news.
const REMOVAL: Duration = Duration::from_secs(1);
