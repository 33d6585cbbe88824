use tenure_cluster::messaging::{self, Ask, BOARD, CodecError};

use tenure_cluster::Node;

use crate::Message;

/// What the nodes say to each other about one kind, and how many shards the sender believes it has,
/// placed by which key ([`Settings::placing`](crate::Settings)): entities belong elsewhere otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Letter {
    pub(super) shards: u32,
    /// None: the sender has been told something by a node with another number of shards.
    pub(super) message: Option<Message>,
}

// Not `Serialize`, since a message of this crate has a form of its own.
impl messaging::Message for Letter {
    fn encode(&self, out: &mut Vec<u8>) -> Result<(), CodecError> {
        out.extend_from_slice(&self.shards.to_le_bytes());
        if let Some(message) = &self.message {
            out.extend_from_slice(&message.encode());
        }
        Ok(())
    }

    fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        let Some((shards, message)) = bytes.split_first_chunk::<4>() else {
            return Err(CodecError::new("it is malformed"));
        };
        let message = match message {
            [] => None,
            message => Some(Message::decode(message).map_err(CodecError::new)?),
        };
        Ok(Self { shards: u32::from_le_bytes(*shards), message })
    }
}

/// In what the other node differs, for people.
pub(super) fn difference(there: &Node, theirs: u32, ours: u32) -> String {
    let count = |placing: u32| placing & 0xffff;
    match count(theirs) == count(ours) {
        true => format!("it has another shard_key on {there}"),
        false => format!("it has {} shards on {there}, and {} here", count(theirs), count(ours)),
    }
}

/// The receiver of these. A node that has nothing to do with this kind has none.
pub(super) fn board(kind: &str) -> String {
    format!("{BOARD}sharding/{kind}")
}

/// A node that hosts nothing any more is about to go, and asks everybody to say when nothing is on its
/// way there any more.
pub(super) struct Farewell;

impl Ask for Farewell {
    type Reply = ();
}

impl messaging::Message for Farewell {
    fn encode(&self, _: &mut Vec<u8>) -> Result<(), CodecError> {
        Ok(())
    }

    fn decode(_: &[u8]) -> Result<Self, CodecError> {
        Ok(Self)
    }
}

/// The receiver of these, likewise.
pub(super) fn farewells(kind: &str) -> String {
    format!("{BOARD}sharding-farewell/{kind}")
}
