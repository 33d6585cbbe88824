use std::fmt;

use crate::Node;

/// Why a node's part in a cluster ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Ending {
    /// It left.
    #[error("it left")]
    Left,
    /// It was declared down: by an operator, by the resolver, or because a new process joined with
    /// its address.
    #[error("it was declared down")]
    Downed,
    /// It was removed, and heard of it only afterwards.
    #[error("it was removed from the cluster")]
    Removed,
    /// It had not become a full member when it lost everybody; it may start over.
    #[error("it lost everybody before it was a full member")]
    LostWhileJoining,
    /// A newer cluster of the same name exists; it may join that one.
    #[error("a newer cluster of the same name exists, with the id {0}")]
    OtherCluster(u64),
    /// The cluster does not let it in.
    #[error("the cluster refused it: {0}")]
    Refused(crate::wire::Refusal),
    /// This machine or a store of its leases could not do something, or the node's thread panicked:
    /// what, in a sentence.
    #[error("it failed: {0}")]
    Failed(std::sync::Arc<str>),
}

/// What the resolver decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decided {
    /// Whether this node goes on.
    pub survives: bool,
    /// Who does not.
    pub down: Vec<Node>,
    /// Why, in a sentence.
    pub reason: String,
}

/// What happened in the cluster, as this node sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Somebody was let in.
    Joined(Node),
    /// It is a full member.
    Up(Node),
    /// It wants to leave.
    Leaving(Node),
    /// It hands over.
    Exiting(Node),
    /// It was declared down.
    Downed(Node),
    /// It is gone, for good.
    Removed(Node),
    /// Somebody cannot reach it.
    Unreachable(Node),
    /// Everybody can reach it again.
    Reachable(Node),
    /// Somebody else leads.
    LeaderChanged(Option<Node>),
    /// Somebody else is the oldest.
    OldestChanged(Option<Node>),
    /// A split was decided: by this node for its side, or by a verdict that this node was the first
    /// here to read.
    Decided(Decided),
    /// This listener was too slow: so many events were left out. Look at the view.
    Missed(u64),
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |node: &Option<Node>| node.as_ref().map_or("nobody".into(), Node::to_string);
        match self {
            Self::Joined(node) => write!(f, "{node} is joining"),
            Self::Up(node) => write!(f, "{node} is up"),
            Self::Leaving(node) => write!(f, "{node} is leaving"),
            Self::Exiting(node) => write!(f, "{node} hands over"),
            Self::Downed(node) => write!(f, "{node} is down"),
            Self::Removed(node) => write!(f, "{node} is gone"),
            Self::Unreachable(node) => write!(f, "{node} is unreachable"),
            Self::Reachable(node) => write!(f, "{node} is reachable again"),
            Self::LeaderChanged(node) => write!(f, "{} leads", name(node)),
            Self::OldestChanged(node) => write!(f, "{} is the oldest", name(node)),
            Self::Decided(decided) => write!(f, "{decided}"),
            Self::Missed(count) => write!(f, "{count} events were missed"),
        }
    }
}

impl fmt::Display for Decided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let down: Vec<String> = self.down.iter().map(|node| node.address.to_string()).collect();
        let side = if self.survives { "this side goes on" } else { "this side ends" };
        let Self { reason, .. } = self;
        match &down[..] {
            [] => write!(f, "{side}: {reason}"),
            [one] => write!(f, "{side}, {one} is down: {reason}"),
            some => write!(f, "{side}, {} are down: {reason}", some.join(", ")),
        }
    }
}
