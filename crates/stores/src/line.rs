//! A record as one line of JSON, then the note as it is: what Consul and Azure Blob keep. Their
//! tools show it to people.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use tenure_lease::record::FORMAT;

/// A record of ours; each store has a line of its own.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Body<L> {
    pub(crate) line: L,
    pub(crate) note: Vec<u8>,
}

/// Why something is not a record of ours.
#[derive(Debug, PartialEq)]
pub(crate) enum Unreadable {
    /// It has this format.
    Newer(u64),
    Foreign,
}

impl<L: Serialize + DeserializeOwned> Body<L> {
    pub(crate) fn encode(&self) -> Vec<u8> {
        // Numbers and strings are always JSON.
        let mut bytes = serde_json::to_vec(&self.line).expect("a record is JSON");
        bytes.push(b'\n');
        bytes.extend_from_slice(&self.note);
        bytes
    }

    pub(crate) fn decode(value: &[u8]) -> Result<Self, Unreadable> {
        let end = value.iter().position(|&byte| byte == b'\n').unwrap_or(value.len());
        let (line, note) = value.split_at(end);
        let Probe { format } = serde_json::from_slice(line).map_err(|_| Unreadable::Foreign)?;
        if format > u64::from(FORMAT) {
            return Err(Unreadable::Newer(format));
        }
        let line = serde_json::from_slice(line).map_err(|_| Unreadable::Foreign)?;
        Ok(Self { line, note: note.get(1..).unwrap_or_default().to_vec() })
    }
}

/// What every format has.
#[derive(Deserialize)]
struct Probe {
    format: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    struct Line {
        format: u32,
        term: u64,
    }

    #[test]
    fn values_come_back() {
        for note in [&b""[..], b"\n", b"\0\xff\n\n{}", b"text"] {
            let body = Body { line: Line { format: FORMAT, term: 9 }, note: note.to_vec() };
            assert_eq!(Body::decode(&body.encode()), Ok(body));
        }
    }

    #[test]
    fn what_is_not_ours_is_foreign() {
        for value in [&b""[..], b"text", b"{}", b"7", b"{\"format\":1}", b"\xff\n"] {
            assert_eq!(Body::<Line>::decode(value), Err(Unreadable::Foreign), "{value:?}");
        }
        assert_eq!(Body::<Line>::decode(b"{\"format\":2}\n"), Err(Unreadable::Newer(2)));
    }
}
