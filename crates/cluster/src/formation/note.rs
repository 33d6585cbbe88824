use serde::{Deserialize, Serialize};
use tenure_lease::record::{Record, Version};

use crate::Address;

/// What stands in the formation lease's note, as JSON that people can read.
///
/// Fields are only added, with a meaning if they are absent. What an older version must not overlook
/// raises the format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FormationNote {
    /// The cluster that was formed last.
    pub cluster: u64,
    /// Where to find members of it.
    pub contacts: Vec<Address>,
    /// The term of the tenure under which a member of the cluster holds the lease. Under any other
    /// term the lease is held by somebody who is in no cluster, and this was left by the last
    /// member that held it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member: Option<u64>,
    /// The leader that the lease is being handed over to. Others leave the lease alone meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Address>,
    /// Where to find another cluster, which this note named before and which its writer has not met
    /// yet. Kept from leader to leader, so that the two meet in the end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other: Vec<Address>,
}

impl FormationNote {
    /// Reads a note; an empty one says nothing.
    ///
    /// ```
    /// use tenure_cluster::formation::FormationNote;
    /// let note = br#"{"cluster":7,"contacts":["10.0.0.7:7400"],"member":9}"#;
    /// assert_eq!(FormationNote::parse(note)?.unwrap().member, Some(9));
    /// assert_eq!(FormationNote::parse(b"")?, None);
    /// let newer = br#"{"format":2,"cluster":7,"contacts":[]}"#;
    /// assert!(FormationNote::parse(newer).is_err());
    /// # Ok::<(), tenure_cluster::formation::UnreadableNote>(())
    /// ```
    pub fn parse(note: &[u8]) -> Result<Option<Self>, UnreadableNote> {
        match note {
            [] => Ok(None),
            text => {
                let unreadable = |_| UnreadableNote;
                let NoteFormat { format } = serde_json::from_slice(text).map_err(unreadable)?;
                if format > FORMAT {
                    return Err(UnreadableNote);
                }
                serde_json::from_slice(text).map(Some).map_err(unreadable)
            }
        }
    }

    /// For the record.
    pub fn to_bytes(&self) -> Vec<u8> {
        // Numbers and strings always serialise.
        tenure_wire::plant_in_record(serde_json::to_vec(self).unwrap_or_default())
    }
}

/// All that is known about a note in another format; without a word about it, it is the first.
#[derive(Deserialize)]
struct NoteFormat {
    #[serde(default)]
    format: u32,
}

const FORMAT: u32 = 1;

/// The note is not one that this version writes. A newer version may have written it, about a
/// cluster that lives: it must not be taken for none, nor be replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the formation lease's note cannot be read: a newer version of Tenure, or somebody else, wrote \
     it. Start this node with that version, or, if no cluster lives, delete the lease's record"
)]
pub struct UnreadableNote;

/// What the note says, if it can be read and says anything.
pub type ReadNote = Result<Option<FormationNote>, UnreadableNote>;

/// One look at the formation lease's record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormationSight {
    /// Differs after every write, a renewal for instance.
    pub version: Version,
    /// The term of the last tenure.
    pub term: u64,
    /// Whether that tenure was not given back. Its holder may be dead.
    pub held: bool,
    /// What the note says.
    pub note: ReadNote,
}

impl FormationSight {
    /// Of this record.
    pub fn new(record: &Record) -> Self {
        Self {
            version: record.version.clone(),
            term: record.token.term,
            held: record.holder.is_some(),
            note: FormationNote::parse(&record.note),
        }
    }

    /// Whether a member of the noted cluster holds the lease, or died while it did.
    pub fn held_by_member(&self) -> bool {
        let member = self.note.as_ref().ok().and_then(Option::as_ref).and_then(|note| note.member);
        self.held && member == Some(self.term)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tenure_wire::samples;

    use super::*;

    #[test]
    fn samples_can_be_read() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("samples/records.txt");
        let address = |text: &str| text.parse::<Address>().unwrap();
        let note = FormationNote {
            cluster: 1 << 50,
            contacts: vec![address("10.0.0.7:7400"), address("10.0.0.8:7400")],
            member: Some(9),
            next: Some(address("10.0.0.9:7400")),
            other: vec![address("10.0.1.7:7400")],
        };
        let least = FormationNote { member: None, next: None, other: Vec::new(), ..note.clone() };
        let current = [&note, &least].map(|it| ("FormationNote".to_owned(), it.to_bytes()));
        samples::check_bytes(&file, "FormationNote", current.into(), |bytes| {
            match FormationNote::parse(bytes) {
                Ok(Some(read)) if read == note || read == least => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
    }
}
