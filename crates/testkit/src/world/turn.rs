//! The loop that lets a world's processes live, one after the other, step by step.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use tokio::runtime::Builder;
use tokio::task::JoinHandle;

use super::World;
use super::core::{Core, Main, Order, ProcessState};
use super::entropy;
use super::process::{self, Process};
use super::story::Logged;

/// How one seed came out.
pub(super) struct Outcome {
    /// A hash of all that happened.
    pub(super) trace: u64,
    /// How much virtual time it took.
    pub(super) took: Duration,
    /// What went wrong, and the story that led there.
    pub(super) failure: Option<String>,
}

/// Runs a scenario with a seed, on a thread of its own.
pub(super) fn run<F, R>(seed: u64, scenario: F) -> Outcome
where
    F: FnOnce(World) -> R + Send + 'static,
    R: Future<Output = ()> + Send + 'static,
{
    note_panics();
    let core = Core::new(seed);
    let (simulated, beats) = (core.clone(), Arc::new(AtomicU64::new(0)));
    let (beaten, (sender, outcome)) = (beats.clone(), mpsc::channel());
    let simulating = move || {
        entropy::follow(seed);
        PANICS.set(Some(Vec::new()));
        let logged = Logged::new(simulated.clone());
        let turns = AssertUnwindSafe(|| Turns::new(simulated, beaten).run(scenario));
        let ended = tracing::subscriber::with_default(logged, || catch_unwind(turns));
        let outcome = ended.unwrap_or_else(|_| Outcome::failed(take_panics().join("\n")));
        // Nobody waits any more if the thread was blocked for long.
        let _ = sender.send(outcome);
    };
    let thread = std::thread::Builder::new().name("tenure-world".into()).spawn(simulating);
    if let Err(error) = thread {
        return Outcome::failed(format!("no thread: {error}"));
    }
    let (mut beat, mut since) = (0, Instant::now());
    loop {
        match outcome.recv_timeout(LOOK) {
            Ok(outcome) => return outcome,
            Err(RecvTimeoutError::Disconnected) => return Outcome::failed("no outcome".into()),
            Err(RecvTimeoutError::Timeout) => {}
        }
        let now = beats.load(Ordering::Relaxed);
        if now != std::mem::replace(&mut beat, now) {
            since = Instant::now();
        } else if since.elapsed() > BLOCKED {
            // The thread is left alone: nothing can end it.
            return core.with(|state| {
                let who = state.name(state.living);
                let why = format!(
                    "{who} blocks its thread: a call there has not returned for {BLOCKED:?}"
                );
                Outcome {
                    trace: state.story.hash(),
                    took: state.now,
                    failure: Some(format!("{}\n{why}", state.story)),
                }
            });
        }
    }
}

impl Outcome {
    /// The world itself did not work.
    fn failed(why: String) -> Self {
        Self { trace: 0, took: Duration::ZERO, failure: Some(why) }
    }
}

struct Turns {
    core: Arc<Core>,
    /// Counts what was done, so that somebody can see that it goes on.
    beats: Arc<AtomicU64>,
    builder: Builder,
    processes: Vec<Option<Process>>,
}

impl Turns {
    fn new(core: Arc<Core>, beats: Arc<AtomicU64>) -> Self {
        let mut builder = Builder::new_current_thread();
        builder.enable_time().start_paused(true);
        Self { core, beats, builder, processes: Vec::new() }
    }

