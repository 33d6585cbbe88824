//! What coordinator and regions tell each other, on the control lane.
//!
//! Each frame begins with the version of this format. Who sent it is known from the connection.

use serde::{Deserialize, Serialize};
use tenure_cluster::Node;
use tenure_lease::Token;

use crate::{Host, Shard, Version};

/// A message between a coordinator and a region, or between coordinators.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// I coordinate, with this term: from now on obey nobody with a lower one, and tell me what you
    /// host. Repeated with the digest of what I believe; to be answered only if that is wrong.
    Greeting {
        /// The coordinator's term.
        term: u64,
        /// Of the host and what it hosts; `None` if that is not known.
        digest: Option<u64>,
    },
    /// I obey you from now on, and host this.
    Report {
        /// Of the coordinator that asked.
        term: u64,
        /// Who I am; `None` if I host nothing and will not.
        host: Option<Host>,
        /// What I host, or am still stopping.
        shards: Vec<(Shard, Token)>,
        /// My version of the application.
        version: Version,
    },
    /// Directive: host these.
    Allocate(Directive),
    /// It is done.
    Started(Answer),
    /// Directive: stop these. Also ends an allocation that has not arrived yet.
    HandOff(Directive),
    /// It is done: these allocations are over here, for good.
    Stopped(Answer),
    /// Where are these?
    Where(Vec<Shard>),
    /// There.
    Homes {
        /// The coordinator's term.
        term: u64,
        /// Shard, token of the allocation, node.
        homes: Vec<(Shard, Token, Node)>,
    },
    /// I do not do what you ask.
    Refused(Refusal),
    /// Whether I reach the store, so that I could coordinate.
    Able(bool),
    /// I take part: I host shards, or would, and could coordinate. Do you? To be answered with
    /// [`Message::Able`], by whoever does.
    Introduce {
        /// Whether I reach the store.
        able: bool,
    },
}

/// An order of the coordinator to a region.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Directive {
    /// The coordinator's term.
    pub term: u64,
    /// Whom it is for; a successor of that session refuses it.
    pub host: Host,
    /// Which allocations.
    pub shards: Vec<(Shard, Token)>,
}

/// What a region says about a directive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// Who says it.
    pub host: Host,
    /// About which allocations.
    pub shards: Vec<(Shard, Token)>,
}

/// Why something is not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// I obey another coordinator, with this term.
    OtherCoordinator {
        /// Not below the term of whoever is refused.
        term: u64,
    },
    /// The directive is for another session than mine.
    OtherSession,
    /// Too many requests wait already; ask again later.
    Busy,
}

impl Message {
    /// For the wire.
    pub fn encode(&self) -> Vec<u8> {
        // Numbers, strings and sequences of known length always serialise.
        postcard::to_extend(self, vec![VERSION]).unwrap_or_default()
    }

    /// From the wire.
    pub fn decode(frame: &[u8]) -> Result<Self, DecodeError> {
        match frame.split_first() {
            Some((&VERSION, body)) => match postcard::take_from_bytes(body) {
                Ok((message, [])) => Ok(message),
                Ok(_) => Err(DecodeError::Malformed),
                Err(_) => Err(DecodeError::Malformed),
            },
            Some((&version, _)) => Err(DecodeError::Version(version)),
            None => Err(DecodeError::Malformed),
        }
    }
}

/// A frame that is not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Another version of the format.
    #[error("it has the format {0}, and this node knows {VERSION} only")]
    Version(u8),
    /// It is no message.
    #[error("it is malformed")]
    Malformed,
}

/// A digest of who hosts what; independent of the order.
pub(crate) fn digest(host: Option<&Host>, shards: impl Iterator<Item = (Shard, Token)>) -> u64 {
    let session = host.and_then(|host| host.session.as_ref()).map_or(0, |session| session.term);
    let start = mix(session ^ u64::from(host.is_some()) << 63);
    shards.fold(start, |sum, (shard, token)| {
        sum.wrapping_add(mix(mix(mix(u64::from(shard.0)) ^ token.term) ^ token.step))
    })
}

fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (value ^ (value >> 31)).wrapping_add(0x9e37_79b9_7f4a_7c15)
}

const VERSION: u8 = 1;
