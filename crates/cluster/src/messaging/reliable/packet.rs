use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::messaging::{CodecError, Message};

/// A numbered message on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Packet {
    pub(super) head: Head,
    pub(super) payload: Bytes,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Head {
    /// The sender's name.
    pub(super) sender: String,
    /// Its stream: new for each incarnation of the sender.
    pub(super) stream: u64,
    pub(super) numbers: Numbers,
}

/// What the cores look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Numbers {
    /// Rises each time the sender goes back to send again.
    pub(super) round: u64,
    /// All before this one are done.
    pub(super) base: u64,
    /// The message's own.
    pub(super) number: u64,
}

/// Where a receiver stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ack {
    /// Of the packet that it is about.
    pub(super) round: u64,
    /// This one and all before it are done.
    pub(super) done: u64,
    /// The one that is to be handed out next.
    pub(super) next: u64,
    /// `next` is missing, although later ones were sent.
    pub(super) gap: bool,
}

// Not `Serialize`, so that the payload is copied as it is.
impl Message for Packet {
    fn encode(&self, out: &mut Vec<u8>) -> Result<(), CodecError> {
        self.head.encode(out)?;
        out.extend_from_slice(&self.payload);
        Ok(())
    }

    fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        let (head, payload): (Head, _) =
            postcard::take_from_bytes(bytes).map_err(CodecError::new)?;
        let Numbers { base, number, .. } = head.numbers;
        if base == 0 || number < base || number > NUMBER_MAX {
            return Err(CodecError::new("numbers that no sender gives"));
        }
        Ok(Self { head, payload: Bytes::copy_from_slice(payload) })
    }
}

/// What a head takes beside the sender's name, at most.
pub(super) const OVERHEAD: usize = 64;
/// Ten million a second for ten thousand years.
const NUMBER_MAX: u64 = u64::MAX >> 1;
