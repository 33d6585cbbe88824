//! From bytes of another node to serde's data model.

use serde::de::{self, Deserializer, Visitor};

use super::marker::{
    ARRAY16, ARRAY32, BIN8, BIN16, BIN32, F32, F64, FALSE, I8, I16, I32, I64, MAP_OF_ONE, MAP16,
    MAP32, NIL, SOME, STR8, STR16, STR32, TRUE, U8, U16, U32, U64,
};
use super::parts::{PartsReader, VariantReader};
use crate::CodecError;

pub(super) type Read<T> = Result<T, CodecError>;

impl de::Error for CodecError {
    #[cold]
    fn custom<T: std::fmt::Display>(error: T) -> Self {
        Self::new(error)
    }
}

/// Reads values, with the names of fields and variants or by position.
pub(super) struct ValueReader<'de, const NAMED: bool> {
    rest: &'de [u8],
    /// How many levels deeper a value may go.
    depth: u8,
}

impl<'de, const NAMED: bool> ValueReader<'de, NAMED> {
    pub(super) fn new(bytes: &'de [u8]) -> Self {
        Self { rest: bytes, depth: DEPTH_MAX }
    }

    pub(super) fn rest(&self) -> &'de [u8] {
        self.rest
    }

    #[inline]
    fn peek(&self) -> Read<u8> {
        self.rest.first().copied().ok_or_else(too_short)
    }

    #[inline]
    fn byte(&mut self) -> Read<u8> {
        let (&byte, rest) = self.rest.split_first().ok_or_else(too_short)?;
        self.rest = rest;
        Ok(byte)
    }

    #[inline]
    fn bytes(&mut self, len: usize) -> Read<&'de [u8]> {
        let (bytes, rest) = self.rest.split_at_checked(len).ok_or_else(too_short)?;
        self.rest = rest;
        Ok(bytes)
    }

    fn pass(&mut self, len: usize) -> Read<()> {
        self.bytes(len).map(|_| ())
    }

    #[inline]
    fn fixed<const N: usize>(&mut self) -> Read<[u8; N]> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or_else(too_short)?;
        self.rest = rest;
        Ok(*bytes)
    }

    #[inline]
    fn len16(&mut self) -> Read<usize> {
        self.fixed().map(|bytes| usize::from(u16::from_be_bytes(bytes)))
    }

    #[inline]
    fn len32(&mut self) -> Read<usize> {
        self.fixed().map(|bytes| u32::from_be_bytes(bytes) as usize)
    }

    #[inline]
    fn array_len(&mut self) -> Read<usize> {
        match self.byte()? {
            marker @ 0x90..=0x9f => Ok(usize::from(marker & 0xf)),
            ARRAY16 => self.len16(),
            ARRAY32 => self.len32(),
            marker => Err(wrong(marker, "an array")),
        }
    }

    #[inline]
    fn map_len(&mut self) -> Read<usize> {
        match self.byte()? {
            marker @ 0x80..=0x8f => Ok(usize::from(marker & 0xf)),
            MAP16 => self.len16(),
            MAP32 => self.len32(),
            marker => Err(wrong(marker, "a map")),
        }
    }

    #[inline]
    fn text(&mut self) -> Read<&'de str> {
        let len = match self.byte()? {
            marker @ 0xa0..=0xbf => usize::from(marker & 0x1f),
            STR8 => self.byte()?.into(),
            STR16 => self.len16()?,
            STR32 => self.len32()?,
            marker => return Err(wrong(marker, "text")),
        };
        str::from_utf8(self.bytes(len)?).map_err(CodecError::new)
    }

    #[inline]
    fn binary(&mut self) -> Read<&'de [u8]> {
        let len = match self.byte()? {
            BIN8 => self.byte()?.into(),
            BIN16 => self.len16()?,
            BIN32 => self.len32()?,
            marker => return Err(wrong(marker, "bytes")),
        };
        self.bytes(len)
    }

    #[inline]
    fn integer<V: Visitor<'de>>(&mut self, visitor: V) -> Read<V::Value> {
        match self.byte()? {
            marker @ 0..=0x7f => visitor.visit_u64(marker.into()),
            marker @ 0xe0..=0xff => visitor.visit_i64((marker as i8).into()),
            U8 => visitor.visit_u64(self.byte()?.into()),
            U16 => visitor.visit_u64(u16::from_be_bytes(self.fixed()?).into()),
            U32 => visitor.visit_u64(u32::from_be_bytes(self.fixed()?).into()),
            U64 => visitor.visit_u64(u64::from_be_bytes(self.fixed()?)),
            I8 => visitor.visit_i64(i8::from_be_bytes(self.fixed()?).into()),
            I16 => visitor.visit_i64(i16::from_be_bytes(self.fixed()?).into()),
            I32 => visitor.visit_i64(i32::from_be_bytes(self.fixed()?).into()),
            I64 => visitor.visit_i64(i64::from_be_bytes(self.fixed()?)),
            marker => Err(wrong(marker, "an integer")),
        }
    }

    fn wide_integer<V: Visitor<'de>>(&mut self, visitor: V) -> Read<V::Value> {
        if self.peek()? != BIN8 {
            return self.integer(visitor);
        }
        let bytes = self.binary()?;
        match (bytes.first_chunk(), bytes.split_first()) {
            (Some(number), _) if bytes.len() == 16 => {
                visitor.visit_u128(u128::from_be_bytes(*number))
            }
            (_, Some((0xff, number))) => {
                let number = number.try_into().map_err(CodecError::new)?;
                visitor.visit_i128(i128::from_be_bytes(number))
            }
            _ => Err(CodecError::new("found bytes that are no integer")),
        }
    }

    /// Reads something that may hold others of its kind.
    #[inline]
    fn descend<T>(&mut self, read: impl FnOnce(&mut Self) -> Read<T>) -> Read<T> {
        self.depth = self.depth.checked_sub(1).ok_or_else(too_deep)?;
        let value = read(self);
        self.depth += 1;
        value
    }

    /// An array, of exactly so many values if that is known.
    #[inline]
    pub(super) fn array<V: Visitor<'de>>(
        &mut self,
        expected: Option<usize>,
        visitor: V,
    ) -> Read<V::Value> {
        let len = self.array_len()?;
        if expected.is_some_and(|expected| expected != len) {
            return Err(wrong_len(len, expected));
        }
        self.parts(len, 1, |parts| visitor.visit_seq(parts))
    }

    #[inline]
    fn map<V: Visitor<'de>>(&mut self, visitor: V) -> Read<V::Value> {
        let len = self.map_len()?;
        self.parts(len, 2, |parts| visitor.visit_map(parts))
    }

    /// Reads so many parts, each of so many values.
    #[inline]
    pub(super) fn parts<T>(
        &mut self,
        len: usize,
        values: usize,
        read: impl FnOnce(&mut PartsReader<'_, 'de, NAMED>) -> Read<T>,
    ) -> Read<T> {
        // Each value takes a byte at least: what is announced here bounds what is allocated for it.
        if len.saturating_mul(values) > self.rest.len() {
            return Err(too_short());
        }
        self.descend(|reader| {
            let mut parts = PartsReader { reader, left: len };
            let value = read(&mut parts)?;
            match parts.left {
                0 => Ok(value),
                left => Err(wrong_len(len, Some(len - left))),
            }
        })
    }

    /// Skips values, however deep.
    fn skip(&mut self, values: usize) -> Read<()> {
        let mut left = values;
        while left > 0 {
            left -= 1;
            match self.peek()? {
                0..=0x7f | 0xe0..=0xff | NIL | FALSE | TRUE => self.pass(1)?,
                0x80..=0x8f | MAP16 | MAP32 => {
                    left = left.saturating_add(self.map_len()?.saturating_mul(2));
                }
                0x90..=0x9f | ARRAY16 | ARRAY32 => left = left.saturating_add(self.array_len()?),
                SOME => {
                    self.pass(1)?;
                    left = left.saturating_add(1);
                }
                0xa0..=0xbf | STR8 | STR16 | STR32 => self.text().map(|_| ())?,
                BIN8 | BIN16 | BIN32 => self.binary().map(|_| ())?,
                U8 | I8 => self.pass(2)?,
                U16 | I16 => self.pass(3)?,
                U32 | I32 | F32 => self.pass(5)?,
                U64 | I64 | F64 => self.pass(9)?,
                marker @ (0xc7..=0xc9 | 0xd4..=0xd8) => return Err(wrong(marker, "a value")),
            }
        }
        Ok(())
    }

    /// Skips the fields of what has none here: the sender's type has some more.
    pub(super) fn skip_fields(&mut self) -> Read<()> {
        let len = self.map_len()?;
        self.skip(len.saturating_mul(2))
    }
}

