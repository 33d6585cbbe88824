//! The verdict protocol holds with all of its rules, and what becomes of it without each of them.

mod common;

use common::{breaks, holds, strands};
use tenure_model::engine::{Limits, Verdict, check};
use tenure_model::verdict::{
    Acquisition, Counts, LeaseMajority, Links, Network, Rules, Scenario, Sides, Violation,
};

// `always`: one survivor under every partition there is.

#[test]
fn always_holds_with_three_generations() {
    let scenario = Scenario { generation_max: 3, ..ALWAYS };
    holds("always", &LeaseMajority { rules: ALWAYS_NEEDS, scenario }, 10_280);
}

#[test]
fn always_holds_with_a_crash() {
    let scenario = Scenario { generation_max: 3, crashes: 1, ..ALWAYS };
    holds("always, crash", &LeaseMajority { rules: ALWAYS_NEEDS, scenario }, 19_136);
}

#[test]
fn always_holds_with_a_leaver() {
    let scenario = Scenario { leavers: 1, ..ALWAYS };
    holds("always, leaver", &LeaseMajority { rules: ALWAYS_NEEDS, scenario }, 88_154);
}

#[test]
fn always_holds_with_four_nodes() {
    let scenario = Scenario { nodes: 4, ..ALWAYS };
    holds("always, four nodes", &LeaseMajority { rules: ALWAYS_NEEDS, scenario }, 1_230_680);
}

#[test]
fn always_holds_with_a_joiner() {
    let scenario = Scenario { joiners: 1, ..ALWAYS };
    holds("always, joiner", &LeaseMajority { rules: ALWAYS_NEEDS, scenario }, 7_723_100);
}

/// The two rules that `always` does not need do no harm there.
#[test]
fn always_holds_with_all_rules() {
    let scenario = Scenario { leavers: 1, ..ALWAYS };
    holds("always, leaver, all rules", &LeaseMajority { rules: ALL, scenario }, 43_008);
}

/// A side of one wins and crashes; the others read that they lost. Formation has to help.
#[test]
fn always_may_leave_nobody_after_a_crash() {
    let scenario = Scenario { crashes: 1, all_may_die: false, ..ALWAYS };
    strands("always, nobody left", &LeaseMajority { rules: ALWAYS_NEEDS, scenario }, 208);
}

#[test]
fn always_needs_a_conditional_acquisition() {
    let model = LeaseMajority { rules: Rules::BARE, scenario: ALWAYS };
    breaks("always, bare rules", &model, TWO, 7);
    let rules = Rules { acquisition: Acquisition::Unconditional, ..ALWAYS_NEEDS };
    let model = LeaseMajority { rules, scenario: ALWAYS };
    breaks("always, unconditional", &model, TWO, 7);
}

/// The note is overwritten by then: another node of the side reads it and follows it.
#[test]
fn always_is_not_helped_by_a_look_at_the_former_record() {
    let rules = Rules { acquisition: Acquisition::CheckedAfterwards, ..Rules::BARE };
    let model = LeaseMajority { rules, scenario: ALWAYS };
    breaks("always, checked afterwards", &model, TWO, 7);
}

/// A verdict that is read late downs a member that became Up after it, and that asks alone.
#[test]
fn always_needs_a_leader_that_waits_for_convergence() {
    let rules = Rules { leader_waits_for_convergence: false, ..ALWAYS_NEEDS };
    let scenario = Scenario { joiners: 1, ..ALWAYS };
    breaks("always, Up on any view", &LeaseMajority { rules, scenario }, TWO, 12);
}

#[test]
fn always_needs_the_note_to_be_kept() {
    let rules = Rules { note_is_kept: false, ..ALWAYS_NEEDS };
    breaks("always, note lost", &LeaseMajority { rules, scenario: ALWAYS }, TWO, 7);
}

#[test]
fn always_needs_unknown_to_mean_wait() {
    let rules = Rules { unknown_means_wait: false, ..ALWAYS_NEEDS };
    breaks("always, Unknown survives", &LeaseMajority { rules, scenario: ALWAYS }, TWO, 5);
}

