use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use serde::de::{IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use tenure_wire::Version;

/// What a node can be used for: a word of yours, like `worker`.
pub type Role = Arc<str>;

/// The roles of a node; they stay the same for as long as it lives.
pub type Roles = Arc<BTreeSet<Role>>;

/// What others should know of a node, by name; it stays the same for as long as the node lives. Nodes of every
/// version pass on all facts, also those that they know nothing of. Their names and values together have at
/// most 1 KiB: everybody keeps them, and gossip carries them.
pub type Facts = Arc<BTreeMap<Arc<str>, Arc<str>>>;

/// How far a member has come. It only ever rises.
///
/// A removed member is no status but an absence with a tombstone: its incarnation is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Status {
    /// Let in by somebody; talks, but is not counted and hosts nothing.
    Joining,
    /// A full member, with an up-number.
    Up,
    /// Wants to leave.
    Leaving,
    /// Everybody knows that it leaves; it hands over what it hosts.
    Exiting,
    /// Has stopped, or must.
    Down,
}

impl Status {
    /// Lower leads before higher.
    pub(super) fn leads_before(self) -> u8 {
        match self {
            Self::Up => 0,
            Self::Leaving => 1,
            Self::Exiting => 2,
            Self::Joining => 3,
            Self::Down => 4,
        }
    }
}

impl Status {
    /// In a word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Joining => "joining",
            Self::Up => "up",
            Self::Leaving => "leaving",
            Self::Exiting => "exiting",
            Self::Down => "down",
        }
    }
}

/// A word where people read it; its number where nodes do.
impl Serialize for Status {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match serializer.is_human_readable() {
            true => serializer.serialize_str(self.word()),
            false => serializer.serialize_u8(*self as u8),
        }
    }
}

impl<'de> Deserialize<'de> for Status {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            let word = String::deserialize(deserializer)?;
            let found = ALL.into_iter().find(|status| status.word() == word);
            return found.ok_or_else(|| de::Error::unknown_variant(&word, WORDS));
        }
        let found = ALL.get(usize::from(u8::deserialize(deserializer)?));
        found.copied().ok_or_else(|| de::Error::custom("it is no status"))
    }
}

const WORDS: &[&str] = &["joining", "up", "leaving", "exiting", "down"];
/// By their numbers.
const ALL: [Status; 5] =
    [Status::Joining, Status::Up, Status::Leaving, Status::Exiting, Status::Down];

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// One member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// How far it has come.
    pub status: Status,
    /// Its age: the order in which members became [`Status::Up`], from 1. Zero until then.
    pub up_number: u64,
    /// What it can be used for.
    pub roles: Roles,
    /// What else is known of it.
    pub facts: Facts,
}

/// Its values in this order, the facts only if there are any: members are most of what gossip says, and names
/// would double them. Whatever a later version has to say of a member is a fact.
impl Serialize for Member {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { status, up_number, roles, facts } = self;
        match facts.is_empty() {
            true => (status, up_number, roles).serialize(serializer),
            false => (status, up_number, roles, facts).serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Member {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(MemberVisitor)
    }
}

struct MemberVisitor;

impl<'de> Visitor<'de> for MemberVisitor {
    type Value = Member;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a member's status, up-number, roles and facts")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Member, A::Error> {
        let missing = |place| de::Error::invalid_length(place, &"at least three values");
        let member = Member {
            status: values.next_element()?.ok_or_else(|| missing(0))?,
            up_number: values.next_element()?.ok_or_else(|| missing(1))?,
            roles: values.next_element()?.ok_or_else(|| missing(2))?,
            facts: values.next_element::<BoundedFacts>()?.unwrap_or_default().0,
        };
        while values.next_element::<IgnoredAny>()?.is_some() {}
        Ok(member)
    }
}

impl Member {
    /// One that was just let in.
    pub fn joining(roles: Roles, facts: Facts) -> Self {
        Self { status: Status::Joining, up_number: 0, roles, facts }
    }

    /// What people call it ([`Settings::name`](crate::Settings)), if it has said so. It stays the same when
    /// the node is started again elsewhere. Nothing keeps two members from having the same one.
    pub fn name(&self) -> Option<&Arc<str>> {
        self.facts.get(NAME)
    }

    /// The version of the protocol that it speaks, and that of the application, if it has said so.
    pub fn versions(&self) -> MemberVersions {
        let fact = |name| self.facts.get(name).map(ToString::to_string);
        let protocol = fact(PROTOCOL).unwrap_or_else(|| Version::FIRST.to_string());
        MemberVersions { protocol, application: fact(APPLICATION) }
    }