macro_rules! read_integers {
    ($($method:ident)*) => {$(
        #[inline]
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Read<V::Value> {
            self.integer(visitor)
        }
    )*};
}

macro_rules! read_borrowed {
    ($($method:ident $read:ident $visit:ident;)*) => {$(
        #[inline]
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Read<V::Value> {
            visitor.$visit(self.$read()?)
        }
    )*};
}

impl<'de, const NAMED: bool> Deserializer<'de> for &mut ValueReader<'de, NAMED> {
    type Error = CodecError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Read<V::Value> {
        match self.peek()? {
            0..=0x7f | 0xcc..=0xd3 | 0xe0..=0xff => self.integer(visitor),
            0x80..=0x8f | MAP16 | MAP32 => self.map(visitor),
            0x90..=0x9f | ARRAY16 | ARRAY32 => self.array(None, visitor),
            0xa0..=0xbf | STR8 | STR16 | STR32 => visitor.visit_borrowed_str(self.text()?),
            BIN8 | BIN16 | BIN32 => visitor.visit_borrowed_bytes(self.binary()?),
            NIL => self.deserialize_unit(visitor),
            SOME => self.deserialize_option(visitor),
            FALSE | TRUE => self.deserialize_bool(visitor),
            F32 => self.deserialize_f32(visitor),
            F64 => self.deserialize_f64(visitor),
            marker @ (0xc7..=0xc9 | 0xd4..=0xd8) => Err(wrong(marker, "a value")),
        }
    }

    read_integers! {
        deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64
    }

    read_borrowed! {
        deserialize_char text visit_borrowed_str;
        deserialize_str text visit_borrowed_str;
        deserialize_string text visit_borrowed_str;
        deserialize_bytes binary visit_borrowed_bytes;
        deserialize_byte_buf binary visit_borrowed_bytes;
    }

    fn deserialize_i128<V: Visitor<'de>>(self, visitor: V) -> Read<V::Value> {
        self.wide_integer(visitor)
    }

    fn deserialize_u128<V: Visitor<'de>>(self, visitor: V) -> Read<V::Value> {
        self.wide_integer(visitor)
    }

    #[inline]
    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Read<V::Value> {
        match self.byte()? {
            FALSE => visitor.visit_bool(false),
            TRUE => visitor.visit_bool(true),
            marker => Err(wrong(marker, "true or false")),
        }
    }

    #[inline]
    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Read<V::Value> {
        match self.byte()? {
            F32 => visitor.visit_f32(f32::from_be_bytes(self.fixed()?)),
            marker => Err(wrong(marker, "a number of type f32")),
        }
    }

    #[inline]
    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Read<V::Value> {
        match self.byte()? {
            F64 => visitor.visit_f64(f64::from_be_bytes(self.fixed()?)),
            F32 => visitor.visit_f64(f32::from_be_bytes(self.fixed()?).into()),
            marker => Err(wrong(marker, "a number of type f64")),
        }
    }

    #[inline]
    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Read<V::Value> {
        match self.peek()? {
            NIL => {
                self.byte()?;
                visitor.visit_none()
            }
            SOME => {
                self.byte()?;
                self.descend(|reader| visitor.visit_some(reader))
            }
            _ => self.descend(|reader| visitor.visit_some(reader)),
        }
    }

    #[inline]
    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Read<V::Value> {
        match self.byte()? {
            NIL => visitor.visit_unit(),
            marker => Err(wrong(marker, "nothing")),
        }
    }

    #[inline]
    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Read<V::Value> {
        match NAMED {
            true => self.skip_fields()?,
            false => match self.array_len()? {
                0 => {}
                len => return Err(wrong_len(len, Some(0))),
            },
        }
        visitor.visit_unit()
    }

    #[inline]
    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Read<V::Value> {
        self.descend(|reader| visitor.visit_newtype_struct(reader))
    }

    #[inline]
    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Read<V::Value> {
        self.array(None, visitor)
    }

    #[inline]
    fn deserialize_tuple<V: Visitor<'de>>(self, len: usize, visitor: V) -> Read<V::Value> {
        self.array(Some(len), visitor)
    }

    #[inline]
    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        len: usize,
        visitor: V,
    ) -> Read<V::Value> {
        self.array(Some(len), visitor)
    }

    #[inline]
    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Read<V::Value> {
        self.map(visitor)
    }

    #[inline]
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Read<V::Value> {
        match NAMED {
            true => self.map(visitor),
            false => self.array(Some(fields.len()), visitor),
        }
    }

    #[inline]
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Read<V::Value> {
        let has_content = self.peek()? == MAP_OF_ONE;
        if has_content {
            self.byte()?;
        }
        self.descend(|reader| visitor.visit_enum(VariantReader { reader, has_content }))
    }

    /// The name of a field; of a variant its name, or its index.
    #[inline]
    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Read<V::Value> {
        match NAMED || matches!(self.peek()?, 0xa0..=0xbf | STR8 | STR16 | STR32) {
            true => visitor.visit_borrowed_str(self.text()?),
            false => self.integer(visitor),
        }
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Read<V::Value> {
        self.skip(1)?;
        visitor.visit_unit()
    }

    #[inline]
    fn is_human_readable(&self) -> bool {
        false
    }
}