/// The leaver tells one member that it ends, and not that there is a new member. They then count
/// one another out. Without a joiner it does not matter.
#[test]
fn always_needs_leavers_that_tell_their_view() {
    let rules = Rules { leavers_tell_their_view: false, ..ALWAYS_NEEDS };
    let scenario = Scenario { leavers: 1, ..ALWAYS };
    holds("always, leaver tells its end", &LeaseMajority { rules, scenario }, 92_706);
    let scenario = Scenario { nodes: 2, joiners: 1, leavers: 1, ..ALWAYS };
    let model = LeaseMajority { rules, scenario };
    breaks("always, joiner, leaver tells its end", &model, TWO, 9);
}

#[test]
fn always_holds_with_a_joiner_and_a_leaver() {
    let scenario = Scenario { nodes: 2, joiners: 1, leavers: 1, ..ALWAYS };
    holds("always, joiner, leaver", &LeaseMajority { rules: ALWAYS_NEEDS, scenario }, 359_702);
}

/// Not for safety: there are more ways in which nobody is left, 376 instead of 208.
#[test]
fn always_loses_more_if_lost_means_down() {
    let rules = Rules { lost_means_wait: false, ..ALWAYS_NEEDS };
    let scenario = Scenario { crashes: 1, all_may_die: false, ..ALWAYS };
    strands("always, Lost downs", &LeaseMajority { rules, scenario }, 376);
}

/// Redundant for safety, since an acquisition is conditional: it is what tells the losers.
#[test]
fn always_is_safe_without_reading_first() {
    let rules = Rules { record_is_read_first: false, ..ALWAYS_NEEDS };
    holds("always, not read first", &LeaseMajority { rules, scenario: ALWAYS }, 6_140);
}

/// Redundant while the leader waits for convergence: there is nobody whom only the older view knows.
#[test]
fn always_is_safe_without_whole_verdicts() {
    let rules = Rules { verdict_travels_whole: false, ..ALWAYS_NEEDS };
    let scenario = Scenario { joiners: 1, ..ALWAYS };
    holds("always, joiner, verdicts in parts", &LeaseMajority { rules, scenario }, 7_733_934);
    let scenario = Scenario { nodes: 2, joiners: 1, leavers: 1, ..ALWAYS };
    holds("always, both, verdicts in parts", &LeaseMajority { rules, scenario }, 359_718);
}

// `ties`: one survivor for clean splits that heal and converge before the next.

#[test]
fn ties_holds_in_one_split() {
    holds("ties", &LeaseMajority { rules: ALL, scenario: TIES }, 1_791);
}

#[test]
fn ties_holds_in_three_calm_splits() {
    let scenario = Scenario { network: splits(3, true), ..TIES };
    holds("ties, three calm splits", &LeaseMajority { rules: ALL, scenario }, 294_043);
}

#[test]
fn ties_holds_in_two_shifting_splits() {
    let scenario = Scenario { network: splits(2, false), ..TIES };
    holds("ties, two shifting splits", &LeaseMajority { rules: ALL, scenario }, 117_966);
}

#[test]
fn ties_holds_with_a_crash() {
    let scenario = Scenario { crashes: 1, ..TIES };
    holds("ties, crash", &LeaseMajority { rules: ALL, scenario }, 15_967);
}

#[test]
fn ties_holds_with_a_leaver() {
    let scenario = Scenario { leavers: 1, ..TIES };
    holds("ties, leaver", &LeaseMajority { rules: ALL, scenario }, 58_906);
}

#[test]
fn ties_holds_with_a_joiner() {
    let scenario = Scenario { joiners: 1, ..TIES };
    holds("ties, joiner", &LeaseMajority { rules: ALL, scenario }, 237_925);
}

/// A decision that a majority took without the lease still spreads after one of its nodes has asked
/// with the other side. `ties` does not promise to survive this; `always` does.
#[test]
fn ties_does_not_promise_three_shifting_splits() {
    let scenario = Scenario { network: splits(3, false), ..TIES };
    breaks("ties, three shifting splits", &LeaseMajority { rules: ALL, scenario }, TWO, 15);
}

