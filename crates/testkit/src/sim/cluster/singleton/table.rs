//! What downing and a lease are worth: the same splits under each, and how often there were two.

use std::time::Duration;

use tenure_cluster::downing::{KeepMajority, LeaseMajority, Strategy};

use super::super::{Sim, SimSettings, SingletonSettings};
use super::observer::Seen;
use crate::sim::Random;

/// Under what a schedule is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// What settles splits.
    pub downing: Downing,
    /// Whether the singleton has a lease.
    pub lease: bool,
}

/// What settles splits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Downing {
    /// Nothing: on each side an operator declares those down, after a while, whom that side cannot
    /// reach. It is what people do, and what makes two.
    Operators,
    /// `keep-majority`.
    KeepMajority,
    /// `lease-majority`, which asks the lease at ties.
    LeaseMajority,
}

impl Row {
    /// All of them, the weakest first.
    pub const ALL: [Self; 6] = [
        Self { downing: Downing::Operators, lease: false },
        Self { downing: Downing::KeepMajority, lease: false },
        Self { downing: Downing::LeaseMajority, lease: false },
        Self { downing: Downing::Operators, lease: true },
        Self { downing: Downing::KeepMajority, lease: true },
        Self { downing: Downing::LeaseMajority, lease: true },
    ];

    fn strategy(self) -> Option<Strategy> {
        match self.downing {
            Downing::Operators => None,
            Downing::KeepMajority => Some(Strategy::KeepMajority(KeepMajority::default())),
            Downing::LeaseMajority => Some(Strategy::LeaseMajority(LeaseMajority::default())),
        }
    }
}

/// What came of one schedule.
#[derive(Clone, Copy, Debug, Default)]
pub struct Measured {
    /// How often an instance started while another was active.
    pub overlaps: u64,
    /// How often it did so in another cluster than that one.
    pub in_other_cluster: u64,
    /// For how long there were two or more.
    pub overlap: Duration,
    /// For how long there was none.
    pub empty: Duration,
    /// How many effects of an instance were accepted after those of a newer one.
    pub stale: u64,
    /// How long it was looked at.
    pub virtual_time: Duration,
}

impl std::ops::AddAssign for Measured {
    fn add_assign(&mut self, other: Self) {
        self.overlaps += other.overlaps;
        self.in_other_cluster += other.in_other_cluster;
        self.overlap += other.overlap;
        self.empty += other.empty;
        self.stale += other.stale;
        self.virtual_time += other.virtual_time;
    }
}

/// Runs the schedule of a seed under this row. The schedule is the same for every row. Besides, what
/// happened, line by line, if asked for.
pub fn run_row(seed: u64, row: Row, trace: bool) -> (Measured, Vec<String>) {
    let schedule = Schedule::of(seed);
    let singleton = SingletonSettings {
        store_expires: seed.is_multiple_of(2),
        ..SingletonSettings::plain(row.lease)
    };
    let settings = SimSettings {
        downing: row.strategy(),
        rejoin: true,
        restart_takes: Duration::from_secs(5),
        wrong_clocks: true,
        singleton: Some(singleton),
        trace,
        ..SimSettings::nodes(schedule.nodes)
    };
    let mut sim = Sim::new(seed, settings);
    sim.start_all();
    sim.run_for(schedule.begins);
    let began = sim.elapsed();
    sim.observe_singleton();
    for (at, action) in &schedule.actions {
        sim.run_for(at.saturating_sub(sim.elapsed()));
        action.perform(&mut sim, row.downing);
    }
    let measured = Measured { virtual_time: sim.elapsed() - began, ..sim.observed_singleton() };
    (measured, sim.take_trace())
}

/// What happens, and when; known before it is run.
struct Schedule {
    nodes: usize,
    begins: Duration,
    actions: Vec<(Duration, Action)>,
}

enum Action {
    Cut(Vec<usize>, Vec<usize>),
    CutOneWay(Vec<usize>, Vec<usize>),
    Store(Vec<usize>, bool),
    Crash(usize),
    Start(usize),
    /// An operator looks at this side.
    Operator(Vec<usize>),
    Heal,
    Nothing,
}

