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
/// so that one whole request may time out, a second one be in time, and the work still be stopped
/// before anybody else can start. At the defaults an outage of the store of half a ttl ends no
/// tenure, whenever it begins ([`Settings::outage_survived`]): a renewal without an answer is
/// followed by others, on connections of their own, a [`Settings::hedge_interval`] apart at most.
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
/// assert_eq!(settings.renew_interval, Duration::from_millis(2_500));
/// assert_eq!(settings.outage_survived(), Duration::from_millis(7_500));
/// let wrong = Settings { stop_budget: Duration::from_secs(8), ..settings };
/// assert!(wrong.check().unwrap_err().to_string().contains("stop_budget"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// How long a tenure lasts after its last renewal: how long after a crash another one starts.
    /// Shorter is a faster failover, and more renewals and more losses in a network that stutters.
    /// Must be within what the store can keep. Default 15 s; 15 to 30 s are common.
    pub ttl: Duration,
    /// How often the holder renews. Each renewal is a write, and the sooner the last one before an
    /// outage was, the longer an outage is survived. Default ttl/6.
    pub renew_interval: Duration,
    /// How long one request to the store may take before its answer counts as unknown; not for
    /// renewals, whose answers count until the deadline. Above the store's worst ordinary latency.
    /// Default ttl/4.
    pub operation_timeout: Duration,
    /// How long the guarded work may take to stop once the lease is lost. The lease counts as lost
    /// that much earlier, so a long budget makes a lease nervous. Default ttl/8, at most 3 s.
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
    /// A renewal names the nonces of earlier ones that have no answer: the record may carry them.
    KnowUnanswered,
    /// Of several renewals under way, the deadline counts from the send of the confirmed one.
    DeadlineOfConfirmed,
    /// A refusal that shows another renewal of the same tenure does not end it.
    OwnRenewalIsNoThief,
}

impl Settings {
    /// The default timing for a ttl.
    pub fn new(ttl: Duration) -> Self {
        Self {
            ttl,
            renew_interval: ttl / 6,
            operation_timeout: ttl / 4,
            stop_budget: (ttl / 8).min(Duration::from_secs(3)),
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

    /// While the store does not answer, at least one renewal is sent in each interval of this
    /// length: ttl/15.
    pub fn hedge_interval(&self) -> Duration {
        self.ttl / 15
    }

    /// An outage of the store that is no longer than this ends no tenure, whenever it begins. What is
    /// left of the time that a tenure is held for when the outage begins just before a renewal, it
    /// ends just after a hedge, and the next one takes a handshake and a round trip (ttl/24).
    pub fn outage_survived(&self) -> Duration {
        let spent = self.renew_interval + self.hedge_interval() + self.ttl / 24;
        self.held_for().saturating_sub(spent)
    }

    /// How often a waiter looks at the record where the store does not push, at most: that much later
    /// than the ttl it may notice that the holder has died.
    pub fn look_interval(&self) -> Duration {
        self.renew_interval.min(LOOK_INTERVAL_MAX)
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

/// Leaves a fifth of a second of the second that failover may take beyond the ttl.
const LOOK_INTERVAL_MAX: Duration = Duration::from_millis(650);

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
    fn half_a_ttl_of_outage_is_survived_at_the_defaults() {
        for seconds in [2, 5, 10, 15] {
            let settings = Settings::new(Duration::from_secs(seconds));
            let survived = settings.outage_survived();
            assert!(survived.abs_diff(settings.ttl / 2) < Duration::from_micros(1), "{survived:?}");
        }
        for seconds in [30, 60, 600] {
            let settings = Settings::new(Duration::from_secs(seconds));
            assert!(settings.outage_survived() >= settings.ttl / 2);
        }
    }

    #[test]
    fn the_error_shows_the_sum() {
        let settings = Settings {
            operation_timeout: Duration::from_secs(10),
            ..Settings::new(Duration::from_secs(15))
        };
        assert_eq!(
            settings.check().unwrap_err().to_string(),
            "renew_interval 2.5s + operation_timeout 10s + stop_budget 1.875s + margin 1.5s = \
             15.875s must be less than the ttl 15s: lengthen the ttl or shorten one of them"
        );
    }
}
