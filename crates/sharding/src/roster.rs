//! Who was ever given an order, in the note of the coordinator's lease.
//!
//! A host is on the roster before the first directive to it is sent. So the next coordinator, who
//! finds the roster when it wins the lease, knows everybody who might host something, whatever
//! became of its predecessor and of the membership.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tenure_lease::record::NOTE_MAX;

use crate::Host;

/// Those who may host shards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roster {
    hosts: BTreeMap<Host, RosterEntry>,
}

/// What is remembered of one of them: how to tell, without a session, that it was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RosterEntry {
    /// The cluster that it was a member of.
    pub cluster: u64,
    /// Its up-number there.
    pub up_number: u64,
}

/// A note that is not understood. Nobody may coordinate who does not know whom the last coordinator
/// gave orders to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RosterError {
    /// Written by a newer version.
    #[error("the roster has the format {0}, newer than {VERSION}: upgrade this node")]
    Newer(u32),
    /// Written by somebody else.
    #[error("the note of the coordinator's lease is no roster: {0}; does something else use it?")]
    Foreign(String),
}

#[derive(Serialize, Deserialize)]
struct Version {
    version: u32,
}

#[derive(Serialize, Deserialize)]
struct Written {
    version: u32,
    hosts: Vec<(Host, RosterEntry)>,
}

impl Roster {
    /// Reads a note; an empty one is an empty roster.
    pub fn parse(note: &[u8]) -> Result<Self, RosterError> {
        if note.is_empty() {
            return Ok(Self::default());
        }
        let foreign = |error: serde_json::Error| RosterError::Foreign(error.to_string());
        let Version { version } = serde_json::from_slice(note).map_err(foreign)?;
        if version > VERSION {
            return Err(RosterError::Newer(version));
        }
        let written: Written = serde_json::from_slice(note).map_err(foreign)?;
        Ok(Self { hosts: written.hosts.into_iter().collect() })
    }

    /// For the record, as JSON that people can read; `None` if it does not fit.
    pub fn to_note(&self) -> Option<Vec<u8>> {
        let hosts = self.hosts.iter().map(|(host, entry)| (host.clone(), *entry)).collect();
        let note = serde_json::to_vec(&Written { version: VERSION, hosts }).ok()?;
        let note = tenure_wire::plant_in_record(note);
        (note.len() <= NOTE_MAX).then_some(note)
    }

    /// Whether this one may have been given orders.
    pub fn contains(&self, host: &Host) -> bool {
        self.hosts.contains_key(host)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&Host, &RosterEntry)> {
        self.hosts.iter()
    }

    pub(crate) fn insert(&mut self, host: Host, entry: RosterEntry) {
        self.hosts.insert(host, entry);
    }

    pub(crate) fn remove(&mut self, host: &Host) {
        self.hosts.remove(host);
    }
}

const VERSION: u32 = 1;
