//! What proxies send to the inbox of a singleton, and what comes back to them.

use bytes::Bytes;
use tenure_cluster::messaging::{CodecError, Message};

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
        let [a, b, c, d] = proxy.to_le_bytes();
        out.extend_from_slice(&[kind, a, b, c, d]);
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

/// What a node that does not host the singleton sends back to a proxy: a byte that says what it is, the
/// proxy's number, the singleton's name after its length (two bytes), and the message.
pub(super) struct Returned {
    pub(super) singleton: String,
    pub(super) proxy: u32,
    /// The message; `None` answers a mark.
    pub(super) message: Option<Vec<u8>>,
}

// Not `Serialize`, so that the message is copied as it is: it must not grow on its way back.
impl Message for Returned {
    fn encode(&self, out: &mut Vec<u8>) -> Result<(), CodecError> {
        let len = u16::try_from(self.singleton.len()).map_err(CodecError::new)?;
        out.push(if self.message.is_some() { MESSAGE } else { MARK });
        out.extend_from_slice(&self.proxy.to_le_bytes());
        out.extend_from_slice(&len.to_le_bytes());
        out.extend_from_slice(self.singleton.as_bytes());
        out.extend_from_slice(self.message.as_deref().unwrap_or_default());
        Ok(())
    }

    fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        let malformed = || CodecError::new("it is malformed");
        let (&kind, rest) = bytes.split_first().ok_or_else(malformed)?;
        let (proxy, rest) = rest.split_first_chunk::<4>().ok_or_else(malformed)?;
        let (len, rest) = rest.split_first_chunk::<2>().ok_or_else(malformed)?;
        let len = usize::from(u16::from_le_bytes(*len));
        let (name, message) = rest.split_at_checked(len).ok_or_else(malformed)?;
        let singleton = str::from_utf8(name).map_err(CodecError::new)?.to_owned();
        let message = match kind {
            MESSAGE => Some(message.to_vec()),
            MARK => None,
            _ => return Err(CodecError::new("a frame of a newer version")),
        };
        Ok(Self { singleton, proxy: u32::from_le_bytes(*proxy), message })
    }
}

/// The receiver of [`Returned`], one for all singletons on a node.
pub(super) const RETURNED: &str = "tenure/singletons/returned";
/// The receiver of [`Farewell`](crate::wire::Farewell), likewise.
pub(super) const FAREWELL: &str = "tenure/singletons/farewell";

const MESSAGE: u8 = 1;
const MARK: u8 = 2;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tenure_wire::samples;

    use super::*;

    /// Each kind has one form for ever; another form is another kind.
    #[test]
    fn samples_can_be_read() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("samples/frames.txt");
        let message = Frame::Message { proxy: 7, message: Raw(Bytes::from_static(b"body")) };
        let current = [("Frame::Message", message), ("Frame::Mark", Frame::Mark { proxy: 7 })];
        let current = current.map(|(name, frame)| {
            let mut out = Vec::new();
            frame.encode(&mut out).unwrap();
            (name.to_owned(), out)
        });
        samples::check_bytes(&file, "Frame", current.into(), |bytes| {
            match Frame::<Raw>::decode(bytes).map_err(|error| error.to_string())? {
                Frame::Message { proxy: 7, message: Raw(body) } if *body == *b"body" => Ok(()),
                Frame::Mark { proxy: 7 } => Ok(()),
                _ => Err("it is another".into()),
            }
        });
        let bodies = [Some(b"body".to_vec()), None];
        let current = bodies.clone().map(|message| {
            let mut out = Vec::new();
            Returned { singleton: "report".into(), proxy: 7, message }.encode(&mut out).unwrap();
            ("Returned".to_owned(), out)
        });
        samples::check_bytes(&file, "Returned", current.into(), |bytes| {
            let read = Returned::decode(bytes).map_err(|error| error.to_string())?;
            match (&*read.singleton, read.proxy, bodies.contains(&read.message)) {
                ("report", 7, true) => Ok(()),
                _ => Err("it is another".into()),
            }
        });
    }
}
