//! What goes through the admin socket: one line of JSON for each request, one for each answer.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Status;

/// What can be asked for.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Request {
    /// How things are.
    Status,
    /// To have a node leave; without a name, the one that is asked.
    Leave { node: Option<String> },
    /// To declare a node down.
    Down { node: String },
}

/// What comes back.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    Status(Box<Status>),
    Changed(Changed),
    /// Why not.
    Refused(String),
}

/// What is under way, with whom.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Changed {
    pub(crate) change: Change,
    pub(crate) node: String,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Change {
    Leaving,
    Down,
}

impl fmt::Display for Changed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.change {
            Change::Leaving => write!(f, "{} is asked to leave", self.node),
            Change::Down => write!(f, "{} is declared down", self.node),
        }
    }
}

/// The longest request.
pub(crate) const REQUEST_MAX: u64 = 4096;
