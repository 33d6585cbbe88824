//! What clients and members say to each other: a head, and the bytes of a message or an answer.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure_wire::{Version, WireMessage};

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
    Unreadable(String),
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
    tenure_wire::decode_head(frame).ok()
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
            NotDone::Unreadable { detail, .. } => Why::Unreadable(detail.to_string()),
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
    tenure_wire::decode_head(frame).ok()
}

impl WireMessage for Request {}
impl WireMessage for Answer {}

impl Why {
    /// As whoever asked for `name`, within `time`, is told.
    pub(crate) fn into_error(self, name: &Arc<str>, time: Duration) -> NotDone {
        match self {
            Self::Full => NotDone::Full,
            Self::NotInTime => NotDone::NotSentWithin(time),
            Self::TooLong { len, max } => NotDone::TooLong { len: len as usize, max: max as usize },
            Self::Encoding(error) => NotDone::Encoding(CodecError::new(error)),
            Self::Unknown => NotDone::NoSuchReceiver(name.clone()),
            Self::Unreadable(detail) => {
                NotDone::Unreadable { receiver: name.clone(), detail: detail.into() }
            }
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

fn pack_with(head: &impl WireMessage, body: &[u8]) -> Vec<u8> {
    // Both are of the first version, so that there always are bytes.
    let mut bytes = tenure_wire::encode(head, Version::FIRST).unwrap_or_default();
    bytes.extend_from_slice(body);
    bytes
}

#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing {
    use super::*;

    /// Reads bytes as each message.
    pub(crate) fn wire(bytes: &[u8]) {
        tenure_wire::samples::check_read::<Request>(bytes);
        tenure_wire::samples::check_read::<Answer>(bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;
    use tenure_wire::samples;

    use super::*;

    #[test]
    fn every_message_has_samples_that_can_be_read() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("samples/clients.txt");
        let (name, entity) = ("cart".to_owned(), "customer-17".to_owned());
        let expects = [Expects::Receipt, Expects::Answer];
        let requests = expects.map(|expects| {
            let (name, entity) = (name.clone(), entity.clone());
            Request { id: 7, to: To::Entity, name, entity, expects, within_ms: 2000 }
        });
        let to = Request { to: To::Singleton, ..requests[0].clone() };
        let requests: Vec<Request> = requests.into_iter().chain([to]).collect();
        samples::check_struct(&file, "Request", &requests);
        let why = [
            Why::Full,
            Why::NotInTime,
            Why::TooLong { len: 1 << 40, max: 7 },
            Why::Encoding("no".into()),
            Why::Unknown,
            Why::Unreadable("sent Cart@2, expected Cart@1".into()),
            Why::Refused,
            Why::Outside,
        ];
        let doubts = [Doubt::NoAnswer, Doubt::Cut, Doubt::Unanswered];
        let outcomes = why.map(Outcome::NotDone).into_iter().chain(doubts.map(Outcome::Unknown));
        let outcomes = outcomes.chain([Outcome::Done, Outcome::Goodbye]);
        let answers: Vec<Answer> = outcomes.map(|outcome| Answer { id: 7, outcome }).collect();
        let variant_of = |answer: &Answer| variant_of(&answer.outcome);
        samples::check_message(&file, "Answer", &answers, VARIANTS, variant_of);
    }

    tenure_wire::variants!(Outcome { Done, NotDone, Unknown, Goodbye });

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
