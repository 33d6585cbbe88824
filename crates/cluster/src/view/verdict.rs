use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Change, Member, Status, Survivors, View, digest};
use crate::Node;

/// What the resolver wrote down when a side won the lease: who goes on.
///
/// Everybody else is down. Verdicts are numbered; a higher generation overrules a lower one, and
/// generation 0 means that there was none. The lease's record outlives the cluster, so a verdict
/// says which cluster it is about: one that was formed later has nothing to do with it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Which cluster it is about.
    #[serde(rename = "c")]
    pub cluster: u64,
    /// Which one it is.
    #[serde(rename = "g", deserialize_with = "super::wire::number")]
    pub generation: u64,
    /// Who goes on.
    #[serde(rename = "s")]
    pub survivors: Arc<Survivors>,
}

/// The first line of a note with a verdict; the marks of the survivors follow it.
#[derive(Serialize, Deserialize)]
struct NoteHeader {
    format: u32,
    cluster: u64,
    #[serde(deserialize_with = "super::wire::number")]
    generation: u64,
    /// How many there are.
    survivors: usize,
    salt: u32,
}

/// All that is known about the first line in another format.
#[derive(Deserialize)]
struct NoteFormat {
    format: u32,
}

/// A note that is no verdict this version understands. A newer one may have written it, and it may
/// say that this node is down: it is not to be overwritten, and not to be taken for none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes that are no verdict in format {FORMAT}: {why}")]
pub struct VerdictError {
    bytes: usize,
    why: String,
}

impl Verdict {
    /// What is written into the lease's record: a line of JSON for people, and the marks of the
    /// survivors. Ten thousand of them fit into a note.
    pub fn to_note(&self) -> Vec<u8> {
        let Self { cluster, generation, ref survivors } = *self;
        let (count, salt) = (survivors.len(), survivors.salt());
        let header = NoteHeader { format: FORMAT, cluster, generation, survivors: count, salt };
        // Numbers always serialise.
        let header = serde_json::to_vec(&header).unwrap_or_default();
        let mut note = tenure_wire::plant_in_record(header);
        note.push(b'\n');
        note.extend_from_slice(survivors.to_bytes());
        note
    }

    /// What [`to_note`](Self::to_note) wrote; an empty note is no verdict.
    pub fn parse_note(note: &[u8]) -> Result<Self, VerdictError> {
        if note.is_empty() {
            return Ok(Self::default());
        }
        let refuse = |why: String| VerdictError { bytes: note.len(), why };
        let mut parts = note.splitn(2, |byte| *byte == b'\n');
        let (header, marks) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let damaged = |error: serde_json::Error| refuse(error.to_string());
        let NoteFormat { format } = serde_json::from_slice(header).map_err(damaged)?;
        if format != FORMAT {
            return Err(refuse(format!("it is in format {format}")));
        }
        let header: NoteHeader = serde_json::from_slice(header).map_err(damaged)?;
        let NoteHeader { cluster, generation, survivors: count, salt, .. } = header;
        let survivors = Survivors::parse(salt, marks).map_err(|error| refuse(error.to_string()))?;
        if survivors.len() != count {
            return Err(refuse(format!("{} survivors of {count}", survivors.len())));
        }
        Ok(Self { cluster, generation, survivors: Arc::new(survivors) })
    }
}

impl View {
    /// Takes in a verdict that is newer than the one it knows: whoever is not among its survivors
    /// is down.
    pub(crate) fn adopt(&mut self, verdict: &Verdict) -> Vec<Change> {
        assert!(verdict.generation > self.verdict.generation, "an older verdict decides nothing");
        self.skip_up_numbers();
        let losers: Vec<(Node, Member)> = self
            .members
            .iter()
            .filter(|(node, member)| {
                member.status < Status::Down && !verdict.survivors.contains(node)
            })
            .map(|(node, member)| (node.clone(), member.clone()))
            .collect();
        let mut changes = Vec::new();
        for (node, member) in losers {
            let before = Some(member.status);
            self.set_member(&node, Member { status: Status::Down, ..member });
            changes.push(Change { node, before, after: Some(Status::Down) });
        }
        self.set_verdict(verdict.clone());
        changes
    }

    /// A side will ask the lease for this generation.
    pub(crate) fn announce(&mut self, generation: u64) {
        if generation > self.asked {
            self.digest.remove(digest::of_asked(self.asked));
            self.asked = generation;
            self.digest.add(digest::of_asked(self.asked));
        }
    }

    /// A verdict travels whole: replaces an older one.
    pub(crate) fn set_verdict(&mut self, verdict: Verdict) {
        if verdict.generation > self.verdict.generation {
            self.digest.remove(digest::of_verdict(&self.verdict));
            self.verdict = verdict;
            self.digest.add(digest::of_verdict(&self.verdict));
            // Nobody will ask for a generation that was decided.
            self.announce(self.verdict.generation);
        }
    }
}

/// The only one so far.
const FORMAT: u32 = 1;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tenure_wire::samples;

    use super::*;
    use crate::Incarnation;

    fn verdict(survivors: u64) -> Verdict {
        let node = |index| Node {
            address: format!("shop-{index}.shop.default.svc.cluster.local:7400").parse().unwrap(),
            incarnation: Incarnation(index << 40),
        };
        let survivors: Vec<Node> = (0..survivors).map(node).collect();
        let survivors = Arc::new(Survivors::new(&survivors, []));
        Verdict { cluster: u64::MAX, generation: u64::MAX >> 1, survivors }
    }

    #[test]
    fn a_note_is_read_as_it_was_written() {
        for survivors in [0, 1, 7, 10_000] {
            let verdict = verdict(survivors);
            let note = verdict.to_note();
            tenure_lease::check_note(Some(&note)).unwrap();
            assert_eq!(Verdict::parse_note(&note), Ok(verdict));
        }
        assert_eq!(Verdict::parse_note(b""), Ok(Verdict::default()));
    }

    #[test]
    fn samples_can_be_read() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("samples/records.txt");
        let current = vec![("VerdictNote".to_owned(), verdict(3).to_note())];
        samples::check_bytes(&file, "VerdictNote", current, |note| {
            let read = Verdict::parse_note(note).map_err(|error| error.to_string())?;
            if read == verdict(3) { Ok(()) } else { Err(format!("{read:?}")) }
        });
        // A later version may say more in the same format.
        let more = br#"{"format":1,"cluster":1,"generation":1,"survivors":0,"salt":0,"new":1}"#;
        assert_eq!(Verdict::parse_note(more).unwrap().generation, 1);
    }

    #[test]
    fn what_is_not_understood_is_no_empty_record() {
        let note = verdict(3).to_note();
        let text = String::from_utf8_lossy(&note).into_owned();
        assert!(text.starts_with("{\"format\":1,"), "{text}");
        let mut newer = note.clone();
        newer[10] = b'2';
        for newer in [&newer[..], br#"{"format":2,"losers":7}"#] {
            let error = Verdict::parse_note(newer).unwrap_err();
            assert!(error.to_string().contains("it is in format 2"), "{error}");
        }
        let cut = &note[..note.len() - 6];
        let endless =
            br#"{"format":1,"cluster":1,"generation":18446744073709551615,"survivors":0,"salt":0}"#;
        for unknown in [cut, endless, b"a word of an operator", b"\n", b"{}"] {
            assert!(Verdict::parse_note(unknown).is_err(), "{}", unknown.escape_ascii());
        }
    }
}
