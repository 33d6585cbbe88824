//! `tenure run` and `tenure lease raise` while their store does not answer.
#![cfg(all(target_os = "linux", feature = "redis"))]
#![allow(clippy::disallowed_methods, reason = "it measures how long a process takes")]

mod common;
mod redis_server;

use std::process::Stdio;
use std::time::{Duration, Instant};

use common::*;
use redis_server::*;

fn run(dir: &Dir, redis: &Redis, stop_budget: &str, script: &str) -> Process {
    let mut command = tenure();
    command
        .current_dir(dir.path())
        .args(["run", "--lease", &redis.url(), "--name", "job", "--ttl", "30s"])
        .args(["--stop-budget", stop_budget, "--", "sh", "-c", script]);
    Process::start(&mut command)
}

#[test]
fn told_to_stop_it_ends_within_the_stop_budget_after_the_command() {
    let dir = Dir::new("away-term");
    let Some(redis) = Redis::start(&dir) else { return };
    let job = "trap 'echo end >>log; exit 0' TERM; echo start >>log; while :; do sleep 0.02; done";
    let mut run = run(&dir, &redis, "1s", job);
    line(&dir, "log", "start", SOON);
    redis.goes_away();
    run.signal(libc::SIGTERM);
    line(&dir, "log", "end", SOON);
    let ended = Instant::now();
    assert_eq!(code(run.end(SOON)), 143);
    let took = ended.elapsed();
    assert!(took < Duration::from_secs(2), "{took:?} for a release that nobody answers");
}

#[test]
fn the_exit_code_of_the_command_does_not_wait_for_the_store() {
    let dir = Dir::new("away-exit");
    let Some(redis) = Redis::start(&dir) else { return };
    let job = "echo start >>log; until test -e go; do sleep 0.02; done; exit 7";
    let mut run = run(&dir, &redis, "1s", job);
    line(&dir, "log", "start", SOON);
    redis.goes_away();
    let gone = Instant::now();
    std::fs::write(dir.join("go"), "").unwrap();
    assert_eq!(code(run.end(SOON)), 7);
    let took = gone.elapsed();
    assert!(took < Duration::from_secs(3), "{took:?} for a release that nobody answers");
}

#[test]
fn a_second_signal_kills_the_command_and_ends() {
    for second in [libc::SIGTERM, libc::SIGINT] {
        let dir = Dir::new(&format!("away-second-{second}"));
        let Some(redis) = Redis::start(&dir) else { return };
        let job = "trap 'echo asked >>log' TERM; echo start $$ >>log; while :; do sleep 0.02; done";
        let mut run = run(&dir, &redis, "8s", job);
        let command: i32 = line(&dir, "log", "start", SOON).parse().unwrap();
        redis.goes_away();
        let begun = Instant::now();
        run.signal(libc::SIGTERM);
        line(&dir, "log", "asked", SOON);
        // One that comes right behind the first counts as the first: `timeout` sends two.
        while run.is_running() && begun.elapsed() < SOON {
            run.signal(second);
            std::thread::sleep(Duration::from_millis(10));
        }
        let took = begun.elapsed();
        assert_eq!(code(run.end(SOON)), 143);
        assert!(took < Duration::from_secs(3), "{took:?}, and the stop budget is 8s");
        assert!(!is_alive(command));
    }
}

#[test]
fn without_waiting_a_store_that_is_away_is_an_error_at_once() {
    let url = url(free_port());
    for arguments in [
        &["run", "--no-wait", "--lease", &url, "--name", "job", "--", "true"][..],
        &["lease", "raise", "--lease", &url, "--name", "job", "--above", "7"],
    ] {
        let begun = Instant::now();
        let mut command = tenure();
        command.args(["--log-level", "error"]).args(arguments).stderr(Stdio::piped());
        let output = command.output().unwrap();
        let (took, text) = (begun.elapsed(), String::from_utf8(output.stderr).unwrap());
        assert_eq!(code(output.status), 69, "{text}");
        assert!(text.lines().count() == 1 && text.contains("127.0.0.1"), "{text}");
        assert!(took < Duration::from_secs(3), "{arguments:?} took {took:?}");
    }
}
