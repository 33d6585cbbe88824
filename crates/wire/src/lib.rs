//! How messages between nodes are written, and how they may change.
//!
//! A message is a Rust type with serde's derives, written as MessagePack with the *names* of its fields
//! and variants ([`value`]). The crate that owns the type keeps it in a module called `wire`; ARCHITECTURE.md lists all
//! of them, and all records in stores.
//!
//! # The rules of change
//!
//! Within one *major* version of the protocol, nodes of all *minor* versions work together. So:
//!
//! 1. **Fields are only added**, with `#[serde(default)]`: the default is what the field meant before it
//!    existed. A field is never renamed, reused or given another type or meaning.
//! 2. **Unknown fields are skipped.** What must be understood is no field: it raises the major version.
//! 3. **Unknown messages are skipped and counted** ([`Unreadable::Newer`]). A new message says with
//!    [`WireMessage::since`] in which minor it appeared, and [`encode`] writes it for no peer that speaks an
//!    older one: such a peer does not need it.
//! 4. **A message that is no longer used** is read for as long as the major version lasts, and written to the
//!    peers that know nothing better.
//! 5. **What nodes pass on for others** (members and rows of a view) keeps the fields that a node in between
//!    does not know.
//! 6. **What nodes compare** (digests of views and of hosted shards) covers only what all versions share.
//! 7. **What cannot be read is not *none*.** It is counted and logged, and never overwritten or acted upon.
//!
//! Bytes of every message of every released version stand in `samples/` of the crate that owns it and must be
//! readable for ever; a message without a sample fails a test.
//!
//! Names that travel often are one letter long. Why MessagePack: measured on a view of 100 members, names of
//! one letter cost 15 % over a form without names; protobuf costs 13 % and a second set of types, CBOR with
//! numbers 13 % and twice the time; and users' own messages can have the same form.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod bytes;
mod error;
#[cfg(feature = "planted")]
mod next;
#[cfg(feature = "planted")]
pub mod samples;
pub mod value;
mod version;

pub use error::CodecError;
#[cfg(feature = "planted")]
pub use next::{plant_in_record, surplus};
pub use version::Version;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// A message between nodes.
pub trait WireMessage: Serialize + DeserializeOwned {
    /// The minor version in which this message appeared.
    fn since(&self) -> u16 {
        0
    }
}

/// Writes a message for a peer with which `spoken` was agreed; `None` if that version does not know the
/// message, and so does not need it.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use tenure_wire::{Version, WireMessage, decode, encode};
///
/// #[derive(Serialize, Deserialize, Debug, PartialEq)]
/// enum Word {
///     Who,
///     State { hosting: Option<u64> },
/// }
/// impl WireMessage for Word {}
///
/// let word = Word::State { hosting: Some(7) };
/// let bytes = encode(&word, Version::OURS).unwrap();
/// assert_eq!(decode::<Word>(&bytes).unwrap(), word);
/// ```
pub fn encode<M: WireMessage>(message: &M, spoken: Version) -> Option<Vec<u8>> {
    if message.since() > spoken.minor {
        return None;
    }
    let mut out = Vec::new();
    // Numbers, texts, sequences and maps of these can always be written.
    value::put_value::<true>(message, &mut out).expect("messages are made of what can be written");
    #[cfg(feature = "planted")]
    if next::is_planted() {
        out = next::rewrite(&out, spoken);
    }
    Some(out)
}

/// Reads a message. Bytes behind it are ignored.
pub fn decode<M: WireMessage>(bytes: &[u8]) -> Result<M, Unreadable> {
    decode_head(bytes).map(|(message, _)| message)
}

/// Reads a message, and gives the bytes behind it.
pub fn decode_head<M: WireMessage>(bytes: &[u8]) -> Result<(M, &[u8]), Unreadable> {
    #[cfg(feature = "planted")]
    if next::is_planted()
        && let Some((message, rest)) = next::restore(bytes)
    {
        return Ok((read(&message)?.0, rest));
    }
    read(bytes)
}

/// Without the feature `planted`, a record is what it is.
#[cfg(not(feature = "planted"))]
pub fn plant_in_record(json: Vec<u8>) -> Vec<u8> {
    json
}

