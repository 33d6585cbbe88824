//! Defects put back into the drivers, one at a time: the campaign finds each, here from a recorded seed.
//!
//! ```sh
//! TENURE_WORLD_SEEDS=2000 cargo test-all --test world_planted -- --nocapture   # from scratch
//! ```
#![allow(clippy::disallowed_methods, reason = "time is virtual")]

mod world_kit;

use tenure_lease::planted::{GlueBug, plant};
use tenure_testkit::world::{Failure, find};
use world_kit::five_nodes;

/// Finds a defect from the seed that is known to, or from scratch.
fn must_be_found(bug: GlueBug, seed: u64, by: &str) {
    let scratch = std::env::var("TENURE_WORLD_SEEDS").ok().and_then(|count| count.parse().ok());
    let seeds = scratch.map_or(seed..seed + 1, |count| 0..count);
    let failure = find(seeds, move |world| {
        plant(bug);
        five_nodes(world)
    });
    let Failure { seed, story } = failure.unwrap_or_else(|| panic!("{bug:?} is not found"));
    println!("{bug:?} is found by seed {seed}: {}", story.lines().last().unwrap_or_default());
    assert!(story.contains(by), "seed {seed} fails, but not so: {story}");
}

#[test]
fn an_outbox_that_does_not_pause_is_found() {
    must_be_found(GlueBug::OutboxDoesNotPause, 20_774_000_000, "blocks its thread");
}

#[test]
fn a_question_that_does_not_pause_is_found() {
    must_be_found(GlueBug::AskDoesNotPause, 1066, "blocks its thread");
}

#[test]
fn a_proxy_that_does_not_pause_is_found() {
    must_be_found(GlueBug::ProxyDoesNotPause, 0, "blocks its thread");
}

#[test]
#[ignore = "no seed is known yet that finds it"]
fn a_stop_budget_that_is_ignored_is_found() {
    must_be_found(GlueBug::StopBudgetIgnored, 0, "works on");
}

#[test]
#[ignore = "no seed is known yet that finds it"]
fn tells_that_are_lost_while_a_singleton_starts_are_found() {
    must_be_found(GlueBug::TellsLostWhileStarting, 0, "were lost");
}

#[test]
#[ignore = "no seed is known yet that finds it"]
fn a_batch_that_is_lost_at_an_error_is_found() {
    must_be_found(GlueBug::BatchLostAtError, 0, "were lost");
}

#[test]
fn a_cut_that_nobody_is_told_of_is_found() {
    must_be_found(GlueBug::CutIsNotTold, 2, "were lost");
}

#[test]
fn a_lost_session_that_is_ignored_is_found() {
    must_be_found(GlueBug::SessionLossIgnored, 3, "works on");
}
