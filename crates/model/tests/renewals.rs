//! Renewals that overlap never prolong a tenure beyond its deadline, and never end it.

mod common;

use common::{breaks, holds};
use tenure_model::renewals::{Renewals, Rules, Scenario, Violation};

#[test]
fn four_renewals_overlap() {
    holds("hedged", &Renewals { rules: ALL, scenario: HEDGED }, 23_988);
}

#[test]
fn a_request_is_delivered_twice() {
    let scenario = Scenario { duplicates: 2, ..HEDGED };
    holds("delivered twice", &Renewals { rules: ALL, scenario }, 110_990);
}

#[test]
fn an_operator_deletes_the_record() {
    let scenario = Scenario { deletions: 1, ..HEDGED };
    holds("deleted", &Renewals { rules: ALL, scenario }, 68_316);
}

/// Once one of the two has renewed, the other is refused at its next renewal that is answered.
#[test]
fn a_clone_renews_too() {
    holds("cloned", &Renewals { rules: ALL, scenario: CLONED }, 702_787);
}

#[test]
fn rule_knows_unanswered_is_needed() {
    let rules = Rules { knows_unanswered: false, ..ALL };
    let model = Renewals { rules, scenario: HEDGED };
    breaks("unanswered ones forgotten", &model, Violation::LostToItself, 5);
}

#[test]
fn rule_deadline_of_confirmed_is_needed() {
    let rules = Rules { deadline_of_confirmed: false, ..ALL };
    let model = Renewals { rules, scenario: HEDGED };
    breaks("deadline of the last send", &model, Violation::TwoHolders, 9);
}

#[test]
fn rule_own_nonce_is_no_loss_is_needed() {
    let rules = Rules { own_nonce_is_no_loss: false, ..ALL };
    let model = Renewals { rules, scenario: HEDGED };
    breaks("own nonce taken for a loss", &model, Violation::LostToItself, 5);
}

#[test]
fn rule_remembers_until_answered_is_needed() {
    let rules = Rules { remembers_until_answered: false, ..ALL };
    let model = Renewals { rules, scenario: HEDGED };
    breaks("forgotten at confirmation", &model, Violation::LostToItself, 8);
}

#[test]
fn rule_store_compares_nonces_is_needed() {
    let rules = Rules { store_compares_nonces: false, ..ALL };
    let model = Renewals { rules, scenario: CLONED };
    breaks("any renewal applied", &model, Violation::BothConfirmed, 7);
}

const ALL: Rules = Rules::ALL;
const HEDGED: Scenario = Scenario::HEDGED;
const CLONED: Scenario = Scenario { clones: 1, ..HEDGED };
