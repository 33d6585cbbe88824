use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tenure_wire::{Version, WireMessage};

use crate::messaging::{CodecError, Message};
use crate::wire::is_default;

/// A numbered message on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Packet {
    pub(super) head: Head,
    pub(super) payload: Bytes,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Head {
    /// The sender's name.
    #[serde(rename = "s")]
    pub(super) sender: String,
    /// Its stream: new for each incarnation of the sender.
    #[serde(rename = "i")]
    pub(super) stream: u64,
    #[serde(rename = "n")]
    pub(super) numbers: Numbers,
}

/// What the cores look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Numbers {
    /// Rises each time the sender goes back to send again.
    #[serde(rename = "r")]
    pub(super) round: u64,
    /// All before this one are done.
    #[serde(rename = "b")]
    pub(super) base: u64,
    /// The message's own.
    #[serde(rename = "n")]
    pub(super) number: u64,
}

/// Where a receiver stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ack {
    /// Of the packet that it is about.
    #[serde(rename = "r")]
    pub(super) round: u64,
    /// This one and all before it are done.
    #[serde(rename = "d")]
    pub(super) done: u64,
    /// The one that is to be handed out next.
    #[serde(rename = "n")]
    pub(super) next: u64,
    /// `next` is missing, although later ones were sent.
    #[serde(rename = "g", default, skip_serializing_if = "is_default")]
    pub(super) gap: bool,
}

impl WireMessage for Head {}
impl WireMessage for Ack {}

// Not `Serialize`, so that the payload is copied as it is.
impl Message for Packet {
    fn encode(&self, out: &mut Vec<u8>) -> Result<(), CodecError> {
        // It is of the first version, so that there always are bytes.
        out.extend(tenure_wire::encode(&self.head, Version::FIRST).unwrap_or_default());
        out.extend_from_slice(&self.payload);
        Ok(())
    }

    fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        let (head, payload): (Head, _) =
            tenure_wire::decode_head(bytes).map_err(CodecError::new)?;
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tenure_wire::samples;

    use super::*;

    #[test]
    fn every_message_has_samples_that_can_be_read() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("samples/reliable.txt");
        let numbers = Numbers { round: 2, base: 300, number: 70_000 };
        let head = Head { sender: "till-1".into(), stream: 1 << 60, numbers };
        samples::check_struct(&file, "Head", &[head]);
        let ack = Ack { round: 2, done: 300, next: 301, gap: true };
        samples::check_struct(&file, "Ack", &[ack, Ack { gap: false, ..ack }]);
    }
}