fn read<M: DeserializeOwned>(bytes: &[u8]) -> Result<(M, &[u8]), Unreadable> {
    value::read_head::<M, true>(bytes).map_err(|error| {
        let text = fit_for_log(&error.to_string());
        // serde has no other way to tell.
        match text.starts_with("unknown variant") {
            true => Unreadable::Newer(text),
            false => Unreadable::Malformed(text),
        }
    })
}

/// An error may quote what a stranger sent: no control characters that could pass for lines of a log, and not
/// too much.
fn fit_for_log(text: &str) -> String {
    text[..text.floor_char_boundary(TEXT_MAX)].replace(char::is_control, " ")
}

/// Why bytes are no message that this version knows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// A newer version may have written it.
    #[error("a newer version wrote it: {0}")]
    Newer(String),
    /// No version writes it.
    #[error("it is malformed: {0}")]
    Malformed(String),
}

/// The longest text of an error.
const TEXT_MAX: usize = 300;

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum Now {
        Ping,
        Note(Inner),
    }
    impl WireMessage for Now {}

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Inner {
        #[serde(rename = "b", with = "bytes")]
        bytes: Vec<u8>,
        digest: u128,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum Later {
        Ping,
        Note(LaterInner),
        Fresh { count: u64 },
    }
    impl WireMessage for Later {
        fn since(&self) -> u16 {
            match self {
                Self::Fresh { .. } => 1,
                Self::Ping | Self::Note(_) => 0,
            }
        }
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct LaterInner {
        #[serde(default)]
        added: Option<Vec<String>>,
        digest: u128,
        #[serde(rename = "b", with = "bytes")]
        bytes: Vec<u8>,
    }

    const NEXT: Version = Version { minor: Version::OURS.minor + 1, ..Version::OURS };

    fn inner() -> Inner {
        Inner { bytes: vec![0xff; 40], digest: u128::MAX - 7 }
    }

    #[test]
    fn fields_can_be_added_both_ways() {
        let added = Some(vec!["x".into()]);
        let later = LaterInner { added, digest: inner().digest, bytes: inner().bytes };
        let bytes = encode(&Later::Note(later), NEXT).unwrap();
        assert_eq!(decode::<Now>(&bytes), Ok(Now::Note(inner())));

        let bytes = encode(&Now::Note(inner()), Version::OURS).unwrap();
        let Later::Note(read) = decode(&bytes).unwrap() else { panic!("another message") };
        assert_eq!((read.added, read.bytes), (None, inner().bytes));
    }

    #[test]
    fn bytes_take_as_many_bytes() {
        let mut short = inner();
        short.bytes.truncate(20);
        let len = |inner| encode(&Now::Note(inner), Version::OURS).unwrap().len();
        assert_eq!(len(inner()) - len(short), 20);
    }

    #[test]
    fn messages_can_be_added() {
        assert_eq!(encode(&Later::Fresh { count: 1 }, Version::OURS), None);
        let bytes = encode(&Later::Fresh { count: 1 }, NEXT).unwrap();
        assert!(matches!(decode::<Now>(&bytes), Err(Unreadable::Newer(_))));
        assert!(matches!(decode::<Now>(&bytes[..2]), Err(Unreadable::Malformed(_))));
    }

    #[test]
    fn an_error_is_fit_for_a_log() {
        let name = format!("Fresh\n\u{1b}{}", "x".repeat(1000));
        let mut bytes = Vec::new();
        value::put_value::<true>(&name, &mut bytes).unwrap();
        let error = decode::<Now>(&bytes).unwrap_err();
        assert!(matches!(error, Unreadable::Newer(_)), "{error}");
        assert!(!error.to_string().contains(char::is_control) && error.to_string().len() < 400);
    }

    #[test]
    fn what_follows_a_message_is_left() {
        let mut bytes = encode(&Now::Ping, Version::OURS).unwrap();
        bytes.extend_from_slice(b"body");
        assert_eq!(decode_head::<Now>(&bytes), Ok((Now::Ping, &b"body"[..])));
    }

    #[test]
    fn a_message_that_is_nested_too_deep_is_malformed() {
        let mut bytes = encode(&Now::Note(inner()), Version::OURS).unwrap();
        bytes.truncate(bytes.len() - 18);
        bytes.extend(std::iter::repeat_n(0x91, 1_000_000));
        assert!(matches!(decode::<Now>(&bytes), Err(Unreadable::Malformed(_))));
    }
}
