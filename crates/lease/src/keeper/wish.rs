//! What is wanted, and what came of it.

use crate::LeaseName;
use crate::backend::Expected;
use crate::clock::Moment;
use crate::record::{Nonce, Owner, Record, SessionRef, Token};

/// What is wanted.
#[derive(Clone, Debug)]
pub struct Wish {
    /// Which lease.
    pub name: LeaseName,
    /// For whom.
    pub owner: Owner,
    /// The session to attach it to.
    pub session: Option<SessionRef>,
    /// Replaces the note when it is won.
    pub note: Option<Vec<u8>>,
    /// The record must be this one, or the wish is over.
    pub expected: Option<Expected>,
    /// The term must be above this.
    pub above: u64,
    /// The record as it was read before, and since when it has had this version, at the latest.
    pub seen: Option<(Record, Moment)>,
}

impl Wish {
    /// A plain wish.
    pub fn new(name: LeaseName, owner: Owner) -> Self {
        Self { name, owner, session: None, note: None, expected: None, above: 0, seen: None }
    }
}

/// How a wish came out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Won(Win),
    /// The record is not the expected one.
    Unexpected(Option<Record>),
}

/// A won claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Win {
    pub(super) claim: Nonce,
    pub(super) token: Token,
    /// When the winning request was sent.
    pub(super) sent: Moment,
    /// The note as it stands in the record now.
    pub(super) note: Vec<u8>,
    pub(super) former: Option<Record>,
}
