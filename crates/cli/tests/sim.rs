//! `tenure sim`.
#![cfg(all(target_os = "linux", feature = "cluster"))]

mod common;

use common::tenure;
use serde_json::Value;

fn sim(options: &[&str]) -> (Option<i32>, String, String) {
    let output = tenure().arg("sim").args(options).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn many_seeds_are_counted() {
    let (code, out, trouble) = sim(&["--seeds", "0..30", "--nodes", "4", "--json"]);
    assert_eq!(code, Some(0), "{out}{trouble}");
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(report["seeds"], 30);
    assert_eq!(report["violations"], Value::Array(Vec::new()));
    assert!(report["virtual_s"].as_f64().unwrap() > 30.0 * 60.0);
    assert!(report["seeds_per_s"].as_f64().unwrap() > 0.0);
    assert!(report["virtual_s_per_wall_s"].as_f64().unwrap() > 0.0);
    assert!(report["coverage"]["crash"].as_u64().unwrap() > 0);
}

#[test]
fn one_seed_is_replayed_line_by_line() {
    let once = sim(&["--seed", "3", "--trace", "--faults", "cut,crash"]);
    let again = sim(&["--seed", "3", "--trace", "--faults", "cut,crash"]);
    assert_eq!(once.0, Some(0), "{}", once.2);
    assert!(once.1.contains("crashes") && once.1.contains("cut between"), "{}", once.1);
    // All but the speed.
    let trace = |text: &str| text.rsplit_once('\n').map(|(trace, _)| trace.trim_end().to_owned());
    assert_eq!(
        trace(once.1.trim_end()).expect("a trace"),
        trace(again.1.trim_end()).expect("a trace")
    );
}

#[test]
fn a_budget_ends_it_early() {
    let (code, out, _) = sim(&["--seeds", "0..1000000", "--budget", "200ms", "--json"]);
    assert_eq!(code, Some(0), "{out}");
    let report: Value = serde_json::from_str(&out).unwrap();
    assert!(report["seeds"].as_u64().unwrap() < 1_000_000);
}

#[test]
fn setups_of_sharding_are_compared() {
    let (code, out, trouble) = sim(&["--sharding-table", "--seeds", "0..5", "--json"]);
    assert_eq!(code, Some(0), "{out}{trouble}");
    let table: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(table["seeds"], 5);
    for (row, setup) in ["gossip", "lease", "sessions"].into_iter().enumerate() {
        let row = &table["rows"][row];
        assert_eq!(row["setup"], setup);
        assert_eq!(row["violations"], 0);
        assert!(row["started"].as_u64().unwrap() > 5 * 16);
    }
    assert_eq!(table["rows"][2]["active_twice"], 0);
}

#[test]
fn says_what_would_be_right() {
    for (options, right) in [
        (["--seeds", "7"], "0..1000"),
        (["--seeds", "9..3"], "0..1000"),
        (["--faults", "cut,sharks"], "cut-one-way"),
        (["--nodes", "1"], "2"),
    ] {
        let (code, _, trouble) = sim(&options);
        assert_eq!(code, Some(64), "{options:?}");
        assert!(trouble.contains(right), "{options:?}: {trouble}");
    }
}
