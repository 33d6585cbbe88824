//! Plays the same steps with real processes again and again: `TENURE_ROUNDS` says how often, and that
//! times are checked, too. `TENURE_ROUNDS_STORE` names another store than a directory,
//! `TENURE_ROUNDS_TTL` another ttl than 3 seconds.
#![allow(dead_code, clippy::disallowed_methods)]

use std::fmt::Write as _;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::common::*;

/// Some steps, and when: in seconds from the beginning of a round, at a ttl of 3 s.
pub(crate) struct Play<'a> {
    pub(crate) what: &'a str,
    /// More for the command line.
    pub(crate) options: &'a [&'a str],
    /// Once, before the first round.
    pub(crate) first: &'a [(f64, &'a str)],
    pub(crate) steps: &'a [(f64, &'a str)],
    /// How long a round is.
    pub(crate) length: f64,
}

impl Play<'_> {
    /// Plays it so many times, and returns the sum of it.
    pub(crate) fn times(&self, count: usize) -> Value {
        let mut script = String::new();
        let mut begin = 2.0;
        let mut add = |begin: f64, steps: &[(f64, &str)]| {
            for (at, step) in steps {
                let at = begin + at * ttl() / 3.0;
                writeln!(script, "{}ms {step}", (at * 1000.0) as u64).unwrap();
            }
        };
        if let Some((last, _)) = self.first.last() {
            add(begin, self.first);
            begin += (last + 5.0) * ttl() / 3.0;
        }
        for round in 0..count {
            add(begin + round as f64 * self.length * ttl() / 3.0, self.steps);
        }
        let dir = Dir::new(&format!("rounds-{}", self.what));
        fs::write(dir.join("script"), script).unwrap();
        let events = File::create(dir.join("events")).unwrap();
        let mut demo = tenure();
        demo.args(["demo", "--json", "--ttl", &format!("{}s", ttl()), "--script"]);
        demo.arg(dir.join("script")).args(self.options).stderr(events);
        if let Ok(store) = std::env::var("TENURE_ROUNDS_STORE") {
            demo.args(["--lease", &store]);
        }
        let demo = demo.output().unwrap();
        println!("{}: {}", self.what, String::from_utf8_lossy(&demo.stdout).trim());
        let told = dir.lines("events").join("\n");
        let sum: Value = serde_json::from_slice(&demo.stdout).unwrap_or_else(|_| panic!("{told}"));
        for none in NONE {
            assert_eq!(sum[none], 0, "{none}\n{told}");
        }
        assert!(demo.status.success(), "{told}");
        assert!(!told.contains("was done within a while"), "{told}");
        sum
    }
}

/// Every node leaves in turn and comes back from `program`, and then again from the one before.
pub(crate) fn roll_to(program: &Path) -> Vec<(f64, String)> {
    let programs = [program.to_owned(), PathBuf::from(env!("CARGO_BIN_EXE_tenure"))];
    let nodes = programs.iter().flat_map(|program| (1..=5).map(move |node| (program, node)));
    let steps = (0..).zip(nodes).flat_map(|(turn, (program, node))| {
        let at = f64::from(turn) * 2.5;
        let program = format!("program {}", program.display());
        [(at, program), (at, format!("leave {node}")), (at + 1.0, "restart".into())]
    });
    steps.collect()
}

/// A program that is this version, and speaks as the next may.
pub(crate) fn next_version(dir: &Dir) -> PathBuf {
    let path = dir.join("next");
    let ours = env!("CARGO_BIN_EXE_tenure");
    fs::write(&path, format!("#!/bin/sh\nTENURE_PLANTED_NEXT=1 exec {ours} \"$@\"\n")).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    path
}

/// How many, and whether times are checked, too.
pub(crate) fn rounds(usual: usize) -> (usize, bool) {
    match std::env::var("TENURE_ROUNDS") {
        Ok(count) => (count.parse().expect("TENURE_ROUNDS is a number"), true),
        Err(_) => (usual, false),
    }
}

/// In seconds.
pub(crate) fn ttl() -> f64 {
    std::env::var("TENURE_ROUNDS_TTL").map_or(3.0, |ttl| ttl.parse().expect("a number of seconds"))
}

/// Checks a time, if times are checked.
pub(crate) fn at_most(sum: &Value, figure: &str, millis: f64) {
    if rounds(0).1 {
        assert!(sum[figure].as_f64().unwrap() <= millis, "{figure} {}", sum[figure]);
    }
}
