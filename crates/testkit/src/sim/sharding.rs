//! Whole clusters with sharding on top, from one seed.
//!
//! Each process runs the real membership and resolver (the [cluster's simulation](super::cluster)),
//! the real [`Coordinator`](tenure_sharding::Coordinator) and
//! [`Region`](tenure_sharding::Region), and real [keepers](tenure_lease::keeper::Keeper) for the
//! coordinator's lease, for the region's session and for sessions that are taken over, against a
//! store whose answers are late or lost. Shards write to a database, fenced and unfenced.
//!
//! First everything goes wrong, and the [invariants](Violation) must hold; then nothing does any
//! more, and every shard must be served.

mod campaign;
mod data;
mod effects;
mod faults;
mod invariants;
mod keepers;
mod look;
mod queue;
pub mod scenario;
mod shell;
mod trap;
mod world;

use std::collections::BTreeMap;
use std::time::Duration;

pub use campaign::{COVERAGE, Fault, Plan, run};
pub use tenure_sharding::Setup;
pub use world::World;

pub use super::cluster::Violation;

/// What came of a schedule.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// What must not have happened.
    pub violations: Vec<Violation>,
    /// What may have happened, as often as it did.
    pub tally: Tally,
    /// How much virtual time passed.
    pub virtual_time: Duration,
    /// How long it took until every shard was served, after the last fault.
    pub recovery: Option<Duration>,
    /// How often each thing worth meeting was met.
    pub coverage: BTreeMap<&'static str, u64>,
    /// A hash of everything that happened.
    pub hash: u64,
    /// What happened, line by line, if the plan asks for it.
    pub trace: Vec<String>,
}

/// What is counted, to compare one setup with another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Shards that were started.
    pub started: u64,
    /// Of those, while the shard was active elsewhere, in a process that had not stood still.
    pub active_twice: u64,
    /// Of those, while it was active only in a process that had stood still.
    pub active_stale: u64,
    /// Writes that were done.
    pub writes: u64,
    /// Writes that the fence refused.
    pub refused: u64,
    /// Acknowledged writes that were overwritten where there is a fence.
    pub lost_fenced: u64,
    /// The same where there is none.
    pub lost_unfenced: u64,
}

impl Tally {
    /// Adds another one.
    pub fn add(&mut self, other: &Self) {
        self.started += other.started;
        self.active_twice += other.active_twice;
        self.active_stale += other.active_stale;
        self.writes += other.writes;
        self.refused += other.refused;
        self.lost_fenced += other.lost_fenced;
        self.lost_unfenced += other.lost_unfenced;
    }
}
