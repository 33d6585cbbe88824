//! How a view travels. Tombstones travel beside it, with their age, because clocks do not compare.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::{Digest, Member, Row, Status, View, digest};
use crate::Node;

#[derive(Serialize)]
struct Parts<'a>(u64, u64, &'a BTreeMap<Node, Member>, &'a BTreeMap<Node, Row>);

#[derive(Deserialize)]
struct OwnedParts(u64, u64, BTreeMap<Node, Member>, BTreeMap<Node, Row>);

impl Serialize for View {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Parts(self.cluster, self.highest_up, &self.members, &self.rows).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for View {
    /// Refuses what no node could believe.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let OwnedParts(cluster, highest_up, members, mut rows) =
            OwnedParts::deserialize(deserializer)?;
        rows.retain(|observer, _| members.contains_key(observer));
        let mut sum = Digest::of_cluster(cluster);
        for (node, member) in &members {
            if member.up_number > highest_up {
                return Err(de::Error::custom("an up-number above the highest that was given"));
            }
            if member.status == Status::Up && member.up_number == 0 {
                return Err(de::Error::custom("a member that is up without an up-number"));
            }
            sum.add(digest::of_member(node, member));
        }
        for (observer, row) in &rows {
            sum.add(digest::of_row(observer, row));
        }
        let tombstones = BTreeMap::new();
        Ok(Self { cluster, members, highest_up, rows, tombstones, digest: sum })
    }
}
