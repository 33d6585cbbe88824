//! Leaves one safety rule out at a time: the campaign must notice, and from a recorded seed in CI.

use tenure_lease::Settings;
use tenure_lease::settings::Rule;
use tenure_testkit::sim::leases::{Plan, run};

/// How many seeds a search may take (`TENURE_SEEDS`).
fn seeds() -> u64 {
    std::env::var("TENURE_SEEDS").map_or(0, |seeds| seeds.parse().expect("a number of seeds"))
}

fn violates(seed: u64, without: Option<Rule>) -> bool {
    let plan = Plan::of(seed, false);
    let settings = Settings { without, ..plan.settings.clone() };
    !run(seed, &Plan { settings, ..plan }).violations.is_empty()
}

/// Found from the recorded seed, which is clean with the rule; and, when `TENURE_SEEDS` asks for a
/// search, from scratch.
fn found(rule: Rule, recorded: u64) {
    assert!(!violates(recorded, None), "seed {recorded} is clean while the rule is obeyed");
    let from_scratch = (0..seeds()).find(|seed| violates(*seed, Some(rule)));
    println!("{rule:?}: first found at seed {from_scratch:?}");
    assert!(seeds() == 0 || from_scratch.is_some(), "{rule:?} not found in {} seeds", seeds());
    assert!(violates(recorded, Some(rule)), "{rule:?} is not noticed at seed {recorded}");
}

#[test]
fn a_deadline_without_the_stop_budget() {
    found(Rule::StopBudget, 34);
}

#[test]
fn a_deadline_counted_from_the_answer() {
    found(Rule::DeadlineFromSend, 7);
}

#[test]
fn a_read_back_by_owner_instead_of_claim() {
    found(Rule::ReadBackByClaim, 0);
}

#[test]
fn an_attached_lease_taken_without_its_session() {
    found(Rule::TakeSessionFirst, 1);
}

#[test]
fn a_vanished_record_not_waited_out() {
    found(Rule::WaitVanished, 0);
}

#[test]
fn attached_records_not_proved() {
    found(Rule::ProveAttached, 3);
}

#[test]
fn a_record_not_observed_for_its_whole_ttl() {
    found(Rule::ObserveWholeTtl, 4);
}