#[cold]
fn too_short() -> CodecError {
    CodecError::new("it ends too early")
}

#[cold]
fn too_deep() -> CodecError {
    CodecError::new(format!("it is nested more than {DEPTH_MAX} deep"))
}

#[cold]
fn wrong(marker: u8, expected: &str) -> CodecError {
    let found = match marker {
        0..=0x7f | 0xcc..=0xd3 | 0xe0..=0xff => "an integer",
        0x80..=0x8f | MAP16 | MAP32 => "a map",
        0x90..=0x9f | ARRAY16 | ARRAY32 => "an array",
        0xa0..=0xbf | STR8 | STR16 | STR32 => "text",
        NIL | SOME => "nothing",
        FALSE | TRUE => "true or false",
        BIN8 | BIN16 | BIN32 => "bytes",
        F32 => "a number of type f32",
        F64 => "a number of type f64",
        0xc7..=0xc9 | 0xd4..=0xd8 => "something unknown",
    };
    CodecError::new(format!("found {found}, expected {expected}"))
}

#[cold]
fn wrong_len(found: usize, expected: Option<usize>) -> CodecError {
    CodecError::new(format!("found {found} values, expected {}", expected.unwrap_or_default()))
}

/// How deep a value may be nested: its reader, which calls itself for each level, has a stack that ends.
const DEPTH_MAX: u8 = 128;
