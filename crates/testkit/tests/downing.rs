//! Splits of simulated clusters, and who survives them.
//!
//! `TENURE_SIM_SEEDS=10000` runs the full count.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use tenure_cluster::MembershipSettings;
use tenure_cluster::downing::{LeaseMajority, Mode, Strategy};
use tenure_testkit::sim::cluster::{
    Outcome, Plan, SPLIT_COVERAGE, Sim, SimSettings, run, run_splits,
};

fn lease_majority(mode: Mode) -> Strategy {
    Strategy::LeaseMajority(LeaseMajority { mode, ..LeaseMajority::default() })
}

fn cluster(seed: u64, nodes: usize, mode: Mode) -> Sim {
    let downing = Some(lease_majority(mode));
    let mut sim = Sim::new(seed, SimSettings { downing, ..SimSettings::nodes(nodes) });
    sim.start_all();
    assert!(sim.run_until(Duration::from_secs(20), Sim::agrees).is_some(), "seed {seed}");
    sim
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

fn seeds(usual: u64) -> Range<u64> {
    match number("TENURE_SIM_TRACE") {
        Some(seed) => seed..seed + 1,
        None => 0..number("TENURE_SIM_SEEDS").unwrap_or(usual),
    }
}

/// `TENURE_SIM_TRACE=7` runs seed 7 alone, and prints what happens.
fn traced(seed: u64) -> bool {
    number("TENURE_SIM_TRACE") == Some(seed)
}

fn running(sim: &Sim) -> Vec<usize> {
    sim.running().collect()
}

#[test]
fn of_two_halves_one_survives_whole() {
    let mut won: BTreeMap<Vec<usize>, Vec<Duration>> = BTreeMap::new();
    for seed in seeds(100) {
        let mut sim = cluster(seed, 4, Mode::Ties);
        sim.partition(&[0, 1], &[2, 3]);
        let settled = sim.run_until(Duration::from_secs(20), |sim| {
            [[0, 1], [2, 3]].iter().any(|side| running(sim) == side)
        });
        sim.look();
        let settled = settled.unwrap_or_else(|| panic!("seed {seed}: {:?} live", running(&sim)));
        won.entry(running(&sim)).or_default().push(settled);
        assert!(sim.violations().is_empty(), "seed {seed}: {:?}", sim.violations());
    }
    assert_eq!(won.len(), 2, "each half wins sometimes: {won:?}");
    for (side, mut times) in won {
        times.sort();
        let (median, most) = (times[times.len() / 2], times[times.len() - 1]);
        println!("{side:?} won {} times; settled after {median:?}, at most {most:?}", times.len());
    }
}

#[test]
fn while_the_store_is_away_both_halves_stay() {
    for seed in seeds(20) {
        let mut sim = cluster(seed, 4, Mode::Ties);
        sim.partition(&[0, 1], &[2, 3]);
        (0..4).for_each(|node| sim.reach_store(node, false));
        for _ in 0..300 {
            sim.run_for(Duration::from_secs(1));
            assert_eq!(running(&sim), [0, 1, 2, 3], "seed {seed}");
        }
        (0..4).for_each(|node| sim.reach_store(node, true));
        let settled = sim.run_until(Duration::from_secs(20), |sim| {
            [[0, 1], [2, 3]].iter().any(|side| running(sim) == side)
        });
        assert!(settled.is_some(), "seed {seed}: {:?} live", running(&sim));
        assert!(sim.violations().is_empty(), "seed {seed}: {:?}", sim.violations());
    }
}

#[test]
fn clean_splits_in_ties_have_one_survivor() {
    let mut all = Campaign::default();
    for seed in seeds(150) {
        all.add(seed, clean(seed, Mode::Ties));
    }
    all.report(SPLIT_COVERAGE);
}

#[test]
fn clean_splits_in_always_have_one_survivor() {
    let mut all = Campaign::default();
    for seed in seeds(150) {
        all.add(seed, clean(seed, Mode::Always));
    }
    all.report(&["lost without a newer verdict", "asked, and died before it was applied"]);
}

#[test]
fn whatever_happens_in_always_there_is_one_survivor() {
    let mut all = Campaign::default();
    for seed in seeds(150) {
        all.add(seed, anything(seed));
    }
    all.report(ALWAYS_COVERAGE);
}

/// What a full campaign must have met, besides what one without a resolver must.
const ALWAYS_COVERAGE: &[&str] = &[
    "cut",
    "one-way cut",
    "link cut",
    "loss",
    "store away",
    "store reached by one side",
    "slow store",
    "crash while holding the lease",
    "cut while somebody joins",
    "cut while somebody leaves",
    "join during a cut",
    "leave during a cut",
    "won the lease",
    "lost, and followed the verdict",
    "lost without a newer verdict",
    "read a newer verdict",
    "store unreachable in a split",
    "the store's answer is lost",
    "asked, and died before it was applied",
];

/// Each of these seeds has once shown a bug.
#[test]
fn seeds_that_once_failed() {
    let mut all = Campaign::default();
    for seed in [652, 3018, 5882, 9412] {
        all.add(seed, anything(seed));
    }
    all.add(254, clean(254, Mode::Always));
    for seed in [97, 551, 677, 699, 712] {
        all.add(seed, clean(seed, Mode::Ties));
    }
    all.report(&[]);
}

/// From four nodes to nine.
fn nodes(seed: u64) -> usize {
    [4, 5, 9][seed as usize % 3]
}

fn clean(seed: u64, mode: Mode) -> Outcome {
    let settings = MembershipSettings::default();
    run_splits(seed, nodes(seed), lease_majority(mode), settings, traced(seed))
}

fn anything(seed: u64) -> Outcome {
    let mut plan = Plan::with_downing(seed, nodes(seed), lease_majority(Mode::Always));
    plan.trace = traced(seed);
    run(seed, &plan)
}

#[derive(Default)]
struct Campaign {
    seeds: u64,
    violations: Vec<String>,
    coverage: BTreeMap<&'static str, u64>,
    virtual_time: Duration,
    recoveries: Vec<Duration>,
}

impl Campaign {
    fn add(&mut self, seed: u64, outcome: Outcome) {
        self.seeds += 1;
        self.virtual_time += outcome.virtual_time;
        for line in &outcome.trace {
            println!("{line}");
        }
        for (what, count) in outcome.coverage {
            *self.coverage.entry(what).or_default() += count;
        }
        self.recoveries.extend(outcome.recovery);
        let found = outcome.violations.iter().take(1).map(|what| {
            let what: String = what.to_string().chars().take(600).collect();
            format!("seed {seed}: {what}")
        });
        self.violations.extend(found);
    }

    fn report(mut self, words: &[&str]) {
        self.recoveries.sort();
        let middle = self.recoveries.get(self.recoveries.len() / 2);
        println!(
            "{} seeds, {:.0?}, whole again after {middle:?}, at most {:?}",
            self.seeds,
            self.virtual_time,
            self.recoveries.last()
        );
        println!("{:?}", self.coverage);
        let count = self.violations.len();
        let shown: Vec<String> = self.violations.into_iter().take(5).collect();
        assert_eq!(count, 0, "{}", shown.join("\n"));
        let missing: Vec<&&str> =
            words.iter().filter(|word| !self.coverage.contains_key(**word)).collect();
        let full = self.seeds >= 1000;
        assert!(!full || missing.is_empty(), "never met: {missing:?}");
    }
}