/// The same with one split less, if one of those who know of the decision leaves.
#[test]
fn ties_does_not_promise_two_shifting_splits_and_a_leaver() {
    let scenario = Scenario { network: splits(2, false), leavers: 1, ..TIES };
    let model = LeaseMajority { rules: ALL, scenario };
    breaks("ties, two shifting splits, leaver", &model, TWO, 14);
}

/// Safe, but the counts may disagree for ever if the node is dead that could settle them.
#[test]
fn ties_may_wait_for_ever_after_shifting_splits_and_a_crash() {
    let scenario = Scenario { network: splits(2, false), crashes: 1, ..TIES };
    strands("ties, two shifting splits, crash", &LeaseMajority { rules: ALL, scenario }, 803);
}

/// The leader asks and crashes, the rest of its side is a minority and ends, then it has won.
#[test]
fn ties_may_leave_nobody_after_a_crash() {
    let model = LeaseMajority { rules: ALL, scenario: NOBODY_LEFT };
    strands("ties, nobody left", &model, 216);
}

#[test]
fn ties_needs_a_conditional_acquisition() {
    let model = LeaseMajority { rules: Rules::BARE, scenario: TIES };
    breaks("ties, bare rules", &model, TWO, 10);
    holds("ties, conditional", &LeaseMajority { rules: CONDITIONAL, scenario: TIES }, 3_787);
}

/// A status changed, and what is no majority under both counts counts as equal: a minority asks and
/// wins beside a majority that does not ask.
#[test]
fn ties_needs_doubt_not_to_count_as_equal() {
    for (name, scenario, steps) in [
        ("a leaver", Scenario { leavers: 1, ..TIES }, 11),
        ("a joiner", Scenario { joiners: 1, ..TIES }, 8),
        ("two splits", Scenario { network: splits(2, false), ..TIES }, 9),
    ] {
        let model = LeaseMajority { rules: CONDITIONAL, scenario };
        breaks(&format!("ties, conditional only, {name}"), &model, TWO, steps);
    }
}

/// A request whose outcome nobody heard, and a majority that lives on without the lease.
#[test]
fn ties_needs_asks_to_be_announced() {
    let rules = Rules { asks_are_announced: false, ..ALL };
    let scenario = Scenario { network: splits(2, true), ..TIES };
    breaks("ties, asks unannounced", &LeaseMajority { rules, scenario }, TWO, 12);
}

#[test]
fn ties_needs_a_side_that_has_seen_the_view() {
    let rules = Rules { side_has_seen_view: false, ..ALL };
    let scenario = Scenario { network: splits(2, false), ..TIES };
    breaks("ties, views unseen", &LeaseMajority { rules, scenario }, TWO, 14);
}

#[test]
fn ties_needs_two_counts() {
    let rules = Rules {
        counts: Counts::PresentOnly,
        asks_are_announced: false,
        side_has_seen_view: false,
        ..ALL
    };
    let scenario = Scenario { network: splits(2, false), ..TIES };
    breaks("ties, present members only", &LeaseMajority { rules, scenario }, TWO, 9);
}

/// A loser hears that the leaver ends, but not that it has lost.
#[test]
fn ties_needs_leavers_that_tell_their_view() {
    let rules = Rules { leavers_tell_their_view: false, ..ALL };
    let scenario = Scenario { leavers: 1, ..TIES };
    holds("ties, leaver tells its end", &LeaseMajority { rules, scenario }, 67_017);
    let scenario = Scenario { nodes: 2, joiners: 1, leavers: 1, ..TIES };
    let model = LeaseMajority { rules, scenario };
    breaks("ties, joiner, leaver tells its end", &model, TWO, 17);
}

/// Safe, but one may be left that waits for ever: half of the two that last agreed, and a minority
/// of the three that it counts since.
#[test]
fn ties_may_wait_for_ever_with_a_joiner_and_a_leaver() {
    let scenario = Scenario { nodes: 2, joiners: 1, leavers: 1, ..TIES };
    strands("ties, joiner, leaver", &LeaseMajority { rules: ALL, scenario }, 90);
}

