//! Campaigns of five whole nodes, with a singleton and sharded entities, under every fault at once.
//!
//! ```sh
//! TENURE_WORLD_SECONDS=300 TENURE_WORLD_BASE=7000 cargo test-all --test world_campaign -- --nocapture fresh
//! TENURE_WORLD_SEED=7 TENURE_WORLD_TRACE=1 cargo test-all --test world_campaign -- --nocapture fresh
//! ```
#![allow(clippy::disallowed_methods, reason = "time is virtual")]

mod world_kit;

use std::time::Duration;

use tenure_testkit::world::{Summary, World, check, fresh_seeds};
use world_kit::Shop;

async fn five_nodes(world: World) {
    let shop = Shop::open(world, 5).await;
    shop.disturb(shop.world.random_millis(15_000..50_000)).await;
    shop.recover().await;
}

fn print(summary: Summary) {
    let Summary { seeds, twice, virtual_time, wall_time } = summary;
    let rate = virtual_time.as_secs_f64() / wall_time.as_secs_f64();
    println!(
        "{seeds} seeds, {twice} of them twice: {:.0} virtual seconds in {:.1} s of one core: {rate:.0} a second",
        virtual_time.as_secs_f64(),
        wall_time.as_secs_f64()
    );
}

#[test]
fn nothing_runs_twice_and_nothing_is_lost_on_fresh_seeds() {
    print(check(fresh_seeds(10), five_nodes));
}

const RECORDED: [u64; 2] = [20_774_000_000, 20_774_000_003];

/// Seeds that once failed. With changes to the code their schedules become others; they are still hard ones.
///
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
        let shop = Shop::open(world, 5).await;
        shop.world.sleep(Duration::from_secs(20)).await;
        shop.recover().await;
        assert!(shop.book.answered() > 800, "{}", shop.book.totals());
    }));
}
