use std::fmt;

use tenure_cluster::Node;
use tenure_lease::Token;

use crate::Shard;

/// What a node knows of one kind of entities.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// The coordinator that this node obeys, and its term; `None` if none has greeted it yet.
    pub coordinator: Option<(Node, u64)>,
    /// Whether the coordinator of this very node gives orders.
    pub coordinates: bool,
    /// How many shards there are.
    pub shards: u32,
    /// The shards that are here, and the tokens that their entities fence with.
    pub hosted: Vec<(Shard, Token)>,
    /// Where each shard is, as far as this node knows.
    pub homes: Vec<(Shard, Node)>,
    /// How many entities are here.
    pub entities: usize,
    /// How many messages wait here until their shard has a place.
    pub waiting: usize,
    /// Why this node does not coordinate, and hosts nothing, if that is so.
    pub why_not: Option<String>,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.coordinator {
            Some((node, term)) => write!(f, "coordinated by {node} with term {term}")?,
            None => f.write_str("coordinated by nobody that this node knows")?,
        }
        let (hosted, known) = (self.hosted.len(), self.homes.len());
        write!(f, "; {hosted} of {} shards are here, {known} have a known place", self.shards)?;
        write!(f, "; {} entities are, and {} messages wait here", self.entities, self.waiting)?;
        self.why_not.iter().try_for_each(|why| write!(f, "; not on this node: {why}"))
    }
}
