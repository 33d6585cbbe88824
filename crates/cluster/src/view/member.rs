use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// What a node can be used for: a word of yours, like `worker`.
pub type Role = Arc<str>;

/// The roles of a node; they stay the same for as long as it lives.
pub type Roles = Arc<BTreeSet<Role>>;

/// How far a member has come. It only ever rises.
///
/// A removed member is no status but an absence with a tombstone: its incarnation is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Let in by somebody; talks, but is not counted and hosts nothing.
    Joining,
    /// A full member, with an up-number.
    Up,
    /// Wants to leave.
    Leaving,
    /// Everybody knows that it leaves; it hands over what it hosts.
    Exiting,
    /// Has stopped, or must.
    Down,
}

impl Status {
    /// Lower leads before higher.
    pub(super) fn leads_before(self) -> u8 {
        match self {
            Self::Up => 0,
            Self::Leaving => 1,
            Self::Exiting => 2,
            Self::Joining => 3,
            Self::Down => 4,
        }
    }
}

impl Status {
    /// In a word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Joining => "joining",
            Self::Up => "up",
            Self::Leaving => "leaving",
            Self::Exiting => "exiting",
            Self::Down => "down",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// One member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// How far it has come.
    pub status: Status,
    /// Its age: the order in which members became [`Status::Up`], from 1. Zero until then.
    pub up_number: u64,
    /// What it can be used for.
    pub roles: Roles,
}

impl Member {
    /// One that was just let in.
    pub fn joining(roles: Roles) -> Self {
        Self { status: Status::Joining, up_number: 0, roles }
    }

    /// Whether it is a full member, though perhaps on its way out. One that leaves while it is joining
    /// never was: elsewhere it is still only joining, and given up without being counted.
    pub(crate) fn is_full(&self) -> bool {
        (Status::Up..Status::Down).contains(&self.status) && self.up_number > 0
    }

    /// The later of two.
    pub(super) fn join(&self, other: &Self) -> Self {
        Self {
            status: self.status.max(other.status),
            up_number: self.up_number.max(other.up_number),
            roles: self.roles.clone(),
        }
    }
}
