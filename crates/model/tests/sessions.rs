//! The sessions protocol holds with all of its rules, and breaks without any one of them.
//!
//! Each test explores one scenario. `cargo test -- --nocapture` shows how many states there were,
//! and the traces of the violations that must be found. The largest scenarios stop at a bound
//! unless `TENURE_MODEL_FULL=1` is set; they then take minutes, and a few gigabytes in all.

use std::env;
use std::io::{self, Write};

use tenure_model::engine::{Limits, Report, Verdict, check};
use tenure_model::sessions::{Rules, Scenario, Sessions, Violation};

#[test]
fn all_rules_hold_in_a_calm_world() {
    holds("calm", Rules::ALL, CALM);
}

#[test]
fn all_rules_hold_with_a_pause_and_a_lost_reply() {
    let scenario = Scenario { pauses: 1, lost_replies: 1, ..CALM };
    holds("pause, lost reply", Rules::ALL, scenario);
}

#[test]
fn all_rules_hold_with_two_pauses_and_two_lost_replies() {
    let scenario = Scenario { pauses: 2, lost_replies: 2, term_max: 4, ..CALM };
    holds("two pauses, two lost replies, terms up to 4", Rules::ALL, scenario);
}

#[test]
fn all_rules_hold_with_two_leases_and_a_pause() {
    let scenario = Scenario { leases: 2, pauses: 1, ..CALM };
    holds("two leases, pause", Rules::ALL, scenario);
}

#[test]
fn all_rules_hold_with_a_crash_and_restart() {
    let scenario = Scenario { crashes: 1, ..CALM };
    holds("crash", Rules::ALL, scenario);
}

#[test]
fn all_rules_hold_with_the_session_record_deleted() {
    let scenario = Scenario { session_deletions: 1, pauses: 1, ..CALM };
    holds("session record deleted, pause", Rules::ALL, scenario);
}

#[test]
fn all_rules_hold_with_an_attached_record_deleted() {
    let scenario = Scenario { lease_deletions: 1, pauses: 1, ..CALM };
    holds("attached record deleted, pause", Rules::ALL, scenario);
}

#[test]
fn all_rules_hold_with_a_clone() {
    holds("clone, lost reply", Rules::ALL, CLONED);
}

#[test]
fn all_rules_hold_with_a_clone_beside_a_contender() {
    let scenario = Scenario { contender: true, ..CLONED };
    holds("clone, lost reply, contender", Rules::ALL, scenario);
}

#[test]
fn all_rules_hold_with_every_fault_but_clones() {
    let scenario = Scenario {
        pauses: 1,
        crashes: 1,
        lost_replies: 1,
        session_deletions: 1,
        lease_deletions: 1,
        ..CALM
    };
    holds("every fault but clones", Rules::ALL, scenario);
}

#[test]
fn all_rules_hold_with_two_leases_and_an_attached_record_deleted() {
    let scenario = Scenario { leases: 2, pauses: 1, lease_deletions: 1, ..CALM };
    holds("two leases, attached record deleted, pause", Rules::ALL, scenario);
}

/// As long as no attached record is deleted, the session's renewals alone carry its leases.
#[test]
fn proofs_of_attached_leases_are_not_needed_without_deletions() {
    let scenario = Scenario { pauses: 1, lost_replies: 1, ..CALM };
    holds("pause, lost reply, no proofs", NO_PROOFS, scenario);
}

#[test]
fn rule_session_taken_over_first_is_needed() {
    let without = Rules { session_is_taken_over_first: false, ..Rules::ALL };
    breaks("session taken over first", Rules::ALL, without, CALM, Violation::ActivityOverlaps);
}

#[test]
fn rule_renewal_numbers_are_needed() {
    let without = Rules { renewals_are_numbered: false, ..Rules::ALL };
    breaks("renewal numbers", Rules::ALL, without, CLONED, Violation::BothClonesRenewed);
}

#[test]
fn rule_renewal_nonces_are_needed_where_a_counter_would_not_do() {
    let without = Rules { renewals_have_nonces: false, ..Rules::ALL };
    breaks("renewal nonces", Rules::ALL, without, CLONED, Violation::BothClonesRenewed);
}

#[test]
fn rule_claim_ids_are_needed() {
    let without = Rules { claims_have_ids: false, ..Rules::ALL };
    let scenario = Scenario { lost_replies: 2, term_max: 4, ..CALM };
    breaks("claim ids", Rules::ALL, without, scenario, Violation::ActivityOverlaps);
}

