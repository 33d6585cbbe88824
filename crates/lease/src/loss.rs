use std::fmt;

use serde::{Deserialize, Serialize};

use crate::record::{Owner, Token};

/// Why a tenure ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Loss {
    /// No renewal was confirmed in time: the store was slow, unreachable or failing.
    Expired,
    /// The record belongs to another tenure, or carries a renewal that this process did not write
    /// (then `by` is a clone of this very process, or whoever copied its record).
    Stolen {
        /// Who holds it now, if the record says so.
        by: Option<Owner>,
    },
    /// The record is gone: somebody deleted it.
    Deleted,
    /// This process stood still (SIGSTOP, a sleeping machine) past its deadline.
    Paused,
    /// What the lease guards did not answer its liveness call: a blocked or deadlocked runtime.
    Unresponsive,
    /// It was given up on purpose.
    Released,
    /// A fence has seen a higher token than ours, although we hold the lease: the store has lost
    /// history (a restored backup). `tenure lease raise --above` repairs it.
    TokenRegressed {
        /// Our token.
        held: Token,
        /// What the fence has seen.
        fence: Token,
    },
}

impl Loss {
    /// The reason in one word, for metrics and logs.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Stolen { .. } => "stolen",
            Self::Deleted => "deleted",
            Self::Paused => "paused",
            Self::Unresponsive => "unresponsive",
            Self::Released => "released",
            Self::TokenRegressed { .. } => "token_regressed",
        }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stolen { by: Some(owner) } => write!(f, "stolen by {owner}"),
            Self::TokenRegressed { held, fence } => {
                write!(f, "token {held} is below the fence's {fence}")
            }
            other => f.write_str(other.reason()),
        }
    }
}
