//! Leaves one safety rule out at a time: the campaign must notice, from scratch.

use tenure_lease::Settings;
use tenure_lease::settings::Rule;
use tenure_testkit::sim::leases::{Plan, run};

/// How many seeds a search may take (`TENURE_SEEDS`).
fn seeds() -> u64 {
    std::env::var("TENURE_SEEDS").map_or(2_000, |seeds| seeds.parse().expect("a number of seeds"))
}

fn violates(seed: u64, without: Option<Rule>) -> bool {
    let plan = Plan::of(seed, false);
    let settings = Settings { without, ..plan.settings.clone() };
    !run(seed, &Plan { settings, ..plan }).violations.is_empty()
}

/// Found at a seed that is clean while the rule is obeyed.
fn found(rule: Rule) {
    let seed = (0..seeds()).find(|seed| violates(*seed, Some(rule)));
    println!("{rule:?}: first found at seed {seed:?}");
    let seed = seed.unwrap_or_else(|| panic!("{rule:?} is not noticed in {} seeds", seeds()));
    assert!(!violates(seed, None), "seed {seed} is clean while the rule is obeyed");
}

#[test]
fn a_deadline_without_the_stop_budget() {
    found(Rule::StopBudget);
}

#[test]
fn a_deadline_counted_from_the_answer() {
    found(Rule::DeadlineFromSend);
}

#[test]
fn a_read_back_by_owner_instead_of_claim() {
    found(Rule::ReadBackByClaim);
}

#[test]
fn an_attached_lease_taken_without_its_session() {
    found(Rule::TakeSessionFirst);
}

#[test]
fn a_vanished_record_not_waited_out() {
    found(Rule::WaitVanished);
}

#[test]
fn attached_records_not_proved() {
    found(Rule::ProveAttached);
}

#[test]
fn a_record_not_observed_for_its_whole_ttl() {
    found(Rule::ObserveWholeTtl);
}

#[test]
fn a_renewal_that_forgets_those_without_an_answer() {
    found(Rule::KnowUnanswered);
}

#[test]
fn a_deadline_counted_from_a_renewal_that_was_not_confirmed() {
    found(Rule::DeadlineOfConfirmed);
}

#[test]
fn a_refusal_by_our_own_renewal_taken_for_a_loss() {
    found(Rule::OwnRenewalIsNoThief);
}
