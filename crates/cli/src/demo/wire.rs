//! What the demonstration and its processes say to each other: lines of JSON. A process hears on
//! stdin and speaks on stdout.

use serde::{Deserialize, Serialize};
use tenure_cluster::{Address, Status};
use tenure_lease::{Moment, Token};
use tenure_sharding::Shard;

/// What a process is told to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Order {
    /// Neither send to nor hear from these, and nobody else is cut off.
    Cut(Vec<Address>),
    /// The store does not answer any more, or does again.
    Store {
        /// Whether it answers.
        answers: bool,
    },
    /// Leave the cluster and end.
    Leave,
    /// Send no more jobs; wait until all are done.
    Finish,
}

/// What a process saw or did. Moments are of the machine's boot clock, which all share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Report {
    /// What it believes about the cluster.
    View(Sees),
    /// It decided a split for its side, or read the verdict.
    Decided(Decided),
    /// The worker begins here; said before it does anything. `expired` is whose tenure before it was
    /// not given back.
    Started { token: Token, expired: Option<String>, at: u64 },
    /// The worker has ended here; said after the last thing that it did. `reason` is a word.
    Stopped { token: Token, why: String, reason: Option<String>, at: u64 },
    /// The fence refused a write.
    Refused { token: Token, fence: Token },
    /// How far the client is; in the end, that it is done.
    Jobs { sent: u64, acknowledged: u64, finished: bool },
    /// The client heard of no job being done for a while.
    Silence { from: u64, to: u64 },
    /// Its own management API is here.
    Listens(String),
    /// A counter begins here; said before it does anything.
    Began { key: u32, token: Token, at: u64 },
    /// A counter has ended here; said after the last thing that it did.
    Ended { key: u32, token: Token, at: u64 },
    /// The fence of a shard refused a write.
    WriteRefused,
    /// What is here of shards, and of counters in them; and the term, if this node coordinates.
    Shards {
        hosted: Vec<(Shard, Token)>,
        entities: usize,
        waiting: usize,
        coordinates: Option<u64>,
    },
    /// This node coordinated at both of these moments, and does not any more.
    Coordinated { from: u64, to: u64 },
    /// How far the client's writes are; in the end, that they are done.
    Writes { sent: u64, acknowledged: u64, finished: bool },
    /// How many writes of each counter are acknowledged.
    Acknowledged(Vec<u64>),
    /// A write to this shard was due at the first moment, and acknowledged at the second.
    Waited { shard: u32, from: u64, to: u64 },
    /// How often this process has asked the store.
    Asked(u64),
    /// Something to show as it is.
    Trouble(String),
}

/// The cluster as one process sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Sees {
    /// How it calls itself.
    pub(super) me: String,
    /// The id of the cluster that it is in.
    pub(super) cluster: u64,
    /// Whether it is a full member itself.
    pub(super) up: bool,
    /// Who leads, by number.
    pub(super) leader: Option<usize>,
    /// Who has been up for longest.
    pub(super) oldest: Option<usize>,
    /// Whether all are known to see the same.
    pub(super) converged: bool,
    /// Who is in.
    pub(super) members: Vec<Seen>,
}

impl Sees {
    /// One member.
    pub(super) fn of(&self, number: usize) -> Option<&Seen> {
        self.members.iter().find(|seen| seen.number == number)
    }
}

/// How a split was decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Decided {
    /// Whether the process that says this goes on.
    pub(super) survives: bool,
    /// Who does not, by number.
    pub(super) down: Vec<usize>,
    /// Why, in a sentence.
    pub(super) reason: String,
}

/// One member as one process sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Seen {
    /// Its number; 0 is the client.
    pub(super) number: usize,
    pub(super) status: Status,
    pub(super) up_number: u64,
    /// The numbers of those that cannot reach it.
    pub(super) missed_by: Vec<usize>,
}

/// Says it to the demonstration, at once. If nobody listens, it is over anyway.
pub(super) fn say(report: &Report) {
    use std::io::Write as _;
    // Our own types have string keys and no fallible parts.
    let line = serde_json::to_string(report).expect("a report is JSON");
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Now, to be reported.
pub(super) fn now() -> u64 {
    Moment::now().as_nanos()
}

/// How a process ends that was declared down.
pub(super) const DECLARED_DOWN: u8 = 79;
