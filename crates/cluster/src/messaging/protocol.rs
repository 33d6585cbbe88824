use tenure_wire::{Version, WireMessage};

use super::{Ask, CodecError, Message};

/// A message of the protocol itself, written for the version that is spoken with the peer.
/// How it may change: [`tenure_wire`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protocol<M> {
    /// The message.
    pub message: M,
    /// What is spoken with the peer ([`Cluster::spoken_with`](crate::Cluster::spoken_with)); of one that was
    /// received, what this node speaks.
    pub spoken: Version,
}

// Must never be `Serialize`: then it would be a message of users.
impl<M: WireMessage + Send + 'static> Message for Protocol<M> {
    fn encode(&self, out: &mut Vec<u8>) -> Result<(), CodecError> {
        let bytes = tenure_wire::encode(&self.message, self.spoken);
        out.extend(bytes.ok_or_else(|| CodecError::new("the peer is of an older version"))?);
        Ok(())
    }

    fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        let message = tenure_wire::decode(bytes).map_err(CodecError::new)?;
        Ok(Self { message, spoken: Version::OURS })
    }
}

impl<M: Ask> Ask for Protocol<M> {
    type Reply = M::Reply;
}
