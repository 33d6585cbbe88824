//! What a record file contains. Pure.
//!
//! One line with the format and a checksum, then JSON. The checksum covers all of the JSON, so a
//! file that is cut off, or in which any one byte changed, is recognised.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::domain::Domain;
use crate::record::{FORMAT, Nonce, Owner, SessionRef};

/// What of a tenure does not change with every renewal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Content {
    /// The term of its token.
    pub(super) term: u64,
    /// The claim that won.
    pub(super) claim: Nonce,
    /// Who.
    pub(super) owner: Owner,
    /// How long it lasts after each renewal.
    pub(super) ttl: Duration,
    /// The session that it is attached to.
    pub(super) session: Option<SessionRef>,
    /// The clock that the head's moment is on.
    pub(super) domain: Domain,
    /// The file that the holder keeps locked.
    pub(super) alive: Option<Alive>,
    /// Bytes that outlive the tenure.
    #[serde(with = "hex")]
    pub(super) note: Vec<u8>,
}

/// Which very file is the alive file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Alive {
    /// The second part of its name.
    pub(super) id: Nonce,
    /// Its device.
    pub(super) device: u64,
    /// Its inode.
    pub(super) inode: u64,
}

/// Why bytes are no record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Undecodable {
    /// A newer release wrote it.
    Newer(u32),
    /// This is wrong with it.
    Damaged(&'static str),
}

impl Content {
    /// The bytes of the file.
    pub(super) fn encode(&self) -> Vec<u8> {
        // Strings, numbers and lists of them: nothing that JSON cannot express.
        let json = serde_json::to_vec(self).expect("a record is JSON");
        let mut bytes = format!("{MAGIC} {FORMAT} {:016x}\n", checksum(&json)).into_bytes();
        bytes.extend_from_slice(&json);
        bytes
    }

    /// Reads the bytes of a file.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Undecodable> {
        let damaged = |what| Err(Undecodable::Damaged(what));
        if bytes.is_empty() {
            return damaged("it is empty");
        }
        let Some(end) = bytes.iter().position(|&byte| byte == b'\n') else {
            return damaged("it ends in its first line");
        };
        let (line, json) = (&bytes[..end], &bytes[end + 1..]);
        let fields = std::str::from_utf8(line).ok().and_then(|line| {
            let (format, sum) = line.strip_prefix(MAGIC)?.strip_prefix(' ')?.split_once(' ')?;
            Some((format.parse::<u32>().ok()?, sum))
        });
        let Some((format, sum)) = fields else { return damaged("its first line is none of ours") };
        if format > FORMAT {
            return Err(Undecodable::Newer(format));
        }
        if format < FORMAT {
            return damaged("its format was never in use");
        }
        if sum != format!("{:016x}", checksum(json)) {
            return damaged("its checksum does not match");
        }
        serde_json::from_slice(json).or(damaged("it is not the JSON of a record"))
    }
}

/// FNV-1a. Every step is a bijection of the state, so one changed byte always shows.
pub(super) fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |state, &byte| {
        (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

mod hex {
    use std::fmt::Write as _;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        let mut text = String::with_capacity(bytes.len() * 2);
        for byte in bytes {
            // Writing to a String cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
        to.serialize_str(&text)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(from)?;
        let (pairs, []) = text.as_bytes().as_chunks::<2>() else {
            return Err(D::Error::custom("a hex text has an even length"));
        };
        let digit = |byte: u8| char::from(byte).to_digit(16);
        pairs
            .iter()
            .map(|&[high, low]| Some((digit(high)? << 4 | digit(low)?) as u8))
            .collect::<Option<_>>()
            .ok_or_else(|| D::Error::custom("a hex text has only hex digits"))
    }
}

const MAGIC: &str = "tenure-lease";

#[cfg(test)]
pub(super) mod tests {
    use std::path::Path;

    use tenure_wire::samples;

    use super::*;

    pub(in crate::file) fn content() -> Content {
        Content {
            term: 7,
            claim: Nonce::from_bits(1),
            owner: Owner { name: "näme".to_owned(), incarnation: u64::MAX },
            ttl: Duration::from_millis(1_500),
            session: None,
            domain: Domain { boot: "boot".to_owned(), time: "time:[1]".to_owned() },
            alive: Some(Alive { id: Nonce::from_bits(2), device: 3, inode: u64::MAX }),
            note: vec![0, 1, 0xff],
        }
    }

    #[test]
    fn contents_print_and_parse() {
        let bytes = content().encode();
        assert_eq!(Content::decode(&bytes), Ok(content()));
    }

    #[test]
    fn a_cut_or_changed_file_is_recognised() {
        let bytes = content().encode();
        for cut in 0..bytes.len() {
            let result = Content::decode(&bytes[..cut]);
            assert!(matches!(result, Err(Undecodable::Damaged(_))), "{cut}: {result:?}");
        }
        for at in 0..bytes.len() {
            for flip in [1, 0x20, 0x80, 0xff] {
                let mut bytes = bytes.clone();
                bytes[at] ^= flip;
                assert!(Content::decode(&bytes).is_err(), "{at}: {flip:x}");
            }
        }
        assert!(Content::decode(&[&bytes[..], b" "].concat()).is_err());
    }

    #[test]
    fn a_newer_format_is_told_apart() {
        let bytes = b"tenure-lease 2 whatever comes then\n{}";
        assert_eq!(Content::decode(bytes), Err(Undecodable::Newer(2)));
    }

    fn attached_content() -> Content {
        let session = Some(SessionRef { name: "node-1".parse().unwrap(), term: 1 << 60 });
        Content { session, ..content() }
    }

    #[test]
    fn samples_of_records_can_be_read() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("samples/records.txt");
        let plain = Content { alive: None, note: Vec::new(), ..content() };
        for (name, content) in [("File::attached", attached_content()), ("File::plain", plain)] {
            let current = vec![(name.to_owned(), content.encode())];
            samples::check_bytes(&file, name, current, |bytes| match Content::decode(bytes) {
                Ok(read) if read == content => Ok(()),
                other => Err(format!("{other:?}")),
            });
        }
    }

    #[test]
    fn fields_that_a_later_release_adds_are_skipped() {
        let text = String::from_utf8(attached_content().encode()).unwrap();
        let json = text.split_once('\n').unwrap().1.replace("{\"", "{\"added\":\"later\",\"");
        // A `Duration` is not a struct of ours: it never has other fields.
        let json = json.replace("\"ttl\":{\"added\":\"later\",", "\"ttl\":{");
        assert_eq!(json.matches("added").count(), 5, "{json}");
        let bytes = format!("{MAGIC} {FORMAT} {:016x}\n{json}", checksum(json.as_bytes()));
        assert_eq!(Content::decode(bytes.as_bytes()), Ok(attached_content()));
    }
}