impl Action {
    fn perform(&self, sim: &mut Sim, downing: Downing) {
        match self {
            Self::Cut(some, others) => sim.partition(some, others),
            Self::CutOneWay(some, others) => sim.partition_one_way(some, others),
            Self::Store(nodes, reach) => {
                nodes.iter().for_each(|node| sim.reach_store(*node, *reach));
            }
            Self::Crash(node) => sim.crash(*node),
            Self::Start(node) => {
                if sim.running().all(|index| index != *node) {
                    sim.start(*node);
                }
            }
            Self::Operator(side) => {
                let by = side.iter().find(|node| !sim.unreachable_from(**node).is_empty());
                if let Some(by) = by.filter(|_| downing == Downing::Operators) {
                    sim.down_unreachable(*by);
                }
            }
            Self::Heal => sim.heal(),
            Self::Nothing => {}
        }
    }
}

impl Schedule {
    fn of(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x0074_6162_6c65);
        let nodes = random.within(3..7) as usize;
        let begins = Duration::from_secs(20);
        let mut schedule = Self { nodes, begins, actions: Vec::new() };
        let mut now = begins;
        for _ in 0..SPLITS {
            now = schedule.split(now, &mut random) + CALM;
        }
        schedule.actions.push((now, Action::Nothing));
        schedule.actions.sort_by_key(|(at, _)| *at);
        schedule
    }

    /// A split that begins soon after this; when it is over.
    fn split(&mut self, now: Duration, random: &mut Random) -> Duration {
        let begins = now + random.up_to(Duration::from_secs(5));
        let ends = begins + Duration::from_secs(15) + random.up_to(Duration::from_secs(60));
        let (some, others) = self.sides(random);
        let all: Vec<usize> = (0..self.nodes).collect();
        match random.within(0..6) {
            0 => self.actions.push((begins, Action::Store(some.clone(), false))),
            1 => self.actions.push((begins, Action::Store(all, false))),
            _ => {}
        }
        let cut = match random.within(0..100) {
            0..15 => Action::CutOneWay(some.clone(), others.clone()),
            // Only some of the links.
            15..30 => Action::Cut(some[..1].to_vec(), others[..others.len().div_ceil(2)].to_vec()),
            _ => Action::Cut(some.clone(), others.clone()),
        };
        self.actions.push((begins, cut));
        let after = |random: &mut Random, from: u64, to: u64| {
            begins + Duration::from_millis(random.within(from * 1000..to * 1000))
        };
        for side in [some, others] {
            let at = after(random, 8, 25);
            self.actions.push((at, Action::Operator(side)));
        }
        if random.percent(25) {
            let node = random.within(0..self.nodes as u64) as usize;
            self.actions.push((after(random, 0, 15), Action::Crash(node)));
            let again = ends + random.up_to(Duration::from_secs(15));
            self.actions.push((again, Action::Start(node)));
        }
        self.actions.push((ends, Action::Heal));
        ends
    }

    /// As often as not halves.
    fn sides(&self, random: &mut Random) -> (Vec<usize>, Vec<usize>) {
        let mut order: Vec<usize> = (0..self.nodes).collect();
        for index in (1..self.nodes).rev() {
            order.swap(index, random.within(0..index as u64 + 1) as usize);
        }
        let count = match random.percent(50) {
            true => self.nodes / 2,
            false => random.within(1..self.nodes as u64) as usize,
        };
        let rest = order.split_off(count);
        (order, rest)
    }
}

impl Sim {
    /// From now on it is counted how often the singleton is active twice, and for how long.
    fn observe_singleton(&mut self) {
        self.singletons.observer.begin(self.now);
    }

    fn observed_singleton(&mut self) -> Measured {
        self.singletons.observer.pass(self.now);
        let Seen { overlaps, in_other_cluster, overlap, empty, stale } =
            self.singletons.observer.seen;
        Measured { overlaps, in_other_cluster, overlap, empty, stale, ..Measured::default() }
    }
}

const SPLITS: usize = 2;
/// Between two splits: whoever was declared down has joined again, and what was to be removed is.
const CALM: Duration = Duration::from_secs(60);
