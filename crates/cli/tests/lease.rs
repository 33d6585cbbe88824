//! `tenure lease`, `tenure timings` and `tenure bench`.
#![cfg(target_os = "linux")]

mod common;

use std::process::Stdio;

use common::*;
use serde_json::{Value, json};

fn json(dir: &Dir, command: &[&str], options: &[&str]) -> Value {
    let output = tenure()
        .args(command)
        .args(["--lease", &dir.url()])
        .args(options)
        .arg("--json")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let trouble = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{trouble}");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}{trouble}"))
}

fn lease(dir: &Dir, command: &str, options: &[&str]) -> Value {
    json(dir, &["lease", command, "--name", "job"], options)
}

#[test]
fn show_tells_who_holds_it() {
    let dir = Dir::new("show");
    assert_eq!(lease(&dir, "show", &[])["state"], "absent");
    let options = ["--owner", "me", "--ttl", "20s"];
    let mut run = Process::start(&mut tenure_run(&dir, &options, &format!("{PROBE} sleep 60")));
    line(&dir, "log", "start", SOON);
    let held = lease(&dir, "show", &[]);
    assert_eq!(held["state"], "held");
    assert_eq!(held["owner"], "me");
    assert_eq!(held["token"]["term"], terms(&dir)[0]);
    assert_eq!(held["ttl_ms"], 20_000);
    assert_eq!(held["promise"], "safe");
    run.signal(libc::SIGTERM);
    run.end(SOON);
    let released = lease(&dir, "show", &[]);
    assert_eq!(released["state"], "released");
    assert_eq!(released["token"], held["token"]);
    let output =
        tenure().args(["lease", "show", "--lease", &dir.url(), "--name", "job"]).output().unwrap();
    assert!(String::from_utf8(output.stdout).unwrap().contains("free: it was released"));
}

#[test]
fn list_shows_every_lease() {
    let dir = Dir::new("list");
    assert_eq!(json(&dir, &["lease", "list"], &[]), Value::Array(Vec::new()));
    for name in ["b", "a"] {
        let raised = json(&dir, &["lease", "raise", "--name", name, "--above", "7"], &[]);
        assert_eq!(raised["change"], "raised");
    }
    let job = format!("{PROBE} exec sleep 60");
    let _run = Process::start(&mut tenure_run(&dir, &["--owner", "me", "--ttl", "20s"], &job));
    line(&dir, "log", "start", SOON);
    // What is no lease is none, also in a lease's place.
    std::fs::create_dir(dir.join("leases").join("Not A Name")).unwrap();
    std::fs::create_dir(dir.join("leases").join("empty")).unwrap();
    std::fs::write(dir.join("leases").join("a-file"), "").unwrap();
    let list = json(&dir, &["lease", "list"], &[]);
    let names: Vec<&str> =
        list.as_array().unwrap().iter().map(|lease| lease["name"].as_str().unwrap()).collect();
    // The last is what `run` proves the store with.
    assert_eq!(names, ["a", "b", "job", "tenure-preflight"]);
    assert_eq!(list[2]["token"], lease(&dir, "show", &[])["token"]);
    assert_eq!((&list[0]["state"], &list[2]["state"]), (&"released".into(), &"held".into()));
    let output = tenure().args(["lease", "list", "--lease", &dir.url()]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("NAME ") && lines.len() == 5, "{text}");
    let words: Vec<&str> = lines[3].split_whitespace().collect();
    assert_eq!(words[..4], ["job", "me", &format!("{}.0", terms(&dir)[0]), "20s"], "{text}");
    assert!(lines[1].contains("free"), "{text}");
}

