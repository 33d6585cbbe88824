//! Wrong arguments and stores that cannot be used: one line, and a documented code.
#![cfg(target_os = "linux")]

mod common;

use std::process::Command;

use common::*;

/// Runs it, and returns its exit code and the only line that it wrote to stderr.
fn refused(arguments: &[&str]) -> (i32, String) {
    let output = tenure().args(arguments).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(text.lines().count(), 1, "{arguments:?}: {text}");
    (code(output.status), text)
}

#[test]
fn wrong_arguments_say_what_would_be_right() {
    let run = ["run", "--lease", "memory:", "--name", "job"];
    for (arguments, right) in [
        (&["--", "true"][..], "\"file:./leases\""),
        (&["--ttl", "15", "--", "true"], "\"15s\""),
        (&["--ttl", "1s", "--stop-budget", "900ms", "--", "true"], "lengthen the ttl"),
        (&["--stop-budget", "0s", "--", "true"], "at least"),
        (&["--log-level", "a=b=c", "--", "true"], "\"warn\""),
        (&[], "<CMD>"),
    ] {
        let lease = if right == "\"file:./leases\"" { "nonsense" } else { "memory:" };
        let arguments = [&run[..2], &[lease], &run[3..], arguments].concat();
        let (code, text) = refused(&arguments);
        assert_eq!(code, 64, "{text}");
        assert!(text.contains(right), "{text}");
    }
    let (code, text) = refused(&["run", "--lease", "memory:", "--name", "My Job", "--", "true"]);
    assert!(code == 64 && text.contains("\"nightly-report\""), "{text}");
    let (code, text) = refused(&["leese"]);
    assert!(code == 64 && text.contains("'lease'"), "{text}");
    let (code, text) = refused(&["timings", "--ttl", "1s", "--margin", "1s"]);
    assert!(code == 64 && text.contains("margin 1s"), "{text}");
}

/// Whoever starts it again and again can tell what only another URL helps from what may pass.
#[test]
fn a_wrong_url_is_told_from_a_store_that_cannot_be_used() {
    for (url, expected) in [
        ("nonsense:", 64),
        ("redis//host", 64),
        ("memory:x", 64),
        ("file:", 64),
        ("file://host/leases", 64),
        ("file:/dev/null/leases", 69),
        ("file:///dev/null", 69),
    ] {
        let (code, text) = refused(&["lease", "show", "--lease", url, "--name", "job"]);
        assert_eq!(code, expected, "{text}");
    }
}

#[test]
fn a_store_in_memory_is_refused_where_processes_must_share_it() {
    for command in [&["run"][..], &["lease", "show"], &["lease", "raise", "--above", "7"]] {
        let target = ["--lease", "memory:", "--name", "job"];
        let rest = if command[0] == "run" { &["--", "true"][..] } else { &[] };
        let (code, text) = refused(&[command, &target, rest].concat());
        assert!(code == 64 && text.contains("file:"), "{text}");
        assert!(text.contains("each process"), "{text}");
    }
    let (code, text) = refused(&["lease", "list", "--lease", "memory:"]);
    assert!(code == 64 && text.contains("each process"), "{text}");
}

