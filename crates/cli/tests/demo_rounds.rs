//! Failovers of five real processes, many of one kind: `TENURE_ROUNDS=50 cargo test --release -p
//! tenure-cli --test demo_rounds -- --nocapture --test-threads=1` measures; by default a few are checked.
//!
//! `TENURE_ROUNDS_STORE` names another store than a directory, `TENURE_ROUNDS_TTL` another ttl than 3
//! seconds.
#![cfg(all(target_os = "linux", feature = "demo"))]
#![allow(clippy::disallowed_methods)]

mod common;

use std::fmt::Write as _;
use std::fs::{self, File};

use common::*;
use serde_json::Value;

/// How many, and whether times are checked, too.
fn rounds() -> (usize, bool) {
    match std::env::var("TENURE_ROUNDS") {
        Ok(count) => (count.parse().expect("TENURE_ROUNDS is a number"), true),
        Err(_) => (3, false),
    }
}

/// In seconds.
fn ttl() -> f64 {
    std::env::var("TENURE_ROUNDS_TTL").map_or(3.0, |ttl| ttl.parse().expect("a number of seconds"))
}

/// Plays these steps so many times, each round this long at a ttl of 3 s, and returns the sum of it.
fn play(what: &str, count: usize, steps: &[(f64, &str)], length: f64) -> Value {
    let mut script = String::new();
    for round in 0..count {
        for (at, step) in steps {
            let at = 2.0 + (round as f64 * length + at) * ttl() / 3.0;
            writeln!(script, "{}ms {step}", (at * 1000.0) as u64).unwrap();
        }
    }
    let dir = Dir::new(&format!("rounds-{what}"));
    fs::write(dir.join("script"), script).unwrap();
    let events = File::create(dir.join("events")).unwrap();
    let mut demo = tenure();
    demo.args(["demo", "--json", "--ttl", &format!("{}s", ttl()), "--script"]);
    demo.arg(dir.join("script")).stderr(events);
    if let Ok(store) = std::env::var("TENURE_ROUNDS_STORE") {
        demo.args(["--lease", &store]);
    }
    let demo = demo.output().unwrap();
    println!("{what}: {}", String::from_utf8_lossy(&demo.stdout).trim());
    let told = dir.lines("events").join("\n");
    let sum: Value = serde_json::from_slice(&demo.stdout).unwrap_or_else(|_| panic!("{told}"));
    for none in ["overlaps", "stale_writes_accepted", "jobs_lost", "jobs_twice"] {
        assert_eq!(sum[none], 0, "{none}\n{told}");
    }
    assert!(demo.status.success(), "{told}");
    assert!(sum["failovers"].as_u64().unwrap() >= count as u64, "{told}");
    sum
}

fn at_most(sum: &Value, figure: &str, millis: f64) {
    if rounds().1 {
        assert!(sum[figure].as_f64().unwrap() <= millis, "{figure} {}", sum[figure]);
    }
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
