//! Leaves one safety rule of sharding out at a time: the campaign must notice. In CI from a seed
//! that was recorded; from scratch with
//! `cargo test -p tenure-testkit --features planted --test planted_sharding -- --ignored --nocapture`.

use tenure_sharding::{Rule, Settings, Setup};
use tenure_testkit::sim::sharding::{Plan, run};

/// Every rule, and the first seed at which its absence was found.
const RULES: [(Rule, u64); 12] = [
    (Rule::UnreportedIsTaken, 1),
    (Rule::WholeRosterFirst, 782),
    (Rule::TokensMustBeAbove, 70),
    (Rule::OnlySessionsFree, 0),
    (Rule::AnswersNameTheAllocation, 70),
    (Rule::FenceWithTheShardsToken, 0),
    (Rule::OnlyWithTheLease, 0),
    (Rule::DirectivesNameTheSession, 35),
    (Rule::RosterBeforeDirective, 22),
    (Rule::OnlyTheRegisteredIsObeyed, 80),
    (Rule::LateReturnsAreLost, 42),
    (Rule::ReturnsUntilTheMark, 2130),
];

/// What the absence of a rule leads to at this seed, if it shows.
fn violation(seed: u64, without: Option<Rule>) -> Option<String> {
    let plan = Plan::of(seed, Setup::Sessions);
    let sharding = Settings { without, ..plan.sharding.clone() };
    let outcome = run(seed, &Plan { sharding, ..plan });
    // That shards are served late is no proof: a schedule may just have been unlucky.
    let is_safety = |invariant: &&str| !invariant.starts_with("every shard");
    let mut found = outcome.violations.iter().map(|violation| violation.invariant);
    found.find(is_safety).map(str::to_owned)
}

#[test]
fn each_is_found_from_its_seed() {
    for (rule, seed) in RULES {
        let found = violation(seed, Some(rule));
        assert!(found.is_some(), "{rule:?} is not noticed at seed {seed}");
        assert_eq!(violation(seed, None), None, "seed {seed} is clean while {rule:?} is obeyed");
    }
}

/// `TENURE_SIM_SEEDS` says how many seeds a search may take, `TENURE_RULE` which rule to leave out,
/// `TENURE_SEED` where to begin.
#[test]
#[ignore = "takes minutes"]
fn each_is_found_from_scratch() {
    let seeds = std::env::var("TENURE_SIM_SEEDS");
    let seeds = seeds.map_or(5_000, |seeds| seeds.parse().expect("a number of seeds"));
    let only = std::env::var("TENURE_RULE").ok();
    let mut missed = Vec::new();
    for (rule, _) in RULES {
        if only.as_ref().is_some_and(|only| *only != format!("{rule:?}")) {
            continue;
        }
        let from = std::env::var("TENURE_SEED").map_or(0, |seed| seed.parse().expect("a seed"));
        let found = (from..seeds).find_map(|seed| Some((seed, violation(seed, Some(rule))?)));
        println!("{rule:?}: {found:?}");
        if found.is_none() {
            missed.push(rule);
        }
    }
    assert!(missed.is_empty(), "not noticed in {seeds} seeds: {missed:?}");
}
