//! What clients and members say to each other: a head, and the bytes of a message or an answer.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Gateway;
use crate::messaging::{AskError, CodecError, Expects, NotDone, Unknown};
use crate::transport::Closed;

/// What a client wants. The message follows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Request {
    /// Of the client's choice; above 0.
    pub(crate) id: u64,
    pub(crate) to: To,
    /// Of the singleton, or of the kind.
    pub(crate) name: String,
    /// Of the entity; empty for a singleton.
    pub(crate) entity: String,
    pub(crate) expects: Expects,
    /// How long it may take, in milliseconds.
    pub(crate) within_ms: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum To {
    Singleton,
    Entity,
}

impl From<To> for Gateway {
    fn from(to: To) -> Self {
        match to {
            To::Singleton => Self::Singleton,
            To::Entity => Self::Entities,
        }
    }
}

/// What came of it. If it was answered, the answer follows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Answer {
    /// Of the request; 0 if this is about no request.
    pub(crate) id: u64,
    pub(crate) outcome: Outcome,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Outcome {
    /// It was answered, or handled.
    Done,
    /// It certainly was not handled, nor will be.
    NotDone(Why),
    /// It may have been, or may yet be.
    Unknown(Doubt),
    /// The member leaves the cluster: what comes next should go to another.
    Goodbye,
}

/// [`NotDone`], for the wire.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Why {
    Full,
    NotInTime,
    TooLong {
        len: u64,
        max: u64,
    },
    Encoding(String),
    /// This member has no proxy of it. Another may.
    Unknown,
    Unreadable,
    Refused,
    /// This member is out of the cluster, or about to be. Another is not.
    Outside,
}

/// [`Unknown`], for the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Doubt {
    NoAnswer,
    Cut,
    Unanswered,
}

pub(crate) fn pack_request(request: &Request, body: &[u8]) -> Vec<u8> {
    pack_with(request, body)
}

/// A request, and its message.
pub(crate) fn request(frame: &[u8]) -> Option<(Request, &[u8])> {
    postcard::take_from_bytes(frame).ok()
}

pub(crate) fn answer(id: u64, outcome: Result<Vec<u8>, AskError>) -> Vec<u8> {
    let word = match outcome {
        Ok(body) => return pack(id, Outcome::Done, &body),
        Err(AskError::NotDone(why)) => Outcome::NotDone(match why {
            NotDone::Full => Why::Full,
            NotDone::NotSentWithin(_) => Why::NotInTime,
            NotDone::TooLong { len, max } => Why::TooLong { len: len as u64, max: max as u64 },
            NotDone::Encoding(error) => Why::Encoding(error.to_string()),
            NotDone::NoSuchReceiver(_) => Why::Unknown,
            NotDone::Unreadable(_) => Why::Unreadable,
            NotDone::Refused(_) => Why::Refused,
            NotDone::NotAMember(_) | NotDone::Closed(_) => Why::Outside,
        }),
        Err(AskError::Unknown(doubt)) => Outcome::Unknown(match doubt {
            Unknown::NoAnswer(_) => Doubt::NoAnswer,
            Unknown::Cut => Doubt::Cut,
            Unknown::Unanswered | Unknown::Unreadable(_) => Doubt::Unanswered,
        }),
    };
    pack(id, word, &[])
}

pub(crate) fn pack(id: u64, outcome: Outcome, body: &[u8]) -> Vec<u8> {
    pack_with(&Answer { id, outcome }, body)
}

/// An answer, and its bytes.
pub(crate) fn read_answer(frame: &[u8]) -> Option<(Answer, &[u8])> {
    postcard::take_from_bytes(frame).ok()
}

impl Why {
    /// As whoever asked for `name`, within `time`, is told.
    pub(crate) fn into_error(self, name: &Arc<str>, time: Duration) -> NotDone {
        match self {
            Self::Full => NotDone::Full,
            Self::NotInTime => NotDone::NotSentWithin(time),
            Self::TooLong { len, max } => NotDone::TooLong { len: len as usize, max: max as usize },
            Self::Encoding(error) => NotDone::Encoding(CodecError::new(error)),
            Self::Unknown => NotDone::NoSuchReceiver(name.clone()),
            Self::Unreadable => NotDone::Unreadable(name.clone()),
            Self::Refused => NotDone::Refused(name.clone()),
            Self::Outside => NotDone::Closed(Arc::new(Closed::Transport)),
        }
    }
}

impl Doubt {
    pub(crate) fn into_error(self, time: Duration) -> Unknown {
        match self {
            Self::NoAnswer => Unknown::NoAnswer(time),
            Self::Cut => Unknown::Cut,
            Self::Unanswered => Unknown::Unanswered,
        }
    }
}

fn pack_with(head: &impl Serialize, body: &[u8]) -> Vec<u8> {
    // Plain structs of strings and numbers: there is nothing in them that could fail.
    let mut bytes = postcard::to_stdvec(head).expect("strings and numbers are always packed");
    bytes.extend_from_slice(body);
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_packed_is_read() {
        let wanted = Request {
            id: 7,
            to: To::Entity,
            name: "cart".into(),
            entity: "customer-17".into(),
            expects: Expects::Receipt,
            within_ms: 2000,
        };
        let frame = pack_request(&wanted, b"body");
        assert_eq!(request(&frame), Some((wanted, &b"body"[..])));
        let frame = answer(7, Err(NotDone::Full.into()));
        let outcome = Outcome::NotDone(Why::Full);
        assert_eq!(read_answer(&frame), Some((Answer { id: 7, outcome }, &b""[..])));
    }

    proptest! {
        #[test]
        fn garbage_never_panics(frame in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = (request(&frame), read_answer(&frame));
        }
    }
}
