//! Leaves one safety rule of membership out at a time: the campaign must notice, from scratch, and
//! from a recorded seed.

use tenure_cluster::settings::Rule;
use tenure_testkit::sim::cluster::{Plan, Violation, run};

const NODES: usize = 5;

/// How many seeds a search may take (`TENURE_SEEDS`).
fn seeds() -> u64 {
    std::env::var("TENURE_SEEDS").map_or(1_000, |seeds| seeds.parse().expect("a number of seeds"))
}

/// What a schedule is made of.
type MakePlan = fn(u64, usize) -> Plan;

fn violation(plan: MakePlan, seed: u64, without: Option<Rule>) -> Option<Violation> {
    let mut plan = plan(seed, NODES);
    plan.membership.without = without;
    run(seed, &plan).violations.into_iter().next()
}

fn found(rule: Rule, recorded: u64) {
    found_in(Plan::of, rule, recorded);
}

/// Found from scratch, and at a recorded seed that is clean while the rule is obeyed.
fn found_in(plan: MakePlan, rule: Rule, recorded: u64) {
    let first = (0..seeds()).find_map(|seed| Some((seed, violation(plan, seed, Some(rule))?)));
    match &first {
        Some((seed, violation)) => println!("{rule:?}: first found at seed {seed}: {violation}"),
        None => panic!("{rule:?} is not noticed in {} seeds", seeds()),
    }
    let noticed = violation(plan, recorded, Some(rule)).is_some();
    assert!(noticed, "{rule:?} at the recorded seed {recorded}");
    let clean = violation(plan, recorded, None);
    assert!(clean.is_none(), "seed {recorded} while the rule is obeyed: {clean:?}");
}

#[test]
fn members_that_move_on_during_a_split() {
    found(Rule::NobodyUpDuringSplit, 4);
}

#[test]
fn ghosts_that_are_let_in() {
    found(Rule::RefuseGhosts, 0);
}

#[test]
fn a_detector_that_removes() {
    found(Rule::DetectorRemovesNobody, 0);
}

#[test]
fn a_leader_that_acts_on_what_not_all_have_seen() {
    found(Rule::ActOnlyOnConvergence, 0);
}

#[test]
fn an_address_that_is_not_proved() {
    found(Rule::ProveAddress, 293);
}

#[test]
fn an_outsider_that_does_not_notice_members() {
    found_in(Plan::with_outsiders, Rule::MemberRestartsAsking, 11);
}

#[test]
fn an_outsider_that_keeps_the_lease_while_it_asks() {
    found_in(Plan::with_outsiders, Rule::CandidateGivesBack, 3);
}
