use std::time::Duration;

use serde::{Deserialize, Serialize};

use tenure_cluster::Role;

/// How one singleton is run. The same on every node.
///
/// ```
/// use tenure_singleton::{Placement, Settings};
/// let settings = Settings { placement: Placement::Spread, ..Settings::default() };
/// assert!(settings.check(true).is_ok());
/// assert!(settings.check(false).unwrap_err().to_string().contains("lease"));
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Only members with this role host it. None: every member may.
    pub role: Option<Role>,
    /// Which of them should.
    pub placement: Placement,
    /// How long to wait before the lease is asked for again, when the store refused it for a reason
    /// that does not go away by itself, such as a missing permission. A lease that another holds is
    /// watched all the time, and taken as soon as it is free.
    pub acquire_retry_interval: Duration,
    /// How long a node that is better placed (an older one that was unable or unreachable) must have
    /// been reachable and able before the host hands over to it. Longer avoids moves while nodes come
    /// and go; shorter brings the singleton home sooner. 10 s.
    pub stable_after: Duration,
    /// Without a lease: how long after a former host was removed from the cluster the next one starts.
    /// It must cover the time in which the removed one finds out by itself that it is down, which is up
    /// to the resolver's `stable_after` and `acquire_timeout`. With a lease it plays no part. 20 s.
    pub removal_margin: Duration,
    /// How long the singleton may take to stop when it is asked to hand over; then it is dropped where
    /// it awaits. After the loss of a lease it has the lease's stop budget instead. 10 s.
    pub stop_within: Duration,
    /// The pause before a singleton that failed is started again; it doubles with each failure in a
    /// row, up to thirty times this. 1 s.
    pub restart_backoff: Duration,
    /// After so many failures in a row, each within `healthy_after` of its start, a host that has a
    /// lease gives it up and declares itself unable for a while, so that another node tries. 5.
    pub start_attempts: u32,
    /// A singleton that has run for this long is healthy: its earlier failures no longer count. 30 s.
    pub healthy_after: Duration,
    /// How many messages a proxy keeps while nobody hosts the singleton; more are refused. 1,000.
    pub buffer: usize,
    /// How many bytes of messages it keeps, at most. 16 MiB.
    pub buffer_bytes: usize,
    /// The rule that is left out, to see that tests notice.
    #[cfg(feature = "planted")]
    #[serde(skip)]
    pub without: Option<Rule>,
}

/// Which of the nodes that can host a singleton should.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// The oldest. It moves as seldom as can be: a rolling restart that goes from the youngest to the
    /// oldest moves it once.
    #[default]
    Oldest,
    /// One that the singleton's name picks, so that many singletons are spread over the nodes. It picks by
    /// the nodes' names where each has its own, else by their addresses, so that a node that is started
    /// again elsewhere is picked again. Needs a lease, since a node that joins may be the one.
    Spread,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            role: None,
            placement: Placement::Oldest,
            acquire_retry_interval: Duration::from_secs(5),
            stable_after: Duration::from_secs(10),
            removal_margin: Duration::from_secs(20),
            stop_within: Duration::from_secs(10),
            restart_backoff: Duration::from_secs(1),
            start_attempts: 5,
            healthy_after: Duration::from_secs(30),
            buffer: 1000,
            buffer_bytes: 16 << 20,
            #[cfg(feature = "planted")]
            without: None,
        }
    }
}

impl Settings {
    /// Checks that they make sense, for a singleton with a lease or without one.
    pub fn check(&self, guarded: bool) -> Result<(), SettingsError> {
        for (name, value) in [
            ("acquire_retry_interval", self.acquire_retry_interval),
            ("restart_backoff", self.restart_backoff),
        ] {
            if value < Duration::from_millis(1) {
                return Err(SettingsError(format!("{name} {value:?} must be at least 1 ms")));
            }
        }
        if self.start_attempts == 0 {
            return Err(SettingsError("start_attempts must be at least 1".into()));
        }
        if self.placement == Placement::Spread && !guarded {
            let why = "placement = \"spread\" needs a lease: without one only the oldest may host";
            return Err(SettingsError(why.into()));
        }
        Ok(())
    }

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
    /// The lease is given back only after what it guarded has ended.
    StopThenRelease,
    /// Whoever is the oldest that is reachable and able contends, not only the oldest.
    CandidateContends,
    /// Without a lease, a hand-over counts only for the node that handed over.
    HandOverOfThatHost,
    /// A proxy keeps what waits when the host changes.
    KeepWaiting,
}

/// Settings that cannot work, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SettingsError(pub String);
