//! Campaigns of five whole nodes, with a singleton and sharded entities, under every fault at once.
//!
//! ```sh
//! TENURE_WORLD_SECONDS=300 TENURE_WORLD_SEEDS=10000 TENURE_WORLD_BASE=7000 cargo test-all --test world_campaign -- --nocapture fresh
//! TENURE_WORLD_SEED=7 TENURE_WORLD_TRACE=1 cargo test-all --test world_campaign -- --nocapture --exact fresh_seeds_of_hosts_that_are_cut_off
//! ```
#![allow(clippy::disallowed_methods, reason = "time is virtual")]

mod world_kit;

use std::time::Duration;

use tenure_testkit::world::{Summary, check, fresh_seeds};
use world_kit::{Habits, Shop, five_nodes, hosts_cut_off, rolling};

fn print(summary: Summary) {
    let Summary { seeds, twice, virtual_time, core_time } = summary;
    let rate = virtual_time.as_secs_f64() / core_time.as_secs_f64();
    println!(
        "{seeds} seeds, {twice} of them twice: {:.0} virtual seconds in {:.1} s of a core: {rate:.0} a second",
        virtual_time.as_secs_f64(),
        core_time.as_secs_f64()
    );
}

#[test]
#[ignore = "open: about one of a hundred seeds breaks the order of messages, 77000416 for one"]
fn nothing_runs_twice_and_nothing_is_lost_on_fresh_seeds() {
    print(check(fresh_seeds(20), five_nodes));
}

#[test]
fn fresh_seeds_of_hosts_that_are_cut_off() {
    print(check(fresh_seeds(20), hosts_cut_off));
}

#[test]
fn fresh_seeds_of_nodes_that_leave_and_a_singleton_that_fails() {
    print(check(fresh_seeds(10), rolling));
}

const RECORDED: [u64; 7] = [0, 1066, 1100, 1145, 6016, 20_774_000_000, 20_774_000_003];

/// Seeds that once failed. With changes to the code their schedules become others; they are still hard ones.
///
/// * 0: what waited on a node that started over in a newer cluster was lost without a dead letter.
/// * 1066: questions to a singleton went round between a proxy and the manager of its own node without a pause.
/// * 6016: a node that stood still for 16 s answered a mark before its shards had been told that its session was
///   over; what they gave back then came after later messages had been sent to their new home.
/// * 20774000000: while a coordinator's own transport closed, messages to other nodes went round between
///   its outbox and its region without a pause. Later: a singleton's proxy that knew the host and waited
///   for the mark of the former one looked again without a pause.
#[test]
fn seeds_that_failed_once_pass() {
    for seed in RECORDED {
        print(check(seed..seed + 1, five_nodes));
    }
}

/// Without faults nothing may be lost at all.
#[test]
fn without_faults_every_question_is_answered() {
    print(check(0..3, |world| async move {
        let shop = Shop::open(world, 5, Habits::default()).await;
        shop.world.sleep(Duration::from_secs(20)).await;
        shop.recover().await;
        assert!(shop.book.answered() > 800, "{}", shop.book.totals());
    }));
}
