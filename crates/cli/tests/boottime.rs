//! A machine that slept: the boot clock is ahead, `Instant` (the monotonic clock) knows nothing.
#![cfg(target_os = "linux")]

mod common;

use std::process::Command;
use std::time::{Duration, Instant};

use common::*;

#[test]
#[allow(clippy::disallowed_methods)]
fn a_holder_that_slept_knows_that_it_has_lost() {
    let dir = Dir::new("boottime");
    let shim = dir.join("shim.so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/boottime_shim.c");
    let built = Command::new("cc").args(["-shared", "-fPIC", source, "-o"]).arg(&shim).status();
    assert!(built.unwrap().success(), "the test needs a C compiler");

    let log = std::fs::File::create(dir.join("stderr")).unwrap();
    let job = format!("{PROBE} exec sleep 60");
    let mut command = tenure_run(&dir, &["--ttl", "60s"], &job);
    command.env("LD_PRELOAD", &shim).env("BOOTTIME_OFFSET_FILE", dir.join("offset")).stderr(log);
    let mut run = Process::start(&mut command);
    line(&dir, "log", "start", SOON);

    let start = Instant::now();
    // An hour later, in no time. Renamed, so that it is never read half written.
    std::fs::write(dir.join("offset.new"), "3600").unwrap();
    std::fs::rename(dir.join("offset.new"), dir.join("offset")).unwrap();
    until("the loss", SOON, || {
        dir.lines("stderr").iter().any(|line| line.contains("reason=paused")).then_some(())
    });
    // The command was stopped, and the lease contended for again.
    until("the next tenure", SOON, || (terms(&dir).len() == 2).then_some(()));
    assert!(start.elapsed() < Duration::from_secs(30), "by the monotonic clock it held the lease");
    println!("noticed, stopped and won anew in {:?}", start.elapsed());
    check_log(&dir);
    run.signal(libc::SIGTERM);
    assert_eq!(code(run.end(SOON)), 143);
}
