//! Splits of simulated clusters, and who survives them.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_cluster::downing::{LeaseMajority, Mode, Strategy};
use tenure_testkit::sim::cluster::{Sim, SimSettings};

fn lease_majority(mode: Mode) -> Option<Strategy> {
    Some(Strategy::LeaseMajority(LeaseMajority { mode, ..LeaseMajority::default() }))
}

fn cluster(seed: u64, nodes: usize, mode: Mode, trace: bool) -> Sim {
    let settings =
        SimSettings { downing: lease_majority(mode), trace, ..SimSettings::nodes(nodes) };
    let mut sim = Sim::new(seed, settings);
    sim.start_all();
    assert!(sim.run_until(Duration::from_secs(20), Sim::agrees).is_some(), "seed {seed}");
    sim
}

fn seeds() -> u64 {
    std::env::var("TENURE_SIM_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(50)
}

#[test]
fn of_two_halves_one_survives_whole() {
    let mut winners = BTreeMap::new();
    for seed in 0..seeds() {
        let mut sim = cluster(seed, 4, Mode::Ties, std::env::var("TRACE").is_ok());
        sim.partition(&[0, 1], &[2, 3]);
        let settled = sim.run_until(Duration::from_secs(30), |sim| {
            let running: Vec<usize> = sim.running().collect();
            running == [0, 1] || running == [2, 3]
        });
        sim.look();
        if settled.is_none() {
            for line in sim.take_trace() {
                println!("{line}");
            }
        }
        let settled = settled
            .unwrap_or_else(|| panic!("seed {seed}: {:?}", sim.running().collect::<Vec<_>>()));
        let first = sim.running().next();
        let entry: &mut Vec<Duration> = winners.entry(first).or_default();
        entry.push(settled);
        assert!(sim.violations().is_empty(), "seed {seed}: {:?}", sim.violations());
    }
    for (winner, mut times) in winners {
        times.sort();
        println!(
            "{winner:?} won {} times, median {:?}, most {:?}",
            times.len(),
            times[times.len() / 2],
            times.last()
        );
    }
}
