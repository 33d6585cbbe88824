//! Processes that contend for one lease through an unreliable network, with clocks that run at
//! different rates, pauses, crashes, and operators who delete records.
//!
//! Each process runs the real [`Keeper`](tenure_lease::keeper::Keeper) or
//! [`Session`](tenure_lease::keeper::Session). An omniscient observer writes down when the
//! guarded work of each tenure begins and ends, and the [history](crate::history) is checked. In
//! half of the schedules they stand by: who may not take the lease must only look.
//!
//! Two kinds of schedule. *Within the margin*: clock rates and pauses stay inside what the settings
//! allow for, and no two activities may overlap. *Beyond* it, processes stand still for several
//! ttls, with or without their clocks: then activities may overlap, and the fence must hold.

mod process;
mod world;

use std::collections::BTreeMap;
use std::time::Duration;

pub use world::run;

use crate::history::Violation;
use tenure_lease::Settings;

/// What a schedule is made of.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The timing of every process.
    pub settings: Settings,
    /// How many processes contend. The first two share an owner, like two guards of one process.
    pub processes: u32,
    /// Whether each process has a session and attaches the lease to it.
    pub sessions: bool,
    /// Whether the store frees expired records itself; otherwise contenders observe.
    pub store_expires: bool,
    /// How long faults are injected.
    pub faults_for: Duration,
    /// Whether pauses and clocks may go beyond the margin.
    pub beyond_margin: bool,
    /// Whether the processes stand by: each may take the lease at some times and not at others.
    pub standbys: bool,
    /// Whether to write a trace.
    pub trace: bool,
}

impl Plan {
    /// A plan that varies with the seed.
    pub fn of(seed: u64, beyond_margin: bool) -> Self {
        let settings = Settings::new(Duration::from_secs(10));
        Self {
            faults_for: settings.ttl * 12,
            settings,
            processes: 2 + (seed % 3) as u32,
            sessions: seed % 2 == 1,
            store_expires: seed / 2 % 2 == 1,
            standbys: seed / 4 % 2 == 1,
            beyond_margin,
            trace: false,
        }
    }
}

/// What came of a schedule.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// What must not have happened.
    pub violations: Vec<Violation>,
    /// How many tenures began.
    pub tenures: usize,
    /// How much virtual time passed.
    pub virtual_time: Duration,
    /// How often each thing worth meeting was met.
    pub coverage: BTreeMap<&'static str, u64>,
    /// A hash of everything that happened.
    pub hash: u64,
    /// What happened, line by line, if the plan asks for it.
    pub trace: Vec<String>,
}

/// Every word that a campaign must have met at least once.
pub const COVERAGE: &[&str] = &[
    "acquire unanswered",
    "acquire applied, reply lost",
    "renewal unanswered",
    "renewal hedged",
    "renewal refused",
    "lost: expired",
    "lost: deleted",
    "lost: unresponsive",
    "taken over by observation",
    "session taken over",
    "request duplicated",
    "request applied after its time-out",
    "crash while active",
    "pause while active",
    "record deleted",
    "store away",
    "permission withdrawn",
    "permission withdrawn while an acquisition was under way",
    "granted after the permission was withdrawn",
    "won and declined",
];

/// Besides, when pauses and clocks go beyond the margin.
pub const COVERAGE_BEYOND: &[&str] = &["lost: stolen", "lost: paused", "clock stood still"];
