//! What nodes tell each other about the cluster itself, on the control lane.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::Node;
use crate::downing::Converged;
use crate::view::{Digest, Roles, View};

/// A message of the control lane. Who sent it is known from the connection.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Control {
    /// Are you there? From a member of this cluster.
    Ping {
        /// The sender's cluster.
        cluster: u64,
    },
    /// I am.
    Pong {
        /// The sender's cluster.
        cluster: u64,
    },
    /// This is what I believe, in short.
    Summary(Summary),
    /// This is what I believe. Sent only when summaries differ.
    State(State),
    /// May I come in?
    Join(Join),
    /// You are in; this is what we believe, and who counted when all last believed the same.
    Welcome(State, Option<Arc<Converged<Node>>>),
    /// You are not, and this is why.
    Refused(Refusal),
    /// If it is you who answers at your address, join again and say this number. It holds for some
    /// seconds.
    Prove(u64),
    /// Your incarnation was removed from this cluster.
    Removed {
        /// The sender's cluster.
        cluster: u64,
    },
    /// Not about the cluster itself: a message that somebody posted, as a frame of the data lane.
    Posted(Vec<u8>),
}

/// Writes a frame of the control lane.
pub(crate) fn encode(message: &Control) -> Option<Bytes> {
    postcard::to_stdvec(message)
        .inspect_err(|error| tracing::error!("a control message cannot be encoded: {error}"))
        .ok()
        .map(Bytes::from)
}

/// Reads a frame of the control lane.
pub(crate) fn decode(frame: &[u8]) -> Option<Control> {
    postcard::from_bytes(frame).ok()
}

/// How many bytes a message takes on the wire, without its frame.
pub fn encoded_len(message: &Control) -> usize {
    postcard::to_stdvec(message).map_or(0, |bytes| bytes.len())
}

/// What a node believes, in short.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Summary {
    /// Which cluster.
    pub cluster: u64,
    /// Of the view.
    pub digest: Digest,
    /// Who is known to believe the same.
    pub seen: Seen,
    /// Whether this answers a summary; such a one is not answered again.
    pub answer: bool,
}

/// What a node believes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct State {
    /// The view.
    pub view: Arc<View>,
    /// The incarnations that were removed, and for how long.
    pub removed: Arc<[(Node, Duration)]>,
    /// Who is known to believe the same.
    pub seen: Seen,
    /// Whether the receiver should tell what it believes if that differs in the end.
    pub answer: bool,
}

/// A set of members of a view: one bit for each, in the order of the view. Only meaningful together
/// with the digest of that view.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen(Vec<u8>);

impl Seen {
    /// One bit for each of the members, set if `has_seen`.
    pub(crate) fn new<'a>(
        members: impl ExactSizeIterator<Item = &'a Node>,
        has_seen: impl Fn(&Node) -> bool,
    ) -> Self {
        let mut bits = vec![0; members.len().div_ceil(8)];
        for (index, node) in members.enumerate() {
            if has_seen(node) {
                bits[index / 8] |= 1 << (index % 8);
            }
        }
        Self(bits)
    }

    /// Every one of this many.
    pub(crate) fn all(members: usize) -> Self {
        let mut bits = vec![u8::MAX; members.div_ceil(8)];
        if let (Some(last), rest @ 1..) = (bits.last_mut(), members % 8) {
            *last = u8::MAX >> (8 - rest);
        }
        Self(bits)
    }

    /// How many bits are set.
    pub(crate) fn len(&self) -> usize {
        self.0.iter().map(|byte| byte.count_ones() as usize).sum()
    }

    /// Whether the bit of the member with this place is set.
    pub(crate) fn contains(&self, index: usize) -> bool {
        self.0.get(index / 8).is_some_and(|byte| byte & (1 << (index % 8)) != 0)
    }
}

/// What a node that wants to join says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Join {
    /// What it can be used for.
    pub roles: Roles,
    /// Settings that must be the same everywhere, by name.
    pub settings: Arc<[(String, String)]>,
    /// The number from [`Control::Prove`], or zero.
    pub proof: u64,
}

/// Why a node is not let in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// The one that was asked is in no cluster itself, or is on its way out.
    #[error("it is in no cluster itself")]
    NotAMember,
    /// A setting must be the same everywhere, and is not.
    #[error("the setting {name} must agree: it is {ours} in the cluster, {theirs} here")]
    Setting {
        /// Which.
        name: String,
        /// What the cluster has.
        ours: String,
        /// What the one that wants to join has.
        theirs: String,
    },
    /// This very incarnation was removed; a new process may join.
    #[error("this incarnation was removed from the cluster; start again as a new one")]
    Removed,
}
