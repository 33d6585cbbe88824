//! What an item holds, and how it is changed.
//!
//! The names of the attributes are the format. They are chosen to be read in AWS's console, where
//! `owner` and `leaseUntil` tell people what they want to know; no decision rests on these two.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use aws_sdk_dynamodb::operation::update_item::builders::UpdateItemFluentBuilder;
use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::AttributeValue;

use tenure_lease::backend::StoreError;
use tenure_lease::record::{Expiry, FORMAT, Holder, SessionRef, Token, Version};
use tenure_lease::{LeaseName, Nonce, Record};

use crate::records;

/// The attributes of an item.
pub(super) type Item = HashMap<String, AttributeValue>;

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
        if let Some(rvn) = unheld_rvn(&item) {
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
    names: HashMap<String, String>,
    values: HashMap<String, AttributeValue>,
}

impl Change {
    pub(super) fn set(mut self, attribute: &str, value: AttributeValue) -> Self {
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
            note => self.set(NOTE, AttributeValue::B(Blob::new(note))),
        }
    }

    pub(super) fn if_equal(mut self, attribute: &str, value: AttributeValue) -> Self {
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

    /// Puts all of this into a request.
    pub(super) fn write_to(self, request: UpdateItemFluentBuilder) -> UpdateItemFluentBuilder {
        let request = request
            .update_expression(self.update_expression())
            .condition_expression(self.conditions.join(" AND "))
            .set_expression_attribute_names(Some(self.names));
        // DynamoDB refuses an empty map.
        let values = Some(self.values).filter(|values| !values.is_empty());
        request.set_expression_attribute_values(values)
    }

    fn update_expression(&self) -> String {
        let clauses = [("SET ", &self.set), ("REMOVE ", &self.remove)];
        let said = clauses.into_iter().filter(|(_, parts)| !parts.is_empty());
        let said: Vec<_> =
            said.map(|(clause, parts)| clause.to_owned() + &parts.join(", ")).collect();
        said.join(" ")
    }

    fn name(&mut self, attribute: &str) -> String {
        let known = self.names.iter().find(|(_, known)| *known == attribute);
        if let Some((alias, _)) = known {
            return alias.clone();
        }
        let alias = format!("#{}", self.names.len());
        self.names.insert(alias.clone(), attribute.to_owned());
        alias
    }

    fn value(&mut self, value: AttributeValue) -> String {
        let alias = format!(":{}", self.values.len());
        self.values.insert(alias.clone(), value);
        alias
    }
}

/// A string, as DynamoDB has it.
pub(super) fn s(text: &str) -> AttributeValue {
    AttributeValue::S(text.to_owned())
}

/// A number, as DynamoDB has it.
pub(super) fn n(number: u64) -> AttributeValue {
    AttributeValue::N(number.to_string())
}

/// A string attribute.
pub(super) fn string<'a>(item: &'a Item, attribute: &str) -> Option<&'a str> {
    item.get(attribute)?.as_s().ok().map(String::as_str)
}

/// A number attribute.
pub(super) fn number(item: &Item, attribute: &str) -> Option<u64> {
    item.get(attribute)?.as_n().ok()?.parse().ok()
}

/// The `rvn` of an item that a claim makes before it holds it.
pub(super) fn unheld(claim: Nonce) -> String {
    format!("{claim}{UNHELD}")
}

/// The `rvn` that a release leaves: there is one release in a tenure.
pub(super) fn released(claim: Nonce) -> String {
    format!("{claim}{RELEASED}")
}

/// The `rvn` of an item that was made to be held and never was.
fn unheld_rvn(item: &Item) -> Option<&str> {
    let is_one = number(item, FORMAT_NUMBER).is_some() && !item.contains_key(TERM);
    string(item, RVN).filter(|rvn| is_one && rvn.ends_with(UNHELD))
}

/// The name of the lease, if the item is a record.
pub(super) fn name_of_record(item: Item) -> Option<LeaseName> {
    let name = LeaseName::new(string(&item, KEY)?).ok()?;
    unheld_rvn(&item).is_none().then_some(name)
}

