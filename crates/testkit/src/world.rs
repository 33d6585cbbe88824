//! Whole nodes in a simulated world: the code that a service runs in production, with virtual time,
//! a network and a store that fail, and one seed that decides everything.
//!
//! Several processes live on one thread, each on a tokio runtime of its own whose clock is paused. The
//! loop in `turn.rs` lets each of them live for a step of two milliseconds of virtual time, in an
//! order that the seed decides. So a process can be killed (its runtime is dropped, and with it every
//! task where it stands) and be stopped (it is left out, and finds later that its clocks have gone
//! on). What a process takes from its world goes through [`tenure_lease::world`]; everything above
//! that is what production runs.
//!
//! ```text
//! turn.rs      the loop; one life of each process is in process.rs
//! core.rs      what they share: time, chance, what is under way
//! network.rs   connections; records.rs: the store of leases
//! outside.rs   a fenced database, effects, who works on what
//! entropy.rs   std's and tokio's chance follows from the seed, too
//! story.rs     what is printed when a seed fails
//! check.rs     many seeds, each in a process of its own
//! nodes.rs     what a test does to nodes
//! ```
//!
//! ```no_run
//! use tenure_testkit::world::{Nodes, check};
//! use tenure_cluster::Cluster;
//!
//! check(0..100, |world| async move {
//!     let nodes = Nodes::start(&world, 3, |node| async move {
//!         Ok(Cluster::join(node.settings("shop")).await?)
//!     });
//!     nodes.until_all_started().await;
//!     nodes.partition(&[0], &[1, 2]);
//!     world.until("node-0 is missed", || {
//!         nodes.service(1).is_some_and(|cluster| cluster.view().observations().next().is_some())
//!     }).await;
//! });
//! ```
#![allow(clippy::disallowed_methods, reason = "this is a driver, in virtual time")]

mod check;
mod core;
mod entropy;
mod network;
mod nodes;
mod outside;
mod process;
mod records;
mod story;
mod turn;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tenure_lease::Store;

pub use check::{Failure, Summary, check, find, fresh_seeds};
pub use nodes::{Node, Nodes, NotRunning};
pub use outside::{Database, Effect, Opened, Stale, Working};

use self::core::Core;

/// A world, as its test sees it. Clones are the same one.
#[derive(Clone)]
pub struct World {
    core: Arc<Core>,
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World").field("seed", &self.seed()).finish_non_exhaustive()
    }
}

impl World {
    fn new(core: Arc<Core>) -> Self {
        Self { core }
    }

    /// What everything in this world follows from.
    pub fn seed(&self) -> u64 {
        self.core.with(|state| state.seed)
    }

    /// How much time has passed since the beginning.
    pub fn elapsed(&self) -> Duration {
        self.core.with(|state| state.now)
    }

    /// A number that follows from the seed.
    pub fn random(&self, range: Range<u64>) -> u64 {
        self.core.with(|state| state.random.within(range))
    }

    /// A duration that follows from the seed, in milliseconds.
    pub fn random_millis(&self, range: Range<u64>) -> Duration {
        Duration::from_millis(self.random(range))
    }

    /// Lets time pass.
    pub async fn sleep(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    /// Waits until this holds; the test fails if it does not within two minutes.
    pub async fn until(&self, what: &str, holds: impl FnMut() -> bool) {
        self.until_within(UNTIL, what, holds).await;
    }

    /// Waits until this holds; the test fails if it does not in time.
    pub async fn until_within(&self, time: Duration, what: &str, mut holds: impl FnMut() -> bool) {
        let began = self.elapsed();
        while !holds() {
            if self.elapsed() > began + time {
                self.note(format!("still not so: {what}"));
                panic!("within {time:?} it did not come to this: {what}");
            }
            tokio::time::sleep(LOOK).await;
        }
        self.note(format!("now {what}"));
    }

    /// Puts a line into the story.
    pub fn note(&self, what: impl AsRef<str>) {
        self.core.with(|state| state.tell("test", what));
    }

    /// The store of leases, as the test itself reaches it: it works whatever is done to the nodes.
    pub fn store(&self) -> Store {
        Store::new(records::SimulatedStore::new(self.core.clone(), turn::TEST))
    }

    /// The database outside of all nodes.
    pub fn database(&self) -> Database {
        Database::new(self.core.clone())
    }

    /// What was done to the outside world, in order.
    pub fn effects(&self) -> Vec<Effect> {
        self.core.with(|state| state.effects().to_vec())
    }

    /// Which nodes work on this now; see [`Node::working`].
    pub fn workers(&self, what: &str) -> Vec<String> {
        self.core.with(|state| state.workers(what))
    }

    /// From now on, of 1000 requests to the store this many are lost, of 1000 answers as many, and as
    /// many requests arrive twice.
    pub fn lose_store_requests(&self, permille: u64) {
        self.core.with(|state| {
            state.lose_requests(permille);
            state.tell("world", format!("loses {permille} of 1000 store requests"));
        });
    }
}

/// How long [`World::until`] waits.
const UNTIL: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(10);
