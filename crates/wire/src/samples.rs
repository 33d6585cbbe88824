//! Bytes of messages and records that must be readable for ever, and the test that they are.
//!
//! A file of samples has a line for each: its name, and the bytes in hexadecimal digits. Lines are only ever
//! added.

use std::collections::BTreeSet;
use std::path::Path;
use std::{env, fs};

use rmpv::Value;

use crate::{Version, WireMessage};

/// Says which variant of a message something is, and which there are. A variant that is missing does not
/// compile.
///
/// ```
/// # use serde::{Deserialize, Serialize};
/// #[derive(Serialize, Deserialize)]
/// enum Word { Who, State { able: bool } }
/// tenure_wire::variants!(Word { Who, State });
/// assert_eq!(variant_of(&Word::Who), "Who");
/// assert_eq!(VARIANTS, ["Who", "State"]);
/// ```
#[macro_export]
macro_rules! variants {
    ($message:ident { $($variant:ident),+ $(,)? }) => {
        fn variant_of(message: &$message) -> &'static str {
            match message {
                $($message::$variant { .. } => stringify!($variant),)+
            }
        }
        const VARIANTS: &[&str] = &[$(stringify!($variant)),+];
    };
}

/// Checks a message: there is a sample of each variant, as this version writes it; and every sample of every
/// version is read without a loss. `UPDATE_SAMPLES=1` adds what is missing to the file.
///
/// # Panics
///
/// If that is not so.
pub fn check_message<M: WireMessage>(
    file: &Path,
    message: &str,
    samples: &[M],
    variants: &[&str],
    variant_of: impl Fn(&M) -> &'static str,
) {
    let sampled: BTreeSet<&str> = samples.iter().map(&variant_of).collect();
    for variant in variants {
        assert!(sampled.contains(variant), "there is no sample of {message}::{variant}");
    }
    let encode = |sample: &M| crate::encode(sample, Version::OURS).expect("our version knows it");
    let named = samples.iter().map(|it| (format!("{message}::{}", variant_of(it)), encode(it)));
    check_bytes(file, message, named.collect(), |bytes| {
        let read: M = crate::decode(bytes).map_err(|error| error.to_string())?;
        match keeps(&value(bytes), &value(&encode(&read))) {
            true => Ok(()),
            false => Err("something of it was lost".into()),
        }
    });
}

/// The same for a message that has one form.
///
/// # Panics
///
/// If that is not so.
pub fn check_struct<M: WireMessage>(file: &Path, message: &str, samples: &[M]) {
    check_message(file, message, samples, &["struct"], |_| "struct");
}

/// Checks samples of anything that is named `kind`, or begins with that: each of `current` is in the file, and
/// `read` reads all that are there.
///
/// # Panics
///
/// If that is not so.
pub fn check_bytes(
    file: &Path,
    kind: &str,
    current: Vec<(String, Vec<u8>)>,
    read: impl Fn(&[u8]) -> Result<(), String>,
) {
    let mut kept = fs::read_to_string(file).unwrap_or_default();
    let missing: Vec<String> = current
        .into_iter()
        .map(|(name, bytes)| format!("{name} {}", to_hex(&bytes)))
        .filter(|line| !kept.lines().any(|kept| kept == line))
        .collect();
    if env::var_os("UPDATE_SAMPLES").is_some() && !missing.is_empty() {
        missing.iter().for_each(|line| kept += &format!("{line}\n"));
        fs::write(file, &kept).expect("the file of samples can be written");
    } else {
        let missing = missing.join("\n");
        assert!(missing.is_empty(), "UPDATE_SAMPLES=1 adds to {}:\n{missing}", file.display());
    }
    let belongs = |name: &str| name == kind || name.starts_with(&format!("{kind}::"));
    let samples: Vec<(&str, Vec<u8>)> = kept
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter(|(name, _)| belongs(name))
        .map(|(name, hex)| (name, from_hex(hex)))
        .collect();
    assert!(!samples.is_empty(), "there is no sample of {kind}");
    for (name, bytes) in samples {
        if let Err(why) = read(&bytes) {
            panic!("a sample of {name} cannot be read any more: {why}");
        }
    }
}

/// Reads bytes, which may be any, as a message: what is read is written and read as the same, also in the form
/// that the next version may give it.
///
/// # Panics
///
/// If that is not so.
pub fn check_read<M: WireMessage>(bytes: &[u8]) {
    let Ok(message) = crate::decode::<M>(bytes) else { return };
    let Some(written) = crate::encode(&message, Version::OURS) else { return };
    let again: M = crate::decode(&written).expect("what was written can be read");
    assert_eq!(crate::encode(&again, Version::OURS).as_ref(), Some(&written), "a misread");
    let next = crate::next::rewrite(&written, Version::OURS);
    let read: M = crate::decode(&next).expect("what the next version wrote can be read");
    let read = crate::encode(&read, Version::OURS).expect("our version knows it");
    // Facts of members are texts by name, and one more of them stays.
    assert!(keeps(&value(&written), &value(&read)), "a misread of what the next version wrote");
}

/// The samples of this name in a file, the oldest first.
pub fn kept(file: &Path, name: &str) -> Vec<Vec<u8>> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    lines.filter(|(kept, _)| *kept == name).map(|(_, hex)| from_hex(hex)).collect()
}

fn value(mut bytes: &[u8]) -> Value {
    rmpv::decode::read_value(&mut bytes).expect("what was written is MessagePack")
}

/// Whether everything of the one is in the other, too.
fn keeps(before: &Value, after: &Value) -> bool {
    match (before, after) {
        (Value::Map(before), Value::Map(after)) => before.iter().all(|(key, value)| {
            after.iter().any(|(other, found)| keeps(key, other) && keeps(value, found))
        }),
        (Value::Array(before), Value::Array(after)) => {
            before.len() == after.len() && before.iter().zip(after).all(|(a, b)| keeps(a, b))
        }
        _ => before == after,
    }
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes from hexadecimal digits.
pub fn from_hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .bytes()
        .map(|it| (it as char).to_digit(16).expect("a hexadecimal digit") as u8)
        .collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}
