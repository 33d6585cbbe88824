//! How a value of any type that serde knows is written: [MessagePack], with names of fields and variants or by
//! position.
//!
//! Every value takes a byte at least, so that no length can exceed the frame:
//!
//! | in serde | named | positional |
//! |---|---|---|
//! | struct | map from the fields' names | array of exactly as many |
//! | unit struct | empty map: a struct without fields | empty array |
//! | unit variant | its name | its index |
//! | other variant | map of one entry, from its name | map of one entry, from its index |
//! | newtype struct | what is in it | the same |
//! | tuple, tuple struct | array of exactly as many | the same |
//! | `None`, `()` | nil | the same |
//! | `Some` | what is in it; if that begins with nil or 0xc1, after 0xc1 | the same |
//! | `u128`, `i128` beyond 64 bits | binary: 16 bytes; 17 if negative | the same |
//!
//! MessagePack leaves 0xc1 unused. Without it `Some(None)` and `None` would be the same bytes.
//!
//! Why not an existing crate: rmp-serde reads a struct from an array by position, `Some(None)` as
//! `None`, and lets a recursive newtype around an `Option` descend without end; postcard has no limit
//! of depth at all.
//!
//! [MessagePack]: https://msgpack.org

mod parts;
mod read;
mod write;

use serde::Serialize;
use serde::de::DeserializeOwned;

use self::read::ValueReader;
use self::write::ValueWriter;
use crate::CodecError;

/// Appends a value, with names or by position.
#[inline]
pub fn put_value<const NAMED: bool>(
    value: &impl Serialize,
    out: &mut Vec<u8>,
) -> Result<(), CodecError> {
    value.serialize(&mut ValueWriter::<NAMED> { out })
}

/// Reads such a value from all of the bytes.
#[inline]
pub fn read_value<M: DeserializeOwned, const NAMED: bool>(bytes: &[u8]) -> Result<M, CodecError> {
    match read_head::<M, NAMED>(bytes)? {
        (value, []) => Ok(value),
        (_, rest) => Err(CodecError::new(format!("{} bytes are left over", rest.len()))),
    }
}

/// Reads such a value, and gives the bytes behind it.
#[inline]
pub fn read_head<M: DeserializeOwned, const NAMED: bool>(
    bytes: &[u8],
) -> Result<(M, &[u8]), CodecError> {
    let mut reader = ValueReader::<NAMED>::new(bytes);
    let value = M::deserialize(&mut reader)?;
    Ok((value, reader.rest()))
}

/// What a value begins with, where that is not a number or a length in the same byte.
mod marker {
    pub(super) const NIL: u8 = 0xc0;
    /// Before the value of a `Some` that would look like a `None`.
    pub(super) const SOME: u8 = 0xc1;
    pub(super) const FALSE: u8 = 0xc2;
    pub(super) const TRUE: u8 = 0xc3;
    pub(super) const BIN8: u8 = 0xc4;
    pub(super) const BIN16: u8 = 0xc5;
    pub(super) const BIN32: u8 = 0xc6;
    pub(super) const F32: u8 = 0xca;
    pub(super) const F64: u8 = 0xcb;
    pub(super) const U8: u8 = 0xcc;
    pub(super) const U16: u8 = 0xcd;
    pub(super) const U32: u8 = 0xce;
    pub(super) const U64: u8 = 0xcf;
    pub(super) const I8: u8 = 0xd0;
    pub(super) const I16: u8 = 0xd1;
    pub(super) const I32: u8 = 0xd2;
    pub(super) const I64: u8 = 0xd3;
    pub(super) const STR8: u8 = 0xd9;
    pub(super) const STR16: u8 = 0xda;
    pub(super) const STR32: u8 = 0xdb;
    pub(super) const ARRAY16: u8 = 0xdc;
    pub(super) const ARRAY32: u8 = 0xdd;
    pub(super) const MAP16: u8 = 0xde;
    pub(super) const MAP32: u8 = 0xdf;
    /// A map of one entry: a variant with its content.
    pub(super) const MAP_OF_ONE: u8 = 0x81;
}
