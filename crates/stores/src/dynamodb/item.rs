//! What an item holds, and how it is changed.
//!
//! The names of the attributes are the format. They are chosen to be read in AWS's console, where
//! `owner` and `leaseUntil` tell people what they want to know; no decision rests on these two.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Map, Value, json};

use tenure_lease::backend::StoreError;
use tenure_lease::record::{Expiry, FORMAT, Holder, SessionRef, Token, Version};
use tenure_lease::{LeaseName, Nonce, Record};

use crate::records;

/// An item as DynamoDB's JSON has it: `{"term": {"N": "7"}, …}`.
pub(super) type Item = Map<String, Value>;

/// The key of every item.
pub(super) const KEY: &str = "pk";
/// The nonce of the last write. No two writes leave the same.
pub(super) const RVN: &str = "rvn";
pub(super) const FORMAT_NUMBER: &str = "format";
pub(super) const TERM: &str = "term";
pub(super) const CLAIM: &str = "claim";
pub(super) const OWNER: &str = "owner";
pub(super) const TTL_MS: &str = "ttlMs";
/// Seconds since 1970, for people.
pub(super) const LEASE_UNTIL: &str = "leaseUntil";
pub(super) const SESSION: &str = "session";
pub(super) const SESSION_TERM: &str = "sessionTerm";
pub(super) const NOTE: &str = "note";

const OURS: [&str; 11] =
    [KEY, RVN, FORMAT_NUMBER, TERM, CLAIM, OWNER, TTL_MS, LEASE_UNTIL, SESSION, SESSION_TERM, NOTE];

/// What an item says.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Content {
    Absent,
    /// An item that was made to be held and never was: as good as none. Its `rvn`.
    Unheld {
        rvn: String,
    },
    /// A record of ours, and its `rvn`.
    Ours {
        record: Record,
        rvn: String,
    },
    /// What another tool wrote, or made of a record of ours.
    Foreign {
        record: Record,
        item: Item,
    },
}

impl Content {
    /// Understands an item.
    pub(super) fn new(name: &LeaseName, item: Option<Item>) -> Result<Self, StoreError> {
        let Some(item) = item else { return Ok(Self::Absent) };
        let format = number(&item, FORMAT_NUMBER);
        if let Some(format) = format.filter(|format| *format > u64::from(FORMAT)) {
            return Err(records::newer(name, format));
        }
        if format.is_some()
            && !item.contains_key(TERM)
            && let Some(rvn) = string(&item, RVN).filter(|rvn| rvn.ends_with(UNHELD))
        {
            return Ok(Self::Unheld { rvn: rvn.to_owned() });
        }
        let ours = format.and_then(|_| ours(&item));
        Ok(match ours {
            Some((record, rvn)) => Self::Ours { record, rvn },
            None => Self::Foreign { record: foreign(&item), item },
        })
    }

    /// The record, as the contract has it.
    pub(super) fn record(&self) -> Option<&Record> {
        match self {
            Self::Absent | Self::Unheld { .. } => None,
            Self::Ours { record, .. } | Self::Foreign { record, .. } => Some(record),
        }
    }

    /// The same, when nothing else is needed.
    pub(super) fn into_record(self) -> Option<Record> {
        match self {
            Self::Absent | Self::Unheld { .. } => None,
            Self::Ours { record, .. } | Self::Foreign { record, .. } => Some(record),
        }
    }
}

/// A change of one item and its conditions, in DynamoDB's language. Every name and value goes in by
/// reference, because half of all good names are reserved words.
#[derive(Default)]
pub(super) struct Change {
    set: Vec<String>,
    remove: Vec<String>,
    conditions: Vec<String>,
    names: Map<String, Value>,
    values: Map<String, Value>,
}

impl Change {
    pub(super) fn set(mut self, attribute: &str, value: Value) -> Self {
        let (name, value) = (self.name(attribute), self.value(value));
        self.set.push(format!("{name} = {value}"));
        self
    }

    /// Sets a number to so much above what it is.
    pub(super) fn add(mut self, attribute: &str, more: u64) -> Self {
        let (name, more) = (self.name(attribute), self.value(n(more)));
        self.set.push(format!("{name} = {name} + {more}"));
        self
    }

