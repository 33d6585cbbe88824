//! `tenure run` when nothing goes wrong.
#![cfg(target_os = "linux")]

mod common;

use std::process::Stdio;

use common::*;

#[test]
fn the_exit_code_is_passed_on() {
    let dir = Dir::new("exit-code");
    for expected in [0, 1, 7, 255] {
        let mut run = Process::start(&mut tenure_run(&dir, &[], &format!("exit {expected}")));
        assert_eq!(code(run.end(SOON)), expected);
    }
    let mut run = Process::start(&mut tenure_run(&dir, &[], "kill -9 $$"));
    assert_eq!(code(run.end(SOON)), 137);
}

#[test]
fn what_cannot_run_says_so() {
    let dir = Dir::new("cannot-run");
    for (program, expected) in [("./missing", 127), ("/etc", 126)] {
        let output = tenure()
            .current_dir(dir.path())
            .args(["run", "--lease", &dir.url(), "--name", "job", "--log-level", "warn"])
            .args(["--", program])
            .output()
            .unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(expected), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.contains(program), "{text}");
    }
}

#[test]
fn the_command_knows_its_tenure() {
    let dir = Dir::new("environment");
    let script = "echo $TENURE_TOKEN $TENURE_TERM $TENURE_STEP $TENURE_NAME $TENURE_OWNER; cat";
    let terms: Vec<u64> = (0..2)
        .map(|_| {
            let output = tenure_run(&dir, &["--owner", "me"], script).output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            let words: Vec<&str> = text.split_whitespace().collect();
            assert_eq!(words[1..], [words[0], "0", "job", "me"], "{text}");
            words[0].parse().unwrap()
        })
        .collect();
    assert!(terms[0] > 1 && terms[1] > terms[0], "{terms:?}");
}

/// The lifeline: while a process has it, the kernel does not say that the tenure's processes are gone.
#[test]
fn the_command_inherits_the_lifeline_alone_and_no_blocked_signal() {
    let dir = Dir::new("inherits");
    let script = "ls -l /proc/self/fd; grep SigBlk /proc/self/status";
    let output = tenure_run(&dir, &[], script).stdout(Stdio::piped()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!text.contains("socket:"), "{text}");
    let in_store: Vec<&str> = text.lines().filter(|line| line.contains("/leases/")).collect();
    assert!(in_store.len() == 1 && in_store[0].contains("/leases/job/alive."), "{text}");
    assert!(text.contains("SigBlk:\t0000000000000000"), "{text}");
}

#[test]
fn no_wait_gives_up_at_once() {
    let dir = Dir::new("no-wait");
    let mut holder = Process::start(&mut tenure_run(&dir, &[], "echo start >>log; exec sleep 60"));
    line(&dir, "log", "start", SOON);
    let mut other = Process::start(&mut tenure_run(&dir, &["--no-wait"], "echo wrong >>log"));
    assert_eq!(code(other.end(SOON)), 75);
    assert_eq!(dir.lines("log").len(), 1);
    holder.signal(libc::SIGTERM);
    assert_eq!(code(holder.end(SOON)), 143);
    let mut other = Process::start(&mut tenure_run(&dir, &["--no-wait"], "exit 3"));
    assert_eq!(code(other.end(SOON)), 3);
}

#[test]
fn who_waits_starts_when_the_lease_is_released() {
    let dir = Dir::new("waits");
    let script = format!("{PROBE} until test -e go; do sleep 0.02; done");
    let mut first = Process::start(&mut tenure_run(&dir, &[], &script));
    line(&dir, "log", "start", SOON);
    let mut second = Process::start(&mut tenure_run(&dir, &["--wait"], &script));
    std::fs::write(dir.join("go"), "").unwrap();
    assert_eq!(code(first.end(SOON)), 0);
    assert_eq!(code(second.end(SOON)), 0);
    assert_eq!(terms(&dir).len(), 2);
    check_log(&dir);
}

#[test]
fn what_the_command_left_running_ends_before_the_release() {
    let dir = Dir::new("leftovers");
    let script = format!("{PROBE} sleep 60 & echo left $! >>log; exit 5");
    for _ in 0..2 {
        let mut run = Process::start(&mut tenure_run(&dir, &[], &script));
        assert_eq!(code(run.end(SOON)), 5);
    }
    for line in dir.lines("log").iter().filter_map(|line| line.strip_prefix("left ")) {
        assert!(!is_alive(line.parse().unwrap()));
    }
    check_log(&dir);
}

#[test]
fn a_lost_lease_stops_the_command_and_is_contended_for_again() {
    let dir = Dir::new("lost");
    let script = format!("{PROBE} exec sleep 60");
    let mut run = Process::start(&mut tenure_run(&dir, &["--ttl", "1s"], &script));
    line(&dir, "log", "start", SOON);
    let broken = tenure()
        .args(["lease", "break", "--yes", "--lease", &dir.url(), "--name", "job"])
        .status()
        .unwrap();
    assert!(broken.success());
    until("the second tenure", SOON, || (terms(&dir).len() == 2).then_some(()));
    check_log(&dir);
    run.signal(libc::SIGTERM);
    assert_eq!(code(run.end(SOON)), 143);
}
