//! How long things take, and the arithmetic that makes "only one" true.

use std::fmt::Write as _;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::backend::StoreInfo;

/// The timing of a lease.
///
/// All of it follows from the ttl; the rest is for those who have measured. The rule that must hold
/// (checked by [`Settings::check`], which shows the sum):
///
/// ```text
/// renew_interval + operation_timeout + stop_budget + margin < ttl
/// ```
///
/// so that one whole renewal may fail by time-out, a second one be in time, and the work still be
/// stopped before anybody else can start.
///
/// Coming from client-go: `leaseDuration` is the ttl, `renewDeadline` is ttl − margin − stop
/// budget, and `retryPeriod` is the renew interval. client-go has no stop budget and no margin: its
/// leader may run until its lease ends, and what it started may run on.
///
/// ```
/// use std::time::Duration;
/// use tenure_lease::Settings;
///
/// let settings = Settings::new(Duration::from_secs(15));
/// assert_eq!(settings.renew_interval, Duration::from_secs(5));
/// let wrong = Settings { stop_budget: Duration::from_secs(6), ..settings };
/// assert!(wrong.check().unwrap_err().to_string().contains("stop_budget"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// How long a tenure lasts after its last renewal: how long after a crash another one starts.
    /// Shorter is a faster failover, and more renewals and more losses in a network that stutters.
    /// Must be within what the store can keep. Default 15 s; 15 to 30 s are common.
    pub ttl: Duration,
    /// How often the holder renews. Default ttl/3: two may fail.
    pub renew_interval: Duration,
    /// How long one request to the store may take before its answer counts as unknown. Above the
    /// store's worst ordinary latency. Default ttl/4.
    pub operation_timeout: Duration,
    /// How long the guarded work may take to stop once the lease is lost. The lease counts as lost
    /// that much earlier, so a long budget makes a lease nervous. Default ttl/5, at most 3 s.
    pub stop_budget: Duration,
    /// Covers the error of clock *rates* (ours against the store's or another contender's) and
    /// short pauses. Default ttl/10.
    pub margin: Duration,
    /// An attached lease whose record was not seen for this long is lost; a vanished one is waited
    /// out for a ttl more. At most, and by default, the ttl.
    pub proof_interval: Duration,
    /// Which rule to leave out, so that a test can see that it is needed.
    #[cfg(feature = "planted")]
    #[serde(skip)]
    pub without: Option<Rule>,
}

/// A safety rule that can be left out to see that the tests notice.
#[cfg_attr(not(feature = "planted"), allow(unreachable_pub, dead_code))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The lease is lost a stop budget before the watchdog acts.
    StopBudget,
    /// Deadlines count from before the request was sent, not from its answer.
    DeadlineFromSend,
    /// A read-back looks for this claim's id, not merely for this process's name.
    ReadBackByClaim,
    /// An attached lease is taken only after its session was taken over.
    TakeSessionFirst,
    /// A record that was known and vanished is waited out.
    WaitVanished,
    /// Attached records are read again and again; a session's renewal does not prove them.
    ProveAttached,
    /// A contender waits for the ttl that the record names, from when it saw the answer.
    ObserveWholeTtl,
}

impl Settings {
    /// The default timing for a ttl.
    pub fn new(ttl: Duration) -> Self {
        Self {
            ttl,
            renew_interval: ttl / 3,
            operation_timeout: ttl / 4,
            stop_budget: (ttl / 5).min(Duration::from_secs(3)),
            margin: ttl / 10,
            proof_interval: ttl,
            #[cfg(feature = "planted")]
            without: None,
        }
    }

    /// Checks the arithmetic.
    pub fn check(&self) -> Result<(), SettingsError> {
        let parts = [
            ("renew_interval", self.renew_interval),
            ("operation_timeout", self.operation_timeout),
            ("stop_budget", self.stop_budget),
            ("margin", self.margin),
        ];
        for (name, value) in parts {
            // A lease without time to stop or without margin promises nothing, but a budget of zero
            // is right for work that stops by itself at once.
            if value.is_zero() && name != "stop_budget" {
                return Err(SettingsError(format!("{name} must not be zero")));
            }
        }
        let sum: Duration = parts.iter().map(|(_, value)| *value).sum();
        if sum >= self.ttl {
            let mut text = String::new();
            for (index, (name, value)) in parts.iter().enumerate() {
                let plus = if index == 0 { "" } else { " + " };
                // Writing to a String cannot fail.
                let _ = write!(text, "{plus}{name} {value:?}");
            }
            return Err(SettingsError(format!(
                "{text} = {sum:?} must be less than the ttl {:?}: lengthen the ttl or shorten one \
                 of them",
                self.ttl
            )));
        }
        if self.proof_interval > self.ttl {
            return Err(SettingsError(format!(
                "proof_interval {:?} must not be longer than the ttl {:?}",
                self.proof_interval, self.ttl
            )));
        }
        if self.proof_interval <= self.operation_timeout + self.stop_budget {
            return Err(SettingsError(format!(
                "proof_interval {:?} must be longer than operation_timeout {:?} + stop_budget {:?}",
                self.proof_interval, self.operation_timeout, self.stop_budget
            )));
        }
        Ok(())
    }

    /// Checks the arithmetic, and that the store can keep the ttl.
    pub fn check_for(&self, store: &StoreInfo) -> Result<(), SettingsError> {
        self.check()?;
        let StoreInfo { kind, ttl_min, ttl_max, ttl_step, .. } = *store;
        if self.ttl < ttl_min || self.ttl > ttl_max {
            return Err(SettingsError(format!(
                "a {kind} store keeps ttls from {ttl_min:?} to {ttl_max:?}, not {:?}",
                self.ttl
            )));
        }
        if !ttl_step.is_zero() && !self.ttl.as_nanos().is_multiple_of(ttl_step.as_nanos()) {
            return Err(SettingsError(format!(
                "a {kind} store keeps ttls that are multiples of {ttl_step:?}, not {:?}",
                self.ttl
            )));
        }
        Ok(())
    }

    /// From the moment a successful request was sent to the moment the lease counts as lost.
    pub fn held_for(&self) -> Duration {
        if !self.obeys(Rule::StopBudget) {
            return self.kill_after();
        }
        self.kill_after().saturating_sub(self.stop_budget)
    }

    /// From the moment a successful request was sent to the moment the watchdog acts.
    pub fn kill_after(&self) -> Duration {
        self.ttl.saturating_sub(self.margin)
    }

    #[cfg(feature = "planted")]
    pub(crate) fn obeys(&self, rule: Rule) -> bool {
        self.without != Some(rule)
    }

    #[cfg(not(feature = "planted"))]
    #[inline(always)]
    pub(crate) const fn obeys(&self, _rule: Rule) -> bool {
        true
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self::new(Duration::from_secs(15))
    }
}

/// Why settings cannot work, with the numbers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SettingsError(String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_fit_for_every_ttl() {
        for millis in [100, 999, 1_000, 2_000, 15_000, 60_000, 3_600_000] {
            Settings::new(Duration::from_millis(millis)).check().unwrap();
        }
    }

    #[test]
    fn the_error_shows_the_sum() {
        let settings = Settings {
            operation_timeout: Duration::from_secs(9),
            ..Settings::new(Duration::from_secs(15))
        };
        assert_eq!(
            settings.check().unwrap_err().to_string(),
            "renew_interval 5s + operation_timeout 9s + stop_budget 3s + margin 1.5s = 18.5s must \
             be less than the ttl 15s: lengthen the ttl or shorten one of them"
        );
    }
}
