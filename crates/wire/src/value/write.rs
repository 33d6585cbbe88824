//! From serde's data model to bytes.

use serde::ser::{self, Serialize, Serializer};

use super::marker::{
    ARRAY16, ARRAY32, BIN8, BIN16, BIN32, F32, F64, FALSE, I8, I16, I32, I64, MAP_OF_ONE, MAP16,
    MAP32, NIL, SOME, STR8, STR16, STR32, TRUE, U8, U16, U32, U64,
};
use crate::CodecError;

type Written = Result<(), CodecError>;

impl ser::Error for CodecError {
    #[cold]
    fn custom<T: std::fmt::Display>(error: T) -> Self {
        Self::new(error)
    }
}

/// Appends values, with the names of fields and variants or by position.
pub(super) struct ValueWriter<'a, const NAMED: bool> {
    pub(super) out: &'a mut Vec<u8>,
}

impl<const NAMED: bool> ValueWriter<'_, NAMED> {
    /// In one piece: there is one look for room.
    #[inline]
    fn put<const N: usize>(&mut self, marker: u8, bytes: [u8; N]) {
        let mut piece = [marker; 1 + size_of::<u64>()];
        piece[1..=N].copy_from_slice(&bytes);
        self.out.extend_from_slice(&piece[..=N]);
    }

    #[inline]
    fn put_unsigned(&mut self, number: u64) {
        match number {
            0..=0x7f => self.out.push(number as u8),
            0x80..=0xff => self.put(U8, [number as u8]),
            0x100..=0xffff => self.put(U16, (number as u16).to_be_bytes()),
            0x1_0000..=0xffff_ffff => self.put(U32, (number as u32).to_be_bytes()),
            _ => self.put(U64, number.to_be_bytes()),
        }
    }

    #[inline]
    fn put_signed(&mut self, number: i64) {
        match number {
            0.. => self.put_unsigned(number as u64),
            -32..=-1 => self.out.push(number as u8),
            -0x80..=-33 => self.put(I8, (number as i8).to_be_bytes()),
            -0x8000..=-0x81 => self.put(I16, (number as i16).to_be_bytes()),
            -0x8000_0000..=-0x8001 => self.put(I32, (number as i32).to_be_bytes()),
            _ => self.put(I64, number.to_be_bytes()),
        }
    }

    /// A length: in the marker `fixed` if it is below `limit`, or after the first marker that has room
    /// for it; the first one may be missing.
    #[inline]
    fn put_len(&mut self, len: usize, fixed: (u8, usize), markers: [Option<u8>; 3]) -> Written {
        let [short, middle, long] = markers;
        match (len, short, middle, long) {
            (len, ..) if len < fixed.1 => self.out.push(fixed.0 | len as u8),
            (0..=0xff, Some(marker), ..) => self.put(marker, [len as u8]),
            (0..=0xffff, _, Some(marker), _) => self.put(marker, (len as u16).to_be_bytes()),
            (0..=0xffff_ffff, .., Some(marker)) => self.put(marker, (len as u32).to_be_bytes()),
            _ => return Err(CodecError::new("it is longer than 4 GiB")),
        }
        Ok(())
    }

    #[inline]
    fn put_array(&mut self, len: usize) -> Written {
        self.put_len(len, (0x90, 16), [None, Some(ARRAY16), Some(ARRAY32)])
    }

    #[inline]
    fn put_map(&mut self, len: usize) -> Written {
        self.put_len(len, (0x80, 16), [None, Some(MAP16), Some(MAP32)])
    }

    #[inline]
    fn put_str(&mut self, text: &str) -> Written {
        self.put_len(text.len(), (0xa0, 32), [Some(STR8), Some(STR16), Some(STR32)])?;
        self.out.extend_from_slice(text.as_bytes());
        Ok(())
    }

    #[inline]
    fn put_variant(&mut self, index: u32, name: &str) -> Written {
        match NAMED {
            true => self.put_str(name),
            false => {
                self.put_unsigned(index.into());
                Ok(())
            }
        }
    }

    #[inline]
    fn put_content_of(&mut self, index: u32, name: &str) -> Written {
        self.out.push(MAP_OF_ONE);
        self.put_variant(index, name)
    }
}

