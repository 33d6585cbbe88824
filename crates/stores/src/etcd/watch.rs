//! Wakes those who wait for a lease: all watches of a store share one stream of one connection.
//!
//! A task keeps the stream while anybody watches. etcd answers requests for new watches in their
//! order, which tells whose answer an answer is. When the stream breaks, the task opens another one
//! and asks for all watches again; each of them wakes then, because it may have missed a change.
#![allow(clippy::disallowed_methods)] // It drives: it waits before it connects again.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure_lease::Nonce;
use tenure_lease::backend::{Boxed, Watch};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::client::{Client, WatchStream, is_about_token};
use super::content::Keys;
use super::messages::{WatchRequest, WatchResponse};

/// The watches of a store.
pub(super) struct Watches {
    client: Arc<Client>,
    /// To the task that keeps the stream; closed if there is none.
    task: Mutex<Option<mpsc::Sender<NewWatch>>>,
}

struct NewWatch {
    keys: Arc<Keys>,
    /// Holds one wake-up at most: more would say no more.
    wakes: mpsc::Sender<()>,
}

impl Watches {
    pub(super) fn new(client: Arc<Client>) -> Self {
        Self { client, task: Mutex::new(None) }
    }

    /// Has the task watch these keys. The receiver gets a wake-up when the watch is established,
    /// each time when it had to be established again, and after each change; it is closed if the
    /// task ends, with its runtime.
    async fn add(&self, keys: Arc<Keys>) -> mpsc::Receiver<()> {
        let (wakes, woken) = mpsc::channel(1);
        let mut new = NewWatch { keys, wakes };
        loop {
            match self.task().send(new).await {
                Ok(()) => return woken,
                // It has just ended.
                Err(mpsc::error::SendError(back)) => new = back,
            }
        }
    }

    fn task(&self) -> mpsc::Sender<NewWatch> {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = task.as_ref().filter(|task| !task.is_closed()) {
            return running.clone();
        }
        let (sender, added) = mpsc::channel(ADDED_MAX);
        let keeper = StreamKeeper {
            client: Arc::clone(&self.client),
            added,
            watches: HashMap::new(),
            id: 0,
        };
        tokio::spawn(keeper.run());
        *task = Some(sender.clone());
        sender
    }
}

/// A watch on both keys of a lease.
pub(super) struct EtcdWatch {
    watches: Arc<Watches>,
    keys: Arc<Keys>,
    woken: Option<mpsc::Receiver<()>>,
}

impl EtcdWatch {
    pub(super) fn new(watches: Arc<Watches>, keys: Keys) -> Self {
        Self { watches, keys: Arc::new(keys), woken: None }
    }

    /// Whatever it keeps between two awaits is in `self`, so it can be dropped at any of them.
    async fn changed(&mut self) {
        loop {
            let woken = match &mut self.woken {
                Some(woken) => woken,
                None => self.woken.insert(self.watches.add(Arc::clone(&self.keys)).await),
            };
            if woken.recv().await.is_some() {
                return;
            }
            self.woken = None;
        }
    }
}

impl Watch for EtcdWatch {
    fn changed(&mut self) -> Boxed<'_, ()> {
        Box::pin(self.changed())
    }
}

/// The task that keeps the stream.
struct StreamKeeper {
    client: Arc<Client>,
    added: mpsc::Receiver<NewWatch>,
    watches: HashMap<u64, Watched>,
    /// The id of the watch that was added last.
    id: u64,
}

struct Watched {
    keys: Arc<Keys>,
    wakes: mpsc::Sender<()>,
    /// How often in a row etcd has refused it.
    refusals: u32,
    /// When to ask for it again, after etcd refused it.
    retry_at: Option<Instant>,
}

/// Why a stream ended.
enum StreamEnd {
    /// Nobody watched any more.
    Idle,
    /// It could not be opened, or broke.
    Broken,
}

/// What was asked of one stream.
#[derive(Default)]
struct Asked {
    /// To be asked for.
    due: VecDeque<u64>,
    /// Asked for, in this order, and not answered yet.
    unanswered: VecDeque<u64>,
    /// The ids that etcd gave them.
    established: HashMap<i64, u64>,
    /// To be ended, by etcd's ids.
    unwanted: VecDeque<i64>,
}

impl StreamKeeper {
    async fn run(mut self) {
        let mut failures = 0;
        while self.is_wanted().await {
            let begun = Instant::now();
            if let StreamEnd::Broken = self.keep_stream().await {
                failures = if begun.elapsed() > STABLE { 0 } else { failures + 1 };
                tokio::time::sleep(pause(failures, PAUSE_MIN, PAUSE_MAX)).await;
            }
        }
    }

    /// Waits a moment for a first watch; `false` if nobody watches any more.
    async fn is_wanted(&mut self) -> bool {
        while let Ok(new) = self.added.try_recv() {
            self.add(new);
        }
        self.watches.retain(|_, watched| !watched.wakes.is_closed());
        if self.watches.is_empty() {
            match tokio::time::timeout(SWEEP, self.added.recv()).await {
                Ok(Some(new)) => _ = self.add(new),
                // Who adds a watch from here on finds the task ended, and starts another. What was
                // added meanwhile is dropped, which its watch notices.
                _ => self.added.close(),
            }
        }
        !self.watches.is_empty()
    }