#[test]
fn a_record_that_cannot_be_read_hides_no_other() {
    let dir = Dir::new("list-damaged");
    for name in ["a", "b", "c"] {
        json(&dir, &["lease", "raise", "--name", name, "--above", "7"], &[]);
    }
    let records = dir.join("leases").join("b").join("records");
    for record in std::fs::read_dir(records).unwrap() {
        std::fs::write(record.unwrap().path(), "torn").unwrap();
    }
    let output = tenure().args(["lease", "list", "--lease", &dir.url()]).output().unwrap();
    let (text, trouble) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    let names: Vec<&str> =
        text.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(names, ["a", "c"], "{text}{trouble}");
    assert_eq!(code(output.status), 69, "{trouble}");
    assert!(trouble.contains("/leases/b"), "{trouble}");
}

#[test]
fn looking_creates_nothing() {
    let dir = Dir::new("look");
    assert_eq!(lease(&dir, "show", &[])["state"], "absent");
    assert_eq!(lease(&dir, "release", &[])["change"], "none");
    assert_eq!(lease(&dir, "break", &["--yes"])["change"], "none");
    json(&dir, &["timings"], &[]);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "a mistyped path leaves nothing");
}

#[test]
fn watch_prints_each_change() {
    let dir = Dir::new("watch");
    let out = std::fs::File::create(dir.join("watched")).unwrap();
    let mut watch = tenure();
    watch.args(["lease", "watch", "--json", "--lease", &dir.url(), "--name", "job"]).stdout(out);
    let _watch = Process::start(watch.stderr(Stdio::inherit()));
    let states = |count: usize| {
        until("a change", SOON, || {
            let lines = dir.lines("watched");
            (lines.len() >= count).then(|| {
                lines.iter().map(|line| serde_json::from_str::<Value>(line).unwrap()).collect()
            })
        })
    };
    let _: Vec<Value> = states(1);
    let mut run = Process::start(&mut tenure_run(&dir, &["--ttl", "3s"], "sleep 4"));
    assert_eq!(code(run.end(SOON)), 0);
    let seen = states(3);
    let seen: Vec<&str> = seen.iter().map(|view| view["state"].as_str().unwrap()).collect();
    assert_eq!(seen, ["absent", "held", "released"], "renewals are no changes");
}

#[test]
fn release_frees_it_at_once() {
    let dir = Dir::new("release");
    assert_eq!(lease(&dir, "release", &[])["change"], "none");
    // Its owner, stopped, cannot object; nor could one that is dead.
    let job = format!("{PROBE} exec sleep 60");
    let run = Process::start(&mut tenure_run(&dir, &["--ttl", "60s"], &job));
    line(&dir, "log", "start", SOON);
    run.signal(libc::SIGSTOP);
    let released = lease(&dir, "release", &[]);
    assert_eq!(released["change"], "released");
    assert_eq!(lease(&dir, "show", &[])["state"], "released");
}

#[test]
fn a_broken_lease_is_free_when_its_ttl_is_over() {
    let dir = Dir::new("break");
    let job = format!("{PROBE} trap 'echo end >>log; exit' TERM; while :; do sleep 0.02; done");
    let mut run = Process::start(&mut tenure_run(&dir, &["--ttl", "2s", "--no-wait"], &job));
    line(&dir, "log", "start", SOON);
    let unasked =
        tenure().args(["lease", "break", "--lease", &dir.url(), "--name", "job"]).output().unwrap();
    assert_eq!(code(unasked.status), 64, "nobody confirmed it");
    let broken = lease(&dir, "break", &["--yes"]);
    assert_eq!(broken["change"], "broken");
    assert_eq!(broken["free_in_ms"], 2_000);
    let shown = lease(&dir, "show", &[]);
    assert!(shown["owner"].as_str().unwrap().starts_with("operator "), "{shown}");
    assert!(shown["token"]["term"].as_u64() > Some(terms(&dir)[0]));
    // The holder learns it, stops, and finds that it cannot have it back yet.
    assert_eq!(code(run.end(SOON)), 75);
    line(&dir, "log", "end", SOON);
    let mut next = Process::start(&mut tenure_run(&dir, &[], &format!("{PROBE} true")));
    assert_eq!(code(next.end(SOON)), 0);
    check_log(&dir);
}

