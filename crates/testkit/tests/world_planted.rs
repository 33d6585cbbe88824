//! Defects put back into the drivers, one at a time: the campaign finds each, here from a recorded seed.
//!
//! ```sh
//! TENURE_WORLD_SEEDS=2000 cargo test-all --test world_planted -- --nocapture   # from scratch
//! ```
#![allow(clippy::disallowed_methods, reason = "time is virtual")]

mod world_kit;

use tenure_lease::planted::{GlueBug, plant};
use tenure_testkit::world::{Failure, World, find};
use world_kit::{five_nodes, hosts_cut_off, rolling};

/// Finds a defect from the seed that is known to, or from scratch.
fn must_be_found<F, R>(bug: GlueBug, scenario: F, seed: u64, by: &str)
where
    F: Fn(World) -> R + Send + Sync + 'static,
    R: Future<Output = ()> + Send + 'static,
{
    let scratch = std::env::var("TENURE_WORLD_SEEDS").ok().and_then(|count| count.parse().ok());
    let seeds = scratch.map_or(seed..seed + 1, |count| 0..count);
    let failure = find(seeds, move |world| {
        plant(bug);
        scenario(world)
    });
    let Failure { seed, story } = failure.unwrap_or_else(|| panic!("{bug:?} is not found"));
    println!("{bug:?} is found by seed {seed}: {}", story.lines().last().unwrap_or_default());
    assert!(story.contains(by), "seed {seed} fails, but not so: {story}");
}

#[test]
fn an_outbox_that_does_not_pause() {
    must_be_found(GlueBug::OutboxDoesNotPause, five_nodes, 20_774_000_000, "blocks its thread");
}

#[test]
fn a_question_that_does_not_pause() {
    must_be_found(GlueBug::AskDoesNotPause, five_nodes, 1066, "blocks its thread");
}

#[test]
fn a_proxy_that_does_not_pause() {
    must_be_found(GlueBug::ProxyDoesNotPause, five_nodes, 0, "blocks its thread");
}

#[test]
fn a_stop_budget_that_is_ignored() {
    must_be_found(GlueBug::StopBudgetIgnored, hosts_cut_off, 0, "works on");
}

#[test]
fn tells_that_are_lost_while_a_singleton_starts() {
    must_be_found(GlueBug::TellsLostWhileStarting, rolling, 0, "were lost");
}

#[test]
fn a_batch_that_is_lost_at_an_error() {
    must_be_found(GlueBug::BatchLostAtError, rolling, 0, "were lost");
}

#[test]
fn a_cut_that_nobody_is_told_of() {
    must_be_found(GlueBug::CutIsNotTold, five_nodes, 2, "were lost");
}

#[test]
fn a_lost_session_that_is_ignored() {
    must_be_found(GlueBug::SessionLossIgnored, five_nodes, 3, "works on");
}

#[test]
fn a_mark_that_overtakes_a_stop() {
    must_be_found(GlueBug::MarkOvertakesStop, five_nodes, 6016, "was handled before");
}

#[test]
fn leftovers_that_are_lost() {
    must_be_found(GlueBug::LeftoversLost, rolling, 2, "were lost");
}

#[test]
fn messages_that_are_lost_while_a_shard_stops() {
    must_be_found(GlueBug::HeldMessagesLost, rolling, 1, "were lost");
}

#[test]
fn messages_that_are_lost_on_their_way_back() {
    must_be_found(GlueBug::ReturnsLost, rolling, 0, "were lost");
}

#[test]
fn messages_that_a_former_host_returns_in_vain() {
    must_be_found(GlueBug::SingletonReturnsLost, rolling, 6, "were lost");
}

#[test]
fn a_refusal_that_nobody_is_told_of() {
    must_be_found(GlueBug::RefusalIsNotTold, five_nodes, 0, "were lost");
}

#[test]
fn messages_that_never_left_and_nobody_is_told_of() {
    must_be_found(GlueBug::UnsentIsNotTold, five_nodes, 0, "were lost");
}

#[test]
fn a_lost_lease_that_is_ignored() {
    must_be_found(GlueBug::LeaseLossIgnored, hosts_cut_off, 0, "works on");
}

#[test]
fn a_question_without_an_answer_that_is_said_not_to_be_done() {
    must_be_found(GlueBug::NoAnswerIsNotDone, five_nodes, 3, "said not to be done");
}

#[test]
#[ignore = "no seed is known yet that finds it"]
fn a_cut_question_that_is_said_not_to_be_done() {
    must_be_found(GlueBug::CutQuestionIsNotDone, five_nodes, 0, "said not to be done");
}

#[test]
#[ignore = "no seed is known yet that finds it"]
fn unsendable_messages_that_are_lost() {
    must_be_found(GlueBug::UnsendableMessagesLost, rolling, 0, "were lost");
}

#[test]
#[ignore = "no seed is known yet that finds it: regions obey the highest term alone"]
fn a_coordinator_whose_lost_lease_is_ignored() {
    must_be_found(GlueBug::CoordinatorLossIgnored, hosts_cut_off, 0, "works on");
}

#[test]
#[ignore = "no seed is known yet that finds it"]
fn a_way_that_opens_too_early() {
    must_be_found(GlueBug::WayOpensTooEarly, rolling, 0, "was handled before");
}

#[test]
#[ignore = "no seed is known yet that finds it"]
fn parked_messages_that_are_lost() {
    must_be_found(GlueBug::ParkedMessagesLost, rolling, 0, "were lost");
}

#[test]
#[ignore = "no seed is known yet that finds it"]
fn an_unknown_verdict_that_is_taken_for_none() {
    must_be_found(GlueBug::UnknownVerdictIsNone, hosts_cut_off, 0, "not all are members");
}

#[test]
#[ignore = "no seed is known yet that finds it"]
fn links_of_a_fresh_process_that_are_closed() {
    must_be_found(GlueBug::FreshLinksClosed, five_nodes, 0, "not all are members");
}
