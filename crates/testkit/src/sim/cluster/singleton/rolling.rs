//! Nodes on fixed addresses are restarted one after another, two at once, or the next host as soon as
//! the last is back, with instances that take two seconds to stop, and without a lease. Nobody is
//! declared down who lives: so there is never more than one.

use std::time::Duration;

use tenure_cluster::downing::{KeepMajority, Strategy};

use super::super::{Outcome, Sim, SimSettings, SingletonSettings, Weather};
use crate::sim::Random;

/// Runs some restarts of a cluster of three to six nodes.
pub fn run_rolling(seed: u64, manager: tenure_singleton::Settings, trace: bool) -> Outcome {
    let mut random = Random::new(seed ^ 0x726f_6c6c);
    let nodes = random.within(3..7) as usize;
    let failures = random.percent(30);
    let singleton = SingletonSettings { manager, failures, ..SingletonSettings::plain(false) };
    let settings = SimSettings {
        downing: Some(Strategy::KeepMajority(KeepMajority::default())),
        rejoin: true,
        wrong_clocks: true,
        singleton: Some(singleton),
        trace,
        ..SimSettings::nodes(nodes)
    };
    let mut sim = Sim::new(seed, settings);
    sim.start_all();
    sim.run_until(WHOLE, Sim::agrees);
    for _ in 0..ROUNDS {
        if random.percent(30) {
            let mut weather = Weather::FAIR;
            weather.delay.1 = random.up_to(Duration::from_millis(400));
            sim.weather(weather);
        }
        round(&mut sim, &mut random, nodes);
        sim.weather(Weather::FAIR);
    }
    sim.singleton_stops_failing();
    for node in 0..nodes {
        start(&mut sim, node);
    }
    let whole = sim.run_until(WHOLE, Sim::agrees);
    sim.must_be_whole(whole.is_some());
    let recovery = sim.singleton_recovers();
    Outcome {
        violations: sim.violations().to_vec(),
        virtual_time: sim.elapsed(),
        recovery,
        coverage: sim.coverage().clone(),
        hash: sim.hash(),
        trace: sim.take_trace(),
    }
}

fn round(sim: &mut Sim, random: &mut Random, nodes: usize) {
    let host = sim.singleton_host();
    let any = random.within(0..nodes as u64) as usize;
    let mut leaving = match (random.within(0..10), host) {
        (0..5, Some(host)) => {
            sim.meet("rolling: the host is restarted");
            vec![host]
        }
        (5..8, Some(host)) => {
            sim.meet("rolling: the host and another at once");
            vec![host, any]
        }
        (8, Some(host)) => {
            sim.meet("rolling: the host crashes");
            sim.crash(host);
            vec![]
        }
        _ => vec![any],
    };
    leaving.sort_unstable();
    leaving.dedup();
    leaving.retain(|node| sim.running().any(|index| index == *node));
    if random.percent(50) {
        leaving.reverse();
    }
    for node in &leaving {
        sim.leave(*node);
        sim.run_for(random.up_to(Duration::from_millis(500)));
    }
    // A short cut, of which nobody takes notice; but what was on its way is lost.
    if random.percent(30) {
        sim.meet("rolling: a word is lost");
        let other = (any + 1) % nodes;
        sim.run_for(random.up_to(Duration::from_secs(3)));
        sim.partition(&[any], &[other]);
        sim.run_for(random.up_to(Duration::from_millis(700)));
        sim.mend_all();
    }
    sim.run_until(LEAVES, |sim| leaving.iter().all(|node| sim.is_out(*node)));
    sim.run_for(random.up_to(Duration::from_secs(2)));
    for node in 0..nodes {
        start(sim, node);
    }
    match random.percent(70) {
        true => {
            sim.run_until(WHOLE, Sim::agrees);
            // The next one is stopped a second after the last is up again.
            sim.run_for(Duration::from_secs(1));
        }
        false => {
            sim.meet("rolling: the next one while the last comes back");
            sim.run_for(random.up_to(Duration::from_secs(5)));
        }
    }
}

fn start(sim: &mut Sim, node: usize) {
    if sim.is_out(node) {
        sim.start(node);
    }
}

impl Sim {
    /// Whether no process runs there, not even one that is about to stop.
    fn is_out(&self, node: usize) -> bool {
        self.places[node].processes.is_empty()
            && self.singletons.agents.values().all(|agent| agent.place != node)
    }
}

/// Every word that a full campaign of restarts must have met.
pub const ROLLING_COVERAGE: &[&str] = &[
    "rolling: the host is restarted",
    "rolling: the host and another at once",
    "rolling: the host crashes",
    "rolling: a word is lost",
    "rolling: the next one while the last comes back",
    "singleton: leaving host stops",
    "singleton: started again under the same token",
];

const ROUNDS: usize = 6;
const WHOLE: Duration = Duration::from_secs(60);
const LEAVES: Duration = Duration::from_secs(30);
