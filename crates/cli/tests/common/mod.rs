//! Real processes, and what to do with them. Waits for events, with a deadline; never blindly.
#![allow(dead_code, clippy::disallowed_methods)]

use std::fs;
use std::os::unix::process::{CommandExt as _, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// A directory of one test, removed at its end unless the test failed.
pub(crate) struct Dir(PathBuf);

impl Dir {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tenure-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The URL of a store in it.
    pub(crate) fn url(&self) -> String {
        format!("file:{}", self.0.join("leases").display())
    }

    /// The lines of a file in it; none if it does not exist.
    pub(crate) fn lines(&self, name: &str) -> Vec<String> {
        let text = fs::read_to_string(self.join(name)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}

/// The program under test.
#[allow(unsafe_code)]
pub(crate) fn tenure() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
    command.env_remove("RUST_LOG").env_remove("TENURE_LEASE").stdin(Stdio::null());
    // Whatever runs the tests may have been started with signals ignored, as shells do in the
    // background; the program would respect that.
    let heed = || {
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            // SAFETY: it may be called between fork and exec.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        Ok(())
    };
    // SAFETY: it calls nothing else.
    unsafe { command.pre_exec(heed) };
    command
}

/// `tenure run` of a shell script, in the test's directory, on the lease `job`.
pub(crate) fn tenure_run(dir: &Dir, options: &[&str], script: &str) -> Command {
    let mut command = tenure();
    command
        .current_dir(dir.path())
        // As a shell starts a job.
        .process_group(0)
        .args(["run", "--lease", &dir.url(), "--name", "job"])
        .args(options)
        .args(["--", "sh", "-c", script]);
    command
}

/// A process that is killed when the test is over.
pub(crate) struct Process(Child);

impl Process {
    pub(crate) fn start(command: &mut Command) -> Self {
        Self(command.spawn().unwrap())
    }

    pub(crate) fn of(child: Child) -> Self {
        Self(child)
    }

    pub(crate) fn pid(&self) -> i32 {
        self.0.id() as i32
    }

    pub(crate) fn signal(&self, signal: i32) {
        kill(self.pid(), signal);
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }

    /// Waits for its end.
    pub(crate) fn end(&mut self, within: Duration) -> ExitStatus {
        until("the process to end", within, || self.0.try_wait().unwrap())
    }

    /// Its only child.
    pub(crate) fn child(&self) -> i32 {
        only_child(self.pid())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may be stopped; what it guards follows it.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The exit code as a shell sees it.
pub(crate) fn code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

#[allow(unsafe_code)]
pub(crate) fn kill(pid: i32, signal: i32) {
    assert!(pid > 1, "never everybody");
    // SAFETY: takes two numbers; the process is one that the test started.
    unsafe { libc::kill(pid, signal) };
}

/// Waits until there is something, and says what it waited for if there is not.
pub(crate) fn until<T>(what: &str, within: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < within, "waited {within:?} for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until a file has a line that begins like this, and returns the rest of that line.
pub(crate) fn line(dir: &Dir, file: &str, begin: &str, within: Duration) -> String {
    until(&format!("{begin:?} in {file}"), within, || {
        dir.lines(file)
            .iter()
            .find_map(|line| line.strip_prefix(begin))
            .map(|s| s.trim().to_owned())
    })
}

/// Whether a process is there and not merely waiting to be reaped.
pub(crate) fn is_alive(pid: i32) -> bool {
    stat(pid).is_some_and(|(state, _)| state != 'Z' && state != 'X')
}

pub(crate) fn only_child(pid: i32) -> i32 {
    until(&format!("the child of {pid}"), SOON, || children(pid).first().copied())
}

pub(crate) fn children(pid: i32) -> Vec<i32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|&child| stat(child).is_some_and(|(_, parent)| parent == pid))
        .collect()
}

fn stat(pid: i32) -> Option<(char, i32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat[stat.rfind(')')? + 1..].split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

/// Long enough for whatever should happen at once, on a machine that is busy with other tests.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// A script's beginning: takes a lock that is free only when everything that any earlier script of
/// the test started is gone, and says `overlap` if it is not; then says `start`.
pub(crate) const PROBE: &str = "
exec 9>>probe
flock -n 9 || echo overlap $TENURE_TOKEN >>log
echo start $TENURE_TOKEN $$ >>log
";

/// The terms of all `start` lines, in their order.
pub(crate) fn terms(dir: &Dir) -> Vec<u64> {
    let lines = dir.lines("log");
    let starts = lines.iter().filter_map(|line| line.strip_prefix("start "));
    starts.map(|rest| rest.split(' ').next().unwrap().parse().unwrap()).collect()
}

/// Nothing overlapped, and the terms rose.
pub(crate) fn check_log(dir: &Dir) {
    let log = dir.lines("log");
    assert!(!log.iter().any(|line| line.starts_with("overlap")), "overlap: {log:#?}");
    let terms = terms(dir);
    assert!(terms.windows(2).all(|pair| pair[0] < pair[1]), "terms do not rise: {terms:?}");
}

/// What must be zero after a demonstration.
pub(crate) const NONE: &[&str] = &["overlaps", "stale_writes_accepted", "jobs_lost", "jobs_twice"];
/// The same of counters in shards.
pub(crate) const NONE_OF_COUNTERS: &[&str] = &[
    "writes_lost",
    "writes_twice",
    "key_overlaps",
    "key_out_of_order",
    "key_stale_writes_accepted",
];
