//! A singleton in a simulated cluster: each process also runs the real
//! [`Manager`](tenure_singleton::manager::Manager), the real [`Finder`](tenure_singleton::Finder) with a
//! client that tells it numbered messages, and, with a lease, the real
//! [`Keeper`](tenure_lease::keeper::Keeper) against a simulated store.
//!
//! An instance takes its time to start and to stop, fails to start, and dies. What managers and
//! proxies say travels in order while a connection lives, at most once, and is lost at cuts. The store
//! is slow, loses answers, and is out of reach of some nodes and not of others.
//!
//! ```text
//! agent.rs        what one process has of the singleton
//! drive.rs        events in, effects out
//! lease.rs        its lease: requests, answers, the store
//! instance.rs     what runs, and what it does
//! mail.rs         words and messages between processes
//! observer.rs     what really happened
//! invariants/     what must hold, one file each
//! recovery.rs     what must come back when nothing is wrong any more
//! table.rs        the same splits with and without downing, with and without a lease
//! rolling.rs      restarts one after another, without a lease
//! ```

mod agent;
mod drive;
mod instance;
mod invariants;
mod lease;
mod mail;
mod observer;
mod recovery;
mod rolling;
mod table;

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_lease::{LeaseName, MemoryRecords};

use agent::Agent;
pub(super) use drive::Step;
use invariants::Invariants;
use mail::Connections;
use observer::Observer;
pub use rolling::{ROLLING_COVERAGE, run_rolling};
pub use table::{Downing, Measured, Row, run_row};

/// How the singleton of a simulated cluster is run.
#[derive(Clone, Debug)]
pub struct SingletonSettings {
    /// Of every manager and proxy.
    pub manager: tenure_singleton::Settings,
    /// The timing of its lease, if it has one.
    pub lease: Option<tenure_lease::Settings>,
    /// Whether the store frees expired records itself; otherwise contenders observe.
    pub store_expires: bool,
    /// How long an instance takes to start and to stop, at most. Every other one takes all of it to stop.
    pub takes: (Duration, Duration),
    /// Whether instances fail, and requests to the store get lost or late, while faults last.
    pub failures: bool,
}

impl SingletonSettings {
    /// One that never fails and takes two seconds to stop, or less.
    pub fn plain(lease: bool) -> Self {
        Self {
            manager: tenure_singleton::Settings::default(),
            lease: lease.then(|| tenure_lease::Settings::new(Duration::from_secs(10))),
            store_expires: true,
            takes: (Duration::from_millis(500), Duration::from_secs(2)),
            failures: false,
        }
    }
}

/// Everything about the singleton of a simulated cluster.
pub(super) struct Singletons {
    /// By the number of the process. One that is out of the cluster is here until it has stopped.
    agents: BTreeMap<u64, Agent>,
    lease: LeaseName,
    records: MemoryRecords,
    connections: Connections,
    observer: Observer,
    invariants: Invariants,
    /// Whether instances fail and requests get lost, for now.
    failing: bool,
    keepers: u64,
}

impl Singletons {
    pub(super) fn new(settings: Option<&SingletonSettings>) -> Self {
        Self {
            agents: BTreeMap::new(),
            lease: LeaseName::new("singleton").expect("a name"),
            records: match settings.is_some_and(|it| it.store_expires) {
                true => MemoryRecords::expiring(),
                false => MemoryRecords::observed(),
            },
            connections: Connections::default(),
            observer: Observer::default(),
            invariants: Invariants::default(),
            failing: settings.is_some_and(|it| it.failures),
            keepers: 0,
        }
    }
}

/// Every word that a full campaign with a lease must have met, besides.
pub const SINGLETON_COVERAGE: &[&str] = &[
    "singleton: started",
    "singleton: started again under the same token",
    "singleton: does not start",
    "singleton: died",
    "singleton: gave up, another tries",
    "singleton: lease lost",
    "singleton: lease lost while it stops",
    "singleton: handed over to a better placed node",
    "singleton: leaving host stops",
    "singleton: downed host stops",
    "singleton: dropped at its deadline",
    "singleton: host crashed",
    "singleton: host stood still beyond the margin",
    "singleton: overlap of one that stood still",
    "singleton: stale effect refused",
    "singleton: store out of reach",
    "singleton: the store refuses",
    "singleton: the store's answer is lost",
    "singleton: the store's answer is late",
    "singleton: release unanswered",
    "singleton: nobody hosts, messages wait",
    "singleton: messages that waited were sent",
    "singleton: message for one that does not host",
    "singleton: message lost at a cut",
    "singleton: host cut from the store only",
];
