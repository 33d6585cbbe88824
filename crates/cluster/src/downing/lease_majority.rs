use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::count::{Counts, Standing, say};
use super::situation::{HasAddress, Situation};
use super::{Outcome, Side};

/// The side with more than half of the members goes on; of equal sides, the one that wins a lease.
///
/// The lease is kept by a store outside the cluster, which both sides may still reach. What is won
/// is written down in the lease's record as a verdict, so that whoever comes late, or was on
/// the other side, can read who goes on. If the store cannot be reached, both halves stay as they
/// are and keep trying: that no one decides costs time, that both do costs data.
///
/// What each [`Mode`] promises: see there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseMajority {
    /// Count only members with this role, and let only them ask. A side without one of them is
    /// a minority, and where nobody can ask nobody survives by asking.
    pub role: Option<String>,
    /// When to ask.
    pub mode: Mode,
    /// How long one attempt to acquire the lease may take before it counts as unanswered and the
    /// next one starts. Longer than the store takes when it is slow; a tie is settled no sooner
    /// than one answer takes. Default 5 s.
    pub acquire_timeout: Duration,
}

/// When a side asks the lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Only when sides are equal: a strict majority goes on without the lease, a minority downs
    /// itself. While the store is away, only ties wait.
    ///
    /// One survivor for clean two-way splits that heal and converge before the next. Sides that
    /// shift while decisions are still spreading can double.
    #[default]
    Ties,
    /// In every split: each side that means to live asks, majorities and halves at once,
    /// a minority after 2 s. While the store is away, every split waits.
    ///
    /// One survivor under every partition: partial, one-way, shifting or flapping.
    Always,
}

impl Default for LeaseMajority {
    fn default() -> Self {
        Self { role: None, mode: Mode::Ties, acquire_timeout: Duration::from_secs(5) }
    }
}

impl LeaseMajority {
    /// How large the side of the node that believes this is; `None` if it is down.
    pub fn standing<N: HasAddress>(&self, situation: &Situation<N>) -> Option<Standing> {
        Some(Counts::of(&situation.side()?, self.role.as_deref()).standing())
    }

    pub(super) fn judge<N: HasAddress>(&self, side: &Side<'_, N>) -> Outcome {
        let role = self.role.as_deref();
        let counts = Counts::of(side, role);
        let mut said = say(&counts.present, role);
        if let Some(converged) = &counts.converged {
            said = format!("{said} (before the last change {})", say(converged, role));
        }
        let standing = counts.standing();
        let reason = match standing {
            Standing::Majority => format!("{said}, a majority"),
            Standing::Equal if counts.converged.is_none() => format!("{said}, half"),
            Standing::Equal => format!("{said}, no minority"),
            Standing::Minority => format!("{said}, a minority"),
            Standing::Unsure => format!("{said}, a minority or not"),
        };
        if side.leader(role).is_none() {
            return Outcome::End(format!("{reason}: nobody here may ask the lease"));
        }
        match (self.mode, standing) {
            (Mode::Ties, Standing::Majority) => Outcome::Survive(reason),
            (Mode::Ties, Standing::Minority) => Outcome::End(reason),
            (Mode::Ties, Standing::Unsure) => Outcome::Wait(format!(
                "{reason}: the membership is changing, and the other side may count otherwise"
            )),
            (Mode::Ties, Standing::Equal)
            | (Mode::Always, Standing::Majority | Standing::Equal) => {
                Outcome::Ask { after: Duration::ZERO, reason }
            }
            (Mode::Always, Standing::Minority | Standing::Unsure) => {
                Outcome::Ask { after: MINORITY_WAITS, reason }
            }
        }
    }
}

/// How long a minority leaves the lease to the others.
const MINORITY_WAITS: Duration = Duration::from_secs(2);