/// Safe, but of five nodes two may be left that wait for ever: a majority of the three that they
/// count, and a minority of the five that last agreed.
#[test]
fn ties_may_wait_for_ever_with_five_nodes_and_a_crash() {
    let scenario = Scenario { nodes: 5, crashes: 1, ..TIES };
    strands("ties, five nodes, crash", &LeaseMajority { rules: ALL, scenario }, 790);
}

/// The same without a crash, if the second split comes before anybody noticed that all agree.
#[test]
fn ties_may_wait_for_ever_after_a_split_before_convergence_is_noticed() {
    let scenario = Scenario { nodes: 5, network: splits(2, true), ..TIES };
    strands("ties, five nodes, two calm splits", &LeaseMajority { rules: ALL, scenario }, 300);
    let scenario = Scenario { nodes: 3, joiners: 1, network: splits(2, true), ..TIES };
    strands("ties, joiner, two calm splits", &LeaseMajority { rules: ALL, scenario }, 72);
}

/// With two counts a member made Up during the split turns its side into an equal one, which asks.
#[test]
fn ties_is_safe_without_the_leader_rule_alone() {
    let scenario = Scenario { joiners: 1, ..TIES };
    let rules = Rules { leader_waits_while_unreachable: false, ..ALL };
    let model = LeaseMajority { rules, scenario };
    holds("ties, leader does not wait for reachability", &model, 279_410);
    let model = LeaseMajority { rules: LEADER_ACTS, scenario };
    holds("ties, leader waits for nothing", &model, 462_471);
}

#[test]
fn ties_needs_the_leader_rule_or_two_counts() {
    let rules = Rules { counts: Counts::PresentOnly, ..LEADER_ACTS };
    let scenario = Scenario { joiners: 1, ..TIES };
    let model = LeaseMajority { rules, scenario };
    breaks("ties, leader waits for nothing, one count", &model, TWO, 14);
}

/// Redundant, as in `always`.
#[test]
fn ties_is_safe_without_whole_verdicts() {
    let rules = Rules { verdict_travels_whole: false, ..ALL };
    let scenario = Scenario { joiners: 1, ..TIES };
    holds("ties, joiner, verdicts in parts", &LeaseMajority { rules, scenario }, 248_797);
}

/// Safe, but a side can end that another side waits for.
#[test]
fn ties_needs_doubt_not_to_count_as_a_minority() {
    let rules = Rules { counts: Counts::DoubtIsMinority, ..ALL };
    let scenario = Scenario { network: splits(3, true), ..TIES };
    strands("ties, doubt is minority", &LeaseMajority { rules, scenario }, 158);
}

/// Redundant for safety; but without it sides wait for ever whose counts disagree.
#[test]
fn ties_needs_merged_verdicts_as_convergence_for_liveness_alone() {
    let rules = Rules { verdict_counts_as_convergence: false, ..ALL };
    let scenario = Scenario { network: splits(3, true), ..TIES };
    strands("ties, verdict no convergence", &LeaseMajority { rules, scenario }, 4_510);
}

#[test]
fn ties_needs_lost_joiners_to_be_downed_for_liveness_alone() {
    let rules = Rules { lost_joiners_are_downed: false, ..ALL };
    let scenario = Scenario { joiners: 1, ..TIES };
    strands("ties, lost joiners stay", &LeaseMajority { rules, scenario }, 10);
}

/// Not for safety: there are more ways in which nobody is left, 224 instead of 216.
#[test]
fn ties_loses_more_if_a_minority_does_not_wait_for_the_record() {
    let rules = Rules { minority_waits_for_record: false, ..ALL };
    let model = LeaseMajority { rules, scenario: NOBODY_LEFT };
    strands("ties, minority does not wait", &model, 224);
}

/// Not for safety: there are more ways in which nobody is left, 2,020 instead of 1,768.
#[test]
fn ties_loses_more_if_a_minority_does_not_wait_for_its_ask() {
    let scenario = Scenario { network: splits(2, true), ..NOBODY_LEFT };
    let name = "ties, two calm splits, nobody left";
    strands(name, &LeaseMajority { rules: ALL, scenario }, 1_768);
    let rules = Rules { minority_waits_for_its_ask: false, ..ALL };
    strands("ties, minority ends with its ask", &LeaseMajority { rules, scenario }, 2_020);
}