    fn add(&mut self, new: NewWatch) -> u64 {
        self.id += 1;
        let NewWatch { keys, wakes } = new;
        self.watches.insert(self.id, Watched { keys, wakes, refusals: 0, retry_at: None });
        self.id
    }

    /// Opens a stream, and returns when it has ended or nobody has watched for a while.
    async fn keep_stream(&mut self) -> StreamEnd {
        let mut asked = Asked { due: self.watches.keys().copied().collect(), ..Asked::default() };
        let Some(first) = asked.next_request(&self.watches) else { return StreamEnd::Idle };
        let Ok(WatchStream { requests, mut responses, link }) = self.client.watch(first).await
        else {
            return StreamEnd::Broken;
        };
        let mut sweep = tokio::time::interval(SWEEP);
        let mut wanted_at = Instant::now();
        loop {
            tokio::select! {
                response = responses.message() => {
                    let Ok(Some(response)) = response else { break };
                    if is_about_token(&response.cancel_reason) {
                        break;
                    }
                    self.take_in(&mut asked, response);
                }
                room = requests.reserve(), if asked.has_requests() => {
                    let Ok(room) = room else { break };
                    if let Some(request) = asked.next_request(&self.watches) {
                        room.send(request);
                    }
                }
                Some(new) = self.added.recv() => {
                    let id = self.add(new);
                    asked.due.push_back(id);
                }
                _ = sweep.tick() => {
                    self.sweep(&mut asked);
                    if !self.watches.is_empty() {
                        wanted_at = Instant::now();
                    } else if wanted_at.elapsed() > IDLE {
                        return StreamEnd::Idle;
                    }
                }
                // Another request has found that its member hangs.
                () = link.retired() => return StreamEnd::Broken,
            }
        }
        self.client.retire_watch_link(&link);
        StreamEnd::Broken
    }

    fn take_in(&mut self, asked: &mut Asked, response: WatchResponse) {
        let id = if response.created {
            asked.unanswered.pop_front()
        } else {
            asked.established.get(&response.watch_id).copied()
        };
        let Some(id) = id else { return };
        if response.canceled {
            // Also a new watch may be: created and cancelled in one answer is a refusal.
            asked.established.remove(&response.watch_id);
            if let Some(watched) = self.watches.get_mut(&id) {
                watched.refusals += 1;
                let wait = pause(watched.refusals, PAUSE_MIN, REFUSED_PAUSE_MAX);
                watched.retry_at = Some(Instant::now() + wait);
            }
            return;
        }
        let Some(watched) = self.watches.get_mut(&id) else {
            asked.unwanted.push_back(response.watch_id);
            return;
        };
        if response.created {
            watched.refusals = 0;
            asked.established.insert(response.watch_id, id);
        }
        if response.created || !response.events.is_empty() {
            // If there is no room, a wake-up waits already.
            let _ = watched.wakes.try_send(());
        }
    }

    /// Ends the watches that nobody wants any more, and asks again for those that were refused.
    fn sweep(&mut self, asked: &mut Asked) {
        self.watches.retain(|_, watched| !watched.wakes.is_closed());
        let Asked { established, unwanted, due, .. } = asked;
        established.retain(|watch_id, id| {
            let wanted = self.watches.contains_key(id);
            if !wanted {
                unwanted.push_back(*watch_id);
            }
            wanted
        });
        let now = Instant::now();
        for (id, watched) in &mut self.watches {
            if watched.retry_at.take_if(|retry_at| *retry_at <= now).is_some() {
                due.push_back(*id);
            }
        }
    }
}

impl Asked {
    fn has_requests(&self) -> bool {
        !self.due.is_empty() || !self.unwanted.is_empty()
    }

    fn next_request(&mut self, watches: &HashMap<u64, Watched>) -> Option<WatchRequest> {
        while let Some(id) = self.due.pop_front() {
            if let Some(Watched { keys, .. }) = watches.get(&id) {
                self.unanswered.push_back(id);
                return Some(WatchRequest::create(&keys.first, &keys.end));
            }
        }
        self.unwanted.pop_front().map(WatchRequest::cancel)
    }
}

/// Doubles with each failure in a row.
fn pause(failures: u32, least: Duration, most: Duration) -> Duration {
    let longest = (least * 2_u32.saturating_pow(failures.min(16))).min(most);
    // Between a half and the whole, so that clients do not come back in step.
    let jitter = Nonce::random().bits() as u32 % 1000;
    longest / 2 + longest / 2 * jitter / 1000
}

const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);
const REFUSED_PAUSE_MAX: Duration = Duration::from_secs(30);
/// A stream that lasted for so long is opened again without much of a pause.
const STABLE: Duration = Duration::from_secs(10);
/// How long a stream without watches is kept for the next one.
const IDLE: Duration = Duration::from_secs(10);
/// How often watches that nobody wants are looked for.
const SWEEP: Duration = Duration::from_millis(500);
/// New watches that the task has not taken yet; whoever adds more of them waits.
const ADDED_MAX: usize = 64;