/// Stores keep terms as signed 64-bit numbers, and the tenures after the raise need some, too.
#[test]
fn a_term_that_no_store_can_keep_is_refused() {
    let dir = Dir::new("raise-too-far");
    for above in [i64::MAX as u64 - 1, i64::MAX as u64, u64::MAX] {
        let above = above.to_string();
        let target = ["--lease", &dir.url(), "--name", "job", "--above", &above];
        let (code, text) = refused(&[&["lease", "raise"][..], &target].concat());
        assert!(code == 64 && text.contains("9223372032559808511"), "{text}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing was opened");
}

#[test]
fn no_secret_is_printed() {
    // Of a store that there is in no build, and of one that may not be in this one.
    for url in ["stone://user:hunter2@host/db", "postgres://user:hunter2@host:port/db"] {
        let (code, text) = refused(&["run", "--lease", url, "--name", "job", "--", "true"]);
        assert!(code == 64 && !text.contains("hunter2"), "{text}");
    }
}

#[test]
fn a_directory_that_cannot_be_used_is_said_so() {
    let dir = Dir::new("unusable");
    std::fs::write(dir.join("a-file"), "").unwrap();
    let url = format!("file:{}", dir.join("a-file").display());
    for arguments in [
        &["run", "--lease", &url, "--name", "job", "--", "true"][..],
        &["lease", "show", "--lease", &url, "--name", "job"],
    ] {
        let (code, text) = refused(arguments);
        assert!(code == 69 && text.contains("a-file"), "{text}");
    }
}

/// A file system of its own; the test is skipped without the right to mount one.
struct Mount(std::path::PathBuf);

impl Mount {
    fn new(dir: &Dir, options: &str) -> Option<Self> {
        let path = dir.join("mounted");
        std::fs::create_dir_all(&path).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(&path);
        if !mount.output().is_ok_and(|output| output.status.success()) {
            println!("skipped: mounting a file system needs root");
            return None;
        }
        Some(Self(path))
    }

    fn url(&self) -> String {
        format!("file:{}", self.0.display())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_read_only_directory_is_said_so() {
    let dir = Dir::new("read-only");
    let Some(mount) = Mount::new(&dir, "size=1m") else { return };
    let remount = Command::new("mount").args(["-o", "remount,ro"]).arg(&mount.0).status();
    assert!(remount.unwrap().success());
    let (code, text) = refused(&["run", "--lease", &mount.url(), "--name", "job", "--", "true"]);
    assert!(code == 69 && text.to_lowercase().contains("read-only"), "{text}");
}

#[test]
fn a_full_disk_is_said_so() {
    let dir = Dir::new("full");
    let Some(mount) = Mount::new(&dir, "size=1m") else { return };
    fill(&mount.0.join("ballast"));
    let (code, text) = refused(&["run", "--lease", &mount.url(), "--name", "job", "--", "true"]);
    assert!(code == 69 && text.to_lowercase().contains("space"), "{text}");
}

#[test]
fn a_disk_that_fills_while_the_lease_is_held_makes_no_second_holder() {
    let dir = Dir::new("fills");
    let Some(mount) = Mount::new(&dir, "size=1m") else { return };
    let options = ["run", "--lease", &mount.url(), "--name", "job", "--ttl", "1s"];
    let job = format!("{PROBE} exec sleep 60");
    let start = || {
        let mut command = tenure();
        command.current_dir(dir.path()).args(options).args(["--", "sh", "-c", &job]);
        Process::start(&mut command)
    };
    // A preflight needs room on the disk: both are to be through theirs.
    let canary = |above: u64| {
        until("the end of a preflight", SOON, || {
            let canary = ["--lease", &mount.url(), "--name", "tenure-preflight", "--json"];
            let output = tenure().args(["lease", "show"]).args(canary).output().unwrap();
            let canary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            let term = canary["token"]["term"].as_u64().filter(|_| canary["state"] == "released");
            term.filter(|term| *term > above)
        })
    };
    let first = start();
    let term = canary(0);
    let mut runs = [first, start()];
    canary(term);
    line(&dir, "log", "start", SOON);
    let ballast = mount.0.join("ballast");
    fill(&ballast);
    // Whoever holds it cannot renew, and no one can take it over; or the store does without space.
    until("three ttls", SOON, {
        let mut looks = 0;
        move || {
            looks += 1;
            (looks > 1500).then_some(())
        }
    });
    let before = terms(&dir).len();
    std::fs::remove_file(ballast).unwrap();
    for run in &mut runs {
        assert!(run.is_running(), "it must come through a full disk");
    }
    // With space again, the lease can be handed over.
    let holder = runs.iter().position(|run| !children(run.pid()).is_empty());
    if let Some(holder) = holder {
        runs[holder].signal(libc::SIGTERM);
        runs[holder].end(SOON);
    }
    until("the next tenure", SOON, || (terms(&dir).len() > before).then_some(()));
    check_log(&dir);
}

fn fill(path: &std::path::Path) {
    let status = Command::new("dd")
        .args(["if=/dev/zero", "bs=1k", "status=none"])
        .arg(format!("of={}", path.display()))
        .stderr(std::process::Stdio::null())
        .status();
    assert!(!status.unwrap().success(), "the disk is not full");
}
