//! `tenure demo`: every fault on real processes, what it refuses, and what it leaves behind.
#![cfg(all(target_os = "linux", feature = "demo"))]
#![allow(clippy::disallowed_methods)]

mod common;

use std::fs::{self, File};
use std::process::Stdio;
use std::time::{Duration, Instant};

use common::*;
use serde_json::Value;

/// The script of who has none, as a file.
const TOUR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/demo/tour.txt");

#[test]
fn every_fault_leaves_one_of_each_and_all_done_once() {
    let dir = Dir::new("demo");
    let start = Instant::now();
    let stderr = File::create(dir.join("events")).unwrap();
    let options = ["demo", "--json", "--sharding", "--script", TOUR];
    let demo = tenure().args(options).stderr(stderr).output().unwrap();
    let took = start.elapsed();
    let events = dir.lines("events").join("\n");
    println!("{events}\n{}in {took:?}", String::from_utf8_lossy(&demo.stdout));
    let summary: Value = serde_json::from_slice(&demo.stdout).expect("one line of JSON");
    for none in NONE.iter().chain(NONE_OF_COUNTERS) {
        assert_eq!(summary[none], 0, "{none}");
    }
    assert!(demo.status.success(), "{:?}", demo.status);
    let count = |name: &str| summary[name].as_u64().unwrap();
    assert!(count("failovers") >= 6, "each of the six faults moves the worker");
    assert!(
        count("stale_writes_refused") >= 1,
        "the process that was stopped wrote when it went on"
    );
    assert!(count("jobs_acknowledged") > 1000);
    assert!(count("writes_acknowledged") > 10_000);
    assert!(count("shards_moved") > 64, "all when the store is away, and some each time");
    assert!(summary["gap_ms_max"].as_f64() >= summary["gap_ms_p50"].as_f64());
    assert!(events.contains("stops: paused"), "the zombie knows what happened to it");
    assert!(!events.contains("was done within a while"));
    // A minute, and its own patience with the start and with the last jobs.
    assert!(took < Duration::from_secs(60 + 30 + 40), "{took:?}");
}

#[test]
fn its_processes_end_with_it() {
    let dir = Dir::new("demo-end");
    for signal in [libc::SIGKILL, libc::SIGTERM] {
        let events = File::create(dir.join("events")).unwrap();
        let mut command = tenure();
        command.args(["demo", "--json", "--nodes", "3", "--for", "60s"]);
        let mut demo = Process::start(command.stdout(Stdio::null()).stderr(events));
        until("the nodes to be up", SOON, || {
            dir.lines("events").iter().any(|line| line.contains("3 nodes are up")).then_some(())
        });
        let pid = demo.pid();
        let processes = children(pid);
        assert_eq!(processes.len(), 4, "three nodes and a client");
        demo.signal(signal);
        assert_eq!(code(demo.end(SOON)), 128 + signal);
        until("its processes to end", SOON, || {
            processes.iter().all(|process| !is_alive(*process)).then_some(())
        });
        let directory = std::env::temp_dir().join(format!("tenure-demo-{pid}"));
        assert_eq!(directory.exists(), signal == libc::SIGKILL, "told to stop, it clears up");
        let _ = fs::remove_dir_all(directory);
    }
}

#[test]
fn a_wrong_script_is_refused_with_its_line() {
    let dir = Dir::new("demo-wrong");
    fs::write(dir.join("script"), "1s kill holder\n2s explode\n").unwrap();
    let refused = tenure().args(["demo", "--script"]).arg(dir.join("script")).output().unwrap();
    assert_eq!(refused.status.code(), Some(64));
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("script: line 2: \"explode\" is nothing that can be done"), "{said}");
}

/// Only the demonstration can cut nodes off; nobody else's settings can name the switch.
#[test]
fn no_file_has_the_switch() {
    let dir = Dir::new("demo-switch");
    let file = "cluster = 'shop'\naddress = '127.0.0.1:7400'\nidentity = 'x'\nstore = 'memory:'
        formation = 'shop'\n[transport]\nswitch = []";
    fs::write(dir.join("node.toml"), file).unwrap();
    let refused = tenure().args(["node", "--config"]).arg(dir.join("node.toml")).output().unwrap();
    assert_eq!(refused.status.code(), Some(64));
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("unknown field `switch`"), "{said}");
}