    /// Whether it is a full member, though perhaps on its way out. One that leaves while it is joining
    /// never was: elsewhere it is still only joining, and given up without being counted.
    pub(crate) fn is_full(&self) -> bool {
        (Status::Up..Status::Down).contains(&self.status) && self.up_number > 0
    }

    /// The later of two.
    pub(super) fn join(&self, other: &Self) -> Self {
        Self {
            status: self.status.max(other.status),
            up_number: self.up_number.max(other.up_number),
            roles: self.roles.clone(),
            facts: self.facts.clone(),
        }
    }
}

/// What a member runs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MemberVersions {
    /// The version of the protocol between nodes that it speaks.
    pub protocol: String,
    /// The version of the application ([`Settings::version`](crate::Settings)), if it has said so.
    pub application: Option<String>,
}

/// What a node of this name says of itself, which speaks `protocol` and runs this version of the application.
pub(crate) fn facts_of(name: &str, protocol: Version, application: Option<&str>) -> Facts {
    let name = (NAME.into(), name.into());
    // The first version is what is meant if nothing is said.
    let protocol =
        (protocol != Version::FIRST).then(|| (PROTOCOL.into(), protocol.to_string().into()));
    let application = application.map(|version| (APPLICATION.into(), version.into()));
    Arc::new([name].into_iter().chain(protocol).chain(application).collect())
}

/// Facts of somebody else. Too many are refused: whoever believed them would keep them, and pass them on.
#[derive(Default)]
struct BoundedFacts(Facts);

impl<'de> Deserialize<'de> for BoundedFacts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        bounded_facts(deserializer).map(Self)
    }
}

/// Reads facts of somebody else, and refuses too many.
pub(crate) fn bounded_facts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Facts, D::Error> {
    let facts = Facts::deserialize(deserializer)?;
    let len: usize = facts.iter().map(|(name, value)| name.len() + value.len()).sum();
    if len > FACTS_MAX {
        let error = format!("facts of a member have at most {FACTS_MAX} bytes, not {len}");
        return Err(de::Error::custom(error));
    }
    Ok(facts)
}

const NAME: &str = "name";
const PROTOCOL: &str = "protocol";
const APPLICATION: &str = "version";
/// How many bytes names and values of a member's facts may have together. Never more: older versions would
/// refuse the member.
const FACTS_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{NAME_MAX, VERSION_MAX};
    use crate::view::View;
    use crate::wire::{Control, Join};
    use crate::{Incarnation, Node};

    fn is_read(facts: Facts) -> [bool; 2] {
        let node = Node { address: "a:1".parse().unwrap(), incarnation: Incarnation(1) };
        let mut view = View::new(1);
        view.set_member(&node, Member::joining(Roles::default(), facts.clone()));
        let view = tenure_wire::encode(&view, Version::OURS).unwrap();
        let join = Join { roles: Roles::default(), facts, settings: Arc::new([]), proof: 0 };
        let join = tenure_wire::encode(&Control::Join(join), Version::OURS).unwrap();
        [tenure_wire::decode::<View>(&view).is_ok(), tenure_wire::decode::<Control>(&join).is_ok()]
    }

    #[test]
    fn more_facts_than_anybody_needs_are_refused() {
        let one = |len: usize| -> Facts {
            Arc::new([("fact".into(), "x".repeat(len - "fact".len()).into())].into())
        };
        assert_eq!(is_read(one(FACTS_MAX)), [true; 2]);
        assert_eq!(
            is_read(one(FACTS_MAX + 1)),
            [false; 2],
            "in a view, and from who wants to join"
        );
        let many =
            |count| Arc::new((0..count).map(|it| (format!("{it:04}").into(), "".into())).collect());
        assert_eq!(is_read(many(FACTS_MAX / 4)), [true; 2]);
        assert_eq!(is_read(many(FACTS_MAX / 4 + 1)), [false; 2]);
    }

    #[test]
    fn what_settings_allow_is_not_refused_by_others() {
        let (name, version) = ("n".repeat(NAME_MAX), "v".repeat(VERSION_MAX));
        let facts = facts_of(&name, Version { major: u16::MAX, minor: u16::MAX }, Some(&version));
        assert_eq!(facts.len(), 3);
        assert_eq!(is_read(facts), [true; 2]);
    }
}