/// Not for safety: there are more ways in which nobody is left, 300 instead of 216.
#[test]
fn ties_loses_more_if_lost_means_down() {
    let rules = Rules { lost_means_wait: false, ..ALL };
    let model = LeaseMajority { rules, scenario: NOBODY_LEFT };
    strands("ties, Lost downs", &model, 300);
}

// Partial cuts in `ties`: any combination of links.

#[test]
fn ties_holds_in_a_partial_cut_that_stays() {
    let scenario = Scenario { network: cuts(1, false, false), ..TIES };
    holds("ties, partial cut stays", &LeaseMajority { rules: ALL, scenario }, 3_867);
}

#[test]
fn ties_holds_in_a_partial_cut_that_heals() {
    let scenario = Scenario { network: cuts(1, false, true), ..TIES };
    holds("ties, partial cut heals", &LeaseMajority { rules: ALL, scenario }, 5_238);
}

#[test]
fn ties_holds_in_a_partial_cut_of_five_nodes() {
    let scenario = Scenario { nodes: 5, network: cuts(1, false, false), ..TIES };
    holds("ties, partial cut of five", &LeaseMajority { rules: ALL, scenario }, 29_711);
}

#[test]
fn ties_holds_in_a_partial_cut_with_a_crash() {
    let scenario = Scenario { network: cuts(1, false, false), crashes: 1, ..TIES };
    holds("ties, partial cut, crash", &LeaseMajority { rules: ALL, scenario }, 58_253);
}

#[test]
fn ties_holds_in_two_calm_partial_cuts() {
    let scenario = Scenario { network: cuts(2, true, true), ..TIES };
    holds("ties, two calm partial cuts", &LeaseMajority { rules: ALL, scenario }, 289_006);
}

/// This covers two nodes that decide on different pictures of the network at the same time.
#[test]
fn ties_holds_in_two_shifting_partial_cuts() {
    let scenario = Scenario { network: cuts(2, false, true), ..TIES };
    holds("ties, two shifting partial cuts", &LeaseMajority { rules: ALL, scenario }, 698_324);
}

/// If everybody takes those whom it reaches for its side, sides overlap: a node announces with one
/// side that it will ask, and follows the majority of another.
#[test]
fn ties_needs_indirectly_connected_nodes_to_be_dropped() {
    let rules = Rules { sides: Sides::OwnReach, ..ALL };
    let scenario = Scenario { network: cuts(2, false, true), ..TIES };
    breaks("ties, sides overlap", &LeaseMajority { rules, scenario }, TWO, 14);
}

/// Of three nodes one may be left that waits for ever: it is half of the two that it counts, and a
/// minority of the three that last agreed.
#[test]
fn ties_may_wait_for_ever_with_three_nodes_in_shifting_partial_cuts() {
    let scenario = Scenario { nodes: 3, network: cuts(2, false, true), ..TIES };
    strands("ties, three nodes, two shifting", &LeaseMajority { rules: ALL, scenario }, 25);
}

/// All links are there but those between the leaves of a star, or all but those of a ring: two
/// nodes are left that reach each other, a minority of five, and nobody lives on.
#[test]
fn ties_does_not_promise_that_somebody_is_left_of_a_star_or_a_ring_of_five() {
    nobody_is_left("star", &[(1, 2), (1, 3), (1, 4), (2, 3), (2, 4), (3, 4)], 18);
    nobody_is_left("ring", &[(0, 2), (0, 3), (1, 3), (1, 4), (2, 4)], 7);
}

/// Three of five reach each other, but the most cut nodes that are dropped are among them, and each
/// side of two that is left in turn is a minority.
#[test]
fn ties_does_not_promise_that_a_majority_which_reaches_itself_lives_on() {
    assert_eq!(kept_and_lost(Sides::MostCutDropped), (627, 8));
}

