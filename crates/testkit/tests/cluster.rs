//! Random schedules of whole clusters in virtual time.
//!
//! `TENURE_SEEDS=10000` runs that many; the default is what CI has time for.

use std::time::Duration;

use tenure_testkit::sim::cluster::{COVERAGE, Outcome, Plan, run};

fn seeds() -> u64 {
    std::env::var("TENURE_SEEDS").map_or(300, |seeds| seeds.parse().expect("a number of seeds"))
}

/// From two nodes to nine.
fn nodes(seed: u64) -> usize {
    2 + (seed % 8) as usize
}

#[test]
fn a_cluster_survives_whatever_happens() {
    let mut total = Outcome::default();
    let mut failed = Vec::new();
    let mut slowest = Duration::ZERO;
    for seed in 0..seeds() {
        let outcome = run(seed, &Plan::of(seed, nodes(seed)));
        if let Some(violation) = outcome.violations.first() {
            failed.push(format!("seed {seed}: {violation}"));
        }
        slowest = slowest.max(outcome.recovery.unwrap_or_default());
        total.virtual_time += outcome.virtual_time;
        for (what, count) in outcome.coverage {
            *total.coverage.entry(what).or_insert(0) += count;
        }
    }
    println!("{} schedules, {:?}, slowest recovery {slowest:?}", seeds(), total.virtual_time);
    println!("{:#?}", total.coverage);
    let some = failed.iter().take(20).map(String::as_str).collect::<Vec<_>>().join("\n");
    assert!(failed.is_empty(), "{} violations\n{some}", failed.len());
    let missing: Vec<_> =
        COVERAGE.iter().filter(|word| !total.coverage.contains_key(**word)).collect();
    assert!(missing.is_empty(), "never met: {missing:?}");
}

/// Nodes that reach the store and nobody else, while leaders leave, crash and come back.
#[test]
fn outsiders_form_nothing_beside_a_cluster() {
    let mut outsiders = 0;
    for seed in 0..seeds() / 3 {
        let outcome = run(seed, &Plan::with_outsiders(seed, nodes(seed)));
        assert!(outcome.violations.is_empty(), "seed {seed}: {:?}", outcome.violations);
        outsiders += outcome.coverage.get("outsider").copied().unwrap_or_default();
    }
    println!("{} schedules, {outsiders} outsiders", seeds() / 3);
    assert!(outsiders > seeds() / 3, "{outsiders}");
}

/// `TENURE_SEED=7 cargo test … replay -- --ignored --nocapture` shows what happens in one schedule.
#[test]
#[ignore = "a tool: prints the trace of the schedule TENURE_SEED"]
fn replay() {
    let seed = std::env::var("TENURE_SEED").expect("TENURE_SEED").parse().expect("a seed");
    let plan = Plan { trace: true, ..Plan::of(seed, nodes(seed)) };
    let outcome = run(seed, &plan);
    println!("{}\n{:#?}", outcome.trace.join("\n"), outcome.violations);
}

/// Each of these seeds has once shown a bug.
#[test]
fn seeds_that_once_failed() {
    for seed in [
        2, 17, 31, 38, 132, 134, 149, 153, 258, 324, 350, 357, 421, 602, 740, 890, 988, 1062, 1201,
        1287, 1457, 2975, 3582, 3797, 5557, 5816, 6489, 7876, 10279, 11270, 11685,
    ] {
        let outcome = run(seed, &Plan::of(seed, nodes(seed)));
        assert!(outcome.violations.is_empty(), "seed {seed}: {:?}", outcome.violations);
    }
}

#[test]
fn a_seed_is_the_whole_schedule() {
    for seed in 0..20 {
        let plan = Plan::of(seed, nodes(seed));
        assert_eq!(run(seed, &plan).hash, run(seed, &plan).hash);
    }
}
