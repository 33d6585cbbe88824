use std::fmt;

use serde::{Deserialize, Serialize};
use tenure_cluster::Node;
use tenure_lease::record::SessionRef;

/// The number of a shard, from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Shard(pub u32);

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Who hosts shards: a node and, where there are sessions, the tenure of its session. A node whose
/// session was lost and won again is another host: it remembers nothing of what the first was told.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Host {
    /// Where it is reached.
    pub node: Node,
    /// What it lives and dies with.
    pub session: Option<SessionRef>,
}

impl Host {
    /// A node without a session.
    pub fn node(node: Node) -> Self {
        Self { node, session: None }
    }

    /// Whether this is proof that the other one is over: a later tenure of the same session.
    pub fn succeeds(&self, other: &Self) -> bool {
        match (&self.session, &other.session) {
            (Some(own), Some(others)) => own.name == others.name && own.term > others.term,
            _ => false,
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.session {
            None => fmt::Display::fmt(&self.node, f),
            Some(session) => write!(f, "{} ({} {})", self.node, session.name, session.term),
        }
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