/// Nobody would be lost if the largest part that reaches itself were the side, and two shifting cuts
/// would be as safe.
#[test]
fn ties_would_keep_a_majority_which_reaches_itself_if_the_largest_part_were_kept() {
    assert_eq!(kept_and_lost(Sides::LargestKept), (635, 0));
    let rules = Rules { sides: Sides::LargestKept, ..ALL };
    let scenario = Scenario { network: cuts(2, false, true), ..TIES };
    holds("ties, largest kept, two shifting cuts", &LeaseMajority { rules, scenario }, 698_385);
}

/// In how many of the cuts of five nodes that leave three who reach each other somebody lives on,
/// and in how many nobody. Without three such nodes nobody does.
fn kept_and_lost(sides: Sides) -> (usize, usize) {
    let rules = Rules { sides, ..ALL };
    let pairs = (0..5).flat_map(|a| (a + 1..5).map(move |b| (a, b)));
    let triples: Vec<_> = pairs.flat_map(|(a, b)| (b + 1..5).map(move |c| (a, b, c))).collect();
    let (mut kept, mut lost) = (0, 0);
    for cut in Links::combinations(5) {
        let is_whole = |&(a, b, c): &(usize, usize, usize)| {
            !cut.contains(a, b) && !cut.contains(b, c) && !cut.contains(a, c)
        };
        let has_majority = triples.iter().any(is_whole);
        let scenario = Scenario { all_may_die: false, ..stays_cut(cut) };
        let report = check(&LeaseMajority { rules, scenario }, Limits::default());
        match report.verdict {
            Verdict::Holds if has_majority => kept += 1,
            Verdict::DeadEnds { .. } if has_majority => lost += 1,
            Verdict::DeadEnds { .. } => {}
            Verdict::Holds | Verdict::Unsafe { .. } | Verdict::Bounded => {
                panic!("{cut} cut: {report:?}")
            }
        }
    }
    (kept, lost)
}

/// Five nodes, each connected to all by some chain of links, of which nobody lives on when `cut` links
/// are cut. But for the first and that in which nothing was decided yet, all states are dead ends.
fn nobody_is_left(name: &str, cut: &[(usize, usize)], states: usize) {
    let scenario = stays_cut(Links::from_pairs(cut.iter().copied()));
    holds(name, &LeaseMajority { rules: ALL, scenario }, states);
    let scenario = Scenario { all_may_die: false, ..scenario };
    let name = format!("{name}, somebody should be left");
    strands(&name, &LeaseMajority { rules: ALL, scenario }, states - 2);
}

/// Five nodes, of whose links these are cut and stay so.
fn stays_cut(cut: Links) -> Scenario {
    let network = Network::PartialCuts { count: 1, calm: false, heals: false, only: Some(cut) };
    Scenario { nodes: 5, network, ..TIES }
}

const fn splits(count: u8, calm: bool) -> Network {
    Network::Splits { count, calm }
}

const fn cuts(count: u8, calm: bool, heals: bool) -> Network {
    Network::PartialCuts { count, calm, heals, only: None }
}

const TWO: Violation = Violation::TwoSettledClusters;

const ALL: Rules = Rules::ALL;

/// The rules without two that matter only where sides are counted. A side may then decide on any
/// view: there is more to explore, and it holds all the same.
const ALWAYS_NEEDS: Rules =
    Rules { side_has_seen_view: false, verdict_counts_as_convergence: false, ..ALL };

/// The bare rules, but for the acquisition.
const CONDITIONAL: Rules = Rules { acquisition: Acquisition::IfUnchanged, ..Rules::BARE };

/// The leader makes joiners Up whenever it sees them.
const LEADER_ACTS: Rules =
    Rules { leader_waits_while_unreachable: false, leader_waits_for_convergence: false, ..ALL };

const ALWAYS: Scenario = Scenario::ALWAYS;

const TIES: Scenario = Scenario::TIES;

/// One split and a crash, and somebody should be left.
const NOBODY_LEFT: Scenario = Scenario { crashes: 1, all_may_die: false, ..TIES };
