//! A runtime that is blocked for twice the ttl loses its lease, and with the watchdog its process.
#![cfg(target_os = "linux")]
#![allow(clippy::disallowed_methods)] // real processes, in real time

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tenure_lease::{Loss, Moment};

const TTL: Duration = Duration::from_secs(3);

#[test]
fn without_a_watchdog_it_is_lost_as_unresponsive() {
    let directory = directory("unresponsive");
    let mut child = start(&directory, "block");
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.find_map(|line| line.unwrap().strip_prefix("lost ").map(str::to_owned)), {
        Some(Loss::Unresponsive.to_string())
    });
    assert!(child.wait().unwrap().success());
    let _ = std::fs::remove_dir_all(directory); // The keeper's thread may still tidy up in it.
}

#[test]
fn with_the_watchdog_the_process_ends_before_its_successor_begins() {
    let directory = directory("watchdog");
    let mut child = start(&directory, "block-with-watchdog");
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let held = lines.find_map(|line| line.unwrap().strip_prefix("held ").map(str::to_owned));
    let held = Moment::from_nanos(held.unwrap().parse().unwrap());

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = tenure_lease::open(&format!("file:{directory}")).await.unwrap();
        let tenure = store.lease("guarded").ttl(TTL).acquire().await.unwrap();
        // The kernel frees a dead process's lock a moment before its end can be asked for.
        let mut status = child.try_wait().unwrap();
        let asked = Moment::now();
        while status.is_none() && Moment::now() < asked + Duration::from_secs(1) {
            tokio::time::sleep(Duration::from_millis(1)).await;
            status = child.try_wait().unwrap();
        }
        let status = status.expect("it is dead before another may start");
        assert_eq!(status.signal(), Some(libc::SIGKILL));
        println!("dead and succeeded {:?} after it had held", Moment::now().since(held));
        tenure.release().await;
    });
    let _ = std::fs::remove_dir_all(directory); // The keeper's thread may still tidy up in it.
}

fn directory(name: &str) -> String {
    let directory = std::env::temp_dir().join(format!("tenure-{name}-{}", std::process::id()));
    directory.to_str().unwrap().to_owned()
}

fn start(directory: &str, what: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "holder", "--ignored", "--nocapture", "--quiet"])
        .env("TENURE_TEST_HOLDER", format!("{what} {directory}"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Holds the lease and blocks its only thread; the tests above start it.
#[test]
#[ignore = "the tests above start it"]
fn holder() {
    let Ok(order) = std::env::var("TENURE_TEST_HOLDER") else { return };
    let (what, directory) = order.split_once(' ').unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = tenure_lease::open(&format!("file:{directory}")).await.unwrap();
        let lease = store.lease("guarded").ttl(TTL);
        let lease = if what == "block" { lease } else { lease.watchdog() };
        let tenure = lease.acquire().await.unwrap();
        println!("held {}", Moment::now().as_nanos());
        std::thread::sleep(TTL * 2);
        assert!(!tenure.is_held(), "known at once, without asking anybody");
        println!("lost {}", tenure.lost().await);
    });
}
