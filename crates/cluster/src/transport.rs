//! How nodes talk: authenticated, bounded, and with control traffic on a lane of its own.
//!
//! A *link* is one TCP connection that one node dialed for one lane. Frames go one way, from the
//! dialer to the acceptor, so two nodes that talk to each other have up to four links:
//!
//! | lane | what for | when it cannot keep up |
//! |---|---|---|
//! | control | heartbeats, gossip, directives | the oldest waiting frame is dropped and counted |
//! | data | messages of users | senders wait; reading stops at the socket |
//!
//! They share nothing but the port, so that a full data lane never delays a heartbeat. Control links
//! and the acceptor run on one runtime, data links on another ([`Handles`]).
//!
//! A link is opened by its first use, opened again (with growing, jittered waits) when it is cut
//! while there is something to send, and closed when it has been idle. What a cut may have lost is
//! told: on a data link the acceptor returns how many messages it handed over, and
//! [`Event::Down`] says how many were sent beyond that: they may or may not have arrived. It also returns
//! how many of them are *settled* ([`SenderAccount`]); when it is gone, [`Event::Unsettled`] says how many
//! are not.
//!
//! Peers show certificates before anything else is read from them ([`Identity`]); then
//! [`handshake`] settles names, addresses and the version.

use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use crate::clients::ClientLink;
use crate::{Address, Incarnation, Node};

mod account;
mod backoff;
mod control_queue;
mod driver;
mod expiry;
pub mod frame;
pub mod handshake;
mod identity;
mod outbox;
mod refusal;
pub(crate) mod settings;
pub mod telemetry;
pub(crate) mod verify;

pub use account::SenderAccount;
#[cfg(feature = "switch")]
pub use driver::Switch;
#[cfg(feature = "certs")]
pub use driver::bench;
pub use driver::{DataLane, StuckLane, Transport};
pub(crate) use driver::{Outgoing, dial_as_client};
pub use frame::{FrameError, Frames};
pub use handshake::{Version, is_name};
pub use identity::{Identity, IdentityError};
pub use refusal::Refusal;
pub use settings::{TransportSettings, TransportSettingsError};

/// Who this node is to its peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Local {
    /// The cluster's name, the same for all its nodes; see [`is_name`].
    pub cluster: String,
    /// The node's name: what people call it, and what its certificate says.
    pub name: String,
    /// Where peers reach it, and which process it is.
    pub node: Node,
}

/// How connections are protected.
#[derive(Clone, Debug)]
pub enum Security {
    /// Mutual TLS 1.3.
    Tls(Identity),
    /// Nothing is encrypted and anybody may pass for a node: for trying things out on one machine.
    /// Beyond it,
    /// [`allow_plaintext_beyond_loopback`](TransportSettings::allow_plaintext_beyond_loopback)
    /// must be set as well.
    PlaintextWithoutAnyProtection,
}

/// Where the transport's tasks run.
#[derive(Clone, Debug)]
pub struct Handles {
    /// For control links and the acceptor: a runtime that user code cannot starve. Its time and
    /// I/O must be enabled.
    pub control: Handle,
    /// For data links: the runtime that user code runs on.
    pub data: Handle,
}

/// What a link carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Lane {
    /// Heartbeats, gossip, directives.
    Control,
    /// Messages of users.
    Data,
}

impl Lane {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Control => "control",
            Self::Data => "data",
        }
    }
}

/// Who opened a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// The peer did: frames come in.
    Incoming,
    /// We did: frames go out.
    Outgoing,
}

impl Direction {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Incoming => "incoming",
            Self::Outgoing => "outgoing",
        }
    }
}

/// The other end of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its address and incarnation.
    pub node: Node,
    /// Its name, as certified.
    pub name: String,
    /// The version that is spoken with it.
    pub version: Version,
}

/// A connection between two nodes for one lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The other end.
    pub peer: Arc<Peer>,
    /// What it carries.
    pub lane: Lane,
    /// Who opened it.
    pub direction: Direction,
}