    pub(super) fn remove(mut self, attribute: &str) -> Self {
        let name = self.name(attribute);
        self.remove.push(name);
        self
    }

    /// An empty note is no attribute.
    pub(super) fn note(self, note: &[u8]) -> Self {
        match note {
            [] => self.remove(NOTE),
            note => self.set(NOTE, json!({ "B": BASE64.encode(note) })),
        }
    }

    pub(super) fn if_equal(mut self, attribute: &str, value: Value) -> Self {
        let (name, value) = (self.name(attribute), self.value(value));
        self.conditions.push(format!("{name} = {value}"));
        self
    }

    pub(super) fn if_absent(mut self, attribute: &str) -> Self {
        let name = self.name(attribute);
        self.conditions.push(format!("attribute_not_exists({name})"));
        self
    }

    pub(super) fn if_absent_or_at_most(mut self, attribute: &str, most: u64) -> Self {
        let (name, most) = (self.name(attribute), self.value(n(most)));
        self.conditions.push(format!("(attribute_not_exists({name}) OR {name} <= {most})"));
        self
    }

    pub(super) fn if_present(mut self, attribute: &str) -> Self {
        let name = self.name(attribute);
        self.conditions.push(format!("attribute_exists({name})"));
        self
    }

    /// The item is a record of ours, of this claim, whose last write is one of those.
    pub(super) fn if_held_by(self, claim: Nonce, known: &[Nonce]) -> Self {
        let mut change = self
            .if_equal(FORMAT_NUMBER, n(u64::from(FORMAT)))
            .if_equal(CLAIM, s(&claim.to_string()));
        let name = change.name(RVN);
        let mut any = Vec::new();
        for known in known.chunks(IN_MAX) {
            let known: Vec<_> = known.iter().map(|k| change.value(s(&k.to_string()))).collect();
            any.push(format!("{name} IN ({})", known.join(", ")));
        }
        change.conditions.push(format!("({})", any.join(" OR ")));
        change
    }

    /// The item is the very one that was read.
    pub(super) fn if_still(self, seen: &Content) -> Self {
        match seen {
            Content::Absent => self.if_absent(KEY),
            Content::Unheld { rvn } => {
                self.if_equal(FORMAT_NUMBER, n(u64::from(FORMAT))).if_equal(RVN, s(rvn))
            }
            Content::Ours { record, rvn } => self
                .if_equal(FORMAT_NUMBER, n(u64::from(FORMAT)))
                .if_equal(TERM, n(record.token.term))
                .if_equal(RVN, s(rvn)),
            Content::Foreign { item, .. } => {
                // It has no mark that changes with every write: all of it is compared.
                let mut change = self.if_present(KEY);
                for (attribute, value) in item.iter().filter(|(attribute, _)| *attribute != KEY) {
                    change = change.if_equal(attribute, value.clone());
                }
                for ours in OURS.iter().filter(|ours| !item.contains_key(**ours)) {
                    change = change.if_absent(ours);
                }
                change
            }
        }
    }

    /// Drops what another tool left, so that nobody takes it for its own.
    pub(super) fn without_foreign(self, seen: &Content) -> Self {
        let Content::Foreign { item, .. } = seen else { return self };
        let theirs = item.keys().filter(|attribute| !OURS.contains(&attribute.as_str()));
        theirs.fold(self, |change, attribute| change.remove(attribute))
    }

    /// The members of a request that say all of this.
    pub(super) fn write_to(self, body: &mut Map<String, Value>) {
        let mut update = String::new();
        for (clause, parts) in [("SET ", &self.set), (" REMOVE ", &self.remove)] {
            if !parts.is_empty() {
                update.push_str(clause);
                update.push_str(&parts.join(", "));
            }
        }
        body.insert("UpdateExpression".into(), update.trim().into());
        body.insert("ConditionExpression".into(), self.conditions.join(" AND ").into());
        body.insert("ExpressionAttributeNames".into(), self.names.into());
        if !self.values.is_empty() {
            body.insert("ExpressionAttributeValues".into(), self.values.into());
        }
    }

    fn name(&mut self, attribute: &str) -> String {
        let known = self.names.iter().find(|(_, known)| *known == attribute);
        if let Some((alias, _)) = known {
            return alias.clone();
        }
        let alias = format!("#{}", self.names.len());
        self.names.insert(alias.clone(), attribute.into());
        alias
    }

