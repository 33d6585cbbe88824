//! How long nobody does what a dead member of a cluster did.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::millis;

/// From a member's last sign of life to the start of its successor; the start itself comes on top.
#[derive(Serialize)]
pub(super) struct InCluster {
    ttl_ms: u64,
    detection_ms: u64,
    stable_after_ms: u64,
    removal_ms: u64,
    removal_margin_ms: u64,
    /// The lease excludes, so its end and the notice that the member is gone are enough.
    with_lease_ms: u64,
    /// Everything must be over: notice, decision, removal, margin.
    without_lease_ms: u64,
    /// If detection is what takes longest.
    #[serde(skip_serializing_if = "Option::is_none")]
    warning: Option<String>,
}

impl InCluster {
    pub(super) fn of(
        ttl: Duration,
        detection: Duration,
        stable_after: Duration,
        removal_margin: Option<Duration>,
    ) -> Self {
        let margin = removal_margin.unwrap_or(stable_after);
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
            removal_margin_ms: millis(margin),
            with_lease_ms: millis(ttl.max(detection)),
            without_lease_ms: millis(detection + stable_after + REMOVAL + margin),
            warning,
        }
    }
}

impl fmt::Display for InCluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |millis| format!("{:?}", Duration::from_millis(millis));
        write!(
            f,
            "What a dead member of a cluster hosted starts elsewhere:\n  \
             with a lease     {}, the longer of ttl {} and detection {}.\n  \
             without one      {}: detection {} + stable after {} + removal {} + margin {}.",
            shown(self.with_lease_ms),
            shown(self.ttl_ms),
            shown(self.detection_ms),
            shown(self.without_lease_ms),
            shown(self.detection_ms),
            shown(self.stable_after_ms),
            shown(self.removal_ms),
            shown(self.removal_margin_ms),
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
