//! Whole clusters on a virtual network and a virtual clock, from one seed.
//!
//! Each node runs the real [`Membership`](tenure_cluster::Membership) and [`Formation`](tenure_cluster::formation::Formation).
//! The network delays, loses, repeats and reorders; links are cut both ways or one way; processes
//! crash, restart, stand still with their clocks or without, are resumed twice, or are slow.
//!
//! ```
//! use std::time::Duration;
//! use tenure_testkit::sim::cluster::{Sim, SimSettings};
//!
//! let mut sim = Sim::new(7, SimSettings::nodes(4));
//! sim.start_all();
//! assert!(sim.run_until(Duration::from_secs(10), Sim::agrees).is_some());
//! sim.partition(&[0, 1], &[2, 3]);
//! sim.run_for(Duration::from_secs(10));
//! assert_eq!(sim.unreachable_from(0), [2, 3]);
//! sim.heal();
//! assert!(sim.run_until(Duration::from_secs(10), Sim::agrees).is_some());
//! assert!(sim.violations().is_empty());
//! ```

mod arbitration;
mod calm;
mod campaign;
mod faults;
mod forming;
mod hosting;
mod invariants;
mod look;
mod network;
mod plan;
mod process;
mod queue;
mod run;
pub mod scenario;
mod show;
mod singleton;
mod splits;
mod store;
mod truth;
mod world;

use std::time::Duration;

use tenure_cluster::MembershipSettings;
use tenure_cluster::downing::Strategy;

pub use campaign::{COVERAGE, Outcome, run};
pub use invariants::Violation;
pub use network::Weather;
pub use plan::{Fault, Plan};
pub use singleton::{
    Downing, Measured, ROLLING_COVERAGE, Row, SINGLETON_COVERAGE, SingletonSettings, run_rolling,
    run_row,
};
pub use splits::{SPLIT_COVERAGE, run_splits};
pub use world::Sim;

/// What a simulated cluster is made of.
#[derive(Clone, Debug)]
pub struct SimSettings {
    /// How many nodes there are, started or not.
    pub nodes: usize,
    /// The timing of every node.
    pub membership: MembershipSettings,
    /// The ttl of the formation lease.
    pub formation_ttl: Duration,
    /// How splits are settled, if by anything but operators.
    pub downing: Option<Strategy>,
    /// Whether a process that was declared down or removed is started anew.
    pub rejoin: bool,
    /// How long it takes until then, at most, and a fifth of that at least.
    pub restart_takes: Duration,
    /// Whether clocks run at rates of their own, up to 1 % off.
    pub wrong_clocks: bool,
    /// Whether to count the bytes that nodes send; costs some time.
    pub count_bytes: bool,
    /// How many messages and timers there may be; more are a violation.
    pub most_steps: u64,
    /// Whether to remember what nodes told their users.
    pub events: bool,
    /// The singleton that runs in it, if one does.
    pub singleton: Option<SingletonSettings>,
    /// Whether something is hosted on top of it, which says itself when it has been handed over.
    pub hosts: bool,
    /// Whether to write a trace.
    pub trace: bool,
}

impl SimSettings {
    /// This many nodes with default settings.
    pub fn nodes(nodes: usize) -> Self {
        Self {
            nodes,
            membership: MembershipSettings::default(),
            formation_ttl: Duration::from_secs(5),
            downing: None,
            rejoin: false,
            restart_takes: Duration::ZERO,
            wrong_clocks: false,
            count_bytes: false,
            most_steps: u64::MAX,
            events: false,
            singleton: None,
            hosts: false,
            trace: false,
        }
    }
}
