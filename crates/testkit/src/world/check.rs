//! Many seeds, each in a process of its own.
//!
//! tokio counts the runtimes of a process, and seeds each by that count: only a process that does nothing
//! else repeats itself. So the test runs itself again for every seed, with `TENURE_WORLD_SEED` set. That
//! also gives every seed fresh statics, uses all cores, and ends a seed that hangs.

use std::cell::Cell;
use std::future::Future;
use std::ops::Range;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::World;
use super::turn;

/// What a check did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Summary {
    /// How many seeds were run.
    pub seeds: u64,
    /// How many of them were run twice, to see that they repeat themselves.
    pub twice: u64,
    /// How much virtual time they took together.
    pub virtual_time: Duration,
    /// How much of a core's time they took together.
    pub core_time: Duration,
}

/// A seed that failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// What happened, line by line, and what was wrong with it.
    pub story: String,
}

/// Runs a scenario once for every seed, and panics with the story of the first that fails. A seed that
/// panics anywhere, on the test's own process or on a node, fails; so does one that does not end.
///
/// `TENURE_WORLD_SEED=7` runs only the seed 7, in this very process; with `TENURE_WORLD_TRACE=1` all
/// that happens is printed. `TENURE_WORLD_SECONDS=60` begins no more seeds after a minute.
pub fn check<F, R>(seeds: Range<u64>, scenario: F) -> Summary
where
    F: Fn(World) -> R + Send + Sync + 'static,
    R: Future<Output = ()> + Send + 'static,
{
    let (summary, failure) = run_seeds(seeds, scenario);
    if let Some(Failure { seed, story }) = failure {
        let test = Again::of_this_test().test;
        panic!("seed {seed} fails\n\n{story}\n\nagain: {SEED}={seed} cargo test {test}");
    }
    summary
}

/// Runs a scenario seed by seed until one fails: for a test of tests, whose scenario has a bug in it.
pub fn find<F, R>(seeds: Range<u64>, scenario: F) -> Option<Failure>
where
    F: Fn(World) -> R + Send + Sync + 'static,
    R: Future<Output = ()> + Send + 'static,
{
    run_seeds(seeds, scenario).1
}

fn run_seeds<F, R>(seeds: Range<u64>, scenario: F) -> (Summary, Option<Failure>)
where
    F: Fn(World) -> R + Send + Sync + 'static,
    R: Future<Output = ()> + Send + 'static,
{
    let call = CALLS.replace(CALLS.get() + 1);
    if let Some(seed) = variable(SEED) {
        if variable(CALL).is_some_and(|wanted| wanted != call) {
            return (Summary::default(), None);
        }
        return run_here(seed, scenario);
    }
    let again = Again { call, ..Again::of_this_test() };
    let began = Instant::now();
    let budget = variable("TENURE_WORLD_SECONDS").map_or(Duration::MAX, Duration::from_secs);
    let next = AtomicU64::new(seeds.start);
    let found = Mutex::new((Summary::default(), None::<Failure>));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end || began.elapsed() > budget {
                return;
            }
            let run = again.run(seed);
            let is_chosen = seed.is_multiple_of(TWICE_EVERY);
            let twice = (run.failure.is_none() && is_chosen).then(|| again.run(seed));
            let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
            found.0.seeds += 1;
            found.0.twice += u64::from(twice.is_some());
            found.0.virtual_time += run.took;
            found.0.core_time += run.core;
            let differs =
                twice.filter(|twice| twice.trace != run.trace).map(|_| NOT_REPEATED.into());
            if let Some(story) = run.failure.or(differs) {
                next.store(seeds.end, Ordering::Relaxed);
                if found.1.as_ref().is_none_or(|first| seed < first.seed) {
                    found.1 = Some(Failure { seed, story });
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(work);
        }
    });
    found.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Runs one seed in this process.
fn run_here<F, R>(seed: u64, scenario: F) -> (Summary, Option<Failure>)
where
    F: Fn(World) -> R + Send + Sync + 'static,
    R: Future<Output = ()> + Send + 'static,
{
    let before = core_time();
    let outcome = turn::run(seed, scenario);
    let core_time = core_time().saturating_sub(before);
    if std::env::var_os(REPORT).is_some() {
        // The harness may have begun a line.
        let (took, core) = (outcome.took.as_nanos(), core_time.as_nanos());
        println!("\n{REPORTED}{} {took} {core}", outcome.trace);
        let failed = outcome.failure.inspect(|story| println!("{STORY}{story}{STORY}")).is_some();
        std::process::exit(i32::from(failed));
    }
    let summary = Summary { seeds: 1, twice: 0, virtual_time: outcome.took, core_time };
    (summary, outcome.failure.map(|story| Failure { seed, story }))
}

