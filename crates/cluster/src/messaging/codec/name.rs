//! What serde calls a type.

use serde::de::{DeserializeOwned, Deserializer, Error, Visitor};
use serde::forward_to_deserialize_any;

/// The name of a type, with its version unless that is 1; empty if it has none. A constant, for the
/// compiler, of whatever derives `Deserialize`.
#[inline]
pub(super) fn type_name<M: DeserializeOwned>() -> &'static str {
    let mut name = "";
    drop(M::deserialize(NameCatcher(&mut name)));
    name.strip_suffix("@1").unwrap_or(name)
}

/// Lets a type say what it is, and no more.
struct NameCatcher<'a>(&'a mut &'static str);

impl NameCatcher<'_> {
    #[inline]
    fn caught<T>(self, name: &'static str) -> Result<T, Caught> {
        *self.0 = name;
        Err(Caught)
    }
}

impl<'de> Deserializer<'de> for NameCatcher<'_> {
    type Error = Caught;

    #[inline]
    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Caught> {
        Err(Caught)
    }

    #[inline]
    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        _: V,
    ) -> Result<V::Value, Caught> {
        self.caught(name)
    }

    #[inline]
    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        _: V,
    ) -> Result<V::Value, Caught> {
        self.caught(name)
    }

    #[inline]
    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        _: usize,
        _: V,
    ) -> Result<V::Value, Caught> {
        self.caught(name)
    }

    #[inline]
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        _: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Caught> {
        self.caught(name)
    }

    #[inline]
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        _: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Caught> {
        self.caught(name)
    }

    #[inline]
    fn is_human_readable(&self) -> bool {
        false
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit seq tuple map identifier ignored_any
    }
}

/// The type has said what it is, or will not.
#[derive(Debug, thiserror::Error)]
#[error("no value was read")]
struct Caught;

impl Error for Caught {
    fn custom<T: std::fmt::Display>(_: T) -> Self {
        Self
    }
}
