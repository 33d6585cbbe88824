//! How long things take, and how much of them there may be.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The timing of membership: how soon a silent node is noticed, how soon news is everywhere.
///
/// The defaults suit a data centre. `Membership` itself never removes anybody, so being too quick
/// here costs noise, not members.
///
/// ```
/// use tenure_cluster::MembershipSettings;
/// let settings = MembershipSettings::default();
/// assert_eq!(settings.detection().as_millis(), 4562);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MembershipSettings {
    /// How often a node asks those it watches for a sign of life. Shorter notices sooner, and costs
    /// two small frames per watched node each time. Default 1 s.
    pub heartbeat_interval: Duration,
    /// How long a node may be silent beyond what is usual before it counts as unreachable: longer
    /// than the pauses of a healthy process (garbage, swap, a virtual machine that moves). The
    /// longer, the later a dead one is noticed. Default 3 s.
    pub acceptable_pause: Duration,
    /// How sure a detector must be, as the negative logarithm of the probability that it is wrong
    /// by chance. Between 1 and 16; the usual spread of answers is multiplied by about its square
    /// root. Default 8.
    pub threshold: f64,
    /// How many others a node watches, at most. Everybody watches everybody up to one more than
    /// this; beyond that each is watched by this many. Default 9.
    pub watched: usize,
    /// How often news is exchanged with somebody while all agree. While they do not, five times as
    /// often. Default 1 s.
    pub gossip_interval: Duration,
    /// How long somebody who is only joining may be unreachable before it is given up: it has no
    /// say and hosts nothing, so it just starts over. Default 3 s.
    pub joining_patience: Duration,
    /// How long a leaving node waits for the others to take notice before it hands over anyway;
    /// they cannot while somebody is unreachable. Default 10 s.
    pub leave_timeout: Duration,
    /// For how long a removed incarnation is remembered by name; after that it is recognised as a
    /// ghost by its age. Longer than any message is on its way or any process stands still. Costs
    /// some 100 bytes for each restart in this time. Default 1 day.
    pub keep_removed: Duration,
    /// Which rule to leave out, so that a test can see that it is needed.
    #[cfg(feature = "planted")]
    #[serde(skip)]
    pub without: Option<Rule>,
}

impl Default for MembershipSettings {
    fn default() -> Self {
        Self {
            heartbeat_interval: Duration::from_secs(1),
            acceptable_pause: Duration::from_secs(3),
            threshold: 8.0,
            watched: 9,
            gossip_interval: Duration::from_secs(1),
            joining_patience: Duration::from_secs(3),
            leave_timeout: Duration::from_secs(10),
            keep_removed: Duration::from_secs(24 * 60 * 60),
            #[cfg(feature = "planted")]
            without: None,
        }
    }
}

impl MembershipSettings {
    /// Checks that they make sense together.
    pub fn check(&self) -> Result<(), SettingsError> {
        let positive = [
            ("heartbeat_interval", self.heartbeat_interval),
            ("acceptable_pause", self.acceptable_pause),
            ("gossip_interval", self.gossip_interval),
            ("joining_patience", self.joining_patience),
            ("leave_timeout", self.leave_timeout),
            ("keep_removed", self.keep_removed),
        ];
        for (name, value) in positive {
            if value < Duration::from_millis(1) {
                return Err(SettingsError(format!("{name} {value:?} must be at least 1 ms")));
            }
        }
        if !(1.0..=16.0).contains(&self.threshold) {
            return Err(SettingsError(format!(
                "threshold {} must be between 1 and 16",
                self.threshold
            )));
        }
        if self.watched == 0 {
            return Err(SettingsError("watched must be at least 1".into()));
        }
        if self.keep_removed < self.detection() * 10 {
            return Err(SettingsError(format!(
                "keep_removed {:?} must be at least ten times the detection time {:?}",
                self.keep_removed,
                self.detection()
            )));
        }
        Ok(())
    }

    /// How long after its last sign of life a node counts as unreachable, in a network that does
    /// not stutter.
    pub fn detection(&self) -> Duration {
        crate::reachability::Detector::new(self, tenure_lease::Moment::ZERO)
            .steady_deadline(self)
            .since(tenure_lease::Moment::ZERO)
    }

    /// Whether a rule is to be followed; always, outside of tests.
    #[cfg(feature = "planted")]
    pub(crate) fn obeys(&self, rule: Rule) -> bool {
        self.without != Some(rule)
    }

    #[cfg(not(feature = "planted"))]
    #[inline]
    pub(crate) const fn obeys(&self, _rule: Rule) -> bool {
        true
    }
}

/// A safety rule that can be left out to see that the tests notice.
#[cfg_attr(not(feature = "planted"), allow(unreachable_pub, dead_code))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Nobody becomes up, exiting or removed while a member that is not down is unreachable.
    NobodyUpDuringSplit,
    /// Removed incarnations stay out.
    RefuseGhosts,
    /// Being unreachable is an observation; it changes no status.
    DetectorRemovesNobody,
    /// The leader acts only on a view that everybody has seen.
    ActOnlyOnConvergence,
    /// A node that joins must prove that it is the one that answers at its address.
    ProveAddress,
}

/// Settings that cannot work, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SettingsError(pub String);