impl<'w, 'a, const NAMED: bool> ValueWriter<'a, NAMED> {
    /// An array or a map: its length now, or `long` with a length that is filled in at the end.
    #[inline]
    fn begin(
        &'w mut self,
        len: Option<usize>,
        long: u8,
        put: impl FnOnce(&mut Self, usize) -> Written,
    ) -> Result<PartsWriter<'w, 'a, NAMED>, CodecError> {
        let len = match len {
            Some(len) => {
                put(self, len)?;
                Len::Written(len)
            }
            None => {
                self.put(long, [0; 4]);
                Len::At(self.out.len() - 4)
            }
        };
        Ok(PartsWriter { writer: self, len, parts: 0 })
    }

    #[inline]
    fn begin_array(&'w mut self, len: usize) -> Result<PartsWriter<'w, 'a, NAMED>, CodecError> {
        self.begin(Some(len), ARRAY32, Self::put_array)
    }

    #[inline]
    fn begin_struct(&'w mut self, len: usize) -> Result<PartsWriter<'w, 'a, NAMED>, CodecError> {
        match NAMED {
            true => self.begin(Some(len), MAP32, Self::put_map),
            false => self.begin_array(len),
        }
    }
}

macro_rules! put_numbers {
    ($($method:ident $number:ty => $put:ident;)*) => {$(
        #[inline]
        fn $method(self, number: $number) -> Written {
            self.$put(number.into());
            Ok(())
        }
    )*};
}

impl<'w, 'a, const NAMED: bool> Serializer for &'w mut ValueWriter<'a, NAMED> {
    type Ok = ();
    type Error = CodecError;
    type SerializeSeq = PartsWriter<'w, 'a, NAMED>;
    type SerializeTuple = PartsWriter<'w, 'a, NAMED>;
    type SerializeTupleStruct = PartsWriter<'w, 'a, NAMED>;
    type SerializeTupleVariant = PartsWriter<'w, 'a, NAMED>;
    type SerializeMap = PartsWriter<'w, 'a, NAMED>;
    type SerializeStruct = PartsWriter<'w, 'a, NAMED>;
    type SerializeStructVariant = PartsWriter<'w, 'a, NAMED>;

    put_numbers! {
        serialize_i8 i8 => put_signed;
        serialize_i16 i16 => put_signed;
        serialize_i32 i32 => put_signed;
        serialize_i64 i64 => put_signed;
        serialize_u8 u8 => put_unsigned;
        serialize_u16 u16 => put_unsigned;
        serialize_u32 u32 => put_unsigned;
        serialize_u64 u64 => put_unsigned;
    }

    fn serialize_i128(self, number: i128) -> Written {
        if let Ok(number) = u128::try_from(number) {
            return self.serialize_u128(number);
        }
        match i64::try_from(number) {
            Ok(number) => self.put_signed(number),
            Err(_) => {
                self.put(BIN8, [17, 0xff]);
                self.out.extend_from_slice(&number.to_be_bytes());
            }
        }
        Ok(())
    }

    fn serialize_u128(self, number: u128) -> Written {
        match u64::try_from(number) {
            Ok(number) => self.put_unsigned(number),
            Err(_) => {
                self.put(BIN8, [16]);
                self.out.extend_from_slice(&number.to_be_bytes());
            }
        }
        Ok(())
    }

    #[inline]
    fn serialize_bool(self, is: bool) -> Written {
        self.out.push(if is { TRUE } else { FALSE });
        Ok(())
    }

    #[inline]
    fn serialize_f32(self, number: f32) -> Written {
        self.put(F32, number.to_be_bytes());
        Ok(())
    }

    #[inline]
    fn serialize_f64(self, number: f64) -> Written {
        self.put(F64, number.to_be_bytes());
        Ok(())
    }

    #[inline]
    fn serialize_char(self, char: char) -> Written {
        self.put_str(char.encode_utf8(&mut [0; 4]))
    }

    #[inline]
    fn serialize_str(self, text: &str) -> Written {
        self.put_str(text)
    }

    #[inline]
    fn serialize_bytes(self, bytes: &[u8]) -> Written {
        self.put_len(bytes.len(), (0, 0), [Some(BIN8), Some(BIN16), Some(BIN32)])?;
        self.out.extend_from_slice(bytes);
        Ok(())
    }

    #[inline]
    fn serialize_none(self) -> Written {
        self.serialize_unit()
    }

    #[inline]
    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Written {
        let start = self.out.len();
        value.serialize(&mut *self)?;
        if let Some(&(NIL | SOME)) = self.out.get(start) {
            self.out.insert(start, SOME);
        }
        Ok(())
    }

    #[inline]
    fn serialize_unit(self) -> Written {
        self.out.push(NIL);
        Ok(())
    }

    #[inline]
    fn serialize_unit_struct(self, _: &'static str) -> Written {
        self.out.push(if NAMED { 0x80 } else { 0x90 });
        Ok(())
    }

    #[inline]
    fn serialize_unit_variant(self, _: &'static str, index: u32, name: &'static str) -> Written {
        self.put_variant(index, name)
    }

    #[inline]
    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Written {
        value.serialize(self)
    }

