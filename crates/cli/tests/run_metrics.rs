//! `tenure run --metrics`: what Prometheus reads, under the names that the alerts use.
#![cfg(all(target_os = "linux", feature = "cluster"))]

mod common;

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use common::*;

/// Starts it with `--metrics` on any port; says where it listens.
fn start(dir: &Dir, log: &str, script: &str) -> (Process, String) {
    let mut command = tenure_run(dir, &["--metrics", "127.0.0.1:0"], script);
    command.stderr(File::create(dir.join(log)).unwrap());
    let run = Process::start(&mut command);
    let address = until("the address", SOON, || {
        let lines = dir.lines(log);
        let (_, rest) = lines.iter().find_map(|line| line.split_once("http://"))?;
        Some(rest.split('/').next().unwrap().to_owned())
    });
    (run, address)
}

/// Status line and body.
fn get(address: &str, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.lines().next().unwrap().to_owned(), body.to_owned())
}

fn metrics(address: &str) -> String {
    let (status, body) = get(address, "/metrics");
    assert_eq!(status, "HTTP/1.1 200 OK", "{body}");
    body
}

#[test]
fn who_holds_and_who_waits_can_be_scraped() {
    let dir = Dir::new("metrics");
    let (_holder, holder) = start(&dir, "holder", "echo start >>log; exec sleep 60");
    line(&dir, "log", "start", SOON);
    let (_waiting, waiting) = start(&dir, "waiting", "exec sleep 60");
    let text = metrics(&holder);
    for series in [
        "# TYPE tenure_lease_held gauge",
        "tenure_lease_held{lease=\"job\"} 1",
        "tenure_lease_won_total{lease=\"job\"} 1",
        "tenure_lease_deadline_seconds{lease=\"job\"} ",
        "tenure_store_request_seconds_bucket{operation=\"acquire\",store=\"file\",le=\"+Inf\"} ",
    ] {
        assert!(text.contains(series), "{series} in {text}");
    }
    until("the other to contend", SOON, || {
        metrics(&waiting).contains("tenure_lease_held{lease=\"job\"} 0").then_some(())
    });
    assert_eq!(get(&holder, "/alive").0, "HTTP/1.1 200 OK");
    assert!(get(&holder, "/api/leases").0.contains("404"));
    assert!(get(&holder, "/").0.contains("404"));
}

/// The alerts about leases and stores are made from nothing that only a node has.
#[test]
fn the_alerts_on_leases_use_what_it_serves() {
    let alerts = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/prometheus/alerts.yaml");
    let alerts = std::fs::read_to_string(alerts).unwrap();
    let (leases, _) = alerts.split_once("- name: tenure-cluster").unwrap();
    // `tenure cron --metrics` serves those of jobs as well.
    let metrics = tenure_lease::telemetry::METRICS.iter().chain(tenure_cron::telemetry::METRICS);
    let known: Vec<&str> = metrics.map(|metric| metric.name).collect();
    let is_name = |c: char| c.is_ascii_lowercase() || c == '_';
    let mut seen = 0;
    for word in leases.split(|c| !is_name(c)).filter(|word| word.starts_with("tenure_")) {
        let name = word.trim_end_matches("_bucket");
        assert!(known.contains(&name), "{name} is none of {known:?}");
        seen += 1;
    }
    assert!(seen > 5, "the alerts have moved");
}

#[test]
fn an_address_that_is_taken_is_said_so() {
    let dir = Dir::new("metrics-taken");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = tenure_run(&dir, &["--metrics", &address], "echo wrong >>log").output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(code(output.status) == 71 && text.contains(&address), "{text}");
    assert!(dir.lines("log").is_empty());
}
