//! What a key holds: one line of JSON, then the note as it is.
//!
//! `consul kv get PREFIX/NAME` shows it to people. The note is not in the JSON because a
//! transaction encodes the whole value as base64 already, and Consul takes half a megabyte.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use tenure_lease::backend::{Acquire, StoreError};
use tenure_lease::record::{Expiry, FORMAT, Holder, SessionRef, Token, Version};
use tenure_lease::{LeaseName, Nonce, Record};

use crate::line::{self, Unreadable};
use crate::records;

/// A key as Consul shows it.
#[derive(Clone, Debug, Default)]
pub(super) struct Entry {
    pub(super) value: Vec<u8>,
    /// The session that has it locked; empty for none.
    pub(super) session: String,
    /// How often it was locked; 0 after a plain write by anybody.
    pub(super) lock_index: u64,
    /// The number of its last write, in the whole of Consul; 0 if there is no such key.
    pub(super) modify_index: u64,
}

/// What the value of a key says.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Content {
    /// Nothing: there is no key, or one that was never held.
    Absent,
    /// A record of ours.
    Ours(Body),
    /// What another tool wrote. `ttl`: of the session that has the key locked, if any has.
    Foreign { ttl: Option<Duration> },
}

/// A record of ours.
pub(super) type Body = line::Body<Line>;

/// The line of JSON. The names of its fields are the format.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Line {
    format: u32,
    /// 0 in a key that was never held.
    pub(super) term: u64,
    ttl_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) holder: Option<HolderLine>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct HolderLine {
    owner: String,
    pub(super) claim: Nonce,
    pub(super) nonce: Nonce,
    /// The Consul session that has the key locked for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) lock: Option<String>,
    /// The session of ours that it is attached to.
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<SessionRef>,
}

/// An entry and what its value says.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) entry: Entry,
    pub(super) content: Content,
}

impl Seen {
    /// Understands an entry.
    pub(super) fn new(name: &LeaseName, entry: Entry) -> Result<Self, StoreError> {
        let content = if entry.modify_index == 0 {
            Content::Absent
        } else {
            match Body::decode(&entry.value) {
                Ok(body) if body.line.term == 0 && body.line.holder.is_none() => Content::Absent,
                Ok(body) => Content::Ours(body),
                Err(Unreadable::Newer(format)) => {
                    return Err(records::newer(name, format));
                }
                Err(Unreadable::Foreign) => Content::Foreign { ttl: None },
            }
        };
        Ok(Self { entry, content })
    }

    /// Our record that is held by this claim.
    pub(super) fn held_by(&self, claim: Nonce, known: &[Nonce]) -> Option<(&Body, &HolderLine)> {
        let Content::Ours(body) = &self.content else { return None };
        let holder = body.line.holder.as_ref()?;
        let is_of = holder.claim == claim && known.contains(&holder.nonce);
        is_of.then_some((body, holder))
    }

    /// Whether the lock that the record names still is Consul's. A plain write by an operator's
    /// tool keeps the session, and sets the lock's index to 0.
    pub(super) fn lock_stands(&self, holder: &HolderLine) -> bool {
        match &holder.lock {
            Some(lock) => self.entry.session == *lock && self.entry.lock_index > 0,
            None => true,
        }
    }

    /// Whether Consul itself says that the holder's time is over: of a foreign one, whose lock it
    /// has ended. Of ours it cannot: a session may end before its time, by an operator or with its
    /// node, and Consul forgets the lock-delay at the next change of its leader.
    pub(super) fn expired(&self) -> bool {
        matches!(self.content, Content::Foreign { .. })
            && self.entry.session.is_empty()
            && self.entry.lock_index > 0
    }

    /// The record, as the contract has it.
    pub(super) fn record(&self) -> Option<Record> {
        let Entry { session, lock_index, modify_index, .. } = &self.entry;
        match &self.content {
            Content::Absent => None,
            Content::Ours(Body { line, note }) => {
                let holder = line.holder.as_ref();
                // The end of a session is a write, too, but says nothing new about the holder's
                // life: who watches the record must not begin anew.
                let nonce = holder.filter(|holder| holder.lock.is_some() && *lock_index > 0);
                let version = match nonce {
                    Some(holder) => format!("{lock_index}.{}", holder.nonce),
                    None => modify_index.to_string(),
                };
                Some(Record {
                    version: Version(version),
                    token: Token::new(line.term, 0),
                    holder: holder.map(HolderLine::holder),
                    ttl: line.ttl(),
                    expiry: Expiry::ByObservation,
                    note: note.clone(),
                })
            }
            Content::Foreign { ttl } => {
                // A foreign elector that holds the key by a session need not write it again; an
                // operator who wrote it leaves it alone.
                let by_session = !session.is_empty() && *lock_index > 0;
                let ttl = ttl.unwrap_or(FOREIGN_TTL);
                Some(Record {
                    version: Version(modify_index.to_string()),
                    token: Token::new(*modify_index, 0),
                    holder: Some(records::foreign(&self.entry.value)),
                    ttl,
                    expiry: if self.expired() {
                        Expiry::ByStore(Duration::ZERO)
                    } else if by_session {
                        Expiry::ByStore(ttl * SESSION_TTL_MULTIPLIER)
                    } else {
                        Expiry::ByObservation
                    },
                    note: Vec::new(),
                })
            }
        }
    }
}

