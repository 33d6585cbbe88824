use tenure_cluster::Node;
use tenure_cluster::messaging::{self, Ask, BOARD, CodecError};

use crate::wire::{GuardedBy, SetupHere};

impl SetupHere {
    /// Why this node and that one, which is set up so, cannot work together, and what to do.
    pub(super) fn refuses(&self, other: &Self, there: &Node) -> Option<String> {
        if self.placing != other.placing {
            let differs = difference(there, other.placing, self.placing);
            return Some(format!("{differs}: give all nodes the same"));
        }
        let all =
            "give all nodes the same lease, or none, and stop all of them before you change it";
        match (self.guarded_by.lease(), other.guarded_by.lease()) {
            (Some(here), Some(name)) if here != name => {
                Some(format!("its lease is {name:?} on {there}, and {here:?} here: {all}"))
            }
            (Some(_), None) if other.guarded_by == GuardedBy::Gossip => {
                Some(format!("it has a lease here, and none on {there}: {all}"))
            }
            (None, Some(_)) if self.guarded_by == GuardedBy::Gossip => {
                Some(format!("it has a lease on {there}, and none here: {all}"))
            }
            _ => None,
        }
    }

    /// What one of two nodes lacks that work together, and what to do.
    pub(super) fn unlike(&self, other: &Self, there: &Node) -> Option<String> {
        match (&self.guarded_by, &other.guarded_by) {
            (GuardedBy::Lease(_), GuardedBy::Sessions(_)) => Some(format!(
                "it has sessions on {there}, and none here: add .session(…) here, or leave it out everywhere; while that node coordinates, this one hosts nothing"
            )),
            (GuardedBy::Sessions(_), GuardedBy::Lease(_)) => Some(format!(
                "it has sessions here, and none on {there}: add .session(…) there, or leave it out everywhere; while this node coordinates, that one hosts nothing"
            )),
            _ => None,
        }
    }
}

impl GuardedBy {
    fn lease(&self) -> Option<&str> {
        match self {
            Self::SendsOnly | Self::Gossip => None,
            Self::Lease(name) | Self::Sessions(name) => Some(name),
        }
    }
}

/// In what the other node differs, for people.
fn difference(there: &Node, theirs: u32, ours: u32) -> String {
    let count = |placing: u32| placing & 0xffff;
    match count(theirs) == count(ours) {
        true => format!("it has another shard_key on {there}"),
        false => format!("it has {} shards on {there}, and {} here", count(theirs), count(ours)),
    }
}

/// The receiver of these. A node that has nothing to do with this kind has none.
pub(super) fn board(kind: &str) -> String {
    format!("{BOARD}sharding/{kind}")
}

/// A node that hosts nothing any more is about to go, and asks everybody to say when nothing is on its
/// way there any more.
pub(super) struct Farewell;

impl Ask for Farewell {
    type Reply = ();
}

// Empty bytes, whatever a later version may add.
impl messaging::Message for Farewell {
    fn encode(&self, _: &mut Vec<u8>) -> Result<(), CodecError> {
        Ok(())
    }

    fn decode(_: &[u8]) -> Result<Self, CodecError> {
        Ok(Self)
    }
}

/// The receiver of these, likewise.
pub(super) fn farewells(kind: &str) -> String {
    format!("{BOARD}sharding-farewell/{kind}")
}
