//! Drives the pure keepers: the thread that renews, the clock, the entropy, the store's answers.
//!
//! All keepers of a process run on one thread of their own, which user code cannot starve. Stores
//! do their I/O there too.
#![allow(clippy::disallowed_methods)]

mod kept;
mod lease;
mod liveness;
mod offer;
mod session;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};

pub(crate) use kept::keep_sessions;
pub(crate) use lease::{Begun, Terms, keep};
pub(crate) use liveness::{Call, Liveness};
pub(crate) use offer::{Offer, Outcome};
pub(crate) use session::{Command, keep_session};

use crate::backend::{Answer, Backend, Request, StoreError};
use crate::clock::Moment;
use crate::keeper::Deadlines;
use crate::{LeaseName, Loss, telemetry};

/// The runtime of the keeper thread, started on first use; it lives as long as the process.
pub(crate) fn runtime() -> Handle {
    #[cfg(feature = "simulation")]
    if let Some(world) = crate::world::here() {
        return world.runtime();
    }
    static RUNTIME: OnceLock<Handle> = OnceLock::new();
    RUNTIME.get_or_init(|| start("tenure-keeper")).clone()
}

/// The runtime of the thread that only waits for deadlines.
fn clock_runtime() -> Handle {
    #[cfg(feature = "simulation")]
    if let Some(world) = crate::world::here() {
        return world.runtime();
    }
    static CLOCK: OnceLock<Handle> = OnceLock::new();
    CLOCK.get_or_init(|| start("tenure-clock")).clone()
}

/// A thread with a runtime, for as long as the process lives.
fn start(thread: &str) -> Handle {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_name("tenure-store")
        .max_blocking_threads(64)
        .build()
        .expect("the operating system has room for one more runtime");
    let handle = runtime.handle().clone();
    std::thread::Builder::new()
        .name(thread.into())
        .spawn(move || runtime.block_on(std::future::pending::<()>()))
        .expect("the operating system has room for one more thread");
    handle
}

/// Runs a future on the keeper thread and waits for it here, so that what it opens (sockets) lives
/// there. If the caller loses interest, so does the future.
pub(crate) async fn on_keeper<T: Send + 'static>(
    future: impl Future<Output = T> + Send + 'static,
) -> T {
    on(&runtime(), future).await
}

async fn on<T: Send + 'static>(
    runtime: &Handle,
    future: impl Future<Output = T> + Send + 'static,
) -> T {
    struct Abort(AbortHandle);
    impl Drop for Abort {
        fn drop(&mut self) {
            self.0.abort();
        }
    }
    let task = runtime.spawn(future);
    let _abort = Abort(task.abort_handle());
    match task.await {
        Ok(value) => value,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// Waits until this moment, which may move, has just passed: on a thread that does nothing else, so also
/// while the keepers' is stuck in a store that blocks.
pub(crate) async fn passed(moment: impl Fn() -> Moment + Send + 'static) {
    let passed = async move {
        loop {
            let left = moment().since(Moment::now());
            if left.is_zero() {
                // A process that stood still has just woken up, and the keeper with it.
                return tokio::time::sleep(LAST_WORD).await;
            }
            tokio::time::sleep(left).await;
        }
    };
    on(&clock_runtime(), passed).await;
}

/// Until when a tenure is held, for [`is_held`](crate::Tenure::is_held): one atomic load.
#[derive(Default)]
pub(crate) struct Cell {
    lost: AtomicU64,
    kill: AtomicU64,
}

impl Cell {
    pub(crate) fn lost_at(&self) -> Moment {
        Moment::from_nanos(self.lost.load(Ordering::Acquire))
    }

    pub(crate) fn kill_at(&self) -> Moment {
        Moment::from_nanos(self.kill.load(Ordering::Acquire))
    }

    /// When the word of the loss is so late that it will not come; never, once it was ended, because
    /// then the word is on its way.
    pub(crate) fn overdue_at(&self) -> Moment {
        let lost = self.lost_at();
        let grace = self.kill_at().since(lost) / 4;
        if lost == Moment::ZERO { Moment::NEVER } else { lost + grace }
    }

    fn set(&self, deadlines: Deadlines) {
        self.kill.store(deadlines.kill.as_nanos(), Ordering::Release);
        self.lost.store(deadlines.lost.as_nanos(), Ordering::Release);
    }

    /// It is over; the deadline of the stop stays.
    fn end(&self) {
        self.lost.store(0, Ordering::Release);
    }
}

/// Shows how much time is left, about once a second: also, and above all, while nothing is renewed.
struct Countdown {
    name: LeaseName,
    again_at: Moment,
}

impl Countdown {
    fn new(name: &LeaseName) -> Self {
        telemetry::wanted(name);
        Self { name: name.clone(), again_at: Moment::ZERO }
    }

    fn tell(&mut self, cell: &Cell) {
        let (now, lost) = (Moment::now(), cell.lost_at());
        if lost != Moment::ZERO && now >= self.again_at {
            self.again_at = now + COUNTDOWN;
            telemetry::left(&self.name, lost.since(now));
        }
    }
}

/// What the driver of a tenure tells.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    pub(crate) loss: Option<Loss>,
    /// The number of the last note that stands in the record.
    pub(crate) note: u64,
    /// Why the store does not answer, while the lease is contended for.
    pub(crate) trouble: Option<StoreError>,
    /// Given back, or nothing was held.
    pub(crate) done: bool,
}

/// What the holder of a tenure wants. Dropping the sender is the wish to end it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wants {
    pub(crate) give_up: Option<Loss>,
    pub(crate) note: Option<(u64, Vec<u8>)>,
}