    fn value(&mut self, value: Value) -> String {
        let alias = format!(":{}", self.values.len());
        self.values.insert(alias.clone(), value);
        alias
    }
}

/// A string, as DynamoDB has it.
pub(super) fn s(text: &str) -> Value {
    json!({ "S": text })
}

/// A number, as DynamoDB has it.
pub(super) fn n(number: u64) -> Value {
    json!({ "N": number.to_string() })
}

/// A string attribute.
pub(super) fn string<'a>(item: &'a Item, attribute: &str) -> Option<&'a str> {
    item.get(attribute)?.get("S")?.as_str()
}

/// A number attribute.
pub(super) fn number(item: &Item, attribute: &str) -> Option<u64> {
    item.get(attribute)?.get("N")?.as_str()?.parse().ok()
}

/// The `rvn` of an item that a claim makes before it holds it.
pub(super) fn unheld(claim: Nonce) -> String {
    format!("{claim}{UNHELD}")
}

/// The `rvn` that a release leaves: there is one release in a tenure.
pub(super) fn released(claim: Nonce) -> String {
    format!("{claim}{RELEASED}")
}

fn ours(item: &Item) -> Option<(Record, String)> {
    let (term, ttl_ms) = (number(item, TERM)?, number(item, TTL_MS)?);
    let rvn = string(item, RVN)?.to_owned();
    let note = match item.get(NOTE) {
        Some(note) => BASE64.decode(note.get("B")?.as_str()?).ok()?,
        None => Vec::new(),
    };
    let holder = match item.get(CLAIM) {
        Some(_) => {
            let session = match item.get(SESSION) {
                Some(_) => Some(SessionRef {
                    name: LeaseName::new(string(item, SESSION)?).ok()?,
                    term: number(item, SESSION_TERM)?,
                }),
                None => None,
            };
            Some(Holder {
                owner: records::owner(string(item, OWNER)?),
                claim: Some(string(item, CLAIM)?.parse().ok()?),
                nonce: Some(rvn.parse().ok()?),
                session,
            })
        }
        None => {
            rvn.strip_suffix(RELEASED)?;
            None
        }
    };
    let record = Record {
        version: Version(rvn.clone()),
        token: Token::new(term, 0),
        holder,
        ttl: Duration::from_millis(ttl_ms),
        expiry: Expiry::ByObservation,
        note,
    };
    Some((record, rvn))
}

/// The best that can be made of an item without our marks: somebody holds it, and is watched. The
/// attributes `ownerName` and `leaseDuration` are those of AWS's own lock clients.
fn foreign(item: &Item) -> Record {
    let name = string(item, OWNER).or_else(|| string(item, "ownerName"));
    let theirs = || string(item, "leaseDuration")?.parse().ok();
    let ttl = number(item, TTL_MS).or_else(theirs).map(Duration::from_millis);
    let note = item.get(NOTE).and_then(|note| BASE64.decode(note.get("B")?.as_str()?).ok());
    let sorted: BTreeMap<_, _> = item.iter().map(|(key, value)| (key, value.to_string())).collect();
    let mut hasher = DefaultHasher::new();
    sorted.hash(&mut hasher);
    Record {
        version: Version(format!("foreign-{:016x}", hasher.finish())),
        token: Token::new(number(item, TERM).unwrap_or(0), 0),
        holder: Some(records::foreign(name.unwrap_or_default().as_bytes())),
        ttl: ttl.unwrap_or(FOREIGN_TTL).clamp(FOREIGN_TTL_MIN, FOREIGN_TTL_MAX),
        expiry: Expiry::ByObservation,
        note: note.unwrap_or_default(),
    }
}

const RELEASED: &str = "-released";
const UNHELD: &str = "-unheld";
/// So many values DynamoDB takes in one `IN`.
const IN_MAX: usize = 100;
/// How long an item that does not say is watched before it is taken over.
const FOREIGN_TTL: Duration = Duration::from_secs(60);
const FOREIGN_TTL_MIN: Duration = Duration::from_secs(1);
const FOREIGN_TTL_MAX: Duration = Duration::from_secs(24 * 3600);

