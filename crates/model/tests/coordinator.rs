//! The coordinator protocol holds with all of its rules, and breaks without any one of them.

mod common;

use common::{breaks, holds, holds_between};
use tenure_model::coordinator::{Rules, Scenario, Sharding, Violation};

#[test]
fn all_rules_hold_whatever_becomes_of_messages() {
    holds("messages", &Sharding { rules: ALL, scenario: CALM }, 179_132);
}

#[test]
fn all_rules_hold_with_a_region_removed() {
    let scenario = Scenario { removals: 1, ..CALM };
    holds("removal", &Sharding { rules: ALL, scenario }, 7_331_164);
}

#[test]
fn all_rules_hold_with_a_crash() {
    let scenario = Scenario { crashes: 1, ..CALM };
    holds_far("crash", &Sharding { rules: ALL, scenario });
}

#[test]
fn all_rules_hold_with_a_freeze() {
    let scenario = Scenario { freezes: 1, ..CALM };
    holds_far("freeze", &Sharding { rules: ALL, scenario });
}

#[test]
fn all_rules_hold_with_every_fault() {
    let scenario = Scenario { crashes: 1, freezes: 1, removals: 1, allocations_max: 1, ..CALM };
    holds_far("every fault", &Sharding { rules: ALL, scenario });
}

#[test]
fn all_rules_hold_with_three_regions_and_a_freeze() {
    let scenario = Scenario { regions: 3, freezes: 1, allocations_max: 1, ..CALM };
    holds_far("three regions, freeze", &Sharding { rules: ALL, scenario });
}

#[test]
fn all_rules_hold_for_two_shards() {
    let scenario = Scenario { shards: 2, ..CALM };
    holds_far("two shards", &Sharding { rules: ALL, scenario });
}

#[test]
fn all_rules_hold_for_two_shards_with_a_crash_and_a_freeze() {
    let scenario = Scenario { shards: 2, crashes: 1, freezes: 1, ..CALM };
    holds_far("two shards, crash, freeze", &Sharding { rules: ALL, scenario });
}

#[test]
fn rule_tokens_must_be_above_is_needed() {
    let rules = Rules { tokens_must_be_above: false, ..ALL };
    breaks("equal tokens obeyed", &Sharding { rules, scenario: CALM }, TWICE, 9);
}

#[test]
fn rule_directives_name_the_session_is_needed() {
    let rules = Rules { directives_name_the_session: false, ..ALL };
    let scenario = Scenario { crashes: 1, ..CALM };
    breaks("sessions not named", &Sharding { rules, scenario }, TWICE, 11);
}

#[test]
fn rule_whole_roster_answers_first_is_needed() {
    let rules = Rules { whole_roster_answers_first: false, ..ALL };
    breaks("roster not waited for", &Sharding { rules, scenario: CALM }, TWICE, 17);
}

#[test]
fn rule_unreported_is_taken_is_needed() {
    let rules = Rules { unreported_is_taken: false, ..ALL };
    let scenario = Scenario { removals: 1, ..CALM };
    breaks("unreported is free", &Sharding { rules, scenario }, TWICE, 10);
}

#[test]
fn rule_on_roster_before_first_directive_is_needed() {
    let rules = Rules { on_roster_before_first_directive: false, ..ALL };
    breaks("roster written late", &Sharding { rules, scenario: CALM }, TWICE, 9);
}

#[test]
fn rule_roster_outlives_coordinator_is_needed() {
    let rules = Rules { roster_outlives_coordinator: false, ..ALL };
    breaks("roster lost", &Sharding { rules, scenario: CALM }, TWICE, 11);
}

#[test]
fn rule_answers_name_the_allocation_is_needed() {
    let rules = Rules { answers_name_the_allocation: false, ..ALL };
    let scenario = Scenario { allocations_max: 3, ..CALM };
    breaks("answers to any allocation", &Sharding { rules, scenario }, TWICE, 12);
}

#[test]
fn rule_only_registered_coordinator_is_obeyed_is_needed() {
    let rules = Rules { only_registered_coordinator_is_obeyed: false, ..ALL };
    breaks("any coordinator obeyed", &Sharding { rules, scenario: CALM }, TWICE, 14);
}

#[test]
fn rule_only_sessions_free_shards_is_needed() {
    let rules = Rules { only_sessions_free_shards: false, ..ALL };
    let scenario = Scenario { removals: 1, ..CALM };
    breaks("membership frees", &Sharding { rules, scenario }, TWICE, 8);
}

const ALL: Rules = Rules::ALL;

const CALM: Scenario = Scenario::CALM;

const TWICE: Violation = Violation::ActiveTwice;

/// Too large to be explored: looks as far as half a minute of CI allows, or farther if asked to.
#[track_caller]
fn holds_far(name: &str, model: &Sharding) {
    holds_between(name, model, 3_000_000, 8_000_000);
}
