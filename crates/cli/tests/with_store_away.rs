//! `tenure with` while its store does not answer.
#![cfg(all(target_os = "linux", feature = "redis"))]

mod common;
mod redis_server;
mod workers;

use common::*;
use redis_server::*;
use workers::*;

fn rounds_away(name: &str, worker: Option<String>) {
    let dir = Dir::new(&format!("with-{name}"));
    let of_redis = Dir::new(&format!("with-{name}-redis"));
    let (Some(redis), Some(worker)) = (Redis::start(&of_redis), worker) else { return };
    rounds_of(name, &dir, &redis.url(), &worker, |_, leader| {
        let begun = dir.lines("log").len();
        redis.goes_away();
        // A deaf worker is killed; a polite one says so itself.
        until("the worker to stop", SOON, || {
            let lines = dir.lines("log");
            let has_ended = lines[begun..].iter().any(|line| line.starts_with("end "));
            (has_ended || !is_alive(leader)).then_some(())
        });
        redis.comes_back();
        false
    });
}

#[test]
fn a_polite_worker_stops_while_the_store_is_away() {
    rounds_away("away-polite", python("polite"));
}

#[test]
fn a_worker_that_ignores_the_loss_is_killed_while_the_store_is_away() {
    rounds_away("away-deaf", python("deaf"));
}
