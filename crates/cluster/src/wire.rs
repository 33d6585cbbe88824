//! What nodes tell each other about the cluster itself, on the control lane. `view/wire.rs` says how a view
//! travels.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use tenure_wire::{Unreadable, Version, WireMessage};

use crate::Node;
use crate::downing::Converged;
use crate::view::{Digest, Facts, Roles, View, bounded_facts};

/// A message of the control lane. Who sent it is known from the connection.
///
/// How it may change: [`tenure_wire`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Control {
    /// Are you there? From a member of this cluster.
    Ping {
        /// The sender's cluster.
        #[serde(rename = "c")]
        cluster: u64,
    },
    /// I am.
    Pong {
        /// The sender's cluster.
        #[serde(rename = "c")]
        cluster: u64,
    },
    /// This is what I believe, in short.
    #[serde(rename = "S")]
    Summary(Summary),
    /// This is what I believe. Sent only when summaries differ.
    State(State),
    /// May I come in?
    Join(Join),
    /// You are in; this is what we believe, and who counted when all last believed the same.
    Welcome(State, Option<Arc<Converged<Node>>>),
    /// You are not, and this is why.
    Refused(Refusal),
    /// If it is you who answers at your address, join again and say this number. It holds for some
    /// seconds.
    Prove(u64),
    /// Your incarnation was removed from this cluster.
    Removed {
        /// The sender's cluster.
        cluster: u64,
    },
    /// Not about the cluster itself: a message that somebody posted, as a frame of the data lane.
    Posted(#[serde(with = "tenure_wire::bytes")] Vec<u8>),
}

impl WireMessage for Control {}

/// Writes a frame of the control lane for a peer with which `spoken` was agreed; `None` if such a peer does not
/// know the message.
pub fn encode(message: &Control, spoken: Version) -> Option<Bytes> {
    tenure_wire::encode(message, spoken).map(Bytes::from)
}

/// Reads a frame of the control lane.
pub fn decode(frame: &[u8]) -> Result<Control, Unreadable> {
    tenure_wire::decode(frame)
}

/// How many bytes a message takes on the wire, without its frame.
pub fn encoded_len(message: &Control) -> usize {
    encode(message, Version::OURS).map_or(0, |bytes| bytes.len())
}

/// What a node believes, in short.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Summary {
    /// Which cluster.
    #[serde(rename = "c")]
    pub cluster: u64,
    /// Of the view.
    #[serde(rename = "d")]
    pub digest: Digest,
    /// Who is known to believe the same.
    #[serde(rename = "s")]
    pub seen: Seen,
    /// Whether this answers a summary; such a one is not answered again.
    #[serde(rename = "a", default, skip_serializing_if = "is_default")]
    pub answer: bool,
}

/// What a node believes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct State {
    /// The view.
    pub view: Arc<View>,
    /// The incarnations that were removed, and for how long.
    #[serde(with = "removed")]
    pub removed: Arc<[(Node, Duration)]>,
    /// Who is known to believe the same.
    pub seen: Seen,
    /// Whether the receiver should tell what it believes if that differs in the end.
    pub answer: bool,
}

/// A set of members of a view: one bit for each, in the order of the view. Only meaningful together
/// with the digest of that view.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen(#[serde(with = "tenure_wire::bytes")] Vec<u8>);

impl Seen {
    /// One bit for each of the members, set if `has_seen`.
    pub(crate) fn new<'a>(
        members: impl ExactSizeIterator<Item = &'a Node>,
        has_seen: impl Fn(&Node) -> bool,
    ) -> Self {
        let mut bits = vec![0; members.len().div_ceil(8)];
        for (index, node) in members.enumerate() {
            if has_seen(node) {
                bits[index / 8] |= 1 << (index % 8);
            }
        }
        Self(bits)
    }

    /// Every one of this many.
    pub(crate) fn all(members: usize) -> Self {
        let mut bits = vec![u8::MAX; members.div_ceil(8)];
        if let (Some(last), rest @ 1..) = (bits.last_mut(), members % 8) {
            *last = u8::MAX >> (8 - rest);
        }
        Self(bits)
    }

    /// How many bits are set.
    pub(crate) fn len(&self) -> usize {
        self.0.iter().map(|byte| byte.count_ones() as usize).sum()
    }

    /// Whether the bit of the member with this place is set.
    pub(crate) fn contains(&self, index: usize) -> bool {
        self.0.get(index / 8).is_some_and(|byte| byte & (1 << (index % 8)) != 0)
    }
}

/// What a node that wants to join says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Join {
    /// What it can be used for.
    pub roles: Roles,
    /// What else the others should know of it.
    #[serde(default, deserialize_with = "bounded_facts")]
    pub facts: Facts,
    /// Settings that must be the same everywhere, by name, without those that have their default.
    pub settings: Arc<[(String, String)]>,
    /// The number from [`Control::Prove`], or zero.
    pub proof: u64,
}