/// Seeds that nobody has run before, most likely: they begin at `TENURE_WORLD_BASE`, which a build server
/// takes from the commit, or else at a number of this day. It is printed. `TENURE_WORLD_SEEDS` says how many,
/// instead of `count`.
pub fn fresh_seeds(count: u64) -> Range<u64> {
    let today = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let day = today.unwrap_or_default().as_secs() / 86_400;
    let base = variable("TENURE_WORLD_BASE").unwrap_or(day * 1_000_000);
    let count = variable("TENURE_WORLD_SEEDS").unwrap_or(count);
    if variable(SEED).is_none() {
        println!("fresh seeds from TENURE_WORLD_BASE={base}");
    }
    base..base.saturating_add(count)
}

thread_local! {
    /// How often this test has called here.
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

/// How this test is run again.
struct Again {
    test: String,
    /// Which check of the test it is.
    call: u64,
}

struct Run {
    failure: Option<String>,
    trace: u64,
    took: Duration,
    core: Duration,
}

impl Again {
    fn of_this_test() -> Self {
        // The test harness names the thread after the test.
        let test = std::thread::current().name().unwrap_or("main").to_owned();
        Self { test, call: 0 }
    }

    fn run(&self, seed: u64) -> Run {
        let failed = |why: String| Run {
            failure: Some(why),
            trace: 0,
            took: Duration::ZERO,
            core: Duration::ZERO,
        };
        let program = match std::env::current_exe() {
            Ok(program) => program,
            Err(error) => return failed(format!("this program cannot be found: {error}")),
        };
        let mut command = Command::new(program);
        if self.test == "main" {
            command.args(std::env::args_os().skip(1));
        } else {
            command.args([&self.test, "--exact", "--nocapture", "--include-ignored"]);
        }
        command.env(SEED, seed.to_string()).env(CALL, self.call.to_string()).env(REPORT, "1");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = match command.spawn() {
            Ok(child) => child,
            Err(error) => return failed(format!("this test cannot be run again: {error}")),
        };
        let id = child.id();
        let ended = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let watching = ended.clone();
        // A seed that blocks its thread would hang for ever.
        let watchdog = std::thread::spawn(move || {
            std::thread::park_timeout(HANGS_AFTER);
            if !watching.load(Ordering::Acquire) {
                kill(id);
                return true;
            }
            false
        });
        let output = child.wait_with_output();
        ended.store(true, Ordering::Release);
        watchdog.thread().unpark();
        let hung = watchdog.join().unwrap_or(false);
        let output = match output {
            Ok(output) => output,
            Err(error) => return failed(format!("this test cannot be run again: {error}")),
        };
        let text = String::from_utf8_lossy(&output.stdout);
        let reported = text.lines().find_map(|line| line.strip_prefix(REPORTED));
        let mut fields = reported.unwrap_or_default().split(' ').map(|field| field.parse().ok());
        let (trace, took) = (fields.next().flatten(), fields.next().flatten());
        let core = fields.next().flatten().map(Duration::from_nanos);
        let (Some(trace), Some(took), Some(core)) = (trace, took, core) else {
            let said = String::from_utf8_lossy(&output.stderr);
            let why = match hung {
                true => format!("it hangs: some code blocks the thread for {HANGS_AFTER:?}"),
                false => format!("it ended without a report ({})", output.status),
            };
            return failed(format!("{why}\n{text}\n{said}"));
        };
        let failed = !output.status.success();
        let story = text.split(STORY).nth(1).unwrap_or(&text).to_owned();
        let took = Duration::from_nanos(took);
        Run { failure: failed.then_some(story), trace, took, core }
    }
}

#[allow(unsafe_code, reason = "the standard library kills only what it can also wait for")]
fn kill(process: u32) {
    // SAFETY: a number; the process is our child, and is not waited for before this thread has ended.
    unsafe { libc::kill(process as libc::pid_t, libc::SIGKILL) };
}

/// How much of a core's time this process has taken.
#[allow(unsafe_code, reason = "the standard library does not tell it")]
fn core_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid, writable timespec. Zero is what an error leaves there.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

const SEED: &str = "TENURE_WORLD_SEED";
const CALL: &str = "TENURE_WORLD_CALL";
const REPORT: &str = "TENURE_WORLD_REPORT";
const REPORTED: &str = "tenure-world-report: ";
const STORY: &str = "\n-- the story --\n";
/// Every so many seeds, one is run twice.
const TWICE_EVERY: u64 = 50;
const HANGS_AFTER: Duration = Duration::from_secs(120);
const NOT_REPEATED: &str = "run twice, it went two ways: something in it does not follow from the \
     seed (a thread, a file, a clock of the machine, a static that outlives nothing)";
