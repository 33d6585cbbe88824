use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::Serialize;
use serde::de::DeserializeOwned;

use tenure_wire::{CodecError, value};

use super::codec::{self, Form};

/// What can be sent to another node.
///
/// Everything that serde can write and read is a message, in MessagePack with the names of fields and
/// variants: fields may be added if they have a default, taken away, and put in another order, as may
/// variants. [`Positional`] is faster and smaller, and knows no change at all; people can read [`Json`].
///
/// # A type has a name and a version
///
/// The name that serde knows is sent along: the type's own, or that of `#[serde(rename = "…")]`. It
/// ends with the version, `Cart@2`; `Cart` is `Cart@1`. A receiver reads its own name and version, and
/// nothing else: *not done*, [`NotDone::Unreadable`](super::NotDone::Unreadable), names both. So give a
/// type that means something else from now on another version:
///
/// ```
/// # use serde::{Deserialize, Serialize};
/// #[derive(Serialize, Deserialize)]
/// #[serde(rename = "Cart@2")] // The price is in cents now.
/// struct Cart { price: u64 }
/// ```
///
/// - A Rust type that is renamed keeps its old name on the wire by `#[serde(rename = "…")]`.
/// - Only the message itself has its name checked, not what is in it, nor the parameters of a generic
///   type: they are told apart by their fields.
/// - Numbers, text, tuples, collections and options have no name; nor do types with `#[serde(flatten)]`,
///   `untagged` or an internal `tag`, of which serde does not say it. Wrap one that needs a version:
///   `#[serde(rename = "Cart@2")] struct Cart(Inner)`. With `#[serde(transparent)]`, a type is what is
///   in it.
///
/// `docs/upgrading.md` has a recipe for each change of a message. Long binary data belongs into a type
/// that serde knows as bytes (`serde_bytes`, or `bytes::Bytes`): a `Vec<u8>` is a list of numbers to it, of
/// one or two bytes each.
///
/// # Your own form
///
/// For anything else, implement this for a type of yours that is not `Serialize`:
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
        codec::put_tag::<M>(Form::Named, out)?;
        value::put_value::<true>(self, out)
    }

    #[inline]
    fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        value::read_value::<M, true>(codec::strip_tag::<M>(Form::Named, bytes)?)
    }
}

/// A message that travels without the names of its fields and variants: smaller and faster, for what
/// is sent by the million. Whatever changes in it or in what it holds, give it another version: the
/// receiver notices another number of fields, but not another order or meaning. So a type that leaves
/// fields out (`skip_serializing_if`, or an enum with `tag` and `content`) cannot be read.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use tenure_cluster::messaging::{Message, Positional};
///
/// #[derive(Serialize, Deserialize)]
/// #[serde(rename = "Tick@2")]
/// struct Tick { number: u64, price: u64 }
///
/// let (mut short, mut long) = (Vec::new(), Vec::new());
/// Positional(Tick { number: 1, price: 2 }).encode(&mut short).unwrap();
/// Tick { number: 1, price: 2 }.encode(&mut long).unwrap();
/// assert_eq!((short.len(), long.len()), (11, 24));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Positional<M>(pub M); // Must never be `Serialize`: then it would be written with names.

impl<M: Serialize + DeserializeOwned + Send + 'static> Message for Positional<M> {
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) -> Result<(), CodecError> {
        codec::put_tag::<M>(Form::Positional, out)?;
        value::put_value::<false>(&self.0, out)
    }

    #[inline]
    fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        value::read_value::<M, false>(codec::strip_tag::<M>(Form::Positional, bytes)?).map(Self)
    }
}

impl<M> From<M> for Positional<M> {
    fn from(message: M) -> Self {
        Self(message)
    }
}

/// A message that travels as JSON, after its name and version: larger and slower, but people can read
/// it. Unlike the default, JSON takes `Some(None)` for `None`, and NaN for null.
///
/// ```
/// use tenure_cluster::messaging::{Json, Message};
/// let mut out = Vec::new();
/// Json(vec![1, 2]).encode(&mut out).unwrap();
/// assert!(out.ends_with(b"[1,2]"));
/// assert_eq!(Json::<Vec<u8>>::decode(&out).unwrap().0, [1, 2]);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Json<M>(pub M); // Must never be `Serialize`, likewise.

impl<M: Serialize + DeserializeOwned + Send + 'static> Message for Json<M> {
    fn encode(&self, out: &mut Vec<u8>) -> Result<(), CodecError> {
        codec::put_tag::<M>(Form::Json, out)?;
        serde_json::to_writer(out, &self.0).map_err(CodecError::new)
    }

    fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        let text = codec::strip_tag::<M>(Form::Json, bytes)?;
        serde_json::from_slice(text).map(Self).map_err(CodecError::new)
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

/// Reads a message of another node, whatever its type makes of the bytes: a panic is an error.
#[inline]
pub fn decode<M: Message>(bytes: &[u8]) -> Result<M, CodecError> {
    // Nothing of a message that panicked is left.
    catch_unwind(AssertUnwindSafe(|| M::decode(bytes)))
        .unwrap_or_else(|_| Err(CodecError::new("its type panicked when it was decoded")))
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
