//! What all processes of a world share: its time, its chance, what is under way, and the story.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use tenure_lease::Moment;
use tokio::runtime::Handle;

use super::network::Network;
use super::outside::Outside;
use super::records::Records;
use super::story::Story;
use crate::sim::Random;

/// Shared by the world's loop, its processes and the test.
pub(super) struct Core {
    state: Mutex<State>,
}

/// Everything that changes.
pub(super) struct State {
    pub(super) seed: u64,
    /// The world's time at the beginning of the step that is under way.
    pub(super) now: Duration,
    pub(super) random: Random,
    pub(super) queue: Queue,
    pub(super) processes: Vec<ProcessState>,
    /// The process that lives now, or did last.
    pub(super) living: usize,
    pub(super) network: Network,
    pub(super) records: Records,
    pub(super) orders: VecDeque<Order>,
    pub(super) story: Story,
    /// Whom to wake once the lock is released.
    pub(super) wake: Vec<Waker>,
    pub(super) outside: Outside,
    /// What must not have happened, and did.
    pub(super) violations: Vec<String>,
}

/// What the world knows of a process besides its runtime.
pub(super) struct ProcessState {
    pub(super) name: String,
    /// Rises with every start; what an earlier life started is void.
    pub(super) life: u64,
    pub(super) is_running: bool,
    pub(super) is_paused: bool,
    /// Its machine went with it: nobody answers for it, not even with a reset.
    pub(super) machine_gone: bool,
    /// Its boot clock is ahead of the world's by this much.
    pub(super) clock_ahead: Duration,
    /// While it runs.
    pub(super) handle: Option<Handle>,
    /// What it runs when it starts.
    pub(super) main: Main,
}

/// What a process runs.
pub(super) type Main = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// What the test wants done between two steps.
#[derive(Debug)]
pub(super) enum Order {
    Start(usize),
    Crash(usize),
    Resume(usize),
}

/// Something that happens at a moment.
pub(super) enum Due {
    Network(super::network::Due),
    Records(Box<super::records::Due>),
}

/// What is to happen, in the order of time; what is due at the same time, in the order in which it
/// was put here.
#[derive(Default)]
pub(super) struct Queue {
    all: BTreeMap<(Duration, u64), Due>,
    next: u64,
}

impl Queue {
    pub(super) fn push(&mut self, at: Duration, due: Due) {
        self.next += 1;
        self.all.insert((at, self.next), due);
    }

    fn pop(&mut self, now: Duration) -> Option<Due> {
        let entry = self.all.first_entry()?;
        (entry.key().0 <= now).then(|| entry.remove())
    }
}

impl Core {
    pub(super) fn new(seed: u64) -> Arc<Self> {
        let mut random = Random::new(seed);
        let records = Records::new(&mut random);
        let state = State {
            seed,
            now: Duration::ZERO,
            random,
            queue: Queue::default(),
            processes: Vec::new(),
            living: 0,
            network: Network::default(),
            records,
            orders: VecDeque::new(),
            story: Story::default(),
            wake: Vec::new(),
            outside: Outside::default(),
            violations: Vec::new(),
        };
        Arc::new(Self { state: Mutex::new(state) })
    }

    /// Does something to the state, then wakes whomever that concerns.
    pub(super) fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        let (result, wake) = {
            let mut state = self.lock();
            let result = act(&mut state);
            (result, std::mem::take(&mut state.wake))
        };
        wake.into_iter().for_each(Waker::wake);
        result
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // One thread; a panic in a test must not hide the story.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets everything happen that is due.
    pub(super) fn settle(&self) {
        loop {
            let more = self.with(|state| {
                let Some(due) = state.queue.pop(state.now) else { return false };
                match due {
                    Due::Network(due) => state.network_due(due),
                    Due::Records(due) => state.records_due(*due),
                }
                true
            });
            if !more {
                return;
            }
        }
    }
}

impl State {
    /// The world's own moment, which the store judges expiry by.
    pub(super) fn moment(&self) -> Moment {
        Moment::ZERO + EPOCH + self.now
    }

    /// Something must not have happened, and did.
    pub(super) fn violated(&mut self, what: String) {
        self.tell("VIOLATION", &what);
        self.violations.push(what);
    }

    /// Says something in the story, as of now.
    pub(super) fn tell(&mut self, who: &str, what: impl AsRef<str>) {
        let now = self.now;
        self.story.tell(now, who, what.as_ref());
    }

    /// Counts in the trace and not in the story: too much for people.
    pub(super) fn trace(&mut self, what: std::fmt::Arguments<'_>) {
        let now = self.now;
        self.story.trace(now, what);
    }

    pub(super) fn name(&self, process: usize) -> String {
        self.processes[process].name.clone()
    }

    pub(super) fn names(&self, processes: &BTreeSet<usize>) -> String {
        let names: Vec<&str> =
            processes.iter().map(|process| self.processes[*process].name.as_str()).collect();
        names.join(", ")
    }
}

/// A world does not begin at zero: `Moment::ZERO` means *never* in some places.
pub(super) const EPOCH: Duration = Duration::from_secs(1000);
