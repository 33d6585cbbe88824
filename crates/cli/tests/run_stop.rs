//! `tenure run` and commands that do not want to stop.
#![cfg(target_os = "linux")]

mod common;

use std::time::Instant;

use common::*;

/// Starts the script, waits until it says `ready`, tells `tenure` to stop; nothing may be left.
#[allow(clippy::disallowed_methods)]
fn stop(name: &str, script: &str) {
    let dir = Dir::new(name);
    let script = format!("{PROBE} {script}");
    let options = ["--ttl", "10s", "--stop-budget", "1s"];
    let mut run = Process::start(&mut tenure_run(&dir, &options, &script));
    line(&dir, "log", "ready", SOON);
    let start = Instant::now();
    run.signal(libc::SIGTERM);
    assert_eq!(code(run.end(SOON)), 143);
    println!("{name}: stopped in {:?}", start.elapsed());
    // The next one finds the lease free and the probe free: nothing of the first is left.
    let next = format!("{PROBE} true");
    let mut next = Process::start(&mut tenure_run(&dir, &["--no-wait"], &next));
    assert_eq!(code(next.end(SOON)), 0);
    check_log(&dir);
}

#[test]
fn a_polite_command_ends_by_itself() {
    let dir = Dir::new("polite");
    let script = format!(
        "{PROBE} trap 'echo end >>log; exit 0' TERM; echo ready >>log; while :; do sleep 0.02; done"
    );
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        let _ = std::fs::remove_file(dir.join("log"));
        let mut run = Process::start(&mut tenure_run(&dir, &[], &script));
        line(&dir, "log", "ready", SOON);
        run.signal(signal);
        assert_eq!(code(run.end(SOON)), 128 + signal);
        assert_eq!(dir.lines("log").last().unwrap(), "end");
        check_log(&dir);
    }
}

#[test]
fn a_stubborn_command_is_killed() {
    stop("stubborn", "trap '' TERM INT HUP; echo ready >>log; while :; do sleep 0.05; done");
}

#[test]
fn a_stopped_command_is_killed() {
    stop("stopped", "trap '' TERM; echo ready >>log; kill -STOP $$; sleep 60");
}

#[test]
fn a_grandchild_in_a_session_of_its_own_is_killed() {
    stop(
        "setsid",
        "trap '' TERM; setsid sh -c 'trap \"\" TERM; echo ready >>log; sleep 60' & sleep 60",
    );
}

#[test]
fn a_grandchild_that_was_orphaned_is_killed() {
    stop(
        "double-fork",
        "(setsid sh -c 'trap \"\" TERM; (sleep 60 & sleep 60 & echo ready >>log; wait) &') & wait; \
         sleep 60",
    );
}

#[test]
fn a_command_that_forks_all_the_time_is_killed() {
    // Each process starts two more and ends, up to a bound that a test machine survives.
    stop(
        "storm",
        "trap '' TERM
        cat >storm.sh <<'EOF'
trap '' TERM
test $1 -gt 4000 && exec sleep 60
test $1 -eq 40 && echo ready >>log
sh storm.sh $(($1 + 1)) &
setsid sh -c 'trap : TERM; sleep 0.2' &
EOF
        sh storm.sh 0; sh storm.sh 0; sleep 60",
    );
}

#[test]
fn a_command_whose_processes_live_for_microseconds_is_killed() {
    // Chains of processes, each of which forks its successor and ends at once.
    let dir = Dir::new("chain-program");
    let (source, program) = (dir.join("chain.c"), dir.join("chain"));
    std::fs::write(&source, CHAIN).unwrap();
    let built = std::process::Command::new("cc").arg(&source).arg("-o").arg(&program).status();
    assert!(built.unwrap().success(), "the test needs a C compiler");
    let program = program.display();
    let script = format!("trap '' TERM; {program} & {program} & echo ready >>log; sleep 60");
    stop("chain", &script);
}

const CHAIN: &str = r"
#include <sched.h>
#include <time.h>
#include <unistd.h>
int main(void) {
    for (time_t end = time(0) + 30; time(0) < end;) {
        pid_t child = fork();
        if (child < 0) sched_yield();
        if (child > 0) _exit(0);
    }
}";