#[cfg(test)]
mod tests {
    use tenure_lease::Owner;
    use tenure_lease::backend::StoreErrorKind;

    use super::*;

    fn content(item: Value) -> Result<Content, StoreError> {
        let Value::Object(item) = item else { panic!("an object") };
        Content::new(&LeaseName::new("a").unwrap(), Some(item))
    }

    fn held() -> Value {
        json!({
            "pk": s("a"), "format": n(1), "term": n(u64::MAX), "ttlMs": n(1500),
            "rvn": s("0b"), "claim": s("0a"), "owner": s("pod#1#00000000000000ff"),
            "note": { "B": "AP8=" }, "leaseUntil": n(7),
        })
    }

    #[test]
    fn records_are_read() {
        let Ok(Content::Ours { record, rvn }) = content(held()) else { panic!("ours") };
        assert_eq!((rvn.as_str(), record.token.term), ("0b", u64::MAX));
        assert_eq!((record.note.as_slice(), record.ttl.as_millis()), (&[0, 255][..], 1500));
        let holder = record.holder.unwrap();
        assert_eq!(holder.claim, Some(Nonce::from_bits(10)));
        assert_eq!(holder.nonce, Some(Nonce::from_bits(11)));
        assert_eq!(holder.owner, Owner { name: "pod#1".into(), incarnation: 255 });
    }

    #[test]
    fn a_released_record_has_no_holder() {
        let mut item = held();
        item["rvn"] = s(&released(Nonce::from_bits(10)));
        let members = item.as_object_mut().unwrap();
        for gone in [CLAIM, OWNER, LEASE_UNTIL] {
            members.remove(gone);
        }
        let Ok(Content::Ours { record, .. }) = content(item) else { panic!("ours") };
        assert_eq!((record.holder, record.note.len()), (None, 2));
    }

    #[test]
    fn an_item_that_was_never_held_is_none() {
        let rvn = unheld(Nonce::from_bits(10));
        let never = content(json!({ "pk": s("a"), "format": n(1), "rvn": s(&rvn) })).unwrap();
        assert_eq!(never, Content::Unheld { rvn });
        assert_eq!(never.record(), None);
    }

    #[test]
    fn what_is_not_ours_is_foreign_and_held() {
        let with = |attribute: &str, value: Value| {
            let mut item = held();
            item[attribute] = value;
            item
        };
        for item in [
            json!({ "pk": s("a") }),
            json!({ "pk": s("a"), "ownerName": s("pod#1"), "leaseDuration": s("5000") }),
            with("rvn", s("edited")),
            with("claim", n(7)),
            with("term", s("7")),
            with("note", s("text")),
        ] {
            let Ok(Content::Foreign { record, .. }) = content(item.clone()) else {
                panic!("{item}")
            };
            let holder = record.holder.expect("held");
            assert_eq!((holder.claim, holder.owner.incarnation), (None, 0));
            let mut other = item.clone();
            other["x"] = n(1);
            let other = content(other).unwrap().into_record().unwrap();
            assert_ne!(other.version, record.version);
            assert_eq!(content(item).unwrap().into_record().unwrap().version, record.version);
        }
        let newer = content(json!({ "pk": s("a"), "format": n(2), "term": s("of another kind") }));
        assert_eq!(newer.unwrap_err().kind(), StoreErrorKind::NewerFormat);
    }

    #[test]
    fn changes_are_said_in_dynamodbs_language() {
        let mut body = Map::new();
        let known: Vec<_> = (0..101).map(Nonce::from_bits).collect();
        let change = Change::default().set(RVN, s("x")).remove(NOTE);
        change.if_held_by(Nonce::from_bits(7), &known).write_to(&mut body);
        assert_eq!(body["UpdateExpression"], "SET #0 = :0 REMOVE #1");
        let condition = body["ConditionExpression"].as_str().unwrap();
        assert!(condition.starts_with("#2 = :1 AND #3 = :2 AND (#0 IN (:3, "), "{condition}");
        assert!(condition.ends_with(":102) OR #0 IN (:103))"), "{condition}");
        assert_eq!(body["ExpressionAttributeNames"]["#3"], CLAIM);
        assert_eq!(body["ExpressionAttributeValues"][":0"], s("x"));
    }
}
