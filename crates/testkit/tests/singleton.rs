//! A singleton in simulated clusters: one at a time, found by everybody.
//!
//! `TENURE_SIM_SEEDS=10000` runs the full count, `TENURE_SIM_TRACE=7` prints what happens in seed 7.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_testkit::sim::cluster::{
    Measured, Outcome, Plan, ROLLING_COVERAGE, Row, SINGLETON_COVERAGE, run, run_rolling, run_row,
};

fn seeds(usual: u64) -> u64 {
    let wanted = std::env::var("TENURE_SIM_SEEDS").ok();
    wanted.map_or(usual, |count| count.parse().expect("TENURE_SIM_SEEDS is a number"))
}

fn first() -> u64 {
    std::env::var("TENURE_SIM_FIRST").map_or(0, |seed| seed.parse().expect("a seed"))
}

fn traced(seed: u64) -> bool {
    std::env::var("TENURE_SIM_TRACE").is_ok_and(|wanted| wanted == seed.to_string())
}

fn nodes(seed: u64) -> usize {
    2 + (seed % 5) as usize
}

#[test]
fn whatever_happens_with_a_lease_there_is_one() {
    let mut all = Campaign::default();
    for seed in first()..first() + seeds(60) {
        let plan = Plan { trace: traced(seed), ..Plan::with_singleton(seed, nodes(seed)) };
        all.add(seed, run(seed, &plan));
    }
    all.report(SINGLETON_COVERAGE);
}

#[test]
fn restarts_without_a_lease_never_make_two() {
    let mut all = Campaign::default();
    for seed in first()..first() + seeds(60) {
        let settings = tenure_singleton::Settings::default();
        all.add(seed, run_rolling(seed, settings, traced(seed)));
    }
    all.report(ROLLING_COVERAGE);
}

#[test]
fn the_same_splits_with_a_lease_never_make_two() {
    let count = seeds(20);
    for row in Row::ALL {
        let mut total = Measured::default();
        let mut runs = 0;
        for seed in first()..first() + count {
            let (measured, trace) = run_row(seed, row, traced(seed));
            trace.iter().for_each(|line| println!("{line}"));
            runs += u64::from(measured.overlaps > 0);
            total += measured;
            let clean = measured.overlaps == 0 && measured.stale == 0;
            assert!(!row.lease || clean, "seed {seed}, {row:?}: {measured:?}");
        }
        println!("{row:?}: {runs} of {count} with two: {total:?}");
        let none = row == Row::ALL[0];
        assert!(!none || runs > 0, "without downing and without a lease there are two");
    }
}

#[test]
fn a_seed_is_the_whole_schedule() {
    for seed in 0..5 {
        let plan = Plan::with_singleton(seed, nodes(seed));
        assert_eq!(run(seed, &plan).hash, run(seed, &plan).hash);
    }
}

#[derive(Default)]
struct Campaign {
    seeds: u64,
    violations: Vec<String>,
    coverage: BTreeMap<&'static str, u64>,
    recoveries: Vec<Duration>,
}

impl Campaign {
    fn add(&mut self, seed: u64, outcome: Outcome) {
        self.seeds += 1;
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
        let most = self.recoveries.last();
        println!("{} seeds, well again after {middle:?}, at most {most:?}", self.seeds);
        println!("{:#?}", self.coverage);
        let count = self.violations.len();
        let shown: Vec<String> = self.violations.into_iter().take(20).collect();
        assert_eq!(count, 0, "{}", shown.join("\n"));
        let missing: Vec<&&str> =
            words.iter().filter(|word| !self.coverage.contains_key(**word)).collect();
        let full = self.seeds >= 1000;
        assert!(!full || missing.is_empty(), "never met: {missing:?}");
    }
}
