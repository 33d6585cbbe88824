//! Formation brings a cluster back whatever happened, and never forms a second one needlessly.

mod common;

use common::{breaks, holds, strands};
use tenure_model::formation::{Formation, Rules, Scenario, Violation};

/// All three nodes may end, among them everybody of a cluster at once.
#[test]
fn a_cluster_comes_back_after_everybody_ended() {
    holds("three nodes", &Formation { rules: ALL, scenario: THREE }, 937_745);
}

#[test]
fn a_cluster_comes_back_after_two_splits_and_two_lost_leases() {
    let scenario = Scenario { ends: 2, losses: 2, splits: 2, ..THREE };
    holds("two splits, two losses", &Formation { rules: ALL, scenario }, 5_101_535);
}

/// The leader never loses the lease: whatever the splits, there is no second cluster beside it.
#[test]
fn a_minority_cannot_form_beside_a_leader_that_keeps_the_lease() {
    let scenario = Scenario { losses: 0, splits: 2, ..THREE };
    let model = Formation { rules: ALL, scenario };
    holds("lease never lost", &model, 65_052);
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
    breaks("without asking", &model, Violation::FormedBesideReachable, 10);
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
    strands("nobody gives way", &model, 26_008);
}

/// Contact points go out of date while the leader does not hold the lease. Then a winner that
/// knows nobody else may form a second cluster beside one within its reach; the lower gives way.
#[test]
fn not_promised_without_discovery() {
    let scenario = Scenario { discovery: false, ..THREE };
    let model = Formation { rules: ALL, scenario };
    breaks("contact points only", &model, Violation::FormedBesideReachable, 11);
}

/// The last of three nodes reaches the store and nobody else. The others may end, and lose the store,
/// in any order: it never forms a cluster beside theirs.
#[test]
fn an_outsider_forms_nothing_beside_a_living_cluster() {
    holds("an outsider", &Formation { rules: ALL, scenario: OUTSIDER }, 24_103);
}

/// The same with two nodes that lose the store, one after the other or at once.
#[test]
fn an_outsider_forms_nothing_after_the_store_was_away() {
    let scenario = Scenario { ends: 1, losses: 2, ..OUTSIDER };
    holds("an outsider, store away", &Formation { rules: ALL, scenario }, 23_247);
}

#[test]
fn an_outsider_forms_nothing_beside_three_others() {
    let scenario = Scenario { nodes: 4, ends: 2, ..OUTSIDER };
    holds("an outsider and three others", &Formation { rules: ALL, scenario }, 153_771);
}

#[test]
fn rule_candidate_waits_is_needed() {
    let rules = Rules { candidate_waits: false, ..ALL };
    let model = Formation { rules, scenario: OUTSIDER };
    breaks("no wait", &model, Violation::FormedBesideLiving, 8);
}

#[test]
fn rule_member_restarts_wait_is_needed() {
    let rules = Rules { member_restarts_wait: false, ..ALL };
    let model = Formation { rules, scenario: OUTSIDER };
    breaks("members are not noticed", &model, Violation::FormedBesideLiving, 14);
}

#[test]
fn rule_candidate_gives_back_is_needed() {
    let rules = Rules { candidate_gives_back: false, ..ALL };
    let model = Formation { rules, scenario: OUTSIDER };
    breaks("the lease is kept while asking", &model, Violation::FormedBesideLiving, 9);
}

#[test]
fn rule_blind_wait_is_void_is_needed() {
    let rules = Rules { blind_wait_is_void: false, ..ALL };
    let scenario = Scenario { ends: 1, losses: 2, ..OUTSIDER };
    let model = Formation { rules, scenario };
    breaks("blind waiting counts", &model, Violation::FormedBesideLiving, 11);
}

#[test]
fn rule_only_members_prove_is_needed() {
    let rules = Rules { only_members_prove: false, ..ALL };
    strands("candidates prove something", &Formation { rules, scenario: THREE }, 16_718);
}

#[test]
fn rule_note_names_tenure_is_needed() {
    let rules = Rules { note_names_tenure: false, ..ALL };
    strands("a stale mark", &Formation { rules, scenario: THREE }, 17_078);
}

const ALL: Rules = Rules::ALL;

/// Each of three nodes may end; the store is lost once, and the network splits once.
const THREE: Scenario = Scenario {
    nodes: 3,
    outsider: false,
    ends: 3,
    losses: 1,
    splits: 1,
    discovery: true,
    term_max: 5,
};

/// Two nodes that may end, and an outsider.
const OUTSIDER: Scenario =
    Scenario { outsider: true, ends: 3, losses: 1, splits: 0, term_max: 6, ..THREE };
