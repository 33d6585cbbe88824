//! What proxies send to the inbox of a singleton, and what comes back to them.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use tenure_cluster::messaging::{Ask, CodecError, Message};

/// What a proxy sends: a byte that says what it is, the proxy's number on its node (four bytes,
/// little-endian), and the message.
pub(super) enum Frame<M> {
    /// A message for the singleton.
    Message { proxy: u32, message: M },
    /// Asks for [`Returned`] without a message, once everything that the proxy sent before has been
    /// handled or returned.
    Mark { proxy: u32 },
}

impl<M: Message> Message for Frame<M> {
    fn encode(&self, out: &mut Vec<u8>) -> Result<(), CodecError> {
        let (kind, proxy) = match self {
            Self::Message { proxy, .. } => (MESSAGE, proxy),
            Self::Mark { proxy } => (MARK, proxy),
        };
        out.push(kind);
        out.extend_from_slice(&proxy.to_le_bytes());
        match self {
            Self::Message { message, .. } => message.encode(out),
            Self::Mark { .. } => Ok(()),
        }
    }

    fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        let malformed = || CodecError::new("it is malformed");
        let (&kind, rest) = bytes.split_first().ok_or_else(malformed)?;
        let (proxy, rest) = rest.split_first_chunk::<4>().ok_or_else(malformed)?;
        let proxy = u32::from_le_bytes(*proxy);
        match kind {
            MESSAGE => Ok(Self::Message { proxy, message: M::decode(rest)? }),
            MARK => Ok(Self::Mark { proxy }),
            _ => Err(CodecError::new("a frame of a newer version")),
        }
    }
}

/// A message in the form in which it travels: it can be sent again, elsewhere.
pub(super) struct Raw(pub(super) Bytes);

impl Message for Raw {
    fn encode(&self, out: &mut Vec<u8>) -> Result<(), CodecError> {
        out.extend_from_slice(&self.0);
        Ok(())
    }

    fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        Ok(Self(Bytes::copy_from_slice(bytes)))
    }
}

/// What a node that does not host the singleton sends back to a proxy.
#[derive(Serialize, Deserialize)]
pub(super) struct Returned {
    pub(super) singleton: String,
    pub(super) proxy: u32,
    /// The message; `None` answers a mark.
    pub(super) message: Option<Vec<u8>>,
}

/// A node that hosts the singleton no more is about to go, and asks everybody to say when nothing is on
/// its way there any more.
#[derive(Serialize, Deserialize)]
pub(super) struct Farewell {
    pub(super) singleton: String,
}

impl Ask for Farewell {
    type Reply = ();
}

/// The receiver of [`Returned`], one for all singletons on a node.
pub(super) const RETURNED: &str = "tenure/singletons/returned";
/// The receiver of [`Farewell`], likewise.
pub(super) const FAREWELL: &str = "tenure/singletons/farewell";

const MESSAGE: u8 = 1;
const MARK: u8 = 2;