impl Body {
    /// What is written so that there is a number to begin at; see the module `consul`.
    pub(super) fn never_held() -> Self {
        let line = Line { format: FORMAT, term: 0, ttl_ms: 0, holder: None };
        Self { line, note: Vec::new() }
    }

    /// The record of a new tenure.
    pub(super) fn new(request: &Acquire, term: u64, lock: Option<String>, note: Vec<u8>) -> Self {
        let holder = HolderLine {
            owner: request.owner.to_string(),
            claim: request.claim,
            nonce: request.claim,
            lock,
            session: request.session.clone(),
        };
        let ttl_ms = millis(request.ttl);
        Self { line: Line { format: FORMAT, term, ttl_ms, holder: Some(holder) }, note }
    }
}

impl Line {
    pub(super) fn ttl(&self) -> Duration {
        Duration::from_millis(self.ttl_ms)
    }

    pub(super) fn set_ttl(&mut self, ttl: Duration) {
        self.ttl_ms = millis(ttl);
    }
}

impl HolderLine {
    fn holder(&self) -> Holder {
        Holder {
            owner: records::owner(&self.owner),
            claim: Some(self.claim),
            nonce: Some(self.nonce),
            session: self.session.clone(),
        }
    }
}

fn millis(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)
}

/// Consul ends a session when so many of its ttls have passed.
pub(super) const SESSION_TTL_MULTIPLIER: u32 = 2;
/// The longest lock-delay that Consul takes.
pub(super) const LOCK_DELAY_MAX: Duration = Duration::from_secs(60);
/// How long a record that says nothing is watched before it is taken over.
const FOREIGN_TTL: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use tenure_lease::Owner;
    use tenure_lease::backend::StoreErrorKind;

    use super::*;
    use crate::records::samples;

    fn request(note: Option<Vec<u8>>) -> Acquire {
        Acquire {
            name: LeaseName::new("a").unwrap(),
            claim: Nonce::from_bits(7),
            owner: Owner { name: "pod \"1\"\n".into(), incarnation: u64::MAX },
            ttl: Duration::from_millis(10_500),
            session: None,
            note,
            create: true,
            takeover: None,
            expected: None,
            above: 0,
            unattended: false,
        }
    }

    #[test]
    fn the_end_of_a_session_keeps_the_version_and_a_plain_write_does_not() {
        let name = LeaseName::new("a").unwrap();
        let body = Body::new(&request(None), 9, Some("id".into()), Vec::new());
        let live =
            Entry { value: body.encode(), session: "id".into(), lock_index: 3, modify_index: 10 };
        let ended = Entry { session: String::new(), modify_index: 11, ..live.clone() };
        let edited = Entry { lock_index: 0, modify_index: 12, ..live.clone() };
        let [live, ended, edited] = [live, ended, edited].map(|e| Seen::new(&name, e).unwrap());
        let version = |seen: &Seen| seen.record().unwrap().version;
        assert_eq!(version(&live), version(&ended));
        assert_ne!(version(&live), version(&edited));
        assert_eq!([&live, &ended, &edited].map(Seen::expired), [false; 3]);
        let known = [Nonce::from_bits(7)];
        let stands = |seen: &Seen| {
            let (_, holder) = seen.held_by(known[0], &known).unwrap();
            seen.lock_stands(holder)
        };
        assert_eq!([&live, &ended, &edited].map(stands), [true, false, false]);
    }

    fn record(value: &[u8]) -> Result<Option<Record>, StoreError> {
        let (value, session) = (value.to_vec(), "id".to_owned());
        let entry = Entry { value, session, lock_index: 3, modify_index: 500 };
        Ok(Seen::new(&samples::name(), entry)?.record())
    }

    #[test]
    fn samples_can_be_read() {
        let request = samples::request();
        let mut body = Body::new(&request, samples::TERM, Some("id".into()), samples::note());
        body.line.holder.as_mut().unwrap().nonce = samples::NONCE;
        let held = samples::held(&format!("3.{}", samples::NONCE));
        samples::check_json("Consul::held", body.encode(), &held, record);
        body.line.holder = None;
        samples::check_json("Consul::released", body.encode(), &samples::released("500"), record);
    }

    #[test]
    fn a_newer_format_is_refused() {
        let newer = record(b"{\"format\":2,\"term\":\"of another kind\"}\n").unwrap_err();
        assert_eq!(newer.kind(), StoreErrorKind::NewerFormat);
    }
}
