//! Leaves one rule of the resolver out at a time: simulated splits must notice, from a recorded seed, and
//! from scratch with `TENURE_SEEDS=10000`.

use std::time::Duration;

use tenure_cluster::MembershipSettings;
use tenure_cluster::downing::{LeaseMajority, Mode, Strategy};
use tenure_cluster::settings::Rule;
use tenure_testkit::sim::cluster::{Plan, Sim, SimSettings, Violation, run, run_splits};

/// How many seeds a search from scratch may take, if there is to be one.
fn seeds() -> Option<u64> {
    let seeds = std::env::var("TENURE_SEEDS").ok()?;
    Some(seeds.parse().expect("TENURE_SEEDS is a number"))
}

fn strategy(mode: Mode) -> Strategy {
    Strategy::LeaseMajority(LeaseMajority { mode, ..LeaseMajority::default() })
}

/// Whatever may happen, when every side asks.
fn always(seed: u64, without: Option<Rule>) -> Option<Violation> {
    let mut plan = Plan::with_downing(seed, 4 + seed as usize % 2, strategy(Mode::Always));
    plan.membership.without = without;
    run(seed, &plan).violations.into_iter().next()
}

/// Clean splits, one after another, when only equal sides ask.
fn ties(seed: u64, without: Option<Rule>) -> Option<Violation> {
    let settings = MembershipSettings { without, ..MembershipSettings::default() };
    let nodes = 4 + seed as usize % 2;
    run_splits(seed, nodes, strategy(Mode::Ties), settings, false).violations.into_iter().next()
}

/// Found at a recorded seed that is clean while the rule is obeyed.
fn found(rule: Rule, run: fn(u64, Option<Rule>) -> Option<Violation>, recorded: u64) {
    if let Some(seeds) = seeds() {
        let first = (0..seeds).find_map(|seed| Some((seed, run(seed, Some(rule))?)));
        let (seed, violation) =
            first.unwrap_or_else(|| panic!("{rule:?} is not noticed in {seeds} seeds"));
        let violation: String = violation.to_string().chars().take(300).collect();
        println!("{rule:?}: first found at seed {seed}: {violation}");
    }
    assert!(run(recorded, Some(rule)).is_some(), "{rule:?} at the recorded seed {recorded}");
    let clean = run(recorded, None);
    assert!(clean.is_none(), "seed {recorded} while the rule is obeyed: {clean:?}");
}

#[test]
fn a_lease_that_is_taken_whatever_its_record_says() {
    found(Rule::AskConditionally, always, 109);
}

#[test]
fn a_majority_that_goes_on_without_an_answer() {
    found(Rule::UnknownMeansWait, always, 2);
}

#[test]
fn sides_that_are_counted_on_the_present_view_only() {
    found(Rule::CountOnBoth, ties, 540);
}

#[test]
fn two_of_one_side_who_ask() {
    found(Rule::OneAsks, always, 8835);
}

/// A story, since random schedules meet it too rarely: the winner of a split lets somebody in, dies, and
/// is started again where the losers are. Those have not heard of the verdict, because they do not reach
/// the store; nobody whom they know is missing any more.
#[test]
fn the_replaced_without_a_verdict() {
    let doubled = two_sides_after_a_restart(Some(Rule::ReplacedByVerdict));
    assert!(!doubled.is_empty(), "both sides have a leader that makes newcomers full members");
    let clean = two_sides_after_a_restart(None);
    assert!(clean.is_empty(), "{clean:?}");
}

fn two_sides_after_a_restart(without: Option<Rule>) -> Vec<Violation> {
    let settings = SimSettings {
        membership: MembershipSettings { without, ..MembershipSettings::default() },
        downing: Some(strategy(Mode::Always)),
        ..SimSettings::nodes(5)
    };
    let mut sim = Sim::new(1, settings);
    (0..4).for_each(|node| sim.start(node));
    assert!(sim.run_until(Duration::from_secs(20), Sim::agrees).is_some());
    let (winner, losers, newcomer) = (0, [1, 2, 3], 4);
    losers.iter().for_each(|node| sim.reach_store(*node, false));
    sim.partition(&[winner, newcomer], &losers);
    while !sim.somebody_arbitrates() {
        assert!(sim.elapsed() < Duration::from_secs(90), "nobody asked");
        sim.run_for(Duration::from_millis(1));
    }
    // So that the formation lease's note still says where the losers are.
    sim.reach_store(winner, false);
    sim.start(newcomer);
    let both = |sim: &Sim| sim.view(newcomer).is_some_and(|view| view.members().len() == 2);
    let joined = sim.run_until(Duration::from_secs(20), both);
    assert!(joined.is_some(), "the winner goes on, and lets the newcomer in");
    sim.crash(winner);
    sim.mend_all();
    sim.partition(&[newcomer], &[winner, losers[0], losers[1], losers[2]]);
    sim.reach_store(winner, true);
    sim.start(winner);
    for _ in 0..300 {
        sim.run_for(Duration::from_millis(200));
        sim.look();
    }
    sim.violations().to_vec()
}

/// This one shows only as nobody left, so it is a story: the winner of a split dies while it holds
/// the lease, and the rest fall out with each other before the lease has expired.
#[test]
fn a_lease_that_is_not_won_downs() {
    assert_eq!(survivors(None).len(), 1, "the lease decides once it has expired");
    let left = survivors(Some(Rule::LostMeansWait));
    assert!(left.is_empty(), "both have asked, and neither has won: {left:?}");
}

fn survivors(without: Option<Rule>) -> Vec<usize> {
    let settings = SimSettings {
        membership: MembershipSettings { without, ..MembershipSettings::default() },
        formation_ttl: Duration::from_secs(40),
        downing: Some(strategy(Mode::Always)),
        ..SimSettings::nodes(4)
    };
    let mut sim = Sim::new(1, settings);
    sim.start_all();
    assert!(sim.run_until(Duration::from_secs(20), Sim::agrees).is_some());
    sim.partition(&[0, 1, 2], &[3]);
    // It is held only until the losers are removed, so one has to look closely.
    while !sim.somebody_arbitrates() {
        assert!(sim.elapsed() < Duration::from_secs(60), "nobody asked");
        sim.run_for(Duration::from_millis(1));
    }
    sim.crash_arbiter();
    sim.partition(&[1], &[2]);
    sim.run_for(Duration::from_secs(90));
    sim.running().filter(|node| [1, 2].contains(node)).collect()
}
