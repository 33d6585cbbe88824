//! Failovers of five real processes, many of one kind: `TENURE_ROUNDS=50 cargo test --release -p
//! tenure-cli --test demo_rounds -- --nocapture --test-threads=1` measures; by default a few are checked.
#![cfg(all(target_os = "linux", feature = "demo"))]
#![allow(clippy::disallowed_methods)]

mod common;
mod rounds;

use rounds::{Play, at_most, ttl};
use serde_json::Value;

fn rounds() -> (usize, bool) {
    rounds::rounds(3)
}

/// Plays these steps so many times, each round this long at a ttl of 3 s, and returns the sum of it.
fn play(what: &str, count: usize, steps: &[(f64, &str)], length: f64) -> Value {
    let sum = Play { what, options: &[], first: &[], steps, length }.times(count);
    assert!(sum["failovers"].as_u64().unwrap() >= count as u64, "{sum}");
    sum
}

/// The host leaves and comes back at its address; the next one leaves soon after.
#[test]
fn handed_over() {
    let sum = play("handed over", rounds().0, &[(0.0, "leave holder"), (1.5, "restart")], 3.5);
    if std::env::var("TENURE_ROUNDS_STORE").is_err() {
        at_most(&sum, "gap_ms_p50", 10.0);
    }
    at_most(&sum, "silence_ms_p50", 50.0);
    at_most(&sum, "silence_ms_max", 250.0);
}

#[test]
fn killed() {
    let sum = play("killed", rounds().0, &[(0.0, "kill holder"), (5.0, "restart")], 8.0);
    at_most(&sum, "gap_ms_max", (ttl() + 1.0) * 1000.0);
}

/// Nobody can renew for three ttls.
#[test]
fn store_away() {
    let steps = [(0.0, "store away"), (9.0, "store back")];
    let sum = play("store away", rounds().0.min(10), &steps, 16.0);
    // From the stop, within the ttl, until five seconds after the store is back.
    at_most(&sum, "gap_ms_max", (3.0 * ttl() + 5.0) * 1000.0);
}

/// The host alone cannot renew.
#[test]
fn host_without_store() {
    let steps = [(0.0, "store away holder"), (8.0, "store back")];
    let sum = play("host without store", rounds().0, &steps, 11.0);
    at_most(&sum, "gap_ms_max", (ttl() + 2.0) * 1000.0);
}

/// The host stands still for two ttls.
#[test]
fn stopped() {
    let pause = format!("pause holder {}s", 2.0 * ttl());
    let sum = play("stopped", rounds().0, &[(0.0, &pause)], 10.0);
    if rounds().1 {
        assert!(sum["stale_writes_refused"].as_u64().unwrap() > 0, "no zombie has written");
    }
}
