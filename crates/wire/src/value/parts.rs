//! The parts of arrays, maps and variants, as serde asks for them.

use serde::de::{self, DeserializeSeed, Deserializer as _, Visitor};

use super::read::{Read, ValueReader};
use crate::CodecError;

/// Reads the parts of an array or a map.
pub(super) struct PartsReader<'r, 'de, const NAMED: bool> {
    pub(super) reader: &'r mut ValueReader<'de, NAMED>,
    pub(super) left: usize,
}

impl<'de, const NAMED: bool> PartsReader<'_, 'de, NAMED> {
    #[inline]
    fn next<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Read<Option<T::Value>> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        self.left = left;
        seed.deserialize(&mut *self.reader).map(Some)
    }
}

impl<'de, const NAMED: bool> de::SeqAccess<'de> for &mut PartsReader<'_, 'de, NAMED> {
    type Error = CodecError;

    #[inline]
    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Read<Option<T::Value>> {
        self.next(seed)
    }

    #[inline]
    fn size_hint(&self) -> Option<usize> {
        Some(self.left)
    }
}

impl<'de, const NAMED: bool> de::MapAccess<'de> for &mut PartsReader<'_, 'de, NAMED> {
    type Error = CodecError;

    #[inline]
    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Read<Option<K::Value>> {
        self.next(seed)
    }

    #[inline]
    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Read<V::Value> {
        seed.deserialize(&mut *self.reader)
    }

    #[inline]
    fn size_hint(&self) -> Option<usize> {
        Some(self.left)
    }
}

/// Reads a variant: which one it is, then what is in it.
pub(super) struct VariantReader<'r, 'de, const NAMED: bool> {
    pub(super) reader: &'r mut ValueReader<'de, NAMED>,
    pub(super) has_content: bool,
}

impl<'de, const NAMED: bool> VariantReader<'_, 'de, NAMED> {
    #[inline]
    fn need_content(&self) -> Read<()> {
        match self.has_content {
            true => Ok(()),
            false => Err(CodecError::new("a variant has no content, where some is expected")),
        }
    }
}

impl<'de, const NAMED: bool> de::EnumAccess<'de> for VariantReader<'_, 'de, NAMED> {
    type Error = CodecError;
    type Variant = Self;

    #[inline]
    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Read<(V::Value, Self)> {
        let variant = seed.deserialize(&mut *self.reader)?;
        Ok((variant, self))
    }
}

/// With names, a unit variant is one without fields: some may have been added, or taken away.
impl<'de, const NAMED: bool> de::VariantAccess<'de> for VariantReader<'_, 'de, NAMED> {
    type Error = CodecError;

    #[inline]
    fn unit_variant(self) -> Read<()> {
        match self.has_content {
            false => Ok(()),
            true if NAMED => self.reader.skip_fields(),
            true => Err(CodecError::new("a variant has content, where none is expected")),
        }
    }

    #[inline]
    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Read<T::Value> {
        self.need_content()?;
        seed.deserialize(self.reader)
    }

    #[inline]
    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Read<V::Value> {
        self.need_content()?;
        self.reader.array(Some(len), visitor)
    }

    #[inline]
    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Read<V::Value> {
        if NAMED && !self.has_content {
            return self.reader.parts(0, 2, |none| visitor.visit_map(none));
        }
        self.need_content()?;
        self.reader.deserialize_struct("", fields, visitor)
    }
}
