//! Examples as processes, two at a time: one is told to end by SIGTERM, and the other takes over.
#![allow(clippy::disallowed_methods, reason = "real processes take real time")]

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// A program that hosts something.
pub(crate) struct Example {
    pub name: &'static str,
    /// What it prints when it begins to host.
    pub begins: &'static str,
    /// What one that waits prints when it has settled in.
    pub settled: &'static str,
}

/// What the examples of this crate host. (`service` has two things.)
pub(crate) const EXAMPLES: [Example; 6] = [
    Example { name: "singleton_cron", begins: "tick, under token", settled: " is in" },
    Example { name: "singleton_ractor", begins: "greets, under token", settled: " is in" },
    Example { name: "singleton_state", begins: ", under token", settled: " is in" },
    Example { name: "singleton_stream", begins: "leads, under token", settled: " is in" },
    Example { name: "service", begins: "reports, under token", settled: "imports part" },
    Example { name: "service", begins: "imports part", settled: "imports part" },
];

impl Example {
    /// Ends the host by SIGTERM, so many times, and starts it again each time. What each hand-over took.
    pub(crate) fn hand_over(&self, store: &str, block: u8, rounds: usize) -> Vec<Duration> {
        let dir = tempfile::tempdir().unwrap();
        let mut pair: Vec<_> =
            (0..2).map(|index| self.start(dir.path(), store, block, index)).collect();
        let mut host = until("a host", || pair.iter().position(|it| it.begun(self.begins) > 0));
        let mut took = Vec::new();
        for round in 0..rounds {
            let other = 1 - host;
            // Until the other is a member, has its share, and waits for the rest.
            until("two members", || (pair[other].begun(self.settled) > 0).then_some(()));
            std::thread::sleep(Duration::from_millis(1000 + 137 * round as u64 % 500));
            let before = pair[other].begun(self.begins);
            let told = Instant::now();
            pair[host].signal(libc::SIGTERM);
            until("the next host", || (pair[other].begun(self.begins) > before).then_some(()));
            took.push(told.elapsed());
            let status = until("the end of the host", || pair[host].child.try_wait().unwrap());
            assert!(status.success(), "{}: {status}: {}", self.name, pair[host].said());
            pair[host] = self.start(dir.path(), store, block, host);
            host = other;
        }
        took
    }

    fn start(&self, dir: &Path, store: &str, block: u8, index: usize) -> Running {
        let pid = std::process::id();
        let last = usize::from(block) + index;
        let host = format!("127.{}.{}.{last}", 1 + (pid >> 8) % 254, pid & 0xff);
        let address = format!("{host}:7400");
        let config = dir.join(format!("node-{index}.toml"));
        let log = dir.join(format!("{index}.log"));
        let mut command = Command::new(program(self.name));
        if self.name == "service" {
            fs::write(&config, node_file(&host, index, store)).unwrap();
            command.arg(&config);
        } else {
            command.arg(&address);
        }
        let out = File::create(&log).unwrap();
        command.current_dir(dir).env("STORE", store).stdout(out.try_clone().unwrap()).stderr(out);
        Running { child: command.spawn().unwrap(), log }
    }
}

fn node_file(host: &str, index: usize, store: &str) -> String {
    format!(
        "cluster = \"shop\"\nname = \"shop-{index}\"\naddress = \"{host}:7400\"\n\
         plaintext_without_any_protection = true\nstore = \"{store}\"\nformation = \"shop.formation\"\n\
         [manage]\nlisten = \"{host}:7480\"\n"
    )
}

/// One process, killed when this is dropped.
struct Running {
    child: Child,
    log: PathBuf,
}

impl Running {
    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// How often it has said so.
    fn begun(&self, begins: &str) -> usize {
        self.said().matches(begins).count()
    }

    #[allow(unsafe_code)]
    fn signal(&self, signal: i32) {
        // SAFETY: takes two numbers; the process is a child of this one that was not waited for.
        unsafe { libc::kill(i32::try_from(self.child.id()).unwrap(), signal) };
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Examples are built with all tests; with one test alone they are not.
fn program(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let program = tests.parent().and_then(Path::parent).unwrap().join("examples").join(name);
    assert!(
        program.exists(),
        "{} is not built: cargo build -p tenure --all-features --examples",
        program.display()
    );
    program
}

fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "waited for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// How often: so often here, and as often as `TENURE_ROUNDS` says in a long run.
pub(crate) fn rounds(usual: usize) -> usize {
    std::env::var("TENURE_ROUNDS").map_or(usual, |rounds| rounds.parse().unwrap())
}

/// Prints what they took; every one was in time, or, on a machine that others use as well, most.
pub(crate) fn judge(example: &Example, store: &str, mut took: Vec<Duration>) {
    took.sort();
    let (median, longest) = (took[took.len() / 2], took[took.len() - 1]);
    println!(
        "{} on {store}: {} hosts told to end; the next began after {median:.1?} (median), {longest:.1?} \
         (longest)",
        example.name,
        took.len()
    );
    assert!(median <= HAND_OVER, "{}: {took:?}", example.name);
    // A crash would take 4 s on `file:` and a ttl elsewhere. Shards that are still moving when their node
    // is told to end are waited for, for 2 s at most (`patience`).
    assert!(longest < Duration::from_millis(3_500), "{}: {took:?}", example.name);
}

/// A stop that takes no time, and a hand-over.
const HAND_OVER: Duration = Duration::from_millis(250);
