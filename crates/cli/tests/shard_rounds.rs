//! Shards of five real processes under 1,000 writes a second, through rolling restarts, deaths and a
//! store that is away: `TENURE_ROUNDS=50 cargo test --release -p tenure-cli --test shard_rounds --
//! --nocapture --test-threads=1` measures; by default one round of each is checked.
#![cfg(all(target_os = "linux", feature = "demo"))]
#![allow(clippy::disallowed_methods)]

mod common;
mod rounds;

use std::path::Path;

use common::{Dir, NONE_OF_COUNTERS};
use rounds::{Play, at_most, ttl};
use serde_json::Value;

fn rounds() -> usize {
    rounds::rounds(1).0
}

/// Plays these steps so many times, and returns the sum of it. Whatever happens, nothing is lost,
/// done twice, out of order, or in two places.
fn play(
    what: &str,
    setup: &str,
    count: usize,
    first: &[(f64, &str)],
    steps: &[(f64, &str)],
    length: f64,
) -> Value {
    let options = &[&*format!("--sharding={setup}")];
    let sum = Play { what, options, first, steps, length }.times(count);
    for none in NONE_OF_COUNTERS {
        assert_eq!(sum[none], 0, "{none}: {sum}");
    }
    assert!(sum["writes_acknowledged"].as_u64().unwrap() >= 1000, "{sum}");
    sum
}

fn count(sum: &Value, figure: &str) -> u64 {
    sum[figure].as_u64().unwrap()
}

/// All five leave in turn and come back, each time with its own shards and its share of the others'. (Two
/// of them where times are not checked.)
#[test]
fn rolling_restart() {
    let nodes = ["leave 1", "leave 2", "leave 3", "leave 4", "leave 5"];
    let leavers = if rounds::rounds(1).1 { nodes.len() } else { 2 };
    let steps: Vec<(f64, &str)> = (0..)
        .zip(nodes.into_iter().take(leavers))
        .flat_map(|(turn, leave)| {
            [(f64::from(turn) * 4.0, leave), (f64::from(turn) * 4.0 + 1.5, "restart")]
        })
        .collect();
    let sum = play("rolling restart", "sessions", rounds(), &[], &steps, 20.0);
    assert!(count(&sum, "shards_moved") >= (rounds() * leavers * 12) as u64, "{sum}");
    at_most(&sum, "shard_unavailable_ms_p50", 200.0);
    at_most(&sum, "shard_unavailable_ms_max", 2000.0);
}

/// From this version to the next, and back: neither side minds what it does not know.
#[test]
fn rolled_to_the_next_version_and_back() {
    let dir = Dir::new("shards-next");
    roll("next version", &rounds::next_version(&dir));
}

/// From another build to this one and back: `scripts/roll-from COMMIT` makes it.
#[test]
#[ignore = "needs a build of another commit, in TENURE_ROLL_FROM"]
fn rolled_from_another_build_and_back() {
    let program = std::env::var("TENURE_ROLL_FROM").expect("scripts/roll-from sets it");
    roll("another build", Path::new(&program));
}

fn roll(what: &str, program: &Path) {
    let steps = rounds::roll_to(program);
    let steps: Vec<(f64, &str)> = steps.iter().map(|(at, step)| (*at, &**step)).collect();
    let sum = play(what, "sessions", 1, &[], &steps, 26.0);
    assert!(count(&sum, "shards_moved") >= 100, "{sum}");
}

/// kill -9 of a node that hosts shards and does not coordinate: it is the youngest.
#[test]
fn killed_region() {
    let first = [(0.0, "leave 5"), (1.5, "restart")];
    let sum = play("killed region", "sessions", rounds(), &first, &KILLED[0], 9.0);
    served_in_time(&sum);
}

/// kill -9 of the coordinator's node, which hosts shards as well.
#[test]
fn killed_coordinator() {
    let sum = play("killed coordinator", "sessions", rounds(), &[], &KILLED[1], 9.0);
    served_in_time(&sum);
}

const KILLED: [[(f64, &str); 2]; 2] =
    [[(0.0, "kill 5"), (5.0, "restart")], [(0.0, "kill coordinator"), (5.0, "restart")]];

/// Those of the dead node serve again after a ttl; those of others never pause.
fn served_in_time(sum: &Value) {
    assert!(count(sum, "shards_moved") >= rounds() as u64 * 12, "{sum}");
    at_most(sum, "shard_unavailable_ms_max", (ttl() + 2.0) * 1000.0);
    at_most(sum, "others_unavailable_ms_max", 500.0);
}

const AWAY: [(f64, &str); 2] = [(0.0, "store away"), (9.0, "store back")];

/// Nobody can renew for three ttls: with sessions the shards stop within one, and serve again soon
/// after the store is back.
#[test]
fn store_away_with_sessions() {
    let sum = play("store away, sessions", "sessions", rounds().min(10), &[], &AWAY, 18.0);
    assert!(count(&sum, "shards_moved") >= rounds().min(10) as u64 * 64, "all stop: {sum}");
    // (The middle says nothing: shards are evened out afterwards, and those moves take no time.)
    let longest = sum["shard_unavailable_ms_max"].as_f64().unwrap();
    assert!(longest >= 1900.0 * ttl(), "they stop within the ttl: {sum}");
    at_most(&sum, "shard_unavailable_ms_max", (3.0 * ttl() + 5.0) * 1000.0);
    at_most(&sum, "store_requests_per_second_max", REQUESTS_MAX);
}

/// With a lease for the coordinator alone they go on.
#[test]
fn store_away_with_a_lease() {
    let sum = play("store away, lease", "lease", rounds().min(10), &[], &AWAY, 18.0);
    at_most(&sum, "others_unavailable_ms_max", 500.0);
    at_most(&sum, "shard_unavailable_ms_max", 500.0);
    at_most(&sum, "store_requests_per_second_max", REQUESTS_MAX);
}

/// Of six processes together.
const REQUESTS_MAX: f64 = 200.0;