    #[inline]
    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        index: u32,
        name: &'static str,
        value: &T,
    ) -> Written {
        self.put_content_of(index, name)?;
        value.serialize(self)
    }

    #[inline]
    fn serialize_seq(self, len: Option<usize>) -> Result<Self::SerializeSeq, CodecError> {
        self.begin(len, ARRAY32, ValueWriter::put_array)
    }

    #[inline]
    fn serialize_tuple(self, len: usize) -> Result<Self::SerializeTuple, CodecError> {
        self.begin_array(len)
    }

    #[inline]
    fn serialize_tuple_struct(
        self,
        _: &'static str,
        len: usize,
    ) -> Result<Self::SerializeTupleStruct, CodecError> {
        self.begin_array(len)
    }

    #[inline]
    fn serialize_tuple_variant(
        self,
        _: &'static str,
        index: u32,
        name: &'static str,
        len: usize,
    ) -> Result<Self::SerializeTupleVariant, CodecError> {
        self.put_content_of(index, name)?;
        self.begin_array(len)
    }

    #[inline]
    fn serialize_map(self, len: Option<usize>) -> Result<Self::SerializeMap, CodecError> {
        self.begin(len, MAP32, ValueWriter::put_map)
    }

    #[inline]
    fn serialize_struct(
        self,
        _: &'static str,
        len: usize,
    ) -> Result<Self::SerializeStruct, CodecError> {
        self.begin_struct(len)
    }

    #[inline]
    fn serialize_struct_variant(
        self,
        _: &'static str,
        index: u32,
        name: &'static str,
        len: usize,
    ) -> Result<Self::SerializeStructVariant, CodecError> {
        self.put_content_of(index, name)?;
        self.begin_struct(len)
    }

    #[inline]
    fn is_human_readable(&self) -> bool {
        false
    }
}

/// Appends the parts of an array or a map.
pub(super) struct PartsWriter<'w, 'a, const NAMED: bool> {
    writer: &'w mut ValueWriter<'a, NAMED>,
    len: Len,
    parts: usize,
}

/// How many parts there will be.
enum Len {
    /// So many, as stands before them.
    Written(usize),
    /// It is to be written here.
    At(usize),
}

impl<const NAMED: bool> PartsWriter<'_, '_, NAMED> {
    #[inline]
    fn put_part<T: Serialize + ?Sized>(&mut self, part: &T) -> Written {
        self.parts += 1;
        part.serialize(&mut *self.writer)
    }

    #[inline]
    fn put_field<T: Serialize + ?Sized>(&mut self, name: &'static str, field: &T) -> Written {
        if NAMED {
            self.writer.put_str(name)?;
        }
        self.put_part(field)
    }

    #[inline]
    fn finish(self) -> Written {
        match self.len {
            Len::Written(len) if len == self.parts => Ok(()),
            Len::Written(len) => Err(CodecError::new(format!(
                "its Serialize promised {len} parts and wrote {}",
                self.parts
            ))),
            Len::At(at) => {
                let len = u32::try_from(self.parts).map_err(CodecError::new)?;
                self.writer.out[at..at + 4].copy_from_slice(&len.to_be_bytes());
                Ok(())
            }
        }
    }
}

macro_rules! put_parts {
    ($($parts:path, $method:ident;)*) => {$(
        impl<const NAMED: bool> $parts for PartsWriter<'_, '_, NAMED> {
            type Ok = ();
            type Error = CodecError;

            #[inline]
            fn $method<T: Serialize + ?Sized>(&mut self, part: &T) -> Written {
                self.put_part(part)
            }

            #[inline]
            fn end(self) -> Written {
                self.finish()
            }
        }
    )*};
}

put_parts! {
    ser::SerializeSeq, serialize_element;
    ser::SerializeTuple, serialize_element;
    ser::SerializeTupleStruct, serialize_field;
    ser::SerializeTupleVariant, serialize_field;
}

macro_rules! put_fields {
    ($($parts:path;)*) => {$(
        impl<const NAMED: bool> $parts for PartsWriter<'_, '_, NAMED> {
            type Ok = ();
            type Error = CodecError;

            #[inline]
            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                name: &'static str,
                field: &T,
            ) -> Written {
                self.put_field(name, field)
            }

            #[inline]
            fn end(self) -> Written {
                self.finish()
            }
        }
    )*};
}

put_fields! {
    ser::SerializeStruct;
    ser::SerializeStructVariant;
}

impl<const NAMED: bool> ser::SerializeMap for PartsWriter<'_, '_, NAMED> {
    type Ok = ();
    type Error = CodecError;

    #[inline]
    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Written {
        key.serialize(&mut *self.writer)
    }

    #[inline]
    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Written {
        self.put_part(value)
    }

    #[inline]
    fn end(self) -> Written {
        self.finish()
    }
}
