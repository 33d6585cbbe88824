//! A planted *next* version of the protocol: with `TENURE_PLANTED_NEXT` set, a process writes each message
//! as its next minor version might. To see that this version, which runs beside it, can live with that.
//!
//! - Every struct has a field more, which no version knows.
//! - Every message is replaced by another: who knows the next version is sent that, who does not the old one.
//! - There is one message more of each kind, which no version knows ([`surplus`]).
//! - Records in stores have a field more ([`plant_in_record`]).

use std::sync::LazyLock;

use rmpv::Value;

use crate::Version;

/// Whether this process speaks the next version.
pub(crate) fn is_planted() -> bool {
    static PLANTED: LazyLock<bool> =
        LazyLock::new(|| std::env::var_os("TENURE_PLANTED_NEXT").is_some());
    *PLANTED
}

/// A defect of the next version: it needs the fields that only it writes.
fn needs_its_fields() -> bool {
    static NEEDS: LazyLock<bool> =
        LazyLock::new(|| std::env::var_os("TENURE_PLANTED_NEXT").is_some_and(|it| it == "needs"));
    *NEEDS
}

/// What the next version calls itself.
pub(crate) const VERSION: Version = Version { minor: Version::OURS.minor + 1, ..Version::OURS };

/// Turns a message of this version into one of the next, for a peer with which `spoken` was agreed.
pub(crate) fn rewrite(bytes: &[u8], spoken: Version) -> Vec<u8> {
    let Ok(mut message) = rmpv::decode::read_value(&mut &bytes[..]) else { return bytes.into() };
    add_fields(&mut message);
    if spoken >= VERSION {
        rename_message(&mut message, |name| Some(format!("{REPLACED}{name}")));
    }
    write(&message)
}

/// A message that no version knows, to be sent beside others.
pub fn surplus() -> Option<Vec<u8>> {
    let content = Value::Map(vec![(ADDED.into(), 7.into())]);
    is_planted().then(|| write(&Value::Map(vec![("Planted".into(), content)])))
}

/// A record of this version, as JSON, with a field more.
pub fn plant_in_record(json: Vec<u8>) -> Vec<u8> {
    match json.strip_prefix(b"{") {
        Some(rest) if is_planted() => [&br#"{"planted":[7],"#[..], rest].concat(),
        _ => json,
    }
}

/// Turns a message of the next version into one of this, with what follows it.
pub(crate) fn restore(bytes: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut rest = bytes;
    let mut message = rmpv::decode::read_value(&mut rest).ok()?;
    if needs_its_fields() && !has_field(&message) {
        return Some((write(&Value::Nil), rest));
    }
    rename_message(&mut message, |name| name.strip_prefix(REPLACED).map(str::to_owned));
    Some((write(&message), rest))
}

fn write(message: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    rmpv::encode::write_value(&mut out, message).expect("a Vec takes everything");
    out
}

/// A struct is a map whose keys are names of fields. The name of a variant begins with a capital.
fn is_struct(entries: &[(Value, Value)]) -> bool {
    let is_field =
        |key: &Value| key.as_str().is_some_and(|key| !key.starts_with(char::is_uppercase));
    !entries.is_empty() && entries.iter().all(|(key, _)| is_field(key))
}

fn add_fields(value: &mut Value) {
    match value {
        Value::Map(entries) => {
            entries.iter_mut().for_each(|(_, value)| add_fields(value));
            if is_struct(entries) {
                // A text, since facts of members are texts by name, too.
                entries.insert(0, (ADDED.into(), "next".into()));
            }
        }
        Value::Array(values) => values.iter_mut().for_each(add_fields),
        _ => {}
    }
}

/// Whether the struct that a message is, or has, has the field that the next version adds.
fn has_field(message: &Value) -> bool {
    match message {
        Value::Map(entries) if is_struct(entries) => {
            entries.iter().any(|(key, _)| key.as_str() == Some(ADDED))
        }
        Value::Map(entries) => entries.iter().all(|(_, value)| has_field(value)),
        _ => true,
    }
}

/// A message is a variant: a name, or a map of one.
fn rename_message(message: &mut Value, rename: impl Fn(&str) -> Option<String>) {
    let name = match message {
        Value::Map(entries) if entries.len() == 1 => &mut entries[0].0,
        other => other,
    };
    if let Some(renamed) = name.as_str().and_then(rename) {
        *name = renamed.into();
    }
}

/// A field that no version knows.
const ADDED: &str = "planted";
/// Before the name of a message that replaces another.
const REPLACED: &str = "Next";