#[test]
fn rule_first_term_is_fresh_is_needed_for_sessions() {
    let without = Rules { first_term_is_fresh: false, ..Rules::ALL };
    let scenario = Scenario { session_deletions: 1, ..CALM };
    breaks("first term, session", Rules::ALL, without, scenario, Violation::TermDidNotRise);
}

#[test]
fn rule_first_term_is_fresh_is_needed_for_leases() {
    let without = Rules { first_term_is_fresh: false, ..Rules::ALL };
    let scenario = Scenario { lease_deletions: 1, ..CALM };
    breaks("first term, lease", Rules::ALL, without, scenario, Violation::TermDidNotRise);
}

#[test]
fn rule_vanished_is_waited_out_is_needed_for_sessions() {
    let without = Rules { vanished_is_waited_out: false, ..Rules::ALL };
    let scenario = Scenario { session_deletions: 1, ..CALM };
    breaks(
        "vanished session waited out",
        Rules::ALL,
        without,
        scenario,
        Violation::ActivityOverlaps,
    );
}

#[test]
fn rule_vanished_is_waited_out_is_needed_for_leases() {
    let without = Rules { vanished_is_waited_out: false, ..Rules::ALL };
    let scenario = Scenario { lease_deletions: 1, ..CALM };
    breaks("vanished lease waited out", Rules::ALL, without, scenario, Violation::ActivityOverlaps);
}

#[test]
fn rule_fence_raised_before_read_is_needed() {
    let without = Rules { fence_is_raised_before_read: false, ..Rules::ALL };
    let scenario = Scenario { pauses: 1, ..CALM };
    breaks(
        "fence raised before read",
        Rules::ALL,
        without,
        scenario,
        Violation::StaleEffectAccepted,
    );
}

#[test]
fn rule_clock_read_before_send_is_needed() {
    let without = Rules { clock_is_read_before_send: false, ..Rules::ALL };
    breaks("clock read before send", Rules::ALL, without, CALM, Violation::ActivityOverlaps);
}

#[test]
fn rule_boottime_is_needed() {
    let without = Rules { boottime: false, ..Rules::ALL };
    let scenario = Scenario { pauses: 1, ..CALM };
    breaks("boottime", Rules::ALL, without, scenario, Violation::ActivityOverlaps);
}

#[test]
fn rule_renewals_prove_attached_is_needed() {
    let scenario = Scenario { lease_deletions: 1, ..CALM };
    breaks("renewals prove attached", Rules::ALL, NO_PROOFS, scenario, Violation::ActivityOverlaps);
}

/// The scenario holds: no violation, and no dead end unless the bound was met first.
fn holds(name: &str, rules: Rules, scenario: Scenario) {
    let report = explore(rules, scenario);
    match report.verdict {
        Verdict::Holds => println!("{name}: holds, {} states", report.states),
        Verdict::Bounded => {
            // Past the capture of the test harness: whoever runs the tests should know.
            let _ = writeln!(
                io::stderr(),
                "{name}: bounded, no violation in {} states; in full with TENURE_MODEL_FULL=1",
                report.states,
            );
        }
        Verdict::Unsafe { violation, trace } => panic!("{name}: {violation}\n{trace}"),
        Verdict::DeadEnds { count, trace } => panic!("{name}: {count} dead ends\n{trace}"),
    }
}

/// The scenario holds `with` a rule; `without` it, `expected` is what happens first.
fn breaks(name: &str, with: Rules, without: Rules, scenario: Scenario, expected: Violation) {
    holds(&format!("with {name}"), with, scenario);
    let report = explore(without, scenario);
    let Verdict::Unsafe { violation, trace } = report.verdict else {
        panic!("without {name}: nothing found in {} states", report.states);
    };
    println!("without {name}: {violation}, {} states\n{trace}", report.states);
    assert_eq!(violation, expected);
}

fn explore(rules: Rules, scenario: Scenario) -> Report<Violation> {
    let full = env::var("TENURE_MODEL_FULL").is_ok_and(|value| value == "1");
    let states_max = if full { usize::MAX } else { STATES_MAX };
    check(&Sessions { rules, scenario }, Limits { states_max, liveness: true })
}

/// The bound by default.
const STATES_MAX: usize = 1_000_000;

const CALM: Scenario = Scenario::CALM;

/// One process that is paused, resumes twice, and may lose a reply.
const CLONED: Scenario =
    Scenario { pauses: 1, clones: 1, lost_replies: 1, contender: false, ..CALM };

const NO_PROOFS: Rules = Rules { renewals_prove_attached: false, ..Rules::ALL };
