//! Leaves one rule of the singleton out at a time: the campaigns must notice, from scratch, and from a
//! recorded seed.

use tenure_singleton::{Rule, Settings};
use tenure_testkit::sim::cluster::{Plan, Violation, run, run_rolling};

/// How many seeds a search may take (`TENURE_SEEDS`).
fn seeds() -> u64 {
    std::env::var("TENURE_SEEDS").map_or(0, |seeds| seeds.parse().expect("a number of seeds"))
}

/// Whatever may happen, with a lease.
fn with_lease(seed: u64, without: Option<Rule>) -> Option<Violation> {
    let mut plan = Plan::with_singleton(seed, 2 + (seed % 5) as usize);
    plan.singleton.as_mut().unwrap().manager.without = without;
    run(seed, &plan).violations.into_iter().next()
}

/// Restarts, without a lease.
fn rolling(seed: u64, without: Option<Rule>) -> Option<Violation> {
    let settings = Settings { without, ..Settings::default() };
    run_rolling(seed, settings, false).violations.into_iter().next()
}

/// Found at a recorded seed that is clean while the rule is obeyed; from scratch, if seeds are asked for.
fn found(
    rule: Rule,
    run: fn(u64, Option<Rule>) -> Option<Violation>,
    recorded: u64,
    invariant: &str,
) {
    let shows = |seed| run(seed, Some(rule)).filter(|found| found.invariant == invariant);
    if seeds() > 0 {
        let first = (0..seeds()).find_map(|seed| Some((seed, shows(seed)?)));
        match &first {
            Some((seed, violation)) => println!("{rule:?}: first at seed {seed}: {violation}"),
            None => panic!("{rule:?} is not noticed in {} seeds", seeds()),
        }
    }
    assert!(shows(recorded).is_some(), "{rule:?} at the recorded seed {recorded}");
    let clean = run(recorded, None);
    assert!(clean.is_none(), "seed {recorded} while the rule is obeyed: {clean:?}");
}

#[test]
fn a_lease_that_is_given_back_before_the_stop() {
    found(Rule::StopThenRelease, with_lease, 1, "stop, then release");
}

#[test]
fn only_the_oldest_contends() {
    found(Rule::CandidateContends, with_lease, 2, "the slot is filled");
}

#[test]
fn a_hand_over_that_counts_for_everybody() {
    found(Rule::HandOverOfThatHost, rolling, 0, "one at a time");
}

#[test]
fn a_proxy_that_forgets() {
    found(Rule::KeepWaiting, with_lease, 0, "kept is sent");
}