fn ours(item: &Item) -> Option<(Record, String)> {
    let (term, ttl_ms) = (number(item, TERM)?, number(item, TTL_MS)?);
    let rvn = string(item, RVN)?.to_owned();
    let note = match item.get(NOTE) {
        Some(note) => note.as_b().ok()?.as_ref().to_vec(),
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
    let note = item.get(NOTE).and_then(|note| note.as_b().ok()).map(|note| note.as_ref().to_vec());
    let mut hasher = DefaultHasher::new();
    sorted(item).hash(&mut hasher);
    Record {
        version: Version(format!("foreign-{:016x}", hasher.finish())),
        token: Token::new(number(item, TERM).unwrap_or(0), 0),
        holder: Some(records::foreign(name.unwrap_or_default().as_bytes())),
        ttl: ttl.unwrap_or(FOREIGN_TTL).clamp(FOREIGN_TTL_MIN, FOREIGN_TTL_MAX),
        expiry: Expiry::ByObservation,
        note: note.unwrap_or_default(),
    }
}

/// All of an item as text, which is the same for equal items.
fn sorted(item: &Item) -> String {
    let mut text = String::new();
    for (attribute, value) in item.iter().collect::<BTreeMap<_, _>>() {
        // Writing to a String cannot fail.
        let _ = match value {
            AttributeValue::M(map) => write!(text, "{attribute:?}: {{{}}} ", sorted(map)),
            AttributeValue::L(list) => {
                let list = list.iter().enumerate();
                let list = list.map(|(index, value)| (format!("{index:09}"), value.clone()));
                write!(text, "{attribute:?}: [{}] ", sorted(&list.collect()))
            }
            value => write!(text, "{attribute:?}: {value:?} "),
        };
    }
    text
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
mod samples;
#[cfg(test)]
mod tests {
    use tenure_lease::Owner;
    use tenure_lease::backend::StoreErrorKind;

    use super::*;

    fn content(item: Item) -> Result<Content, StoreError> {
        Content::new(&LeaseName::new("a").unwrap(), Some(item))
    }

    fn item<const N: usize>(attributes: [(&str, AttributeValue); N]) -> Item {
        attributes.map(|(attribute, value)| (attribute.to_owned(), value)).into()
    }

    fn held() -> Item {
        item([
            ("pk", s("a")),
            ("format", n(1)),
            ("term", n(u64::MAX)),
            ("ttlMs", n(1500)),
            ("rvn", s("0b")),
            ("claim", s("0a")),
            ("owner", s("pod#1#00000000000000ff")),
            ("note", AttributeValue::B(Blob::new([0, 255]))),
            ("leaseUntil", n(7)),
        ])
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
        item.insert(RVN.into(), s(&released(Nonce::from_bits(10))));
        for gone in [CLAIM, OWNER, LEASE_UNTIL] {
            item.remove(gone);
        }
        let Ok(Content::Ours { record, .. }) = content(item) else { panic!("ours") };
        assert_eq!((record.holder, record.note.len()), (None, 2));
    }

    #[test]
    fn an_item_that_was_never_held_is_none() {
        let rvn = unheld(Nonce::from_bits(10));
        let never = content(item([("pk", s("a")), ("format", n(1)), ("rvn", s(&rvn))])).unwrap();
        assert_eq!(never, Content::Unheld { rvn });
        assert_eq!(never.record(), None);
    }

    #[test]
    fn what_is_not_ours_is_foreign_and_held() {
        let with = |attribute: &str, value: AttributeValue| {
            let mut item = held();
            item.insert(attribute.into(), value);
            item
        };
        let map = AttributeValue::M(item([("b", n(1)), ("a", n(2)), ("c", n(3))]));
        for item in [
            item([("pk", s("a"))]),
            item([("pk", s("a")), ("ownerName", s("pod#1")), ("leaseDuration", s("5000"))]),
            with("claim", AttributeValue::L(vec![map, n(1)])),
            with("rvn", s("edited")),
            with("claim", n(7)),
            with("term", s("7")),
            with("note", s("text")),
        ] {
            let Ok(Content::Foreign { record, .. }) = content(item.clone()) else {
                panic!("{item:?}")
            };
            let holder = record.holder.expect("held");
            assert_eq!((holder.claim, holder.owner.incarnation), (None, 0));
            let mut other = item.clone();
            other.insert("x".into(), n(1));
            let other = content(other).unwrap().into_record().unwrap();
            assert_ne!(other.version, record.version);
            assert_eq!(content(item).unwrap().into_record().unwrap().version, record.version);
        }
        let newer =
            content(item([("pk", s("a")), ("format", n(2)), ("term", s("of another kind"))]));
        assert_eq!(newer.unwrap_err().kind(), StoreErrorKind::NewerFormat);
    }

    #[test]
    fn changes_are_said_in_dynamodbs_language() {
        let known: Vec<_> = (0..101).map(Nonce::from_bits).collect();
        let change = Change::default().set(RVN, s("x")).remove(NOTE);
        let change = change.if_held_by(Nonce::from_bits(7), &known);
        assert_eq!(change.update_expression(), "SET #0 = :0 REMOVE #1");
        let condition = change.conditions.join(" AND ");
        assert!(condition.starts_with("#2 = :1 AND #3 = :2 AND (#0 IN (:3, "), "{condition}");
        assert!(condition.ends_with(":102) OR #0 IN (:103))"), "{condition}");
        assert_eq!((change.names["#3"].as_str(), &change.values[":0"]), (CLAIM, &s("x")));
    }
}
