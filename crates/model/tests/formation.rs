//! Formation brings a cluster back whatever happened, and never forms a second one needlessly.

mod common;

use common::{breaks, holds, strands};
use tenure_model::formation::{Formation, Rules, Scenario, Violation};

/// All three nodes may end, among them everybody of a cluster at once.
#[test]
fn a_cluster_comes_back_after_everybody_ended() {
    holds("three nodes", &Formation { rules: ALL, scenario: THREE }, 230_611);
}

#[test]
fn a_cluster_comes_back_after_two_splits_and_two_lost_leases() {
    let scenario = Scenario { losses: 2, splits: 2, term_max: 6, ..THREE };
    holds("two splits, two losses", &Formation { rules: ALL, scenario }, 1_720_571);
}

/// The leader never loses the lease: whatever the splits, there is no second cluster beside it.
#[test]
fn a_minority_cannot_form_beside_a_leader_that_keeps_the_lease() {
    let scenario = Scenario { losses: 0, splits: 2, ..THREE };
    let model = Formation { rules: ALL, scenario };
    holds("lease never lost", &model, 179_879);
}

#[test]
fn rule_only_the_holder_forms_is_needed() {
    let rules = Rules { only_the_holder_forms: false, ..ALL };
    let model = Formation { rules, scenario: THREE };
    breaks("without the lease", &model, Violation::FormedBesideGuarded, 3);
}

#[test]
fn rule_winner_asks_first_is_needed() {
    let rules = Rules { winner_asks_first: false, ..ALL };
    let model = Formation { rules, scenario: THREE };
    breaks("without asking", &model, Violation::FormedBesideReachable, 7);
}

#[test]
fn rule_note_is_written_first_is_needed() {
    let rules = Rules { note_is_written_first: false, ..ALL };
    let model = Formation { rules, scenario: THREE };
    breaks("note written late", &model, Violation::FormedBesideReachable, 5);
}

#[test]
fn rule_note_is_kept_is_needed() {
    let rules = Rules { note_is_kept: false, ..ALL };
    let model = Formation { rules, scenario: THREE };
    breaks("note not kept", &model, Violation::FormedBesideReachable, 7);
}

#[test]
fn rule_lower_gives_way_is_needed() {
    let rules = Rules { lower_gives_way: false, ..ALL };
    let model = Formation { rules, scenario: THREE };
    strands("nobody gives way", &model, 15_505);
}

/// Contact points go out of date while the leader does not hold the lease. Then a winner that
/// knows nobody else may form a second cluster beside one within its reach; the lower gives way.
#[test]
fn not_promised_without_discovery() {
    let scenario = Scenario { discovery: false, ..THREE };
    let model = Formation { rules: ALL, scenario };
    breaks("contact points only", &model, Violation::FormedBesideReachable, 9);
}

const ALL: Rules = Rules::ALL;

/// Each of three nodes may end; the lease is lost once, and the network splits once.
const THREE: Scenario =
    Scenario { nodes: 3, ends: 3, losses: 1, splits: 1, discovery: true, term_max: 5 };
