//! `tenure with` and workers in Python.
#![allow(dead_code)]

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::common::*;

pub(crate) fn rounds() -> usize {
    std::env::var("TENURE_ROUNDS").map_or(10, |rounds| rounds.parse().unwrap())
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// `tenure with`, in the test's directory.
pub(crate) fn tenure_with(dir: &Dir, url: &str, options: &[&str], command: &[&str]) -> Command {
    let mut with = tenure();
    with.current_dir(dir.path())
        .process_group(0)
        .env("PYTHONPATH", root().join("clients/python"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .args(["with", "--store", url])
        .args(options)
        .arg("--")
        .args(command);
    with
}

/// A file of the tests of clients.
pub(crate) fn script(name: &str) -> String {
    root().join("tests/clients").join(name).display().to_string()
}

/// A machine with two workers, each of which is started again when it ends.
pub(crate) struct Machine {
    with: Process,
    url: String,
}

impl Machine {
    pub(crate) fn start(dir: &Dir, url: &str, worker: &str) -> Self {
        let script = format!(
            "for i in 1 2; do (while :; do {worker}; [ $? = 3 ] && exit; done) & done; wait"
        );
        let options = ["--ttl", "3s", "--stop-budget", "900ms"];
        let mut command = tenure_with(dir, url, &options, &["sh", "-c", &script]);
        Self { with: Process::start(command.stderr(Stdio::null())), url: url.to_owned() }
    }

    pub(crate) fn signal(&self, signal: i32) {
        self.with.signal(signal);
    }

    pub(crate) fn guardian(&self) -> i32 {
        self.with.child()
    }

    pub(crate) fn end(&mut self) -> i32 {
        code(self.with.end(SOON))
    }

    /// Whether this process is below it.
    pub(crate) fn has(&self, pid: i32) -> bool {
        let mut pid = pid;
        while pid > 1 {
            if pid == self.with.pid() {
                return true;
            }
            pid = parent(pid).unwrap_or(0);
        }
        false
    }

    /// Takes the lease away, as an operator does.
    pub(crate) fn break_lease(&self) {
        let mut command = tenure();
        command.args(["lease", "break", "--yes", "--lease", &self.url, "--name", "job"]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        // Refused if the lease was renewed meanwhile.
        until("the lease to be broken", SOON, || command.status().unwrap().success().then_some(()));
    }

    pub(crate) fn stop(&mut self) {
        if self.with.is_running() {
            self.signal(libc::SIGTERM);
            assert_eq!(self.end(), 143);
        }
    }
}

/// Harms whoever leads on one of two machines, again and again; `harm` says whether the machine is gone for good
/// then. Never are two at work, and nothing is left in the end.
pub(crate) fn rounds_of(
    name: &str,
    dir: &Dir,
    url: &str,
    worker: &str,
    harm: impl Fn(&mut Machine, i32) -> bool,
) {
    let mut machines = [Machine::start(dir, url, worker), Machine::start(dir, url, worker)];
    let mut last_term = 0;
    for round in 1..=rounds() {
        // The latest, if it has not ended meanwhile by itself.
        let (term, leader, number) = until(&format!("{name}: leader {round}"), SOON * 3, || {
            let (term, leader) = dir.lines("log").iter().rev().find_map(|line| start_of(line))?;
            let number = machines.iter().position(|it| it.has(leader))?;
            (term > last_term).then_some((term, leader, number))
        });
        last_term = term;
        if harm(&mut machines[number], leader) {
            machines[number] = Machine::start(dir, url, worker);
        }
    }
    until(&format!("{name}: the last leader"), SOON * 3, || {
        terms(dir).last().filter(|term| **term > last_term).copied()
    });
    machines.iter_mut().for_each(Machine::stop);
    check_log(dir);
    let errors: Vec<_> =
        dir.lines("log").into_iter().filter(|line| line.starts_with("error")).collect();
    assert!(errors.is_empty(), "{errors:#?}");
    until(&format!("{name}: no orphans"), SOON, || processes_in(dir).is_empty().then_some(()));
    println!("{name}: {} rounds, {} tenures, overlaps 0, orphans 0", rounds(), terms(dir).len());
}

/// The term, and who began to work with it, if a line says that somebody did.
pub(crate) fn start_of(line: &str) -> Option<(u64, i32)> {
    let (term, pid) = line.strip_prefix("start ")?.split_once(' ')?;
    Some((term.parse().ok()?, pid.parse().ok()?))
}

/// A worker in Python, as a shell starts it; `None` if that is not installed. What it can be: see worker.py.
pub(crate) fn python(behaviour: &str) -> Option<String> {
    is_installed("python3").then(|| format!("python3 {} {behaviour}", script("worker.py")))
}

/// The same in Node.
pub(crate) fn node(behaviour: &str) -> Option<String> {
    let client = root().join("clients/node/index.js");
    let worker = format!("TENURE_CLIENT={} node {}", client.display(), script("worker.mjs"));
    is_installed("node").then(|| format!("{worker} {behaviour}"))
}

/// The same in Go, built in this directory.
pub(crate) fn go(dir: &Dir, behaviour: &str) -> Option<String> {
    go_build(dir, &script("worker.go")).map(|program| format!("{program} {behaviour}"))
}

/// A program in Go that uses the client, built in this directory; `None` if Go is not installed.
pub(crate) fn go_build(dir: &Dir, source: &str) -> Option<String> {
    if !is_installed("go") {
        return None;
    }
    let program = dir.join("program");
    if !program.exists() {
        let mut build = Command::new("go");
        build.current_dir(root().join("clients/go")).args(["build", "-o"]).arg(&program);
        let output = build.arg(source).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    Some(program.display().to_string())
}

fn is_installed(program: &str) -> bool {
    let look = format!("command -v {program}");
    Command::new("sh").args(["-c", &look]).stdout(Stdio::null()).status().unwrap().success()
}

/// The processes that work in the test's directory.
pub(crate) fn processes_in(dir: &Dir) -> Vec<i32> {
    let here = dir.path().canonicalize().unwrap();
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == here))
        .collect()
}

fn parent(pid: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat[stat.rfind(')')? + 1..].split_whitespace().nth(1)?.parse().ok()
}