    fn run<F, R>(mut self, scenario: F) -> Outcome
    where
        F: FnOnce(World) -> R + Send + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        let nothing: Main = Arc::new(|| Box::pin(async {}));
        self.core.with(|state| state.processes.push(ProcessState::new("test", nothing)));
        let mut failure = self.start(TEST).err();
        let world = World::new(self.core.clone());
        let test = match &self.processes[TEST] {
            Some(process) => process.enter(|| process.handle().spawn(scenario(world))),
            None => return self.outcome(failure),
        };
        while failure.is_none() && !test.is_finished() {
            failure = self.step().err();
        }
        if failure.is_none() {
            failure = self.ended(test);
        }
        self.outcome(failure)
    }

    /// One step of the world's time, in which every process lives once.
    fn step(&mut self) -> Result<(), String> {
        self.core.settle();
        let until = self.core.with(|state| state.now) + STEP;
        let mut order: Vec<usize> = (0..self.processes.len()).collect();
        self.core.with(|state| {
            for last in (1..order.len()).rev() {
                order.swap(last, state.random.within(0..last as u64 + 1) as usize);
            }
            order.retain(|index| !state.processes[*index].is_paused);
        });
        for index in order {
            if let Some(process) = &self.processes[index] {
                self.core.with(|state| state.living = index);
                self.beats.fetch_add(1, Ordering::Relaxed);
                process.live(until);
            }
        }
        self.core.with(|state| state.now = until);
        while let Some(order) = self.core.with(|state| state.orders.pop_front()) {
            match order {
                Order::Start(index) => self.start(index)?,
                Order::Crash(index) => self.crash(index),
                Order::Resume(index) => self.resume(index),
            }
        }
        let violations = self.core.with(|state| std::mem::take(&mut state.violations));
        let wrong: Vec<String> = take_panics().into_iter().chain(violations).collect();
        if !wrong.is_empty() {
            return Err(wrong.join("\n"));
        }
        if until > LONGEST {
            return Err(format!("the test has not ended after {LONGEST:?} of virtual time"));
        }
        Ok(())
    }

    fn start(&mut self, index: usize) -> Result<(), String> {
        self.crash(index);
        self.processes.resize_with(self.processes.len().max(index + 1), || None);
        let started = Process::new(&self.core, &mut self.builder, index, address(index));
        let process = started.map_err(|error| format!("no runtime: {error}"))?;
        let main = self.core.with(|state| {
            state.processes[index].handle = Some(process.handle().clone());
            let name = state.name(index);
            if index != TEST {
                state.tell(&name, "starts");
            }
            state.processes[index].main.clone()
        });
        process.enter(|| drop(process.handle().spawn(main())));
        self.processes[index] = Some(process);
        Ok(())
    }

    fn crash(&mut self, index: usize) {
        let Some(process) = self.processes.get_mut(index).and_then(Option::take) else { return };
        self.core.with(|state| {
            state.processes[index].is_running = false;
            state.processes[index].handle = None;
        });
        drop(process);
    }

    fn resume(&mut self, index: usize) {
        let now = self.core.with(|state| {
            state.processes[index].is_paused = false;
            state.now
        });
        if let Some(process) = &self.processes[index] {
            process.wake_up(now);
        }
    }

    /// Why the test failed, if it did.
    fn ended(&self, test: JoinHandle<()>) -> Option<String> {
        let process = self.processes[TEST].as_ref()?;
        let ended = process.enter(|| {
            let _context = process.handle().enter();
            futures_now(test)
        });
        match ended {
            Some(Ok(())) => None,
            Some(Err(error)) => Some(format!("the test failed: {error}")),
            None => Some("the test has not ended".into()),
        }
    }

    fn outcome(mut self, failure: Option<String>) -> Outcome {
        for index in (0..self.processes.len()).rev() {
            self.crash(index);
        }
        let panics = take_panics().join("\n");
        self.core.with(|state| {
            let failure = failure
                .map(|why| format!("{}\n{why}\n{panics}", state.story).trim_end().to_owned());
            Outcome { trace: state.story.hash(), took: state.now, failure }
        })
    }
}

/// The result of a task that has ended.
fn futures_now<T>(mut task: JoinHandle<T>) -> Option<Result<T, tokio::task::JoinError>> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::Pin::new(&mut task).poll(&mut context) {
        std::task::Poll::Ready(result) => Some(result),
        std::task::Poll::Pending => None,
    }
}

impl ProcessState {
    pub(super) fn new(name: &str, main: Main) -> Self {
        Self {
            name: name.into(),
            life: 0,
            is_running: false,
            is_paused: false,
            machine_gone: false,
            clock_ahead: Duration::ZERO,
            handle: None,
            main,
        }
    }
}

/// Where a process listens and connects from: an address of this machine, as far as the process
/// knows.
pub(super) fn address(index: usize) -> SocketAddr {
    let (high, low) = ((index / 250) as u8 + 1, (index % 250) as u8 + 1);
    SocketAddr::from(([127, 0, high, low], PORT))
}

thread_local! {
    /// What panics said on this thread, if it simulates.
    static PANICS: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

fn take_panics() -> Vec<String> {
    PANICS.with_borrow_mut(|panics| panics.as_mut().map(std::mem::take)).unwrap_or_default()
}

/// Notes what panics on simulating threads say; others go on as before.
fn note_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let noted = PANICS.try_with(|panics| {
                let Ok(mut panics) = panics.try_borrow_mut() else { return false };
                let Some(panics) = panics.as_mut() else { return false };
                let who =
                    process::current().map_or("the world".into(), |it| format!("process {it}"));
                panics.push(format!("{who} panicked: {panic}"));
                true
            });
            if noted != Ok(true) {
                before(panic);
            }
        }));
    });
}

/// The process that the test itself runs on.
pub(super) const TEST: usize = 0;
/// How long every process lives before the next one does. Connections and stores are no quicker.
pub(super) const STEP: Duration = Duration::from_millis(2);
const LONGEST: Duration = Duration::from_secs(900);
const LOOK: Duration = Duration::from_millis(200);
/// How long a step of one process may take, of the machine's time.
const BLOCKED: Duration = Duration::from_secs(10);
const PORT: u16 = 7400;