/// Requests under way, each bounded by a time-out.
struct Flights<K> {
    backend: Arc<dyn Backend>,
    timeout: Duration,
    /// Renewals are hedged instead, and their answers count until the deadline.
    renew_timeout: Duration,
    tasks: JoinSet<(K, Answer)>,
    /// Whether the last request went unanswered, and when that was last said aloud: once in a
    /// while, not at every attempt.
    troubled: bool,
    said: Moment,
}

impl<K: Send + 'static> Flights<K> {
    fn new(backend: Arc<dyn Backend>, timeout: Duration, renew_timeout: Duration) -> Self {
        let tasks = JoinSet::new();
        Self { backend, timeout, renew_timeout, tasks, troubled: false, said: Moment::ZERO }
    }

    fn send(&mut self, key: K, request: Request) {
        let timeout = match &request {
            Request::Renew(renew) if renew.fresh_connection => {
                telemetry::hedged(self.backend.info().kind);
                let error = StoreError::unavailable("the last renewal has no answer yet");
                self.say(Some(&error));
                self.renew_timeout
            }
            Request::Renew(_) => self.renew_timeout,
            _ => self.timeout,
        };
        self.send_within(timeout, key, request);
    }

    fn send_within(&mut self, timeout: Duration, key: K, request: Request) {
        let backend = Arc::clone(&self.backend);
        self.tasks.spawn(async move {
            let kind = backend.info().kind;
            let unanswered = request.unanswered(StoreError::unavailable(format!(
                "the {kind} store did not answer within {timeout:?}"
            )));
            let sent = Moment::now();
            let answer = tokio::time::timeout(timeout, request.put_to(&*backend))
                .await
                .unwrap_or(unanswered);
            telemetry::answered(kind, &answer, Moment::now().since(sent));
            (key, answer)
        });
    }

    /// The next answer; waits for ever if nothing is under way.
    async fn next(&mut self) -> (K, Answer) {
        match self.tasks.join_next().await {
            Some(Ok((key, answer))) => {
                self.say(answer.error());
                (key, answer)
            }
            // A panic in a store is a bug there; it must not look like a slow store.
            Some(Err(error)) if error.is_panic() => {
                std::panic::resume_unwind(error.into_panic());
            }
            _ => std::future::pending().await,
        }
    }
}

impl<K> Flights<K> {
    fn say(&mut self, error: Option<&StoreError>) {
        let now = Moment::now();
        let aloud = self.said == Moment::ZERO || now.since(self.said) >= SAY_EVERY;
        match error {
            Some(error) if aloud => {
                tracing::warn!(%error, "the store does not answer");
                self.said = now;
            }
            Some(error) => tracing::debug!(%error, "the store does not answer"),
            None if self.troubled => tracing::debug!("the store answers again"),
            None => {}
        }
        self.troubled = error.is_some();
    }
}

/// The watches that are established.
struct Watches {
    backend: Arc<dyn Backend>,
    tasks: BTreeMap<LeaseName, AbortHandle>,
    sender: mpsc::Sender<LeaseName>,
    receiver: mpsc::Receiver<LeaseName>,
}

impl Watches {
    fn new(backend: Arc<dyn Backend>) -> Self {
        let (sender, receiver) = mpsc::channel(CHANGES);
        Self { backend, tasks: BTreeMap::new(), sender, receiver }
    }

    /// Watches these and no others.
    fn set(&mut self, names: Vec<LeaseName>) {
        let names: BTreeSet<LeaseName> = names.into_iter().collect();
        self.tasks.retain(|name, task| {
            let keep = names.contains(name);
            if !keep {
                task.abort();
            }
            keep
        });
        for name in names {
            if self.tasks.contains_key(&name) {
                continue;
            }
            let Some(mut watch) = self.backend.watch(&name) else { return };
            let (sender, watched) = (self.sender.clone(), name.clone());
            let task = tokio::spawn(async move {
                loop {
                    watch.changed().await;
                    if sender.send(watched.clone()).await.is_err() {
                        return;
                    }
                }
            });
            self.tasks.insert(name, task.abort_handle());
        }
    }

    /// The records that have changed, as many as there are: who waits for them reads in batches.
    async fn changed(&mut self) -> Vec<LeaseName> {
        let mut names = Vec::new();
        // Never none: we hold a sender ourselves.
        self.receiver.recv_many(&mut names, CHANGES).await;
        names
    }
}

impl Drop for Watches {
    fn drop(&mut self) {
        for task in self.tasks.values() {
            task.abort();
        }
    }
}

/// Waits until then, or for a while: the caller looks at its clock again.
pub(crate) async fn wait_until(moment: Moment) {
    if moment == Moment::NEVER {
        std::future::pending::<()>().await;
    }
    // The runtime's timer stands still while the machine sleeps; never trust it for long.
    tokio::time::sleep(moment.since(Moment::now()).min(Duration::from_secs(1))).await;
}

/// The future's result, if it comes within that time.
pub(crate) async fn within<T>(time: Duration, future: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(time, future).await.ok()
}

fn tell(state: &watch::Sender<State>, change: impl FnOnce(&mut State)) {
    state.send_modify(change);
}

/// Offers how contending came out, and wakes whoever waits for that.
fn tell_outcome(offer: &Offer, state: &watch::Sender<State>, outcome: Outcome) {
    offer.put(outcome);
    tell(state, |_| {});
}

/// How many changes of records are waiting at most.
const CHANGES: usize = 64;
const COUNTDOWN: Duration = Duration::from_millis(900);
const LAST_WORD: Duration = Duration::from_millis(20);
const SAY_EVERY: Duration = Duration::from_secs(10);
