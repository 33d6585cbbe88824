//! What a job does about slots that cannot simply be run when they are due.

use std::str::FromStr;
use std::time::Duration;

/// What becomes of slots that nobody could run when they were due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Missed {
    /// The latest of them is run, late; the others are skipped. The default.
    #[default]
    Once,
    /// Each of them is run, one after the other.
    All,
    /// None is run that is more than [`JobSettings::within`] late; a minute, if that is not set.
    Skip,
}

/// What becomes of a slot whose run was interrupted: by a crash, a lost lease, a signal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Interrupted {
    /// It is run again, by whoever holds the lease next. The default.
    #[default]
    Rerun,
    /// It is left as it is. For commands that must not run twice, not even in part.
    Leave,
}

/// What becomes of slots that are due while a run has not ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overlap {
    /// They are skipped. The default.
    #[default]
    Skip,
    /// They wait for its end; then they are missed slots.
    Queue,
}

/// The policies of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobSettings {
    /// What becomes of missed slots.
    pub missed: Missed,
    /// How late a slot may be started; later it is skipped. `None`: however late.
    pub within: Option<Duration>,
    /// What becomes of interrupted runs.
    pub interrupted: Interrupted,
    /// What becomes of slots that are due during a run.
    pub overlap: Overlap,
    /// A slot is started up to this much later than it is due. How much is a number that the job's name and
    /// the slot determine, so that many jobs with one schedule do not start at once.
    pub jitter: Duration,
    /// How often a run that failed is tried again.
    pub retries: u32,
    /// The pause before the first retry; it doubles with each, up to an hour.
    pub backoff: Duration,
    /// How long a run may take; then it is stopped, and has failed with code 124.
    pub deadline: Option<Duration>,
    /// The rule to leave out.
    #[cfg(feature = "planted")]
    pub without: Option<CronRule>,
}

impl Default for JobSettings {
    fn default() -> Self {
        Self {
            missed: Missed::default(),
            within: None,
            interrupted: Interrupted::default(),
            overlap: Overlap::default(),
            jitter: Duration::ZERO,
            retries: 0,
            backoff: Duration::from_secs(10),
            deadline: None,
            #[cfg(feature = "planted")]
            without: None,
        }
    }
}

impl JobSettings {
    /// How late a slot may be started.
    pub(crate) fn lateness_max(&self) -> Option<Duration> {
        match (self.missed, self.within) {
            (Missed::Skip, None) => Some(SKIP_WITHIN),
            (_, within) => within,
        }
    }

    #[cfg(feature = "planted")]
    pub(crate) fn obeys(&self, rule: CronRule) -> bool {
        self.without != Some(rule)
    }

    #[cfg(not(feature = "planted"))]
    #[allow(clippy::unused_self, reason = "it has something to look at with the feature `planted`")]
    pub(crate) const fn obeys(&self, _rule: CronRule) -> bool {
        true
    }
}

/// The rules that the account rests on, for tests that leave one out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "planted"), allow(unreachable_pub, dead_code))]
pub enum CronRule {
    /// A slot is claimed in the ledger, and the claim is known to stand there, before its command starts.
    ClaimBeforeStart,
    /// Which slots are due is counted from the ledger's cursor, not from a clock.
    SlotsFromCursor,
    /// A ledger that is compacted keeps its open slot.
    KeepOpenSlot,
}

/// One of a policy's words.
macro_rules! words {
    ($policy:ident { $($variant:ident = $word:literal),+ }) => {
        impl FromStr for $policy {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                match text {
                    $($word => Ok(Self::$variant),)+
                    _ => Err(format!(
                        "{text:?} is none of {}",
                        [$($word),+].join(", ")
                    )),
                }
            }
        }
    };
}

words!(Missed { Once = "once", All = "all", Skip = "skip" });
words!(Interrupted { Rerun = "rerun", Leave = "leave" });
words!(Overlap { Skip = "skip", Queue = "queue" });

/// How late a slot may be started if missed ones are skipped and nothing else is said.
const SKIP_WITHIN: Duration = Duration::from_secs(60);
