//! Campaigns of clusters with sharding. `TENURE_SIM_SEEDS` says how many schedules, `TENURE_SEED`
//! which one to replay.

use std::collections::BTreeMap;

use tenure_sharding::Setup;
use tenure_testkit::sim::sharding::{COVERAGE, Outcome, Plan, Tally, run};

fn seeds(default: u64) -> u64 {
    let seeds = std::env::var("TENURE_SIM_SEEDS");
    seeds.map_or(default, |seeds| seeds.parse().expect("a number of seeds"))
}

struct Campaign {
    failed: Vec<(u64, String)>,
    tally: Tally,
    coverage: BTreeMap<&'static str, u64>,
}

fn campaign(setup: Setup, seeds: u64) -> Campaign {
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    let worker = |first: u64| {
        let mut mine =
            Campaign { failed: Vec::new(), tally: Tally::default(), coverage: BTreeMap::new() };
        for seed in (first..seeds).step_by(threads as usize) {
            let Outcome { violations, tally, coverage, .. } = run(seed, &Plan::of(seed, setup));
            if let Some(violation) = violations.first() {
                mine.failed.push((seed, violation.to_string()));
            }
            mine.tally.add(&tally);
            for (what, count) in coverage {
                *mine.coverage.entry(what).or_default() += count;
            }
        }
        mine
    };
    let mut all =
        Campaign { failed: Vec::new(), tally: Tally::default(), coverage: BTreeMap::new() };
    std::thread::scope(|scope| {
        let workers: Vec<_> =
            (0..threads).map(|first| scope.spawn(move || worker(first))).collect();
        for worker in workers {
            let part = worker.join().expect("a worker that does not panic");
            all.failed.extend(part.failed);
            all.tally.add(&part.tally);
            for (what, count) in part.coverage {
                *all.coverage.entry(what).or_default() += count;
            }
        }
    });
    all.failed.sort();
    println!("{setup:?}: {seeds} schedules, {} failed, {:?}", all.failed.len(), all.tally);
    all
}

#[test]
fn with_sessions_a_shard_is_never_in_two_places() {
    let seeds = seeds(40);
    let Campaign { failed, coverage, .. } = campaign(Setup::Sessions, seeds);
    println!("{coverage:#?}");
    assert!(
        failed.is_empty(),
        "{} of {seeds}: {:#?}",
        failed.len(),
        &failed[..failed.len().min(5)]
    );
    let unmet: Vec<_> = COVERAGE.iter().filter(|what| !coverage.contains_key(*what)).collect();
    assert!(seeds < 1000 || unmet.is_empty(), "not met: {unmet:?}");
}

#[test]
fn with_a_lease_no_acknowledged_write_is_lost() {
    let seeds = seeds(40);
    let Campaign { failed, .. } = campaign(Setup::Lease, seeds);
    assert!(
        failed.is_empty(),
        "{} of {seeds}: {:#?}",
        failed.len(),
        &failed[..failed.len().min(5)]
    );
}

#[test]
fn without_a_lease_shards_are_served_again() {
    let seeds = seeds(40);
    let Campaign { failed, .. } = campaign(Setup::Gossip, seeds);
    assert!(
        failed.is_empty(),
        "{} of {seeds}: {:#?}",
        failed.len(),
        &failed[..failed.len().min(5)]
    );
}

#[test]
fn a_seed_is_the_whole_schedule() {
    let plan = Plan::of(3, Setup::Sessions);
    assert_eq!(run(3, &plan).hash, run(3, &plan).hash);
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
