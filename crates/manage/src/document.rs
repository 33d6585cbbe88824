//! What is served, as JSON: docs/management.md has each with an example. Times are milliseconds since
//! 1970, for display only; ids and tokens are text, since a browser's numbers are too small for them.

use serde::{Deserialize, Serialize};
use tenure_lease::Moment;

/// Who is in, who leads, who cannot reach whom.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cluster {
    /// The cluster's name.
    pub cluster: String,
    /// Its id; none while this node is in none.
    pub id: Option<String>,
    /// This node; none if no node serves this.
    pub me: Option<String>,
    /// What people call it.
    pub name: Option<String>,
    /// Whether it can do its part now.
    pub ready: bool,
    /// If not, why.
    pub not_ready: Option<String>,
    /// What somebody should look at although this node does its part.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// Who leads.
    pub leader: Option<String>,
    /// Who has been up for longest.
    pub oldest: Option<String>,
    /// Whether all members are known to see the same.
    pub converged: bool,
    /// Who is in, and who was a while ago.
    pub nodes: Vec<Node>,
    /// Who cannot reach whom.
    pub unreachable: Vec<Cut>,
    /// How splits are settled, and how the last one was.
    pub downing: Downing,
    /// Only of a demonstration.
    pub demo: Option<serde_json::Value>,
}

/// One node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// `host:port#incarnation`.
    pub node: String,
    /// `host:port`.
    pub address: String,
    /// What people call it, if that is known.
    pub name: Option<String>,
    /// `joining`, `up`, `leaving`, `exiting`, `down`, `gone` or `outside`.
    pub status: String,
    /// The order in which members became full ones; 0 until then.
    pub up_number: u64,
    /// What it can be used for.
    pub roles: Vec<String>,
    /// The version of the protocol between nodes that it speaks; empty if it is not known.
    #[serde(default)]
    pub protocol: String,
    /// The version of the application, if it has said so.
    #[serde(default)]
    pub version: Option<String>,
    /// Since when it is seen with this status.
    pub since_ms: u64,
    /// Whether it is known to see the same.
    pub seen: bool,
    /// Why it is down, gone or outside.
    pub why: Option<String>,
}

/// Somebody cannot reach somebody.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cut {
    /// Who.
    pub from: String,
    /// Whom.
    pub to: String,
}

/// How splits are settled.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Downing {
    /// By which strategy; by none if there is none.
    pub strategy: Option<String>,
    /// The last decision that this node knows of.
    pub last: Option<Decision>,
}

/// How a split was settled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// When.
    pub time_ms: u64,
    /// By whom, if it was this node.
    pub by: Option<String>,
    /// `survive` or `down_self`.
    pub outcome: String,
    /// Who was declared down.
    pub down: Vec<String>,
    /// Why, in a sentence.
    pub text: String,
}

/// One lease.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lease {
    /// Its name.
    pub name: String,
    /// The kind of its store.
    pub store: String,
    /// What it is for, if that is known.
    pub purpose: Option<String>,
    /// Who holds it.
    pub holder: Option<String>,
    /// Under which token; of the last tenure, if nobody does.
    pub token: Option<String>,
    /// For how long, after each renewal.
    pub ttl_ms: u64,
    /// Until others may take it.
    pub remaining_ms: Option<u64>,
    /// Whether this process holds it.
    pub held_here: bool,
    /// Since when it is seen so.
    pub since_ms: u64,
    /// Why the store did not say.
    pub error: Option<String>,
    /// When others may take it, by this machine's clock: what `remaining_ms` is counted from.
    #[serde(skip)]
    pub ends: Option<Moment>,
}

/// One singleton.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Singleton {
    /// Its name.
    pub name: String,
    /// Where it runs, as far as this node knows.
    pub host: Option<String>,
    /// Under which token.
    pub token: Option<String>,
    /// Since when this node knows that.
    pub since_ms: u64,
    /// How many messages wait for it here.
    pub waiting: usize,
    /// Why this node does not host it, while nobody does.
    pub why_not: Option<String>,
}

/// The shards of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kind {
    /// Which kind.
    pub kind: String,
    /// How many there are.
    pub count: usize,
    /// Who gives them away.
    pub coordinator: Option<String>,
    /// Under which term; none if nobody's is known.
    pub term: Option<String>,
    /// Who has some.
    pub nodes: Vec<String>,
    /// For each shard the index of its node in `nodes`, or -1.
    pub map: Vec<i32>,
    /// How many shards are on the node that answers.
    pub hosted: usize,
    /// How many entities are there.
    pub entities: usize,
    /// How many messages wait there until their shard has a place.
    pub waiting: usize,
    /// Why that node does not coordinate, and hosts nothing, if that is so.
    pub why_not: Option<String>,
}

/// What the regions of one kind say of themselves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Regions {
    /// Which kind.
    pub kind: String,
    /// Each of them.
    pub regions: Vec<Region>,
}

/// What one node has of a kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Region {
    /// Which node.
    pub node: String,
    /// The shards that are there.
    pub shards: Vec<HostedShard>,
    /// How many entities are.
    pub entities: usize,
    /// How many messages wait there until their shard has a place.
    pub waiting: usize,
    /// Why it did not answer; then nothing else is known.
    pub error: Option<String>,
}

/// A shard where it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostedShard {
    /// Which one.
    pub shard: u32,
    /// What its entities fence with.
    pub token: String,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Its number.
    pub id: u64,
    /// When.
    pub time_ms: u64,
    /// What it is about.
    pub kind: EntryKind,
    /// A sentence.
    pub text: String,
    /// Whom it is about.
    pub node: Option<String>,
    /// Why, in one word.
    pub reason: Option<String>,
}

/// What an entry is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    /// Somebody joined, left, was removed.
    Member,
    /// Somebody cannot be reached, or can again.
    Reachability,
    /// Somebody leads.
    Leader,
    /// A split was settled.
    Decision,
    /// A lease was won or lost.
    Lease,
    /// A singleton moved.
    Singleton,
    /// A shard moved.
    Shard,
    /// Somebody used this API.
    Operator,
    /// The demonstration broke something.
    Fault,
    /// Anything else.
    Other,
}

/// The versions of the four documents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Versions {
    /// Of `/api/cluster`.
    pub cluster: u64,
    /// Of `/api/leases`.
    pub leases: u64,
    /// Of `/api/singletons`.
    pub singletons: u64,
    /// Of `/api/shards`.
    pub shards: u64,
}

/// What went wrong, in a sentence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Error {
    /// The sentence.
    pub error: String,
}
