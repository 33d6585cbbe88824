use tenure_cluster::Node;
use tenure_cluster::messaging::{self, Ask, BOARD, CodecError};

use crate::Message;

/// What the nodes say to each other about one kind, and how the sender is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Letter {
    pub(super) setup: SetupHere,
    /// Whether the sender hosts and coordinates, or would. It does not if it *stands back*: others, with
    /// which it cannot work together, do.
    pub(super) serves: bool,
    /// None: the sender has been told something by a node that it cannot work together with.
    pub(super) message: Option<Message>,
}

/// How a kind is set up on one node. Nodes that differ in it cannot work together, unless the
/// difference is that one has a session and the other has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SetupHere {
    /// How many shards the sender believes that there are, placed by which key
    /// ([`Settings::placing`](crate::Settings)): entities belong elsewhere otherwise.
    pub(super) placing: u32,
    pub(super) guarded_by: GuardedBy,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum GuardedBy {
    /// It hosts nothing, and needs no guard.
    SendsOnly,
    /// The membership alone.
    Gossip,
    /// The coordinator's lease of this name.
    Lease(String),
    /// The same, and a session.
    Sessions(String),
}

impl SetupHere {
    /// Why this node and that one, which is set up so, cannot work together, and what to do.
    pub(super) fn refuses(&self, other: &Self, there: &Node) -> Option<String> {
        if self.placing != other.placing {
            let differs = difference(there, other.placing, self.placing);
            return Some(format!("{differs}: give all nodes the same"));
        }
        let all =
            "give all nodes the same lease, or none, and stop all of them before you change it";
        match (self.guarded_by.lease(), other.guarded_by.lease()) {
            (Some(here), Some(name)) if here != name => {
                Some(format!("its lease is {name:?} on {there}, and {here:?} here: {all}"))
            }
            (Some(_), None) if other.guarded_by == GuardedBy::Gossip => {
                Some(format!("it has a lease here, and none on {there}: {all}"))
            }
            (None, Some(_)) if self.guarded_by == GuardedBy::Gossip => {
                Some(format!("it has a lease on {there}, and none here: {all}"))
            }
            _ => None,
        }
    }

    /// What one of two nodes lacks that work together, and what to do.
    pub(super) fn unlike(&self, other: &Self, there: &Node) -> Option<String> {
        match (&self.guarded_by, &other.guarded_by) {
            (GuardedBy::Lease(_), GuardedBy::Sessions(_)) => Some(format!(
                "it has sessions on {there}, and none here: add .session(…) here, or leave it out everywhere; while that node coordinates, this one hosts nothing"
            )),
            (GuardedBy::Sessions(_), GuardedBy::Lease(_)) => Some(format!(
                "it has sessions here, and none on {there}: add .session(…) there, or leave it out everywhere; while this node coordinates, that one hosts nothing"
            )),
            _ => None,
        }
    }
}

impl GuardedBy {
    fn lease(&self) -> Option<&str> {
        match self {
            Self::SendsOnly | Self::Gossip => None,
            Self::Lease(name) | Self::Sessions(name) => Some(name),
        }
    }

    fn code(&self) -> u8 {
        match self {
            Self::SendsOnly => 0,
            Self::Gossip => 1,
            Self::Lease(_) => 2,
            Self::Sessions(_) => 3,
        }
    }
}

// Not `Serialize`, since a message of this crate has a form of its own. First the number of shards and
// the format, as in every version; then the guard, whether it serves, the lease's name with its length,
// and the message.
impl messaging::Message for Letter {
    fn encode(&self, out: &mut Vec<u8>) -> Result<(), CodecError> {
        let SetupHere { placing, guarded_by } = &self.setup;
        let lease = guarded_by.lease().unwrap_or_default().as_bytes();
        let len = u8::try_from(lease.len()).map_err(CodecError::new)?;
        out.extend_from_slice(&placing.to_le_bytes());
        out.extend_from_slice(&[FORMAT, guarded_by.code(), u8::from(self.serves), len]);
        out.extend_from_slice(lease);
        if let Some(message) = &self.message {
            out.extend_from_slice(&message.encode());
        }
        Ok(())
    }

    fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        let malformed = || CodecError::new("it is malformed");
        let (placing, rest) = bytes.split_first_chunk::<4>().ok_or_else(malformed)?;
        let (&format, rest) = rest.split_first().ok_or_else(malformed)?;
        if format != FORMAT {
            let what = format!("it has the format {format}, and this node knows {FORMAT} only");
            return Err(CodecError::new(what));
        }
        let (&[guard, serves, len], rest) = rest.split_first_chunk::<3>().ok_or_else(malformed)?;
        let (lease, message) = rest.split_at_checked(len.into()).ok_or_else(malformed)?;
        let lease = String::from_utf8(lease.to_vec()).map_err(CodecError::new)?;
        let guarded_by = match guard {
            0 => GuardedBy::SendsOnly,
            1 => GuardedBy::Gossip,
            2 => GuardedBy::Lease(lease),
            3 => GuardedBy::Sessions(lease),
            _ => return Err(malformed()),
        };
        let message = match message {
            [] => None,
            message => Some(Message::decode(message).map_err(CodecError::new)?),
        };
        let setup = SetupHere { placing: u32::from_le_bytes(*placing), guarded_by };
        Ok(Self { setup, serves: serves != 0, message })
    }
}

/// In what the other node differs, for people.
fn difference(there: &Node, theirs: u32, ours: u32) -> String {
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

/// Of what is written before the message.
const FORMAT: u8 = 2;
