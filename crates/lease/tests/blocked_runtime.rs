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

/// To process 1 of a namespace the kernel delivers no SIGKILL from inside; that must be said.
#[test]
#[allow(unsafe_code)]
fn as_process_1_the_watchdog_warns_that_it_does_nothing() {
    // SAFETY: takes nothing and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        println!("skipped: only root can make a PID namespace");
        return;
    }
    let directory = directory("process-1");
    let mut unshare = Command::new("unshare");
    unshare.args(["--pid", "--fork", "--kill-child"]).arg(std::env::current_exe().unwrap());
    let child = start_by(unshare, &directory, "warn");
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("process 1") && text.contains("survived"), "it ran as another: {text}");
    assert!(text.contains("WARN this process is number 1"), "{text}");
    let _ = std::fs::remove_dir_all(directory); // The keeper's thread may still tidy up in it.
}

fn directory(name: &str) -> String {
    let directory = std::env::temp_dir().join(format!("tenure-{name}-{}", std::process::id()));
    directory.to_str().unwrap().to_owned()
}

fn start(directory: &str, what: &str) -> Child {
    start_by(Command::new(std::env::current_exe().unwrap()), directory, what)
}

fn start_by(mut command: Command, directory: &str, what: &str) -> Child {
    command
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
        if what == "warn" {
            println!("process {}", std::process::id());
            tracing::subscriber::set_global_default(PrintWarnings).unwrap();
        }
        let tenure = lease.acquire().await.unwrap();
        println!("held {}", Moment::now().as_nanos());
        std::thread::sleep(TTL * 2);
        assert!(!tenure.is_held(), "known at once, without asking anybody");
        println!("lost {}", tenure.lost().await);
        println!("survived");
    });
}

struct PrintWarnings;

impl tracing::Subscriber for PrintWarnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN
    }

    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
            if field.name() == "message" {
                println!("WARN {value:?}");
            }
        });
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}