/// What the transport tells the layer above.
///
/// Events of one link come in order. They wait for room in the channel, and so do the links that
/// they are about: whoever takes them must not wait for the transport in turn.
#[derive(Debug)]
pub enum Event {
    /// Control frames have arrived.
    Control {
        /// From whom.
        from: Arc<Peer>,
        /// At least one.
        frames: Frames,
    },
    /// A node begins to send messages. Everything that it sends comes through here, in order, also
    /// when its link is cut and opened again; the end means that it has been silent for long, and
    /// another event of this kind follows when it speaks again. Nothing is read while nobody
    /// receives; dropping the receiver closes the link.
    Data {
        /// From whom.
        from: Arc<Peer>,
        /// What it sends.
        frames: mpsc::Receiver<Frames>,
        /// Where to say what has become of it: the same for as long as the node is a peer.
        account: Arc<SenderAccount>,
    },
    /// A client begins to talk.
    Client(ClientLink),
    /// A link is up.
    Up(Link),
    /// A link is no more.
    Down {
        /// Which.
        link: Link,
        /// Why.
        why: Down,
        /// How many messages were sent on it of which nobody knows whether they arrived. Always 0
        /// for incoming and for control links.
        unknown: u64,
    },
    /// A data lane was closed while messages waited in it. They never left.
    Unsent {
        /// For whom they were.
        node: Node,
        /// How many.
        messages: u64,
    },
    /// A process is gone, to which messages had gone. They arrived, and it has not said what became of
    /// them.
    Unsettled {
        /// For whom they were.
        node: Node,
        /// How many.
        messages: u64,
    },
    /// Another process than expected answered. If `actual` has the address that was dialed, then
    /// the process that was expected there is gone for good.
    OtherNode {
        /// The address that was dialed.
        dialed: Address,
        /// The incarnation that was expected there, if any.
        expected: Option<Incarnation>,
        /// Who answered.
        actual: Node,
    },
    /// A link could not be opened. Told when it begins and when the reason changes; attempts go on
    /// while there is something to send.
    Failed {
        /// The address that was dialed.
        address: Address,
        /// For which lane.
        lane: Lane,
        /// Why.
        refusal: Refusal,
    },
    /// Somebody who dialed us was refused. When there are many of a kind, only a few are told; the
    /// metric counts all.
    Refused {
        /// Where it dialed from.
        from: IpAddr,
        /// Why.
        refusal: Refusal,
    },
}

/// Why a link ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Down {
    /// It was not used for a while.
    #[error("it was idle")]
    Idle,
    /// The peer closed it.
    #[error("the peer closed it")]
    ByPeer,
    /// The peer opened it anew.
    #[error("the peer opened another one")]
    Replaced,
    /// The connection failed.
    #[error("the connection failed: {0}")]
    Cut(String),
    /// The peer sent something that is no frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// It has reached `link_age_max`, or this node has another certificate now: it is opened again.
    /// Every message that was sent on it has arrived.
    #[error("it is opened again: its age, or a changed certificate")]
    Outdated,
    /// The peer's certificate was good when the link was opened, and is not any more.
    #[error("the peer's certificate is no longer accepted: {0}")]
    NotAccepted(String),
    /// This node closed it: the peer was forgotten, its messages are not wanted, or the transport
    /// was closed.
    #[error("this node closed it")]
    Closed,
}

/// Why a message was not sent. It certainly did not leave this node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// No room, for who does not wait.
    #[error("not sent: too much is waiting for this node already")]
    Full,
    /// Longer than allowed.
    #[error("not sent: a message of {len} bytes is longer than data_frame_max, {max}")]
    TooLong {
        /// The message's length.
        len: usize,
        /// What is allowed.
        max: usize,
    },
    /// Nothing was encoded.
    #[error("not sent: a message must not be empty")]
    Empty,
    /// The lane is closed, for good.
    #[error("not sent: {0}")]
    Closed(Arc<Closed>),
}

/// Why a data lane is closed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Closed {
    /// The transport is.
    #[error("this node's transport is closed")]
    Transport,
    /// The layer above forgot the node.
    #[error("the node is no longer a member")]
    Forgotten,
    /// Another process answers at its address.
    #[error("the node is gone; at its address is now {0}")]
    OtherIncarnation(Node),
}

/// Why there is no transport.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// Settings that cannot work.
    #[error(transparent)]
    Settings(#[from] TransportSettingsError),
    /// A name that cannot be one.
    #[error("{0:?} cannot name a cluster or a node: 1 to 128 letters, digits, '-', '.' or '_'")]
    Name(String),
    /// The identity is somebody else's.
    #[error("the identity is that of \"{theirs}\", the node is \"{ours}\"")]
    Identity {
        /// Cluster and name of the node.
        ours: String,
        /// Cluster and name of the identity.
        theirs: String,
    },
    /// Plaintext where strangers could be.
    #[error(
        "{0} can be reached from other machines, and nothing would be encrypted: use an identity, \
         or listen on 127.0.0.1, or set allow_plaintext_beyond_loopback if the network itself \
         encrypts and authenticates"
    )]
    PlaintextBeyondLoopback(std::net::SocketAddr),
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Where.
        address: String,
        /// Why.
        source: std::io::Error,
    },
}
