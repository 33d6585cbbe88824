//! Campaigns of clusters with sharding. `TENURE_SIM_SEEDS` says how many schedules, `TENURE_SIM_FIRST`
//! the first, `TENURE_SEED` which one to replay.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use tenure_sharding::Setup;
use tenure_testkit::sim::sharding::{COVERAGE, Outcome, Plan, Tally, run};

#[test]
fn with_sessions_a_shard_is_never_in_two_places() {
    let campaign = Campaign::of(Setup::Sessions);
    campaign.holds();
    assert_eq!(campaign.tally.active_twice, 0);
    campaign.met(COVERAGE);
}

#[test]
fn with_a_lease_no_acknowledged_write_is_lost() {
    let campaign = Campaign::of(Setup::Lease);
    campaign.holds();
    assert_eq!(campaign.tally.lost_fenced, 0);
    let about_sessions = |what: &&&str| what.contains("session");
    let all: Vec<&str> = COVERAGE.iter().filter(|it| !about_sessions(it)).copied().collect();
    campaign.met(&all);
    let twice = campaign.tally.active_twice;
    assert!(campaign.seeds < FULL || twice > 0, "the fence was never needed");
}

#[test]
fn without_a_lease_shards_are_served_again() {
    let campaign = Campaign::of(Setup::Gossip);
    campaign.holds();
    let Tally { active_twice, lost_unfenced, .. } = campaign.tally;
    let seen = active_twice > 0 && lost_unfenced > 0;
    assert!(campaign.seeds < FULL || seen, "what a lease is for was never seen");
}

#[test]
fn a_seed_is_the_whole_schedule() {
    let plan = Plan::of(3, Setup::Sessions);
    assert_eq!(run(3, &plan).hash, run(3, &plan).hash);
}

/// Each of these schedules has once shown a bug.
#[test]
fn seeds_that_once_failed() {
    let sessions = [429, 1581, 3379, 3829, 4686, 20657].map(|seed| (Setup::Sessions, seed));
    let lease = [25, 8967].map(|seed| (Setup::Lease, seed));
    let gossip = [12, 1287, 1642, 5210, 5617, 7815].map(|seed| (Setup::Gossip, seed));
    for (setup, seed) in sessions.into_iter().chain(lease).chain(gossip) {
        let outcome = run(seed, &Plan::of(seed, setup));
        let violations = outcome.violations;
        assert!(violations.is_empty(), "{setup:?}, seed {seed}: {violations:?}");
    }
}

/// One schedule, line by line: `TENURE_SEED=7 TENURE_SETUP=sessions`.
#[test]
#[ignore = "for people"]
fn replay() {
    let seed = std::env::var("TENURE_SEED").map_or(0, |seed| seed.parse().expect("a seed"));
    let setup = match std::env::var("TENURE_SETUP").as_deref() {
        Ok("lease") => Setup::Lease,
        Ok("gossip") => Setup::Gossip,
        _ => Setup::Sessions,
    };
    let plan = Plan { trace: true, ..Plan::of(seed, setup) };
    let outcome = run(seed, &plan);
    for line in &outcome.trace {
        println!("{line}");
    }
    println!("{plan:?}");
    for violation in &outcome.violations {
        println!("{violation}");
    }
}

/// What came of many schedules.
struct Campaign {
    seeds: u64,
    failed: Vec<(u64, String)>,
    tally: Tally,
    /// Schedules in which a shard was active twice.
    with_two: u64,
    coverage: BTreeMap<&'static str, u64>,
    /// How long it took to be served again, and at which seed.
    recoveries: Vec<(Duration, u64)>,
}

impl Campaign {
    fn of(setup: Setup) -> Self {
        let seeds = std::env::var("TENURE_SIM_SEEDS");
        let seeds = seeds.map_or(40, |seeds| seeds.parse().expect("a number of seeds"));
        let begin = std::env::var("TENURE_SIM_FIRST");
        let begin = begin.map_or(0, |seed| seed.parse().expect("a seed"));
        let threads = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
        let mut all = Self::empty(seeds);
        std::thread::scope(|scope| {
            let end = begin + seeds;
            let work = |first| move || Self::part(setup, begin + first..end, threads);
            let workers: Vec<_> = (0..threads).map(|first| scope.spawn(work(first))).collect();
            for worker in workers {
                all.add(worker.join().expect("a worker that does not panic"));
            }
        });
        all.failed.sort();
        all.recoveries.sort();
        all.print(setup);
        all
    }

    fn empty(seeds: u64) -> Self {
        let (failed, recoveries) = (Vec::new(), Vec::new());
        let (tally, coverage) = (Tally::default(), BTreeMap::new());
        Self { seeds, failed, tally, with_two: 0, coverage, recoveries }
    }

    fn part(setup: Setup, seeds: Range<u64>, step: u64) -> Self {
        let mut part = Self::empty(0);
        for seed in seeds.step_by(step as usize) {
            let outcome = run(seed, &Plan::of(seed, setup));
            let Outcome { violations, tally, coverage, recovery, .. } = outcome;
            part.failed.extend(violations.first().map(|it| (seed, it.to_string())));
            part.tally.add(&tally);
            part.with_two += u64::from(tally.active_twice > 0);
            part.recoveries.extend(recovery.map(|recovery| (recovery, seed)));
            for (what, count) in coverage {
                *part.coverage.entry(what).or_default() += count;
            }
        }
        part
    }

    fn add(&mut self, part: Self) {
        self.failed.extend(part.failed);
        self.tally.add(&part.tally);
        self.with_two += part.with_two;
        self.recoveries.extend(part.recoveries);
        for (what, count) in part.coverage {
            *self.coverage.entry(what).or_default() += count;
        }
    }

    fn print(&self, setup: Setup) {
        let at = |percent: usize| {
            let index = self.recoveries.len().saturating_sub(1) * percent / 100;
            self.recoveries.get(index).map_or(0.0, |(recovery, _)| recovery.as_secs_f64())
        };
        println!("{setup:?}: {} schedules, {} failed", self.seeds, self.failed.len());
        println!("{} with two: {:?}\n{:#?}", self.with_two, self.tally, self.coverage);
        println!("served again, median {:.1} s, 99 of 100 {:.1} s", at(50), at(99));
        println!("the longest: {:?}", self.recoveries.iter().rev().take(3).collect::<Vec<_>>());
    }

    fn holds(&self) {
        let some = &self.failed[..self.failed.len().min(5)];
        assert!(self.failed.is_empty(), "{} of {}: {some:#?}", self.failed.len(), self.seeds);
    }

    /// A campaign that has not met something says nothing about it.
    fn met(&self, all: &[&str]) {
        let unmet: Vec<_> = all.iter().filter(|what| !self.coverage.contains_key(*what)).collect();
        assert!(self.seeds < FULL || unmet.is_empty(), "not met: {unmet:?}");
    }
}

/// From so many schedules on everything must have been met.
const FULL: u64 = 1000;
