//! Clean splits into two sides, one after another, each healed and over before the next: what
//! `mode = ties` promises to survive.
//!
//! Meanwhile the store is reached by one side, by both or by none, or is slow; nodes crash while
//! they hold the lease, join and leave.

use std::collections::BTreeSet;
use std::time::Duration;

use tenure_cluster::MembershipSettings;
use tenure_cluster::downing::{Mode, Strategy};

use super::{Outcome, Sim, SimSettings};
use crate::sim::Random;

/// Runs a few splits of a cluster of `nodes`, settled by this strategy.
pub fn run_splits(
    seed: u64,
    nodes: usize,
    strategy: Strategy,
    membership: MembershipSettings,
    trace: bool,
) -> Outcome {
    // Only where every side asks, nobody ever waits for an operator.
    let may_wait =
        !matches!(&strategy, Strategy::LeaseMajority(lease) if lease.mode == Mode::Always);
    let settings = SimSettings {
        membership,
        downing: Some(strategy),
        rejoin: true,
        trace,
        ..SimSettings::nodes(nodes + 2)
    };
    let mut sim = Sim::new(seed, settings);
    let mut random = Random::new(seed ^ 0x73_706c_6974);
    for node in 0..nodes {
        sim.start(node);
    }
    let mut calm = whole(&mut sim);
    for _ in 0..SPLITS {
        if calm.is_none() {
            break;
        }
        sim.calm_ends();
        split(&mut sim, &mut random, nodes);
        sim.heal();
        sim.slow_store(Duration::ZERO);
        start_missing(&mut sim, nodes);
        calm = whole(&mut sim);
        if calm.is_none() && may_wait {
            sim.meet("waited for an operator");
            down_the_dead(&mut sim);
            calm = whole(&mut sim);
        }
    }
    sim.must_be_whole(calm.is_some());
    Outcome {
        violations: sim.violations().to_vec(),
        virtual_time: sim.elapsed(),
        recovery: calm,
        coverage: sim.coverage().clone(),
        hash: sim.hash(),
        trace: sim.take_trace(),
    }
}

fn whole(sim: &mut Sim) -> Option<Duration> {
    sim.calm_begins();
    let began = sim.elapsed();
    while sim.elapsed() - began <= LIMIT {
        if sim.agrees() {
            return Some(sim.elapsed() - began);
        }
        sim.run_for(LOOK);
        sim.look();
    }
    None
}

fn down_the_dead(sim: &mut Sim) {
    let running: Vec<usize> = sim.running().collect();
    for by in running {
        for node in 0..sim.places.len() {
            sim.down_dead(by, node);
        }
    }
}

fn start_missing(sim: &mut Sim, nodes: usize) {
    let running: BTreeSet<usize> = sim.running().collect();
    for node in (0..nodes).filter(|node| !running.contains(node)) {
        sim.start(node);
    }
}

fn split(sim: &mut Sim, random: &mut Random, nodes: usize) {
    let all = nodes + 2;
    // As often as not into halves, since those are what the lease is for.
    let (some, others): (Vec<usize>, Vec<usize>) = if random.percent(60) {
        let mut order: Vec<usize> = (0..nodes).collect();
        for index in (1..nodes).rev() {
            order.swap(index, random.within(0..index as u64 + 1) as usize);
        }
        let rest = order.split_off(nodes / 2);
        (order, rest)
    } else {
        (0..nodes).partition(|_| random.percent(50))
    };
    let late = random.percent(50);
    let (some, others) = match late {
        // Where newcomers will appear.
        true => ([some, vec![nodes]].concat(), [others, vec![nodes + 1]].concat()),
        false => (some, [others, vec![nodes, nodes + 1]].concat()),
    };
    if some.is_empty() || others.is_empty() {
        return;
    }
    match random.within(0..6) {
        0 => {
            sim.meet("store reached by one side");
            some.iter().for_each(|node| sim.reach_store(*node, false));
        }
        1 => {
            sim.meet("store reached by nobody");
            (0..all).for_each(|node| sim.reach_store(node, false));
        }
        2 => {
            sim.meet("slow store");
            sim.slow_store(random.up_to(Duration::from_secs(8)));
        }
        _ => {}
    }
    if random.percent(20) {
        sim.meet("leave as the split begins");
        sim.leave(*random.pick(&others));
        sim.run_for(random.up_to(Duration::from_millis(300)));
    }
    if random.percent(20) && sim.running().all(|node| node != nodes) {
        sim.meet("join as the split begins");
        sim.start(nodes);
        sim.run_for(random.up_to(Duration::from_millis(600)));
    }
    sim.partition(&some, &others);
    let began = sim.elapsed();
    let lasts = Duration::from_secs(random.within(2..40));
    let mut crashed = random.percent(60);
    let mut joined = random.percent(60);
    while sim.elapsed() - began < lasts {
        sim.run_for(LOOK);
        sim.look();
        if !joined && random.percent(3) {
            joined = true;
            sim.meet("join during a split");
            if sim.running().all(|node| node != nodes + 1) {
                sim.start(nodes + 1);
            }
        }
        if !crashed && sim.somebody_arbitrates() && random.percent(30) {
            crashed = true;
            sim.meet("crash while holding the lease");
            sim.crash_arbiter();
        }
    }
}

impl Sim {
    fn must_be_whole(&mut self, is: bool) {
        let missing = (!is).then(|| {
            let views = self.running().map(|index| format!("n{index}: {:?}", self.view(index)));
            format!("after {LIMIT:?}: {}", views.collect::<Vec<_>>().join("\n"))
        });
        let now = self.now;
        self.invariants.report(now, [("all agree in the end", missing)]);
    }
}

/// Every word that a full campaign of splits must have met.
pub const SPLIT_COVERAGE: &[&str] = &[
    "store reached by one side",
    "store reached by nobody",
    "slow store",
    "leave as the split begins",
    "join as the split begins",
    "join during a split",
    "crash while holding the lease",
    "decided without the lease",
    "won the lease",
    "lost, and followed the verdict",
    "read a newer verdict",
    "store unreachable in a split",
];

const SPLITS: usize = 3;
const LOOK: Duration = Duration::from_millis(200);
/// Within this time after a split everybody must agree again.
const LIMIT: Duration = Duration::from_secs(90);