#[test]
fn broken_now_it_is_free_at_once() {
    let dir = Dir::new("break-now");
    let run =
        Process::start(&mut tenure_run(&dir, &["--ttl", "60s"], "echo start >>log; sleep 60"));
    line(&dir, "log", "start", SOON);
    run.signal(libc::SIGSTOP);
    assert_eq!(lease(&dir, "break", &["--yes", "--now"])["free_in_ms"], 0);
    let mut next = Process::start(&mut tenure_run(&dir, &["--no-wait"], "true"));
    assert_eq!(code(next.end(SOON)), 0);
}

#[test]
fn raise_lifts_the_terms() {
    let dir = Dir::new("raise");
    let mut run = Process::start(&mut tenure_run(&dir, &[], &format!("{PROBE} true")));
    run.end(SOON);
    let far = terms(&dir)[0] + 1_000_000_000;
    let raised = lease(&dir, "raise", &["--above", &far.to_string()]);
    assert!(raised["token"]["term"].as_u64() > Some(far), "{raised}");
    let mut run = Process::start(&mut tenure_run(&dir, &[], &format!("{PROBE} true")));
    run.end(SOON);
    assert!(terms(&dir)[1] > far);
    check_log(&dir);
}

#[test]
fn timings_add_up() {
    let output = tenure().args(["timings", "--ttl", "15s", "--json"]).output().unwrap();
    let timings: Value = serde_json::from_slice(&output.stdout).unwrap();
    for (name, millis) in [
        ("sum_ms", 9_625),
        ("slack_ms", 5_375),
        ("hedge_interval_ms", 1_000),
        ("look_interval_ms", 650),
        ("held_for_ms", 11_625),
        ("kill_after_ms", 13_500),
    ] {
        assert_eq!(timings[name], millis, "{name}");
    }
    assert_eq!(timings["store_outage"]["survived_ms"], 7_500, "half a ttl");
    assert_eq!(timings["after_crash"], json!({ "at_least_ms": 12_500, "at_most_ms": 16_000 }));
    assert_eq!(timings["after_release"], json!({ "at_least_ms": 0, "at_most_ms": 1_000 }));
    let output = tenure().args(["timings"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for line in [
        "2.5s + 3.75s + 1.875s + 1.5s = 9.625s < 15s",
        "hedge interval     1s",
        "after a crash    12.5s to 16s",
        "who waits looks every 650ms, unless the store wakes it",
        "up to 7.5s are always survived",
        "11.625s after its last renewal was sent",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

/// A local store has no connections, so a renewal is sent again only when it has timed out.
#[test]
fn timings_of_a_local_store() {
    let dir = Dir::new("timings");
    let timings = json(&dir, &["timings"], &["--ttl", "10s"]);
    assert_eq!(timings["after_crash"]["at_most_ms"], 100);
    assert_eq!(timings["hedge_interval_ms"], 2_500);
    assert_eq!(timings["store_outage"]["survived_ms"], timings["slack_ms"]);
    assert_eq!(timings["renew_interval_ms"], 1_667, "to the nearest millisecond");
}

#[test]
fn the_bench_measures() {
    let dir = Dir::new("bench");
    let options = ["--budget", "300ms", "--ttl", "3s", "--leases", "50"];
    let figures = json(&dir, &["bench", "lease"], &options);
    for figure in [
        "is_held_ns",
        "acquire_us_p50",
        "acquire_us_p99",
        "renew_us_p50",
        "renew_us_p99",
        "handover_ms_p50",
        "handover_ms_p99",
        "store_round_trip_us_p50",
        "renewals_per_s_for_10k_leases",
    ] {
        assert!(figures[figure].as_f64() > Some(0.0), "{figure}: {figures}");
    }
    assert_eq!(figures["attached_leases"], 50);
    // One write per renewal interval, a second here, however many leases there are.
    assert!(figures["renewals_per_s_for_10k_leases"].as_f64() < Some(3.0), "{figures}");
}
