//! How a view travels. Tombstones travel beside it, with their age, because clocks do not compare.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::{Member, Row, Status, Verdict, View, digest};
use crate::Node;
use crate::wire::is_default;

#[derive(Serialize)]
struct Parts<'a> {
    #[serde(rename = "c")]
    cluster: u64,
    #[serde(rename = "h")]
    highest_up: u64,
    #[serde(rename = "s", skip_serializing_if = "is_default")]
    skipped_up: u64,
    #[serde(rename = "a", skip_serializing_if = "is_default")]
    asked: u64,
    #[serde(rename = "v", skip_serializing_if = "Option::is_none")]
    verdict: Option<&'a Verdict>,
    #[serde(rename = "m")]
    members: &'a BTreeMap<Node, Member>,
    #[serde(rename = "r")]
    rows: &'a BTreeMap<Node, Row>,
}

#[derive(Deserialize)]
struct OwnedParts {
    #[serde(rename = "c")]
    cluster: u64,
    #[serde(rename = "h", deserialize_with = "number")]
    highest_up: u64,
    #[serde(rename = "s", default, deserialize_with = "number")]
    skipped_up: u64,
    #[serde(rename = "a", default, deserialize_with = "number")]
    asked: u64,
    #[serde(rename = "v", default)]
    verdict: Verdict,
    #[serde(rename = "m")]
    members: BTreeMap<Node, Member>,
    #[serde(rename = "r")]
    rows: BTreeMap<Node, Row>,
}

impl Serialize for View {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { cluster, highest_up, skipped_up, asked, verdict, members, rows, .. } = self;
        let (cluster, highest_up, asked) = (*cluster, *highest_up, *asked);
        let (skipped_up, verdict) = (*skipped_up, (!is_default(verdict)).then_some(verdict));
        Parts { cluster, highest_up, skipped_up, asked, verdict, members, rows }
            .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for View {
    /// Refuses what no node could believe.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let OwnedParts { cluster, highest_up, skipped_up, asked, verdict, members, rows } =
            OwnedParts::deserialize(deserializer)?;
        if asked < verdict.generation {
            return Err(de::Error::custom("a verdict that nobody asked for"));
        }
        let mut view = Self::new(cluster);
        view.raise_highest_up(highest_up);
        view.raise_skipped_up(skipped_up);
        for (node, member) in &members {
            if member.up_number > highest_up {
                return Err(de::Error::custom("an up-number above the highest that was given"));
            }
            if member.status == Status::Up && member.up_number == 0 {
                return Err(de::Error::custom("a member that is up without an up-number"));
            }
            view.digest.add(digest::of_member(node, member));
        }
        view.members = members;
        for (observer, row) in rows {
            if view.members.contains_key(&observer) {
                view.set_row(&observer, row);
            }
        }
        view.set_verdict(verdict);
        view.announce(asked);
        Ok(view)
    }
}

/// Reads a number that will be counted on from: refuses one after which there soon is no next.
pub(super) fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let number = u64::deserialize(deserializer)?;
    if number > NUMBER_MAX {
        return Err(de::Error::custom("a number that nobody can have counted to"));
    }
    Ok(number)
}

/// Ten million a second for ten thousand years.
const NUMBER_MAX: u64 = u64::MAX >> 1;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tenure_wire::{Version, WireMessage};

    use super::*;

    impl WireMessage for View {}

    #[test]
    fn a_number_without_a_next_one_is_refused() {
        let read = |view: &View| {
            let bytes = tenure_wire::encode(view, Version::OURS).unwrap();
            tenure_wire::decode::<View>(&bytes).is_ok()
        };
        let node: Node =
            Node { address: "a:1".parse().unwrap(), incarnation: crate::Incarnation(1) };
        for (number, good) in [(NUMBER_MAX, true), (NUMBER_MAX + 1, false), (u64::MAX, false)] {
            let mut up = View::new(1);
            up.highest_up = number;
            assert_eq!(read(&up), good);
            let mut skipped = View::new(1);
            skipped.skipped_up = number;
            assert_eq!(read(&skipped), good);
            let mut asked = View::new(1);
            asked.announce(number);
            assert_eq!(read(&asked), good);
            let mut row = View::new(1);
            row.set_member(&node, Member::joining(Arc::default(), Arc::default()));
            row.set_row(&node, Row { version: number, ..Row::default() });
            assert_eq!(read(&row), good);
            let mut decided = View::new(1);
            let verdict = Verdict { cluster: 1, generation: number, survivors: Arc::default() };
            decided.set_verdict(verdict.clone());
            assert_eq!(read(&decided), good);
            assert_eq!(Verdict::parse_note(&verdict.to_note()).is_ok(), good);
        }
    }
}
