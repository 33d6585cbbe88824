use std::panic::{AssertUnwindSafe, catch_unwind};

use postcard::ser_flavors::Flavor;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// What can be sent to another node.
///
/// Everything that serde can write and read is a message, in the compact form of postcard. For JSON,
/// wrap it in [`Json`]. For anything else, implement this for a type of yours that is not
/// `Serialize`:
///
/// ```
/// use tenure_cluster::messaging::{CodecError, Message};
///
/// struct Line(String);
///
/// impl Message for Line {
///     fn encode(&self, out: &mut Vec<u8>) -> Result<(), CodecError> {
///         out.extend_from_slice(self.0.as_bytes());
///         Ok(())
///     }
///     fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
///         let text = std::str::from_utf8(bytes).map_err(CodecError::new)?;
///         Ok(Self(text.to_owned()))
///     }
/// }
/// # let mut out = Vec::new();
/// # Line("a".into()).encode(&mut out).unwrap();
/// # assert_eq!(Line::decode(&out).unwrap().0, "a");
/// ```
pub trait Message: Sized + Send + 'static {
    /// Appends it. What was there before must stay.
    fn encode(&self, out: &mut Vec<u8>) -> Result<(), CodecError>;

    /// Reads it from all of the bytes, which come from another node. A panic counts as an error.
    fn decode(bytes: &[u8]) -> Result<Self, CodecError>;
}

impl<M: Serialize + DeserializeOwned + Send + 'static> Message for M {
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) -> Result<(), CodecError> {
        postcard::serialize_with_flavor(self, Out(out)).map_err(CodecError::new)
    }

    #[inline]
    fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        match postcard::take_from_bytes(bytes) {
            Ok((message, [])) => Ok(message),
            // The sender's type has more fields: the ones before may mean something else, too.
            Ok((_, rest)) => Err(CodecError(format!("{} bytes are left over", rest.len()))),
            Err(error) => Err(CodecError::new(error)),
        }
    }
}

/// A message that travels as JSON: larger and slower, but fields may be added and left out, and
/// people can read it.
///
/// ```
/// use tenure_cluster::messaging::{Json, Message};
/// let mut out = Vec::new();
/// Json(vec![1, 2]).encode(&mut out).unwrap();
/// assert_eq!(out, b"[1,2]");
/// assert_eq!(Json::<Vec<u8>>::decode(&out).unwrap().0, [1, 2]);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Json<M>(pub M); // Must never be `Serialize`: then it would be a message in postcard's form.

impl<M: Serialize + DeserializeOwned + Send + 'static> Message for Json<M> {
    fn encode(&self, out: &mut Vec<u8>) -> Result<(), CodecError> {
        serde_json::to_writer(out, &self.0).map_err(CodecError::new)
    }

    fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        serde_json::from_slice(bytes).map(Self).map_err(CodecError::new)
    }
}

impl<M> From<M> for Json<M> {
    fn from(message: M) -> Self {
        Self(message)
    }
}

/// A question: names what the answer is. It is sent as the message of its receiver that it converts
/// into, so that one receiver can be asked many things.
///
/// ```
/// use tenure_cluster::messaging::Ask;
/// struct HowMany { sku: u64 }
/// impl Ask for HowMany { type Reply = u32; }
/// ```
pub trait Ask {
    /// The answer.
    type Reply: Message;
}

/// Why a message cannot be written or read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CodecError(String);

impl CodecError {
    /// From any error.
    pub fn new(error: impl std::fmt::Display) -> Self {
        Self(error.to_string())
    }
}

/// Reads a message of another node, whatever its type makes of the bytes: a panic is an error.
#[inline]
pub fn decode<M: Message>(bytes: &[u8]) -> Result<M, CodecError> {
    // Nothing of a message that panicked is left.
    catch_unwind(AssertUnwindSafe(|| M::decode(bytes)))
        .unwrap_or_else(|_| Err(CodecError("its type panicked when it was decoded".into())))
}

/// Appends a frame's head and a message, or nothing if the message cannot be encoded.
#[inline]
pub(crate) fn encode<M: Message>(
    failed: &mut Option<CodecError>,
    message: M,
    head: impl FnOnce(&mut Vec<u8>) + Send,
) -> impl FnOnce(&mut Vec<u8>) + Send {
    move |out| append(failed, &message, head, out)
}

/// The same for a message that stays.
#[inline]
pub(crate) fn append<M: Message>(
    failed: &mut Option<CodecError>,
    message: &M,
    head: impl FnOnce(&mut Vec<u8>),
    out: &mut Vec<u8>,
) {
    let start = out.len();
    head(out);
    if let Err(error) = message.encode(out) {
        out.truncate(start);
        *failed = Some(error);
    }
}

/// Appends to what is there already.
struct Out<'a>(&'a mut Vec<u8>);

impl Flavor for Out<'_> {
    type Output = ();

    #[inline]
    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    #[inline]
    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}
