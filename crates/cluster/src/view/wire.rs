//! How a view travels. Tombstones travel beside it, with their age, because clocks do not compare.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::{Member, Row, Status, Verdict, View, digest};
use crate::Node;

#[derive(Serialize)]
struct Parts<'a> {
    cluster: u64,
    highest_up: u64,
    asked: u64,
    verdict: &'a Verdict,
    members: &'a BTreeMap<Node, Member>,
    rows: &'a BTreeMap<Node, Row>,
}

#[derive(Deserialize)]
struct OwnedParts {
    cluster: u64,
    highest_up: u64,
    asked: u64,
    verdict: Verdict,
    members: BTreeMap<Node, Member>,
    rows: BTreeMap<Node, Row>,
}

impl Serialize for View {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { cluster, highest_up, asked, verdict, members, rows, .. } = self;
        let (cluster, highest_up, asked) = (*cluster, *highest_up, *asked);
        Parts { cluster, highest_up, asked, verdict, members, rows }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for View {
    /// Refuses what no node could believe.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let OwnedParts { cluster, highest_up, asked, verdict, members, rows } =
            OwnedParts::deserialize(deserializer)?;
        if asked < verdict.generation {
            return Err(de::Error::custom("a verdict that nobody asked for"));
        }
        let mut view = Self::new(cluster);
        view.highest_up = highest_up;
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
