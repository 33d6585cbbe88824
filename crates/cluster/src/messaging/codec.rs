//! How serde's types are written as messages: a tag, then the value.
//!
//! # The tag
//!
//! One byte for the [`Form`], one for the length of the type's name, and the name. The name is the one
//! that serde knows: the container's, or what `#[serde(rename = "…")]` says. A version is a part of it,
//! `Cart@2`; without one it is 1. The reader takes exactly its own tag. So a value of another type, of
//! another version, or in another form is never decoded, whatever its bytes would look like. The name
//! is sent and not a hash of it: nothing can collide, and the reader can say what was sent.
//!
//! A type has no name if serde does not say it: numbers, text, tuples, collections, `Option`, and
//! containers with `#[serde(flatten)]`, `untagged` or an internal `tag`. Their tag has an empty name.
//!
//! # The value
//!
//! In named or positional form as [`tenure_wire::value`] says, or JSON.

mod name;
#[cfg(test)]
mod tests;

use serde::de::DeserializeOwned;

use self::name::type_name;
use super::CodecError;

/// How a value is written after its tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Named = 1,
    Positional = 2,
    Json = 3,
}

/// Appends the tag of a type.
#[inline]
pub(super) fn put_tag<M: DeserializeOwned>(
    form: Form,
    out: &mut Vec<u8>,
) -> Result<(), CodecError> {
    let name = type_name::<M>();
    let Ok(len) = u8::try_from(name.len()) else {
        return Err(CodecError::new(format!("the type's name {name:?} is longer than 255 bytes")));
    };
    out.extend_from_slice(&[form as u8, len]);
    out.extend_from_slice(name.as_bytes());
    Ok(())
}

/// What follows the tag, if it is this type's.
#[inline]
pub(super) fn strip_tag<M: DeserializeOwned>(
    form: Form,
    bytes: &[u8],
) -> Result<&[u8], CodecError> {
    let name = type_name::<M>();
    let head = [form as u8, name.len() as u8];
    let body = bytes.strip_prefix(&head).and_then(|rest| rest.strip_prefix(name.as_bytes()));
    body.ok_or_else(|| mismatch(form, name, bytes))
}

#[cold]
fn mismatch(form: Form, name: &str, bytes: &[u8]) -> CodecError {
    let expected = describe(form as u8, name);
    let sent = match bytes {
        [form @ 1..=3, len, rest @ ..] => {
            let name = rest.get(..usize::from(*len)).and_then(|name| str::from_utf8(name).ok());
            name.map(|name| describe(*form, name))
        }
        _ => None,
    };
    let sent = sent.as_deref().unwrap_or("something without a tag");
    CodecError::new(format!("sent {sent}, expected {expected}"))
}

/// A type as people are told of it.
fn describe(form: u8, name: &str) -> String {
    let version = if name.is_empty() || name.contains('@') { "" } else { "@1" };
    let name = match name {
        "" => "a type without a name".into(),
        name => name.escape_debug().to_string(), // Of another node.
    };
    let form = match form {
        form if form == Form::Positional as u8 => " in positional form",
        form if form == Form::Json as u8 => " in JSON",
        _ => "",
    };
    format!("{name}{version}{form}")
}