/// Why a node is not let in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// The one that was asked is in no cluster itself, or is on its way out.
    #[error("it is in no cluster itself")]
    NotAMember,
    /// A setting must be the same everywhere, and is not.
    #[error("the setting {name} must agree: it is {ours} in the cluster, {theirs} here")]
    Setting {
        /// Which.
        name: String,
        /// What the cluster has.
        ours: String,
        /// What the one that wants to join has.
        theirs: String,
    },
    /// This very incarnation was removed; a new process may join.
    #[error("this incarnation was removed from the cluster; start again as a new one")]
    Removed,
}

/// For fields that are left out if they say nothing.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Removed nodes, with how long ago that was in milliseconds.
mod removed {
    use serde::{Deserializer, Serializer};

    use super::*;

    pub(super) fn serialize<S: Serializer>(
        removed: &[(Node, Duration)],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(removed.iter().map(|(node, age)| (node, age.as_millis() as u64)))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Arc<[(Node, Duration)]>, D::Error> {
        let removed: Vec<(Node, u64)> = Vec::deserialize(deserializer)?;
        Ok(removed.into_iter().map(|(node, age)| (node, Duration::from_millis(age))).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;
    use crate::view::{Member, Row, Status, Survivors, Verdict};
    use crate::{Incarnation, View};

    tenure_wire::variants!(Control {
        Ping,
        Pong,
        Summary,
        State,
        Join,
        Welcome,
        Refused,
        Prove,
        Removed,
        Posted
    });

    fn node(number: u64) -> Node {
        let address = format!("10.0.0.{number}:7400").parse().unwrap();
        Node { address, incarnation: Incarnation(number << 56 | 7) }
    }

    fn state() -> State {
        let roles: Roles = Arc::new(BTreeSet::from(["worker".into()]));
        let facts: Facts = Arc::new([("version".into(), "2.3.1".into())].into());
        let mut view = View::new(1 << 50);
        for (number, status) in [(1, Status::Up), (2, Status::Leaving), (3, Status::Down)] {
            view.raise_highest_up(number);
            let (roles, facts) = (roles.clone(), facts.clone());
            view.set_member(&node(number), Member { status, up_number: number, roles, facts });
        }
        let unreachable = Arc::new(BTreeSet::from([node(3)]));
        view.set_row(&node(1), Row { version: 9, unreachable });
        view.raise_skipped_up(2);
        let survivors = Arc::new(Survivors::new([&node(1), &node(2)], [&node(3)]));
        view.set_verdict(Verdict { cluster: 1 << 50, generation: 4, survivors });
        view.announce(5);
        let removed = Arc::from([(node(4), Duration::from_secs(60))]);
        State { view: Arc::new(view), removed, seen: Seen::all(3), answer: true }
    }

    fn samples() -> Vec<Control> {
        let cluster = 1 << 50;
        let settings = Arc::from([("downing".to_owned(), "keep-majority".to_owned())]);
        let facts = Arc::new([("version".into(), "2.3.1".into())].into());
        let digest = state().view.digest();
        let converged = Converged::of(&state().view);
        let differs = Refusal::Setting { name: "a".into(), ours: "1".into(), theirs: "2".into() };
        vec![
            Control::Ping { cluster },
            Control::Pong { cluster },
            Control::Summary(Summary { cluster, digest, seen: Seen::all(9), answer: true }),
            Control::State(state()),
            Control::Join(Join { roles: Arc::default(), facts, settings, proof: 7 }),
            Control::Welcome(state(), Some(Arc::new(converged))),
            Control::Welcome(state(), None),
            Control::Refused(Refusal::NotAMember),
            Control::Refused(Refusal::Removed),
            Control::Refused(differs),
            Control::Prove(7),
            Control::Removed { cluster },
            Control::Posted(vec![1, 0, 255]),
        ]
    }

    /// Nodes of two versions must agree on whether they believe the same: a summary of any version tells the
    /// digest that this one computes for the view of that version, whatever else stands in it.
    #[test]
    fn a_view_has_the_same_digest_in_every_version() {
        let kept = |name| tenure_wire::samples::kept(&file(), name);
        let (summaries, states) = (kept("Control::Summary"), kept("Control::State"));
        assert!(!states.is_empty() && states.len() == summaries.len());
        for (summary, state) in summaries.iter().zip(&states) {
            let (Ok(Control::Summary(summary)), Ok(Control::State(state))) =
                (decode(summary), decode(state))
            else {
                panic!("samples are read");
            };
            assert_eq!(summary.digest, state.view.digest());
            let mut other = (*state.view).clone();
            for (node, member) in state.view.members() {
                let facts = Arc::new([("fresh".into(), "of a later version".into())].into());
                other.set_member(node, Member { facts, ..member.clone() });
            }
            assert_eq!(other.digest(), summary.digest);
        }
    }

    fn file() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("samples/control.txt")
    }

    #[test]
    fn every_message_has_samples_that_can_be_read() {
        let file = file();
        tenure_wire::samples::check_message(&file, "Control", &samples(), VARIANTS, variant_of);
    }
}
