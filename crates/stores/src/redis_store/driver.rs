//! Watching: one subscription and one look for all leases that a process waits for.
//!
//! A message is a hint that is heard at most once, and not at all by who is not connected; an
//! operator's tool sends none, and a renewal does not either. So once a second one pipeline looks at
//! all of the records that are waited for, and wakes whoever waits for one that has changed.
#![allow(clippy::disallowed_methods)] // It waits, and starts tasks.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::redis::Value;
use futures_util::StreamExt as _;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use tenure_lease::backend::{Boxed, Watch};
use tenure_lease::{LeaseName, Nonce};

use super::link::Link;
use super::{Keys, READ_MAX, states};

/// Wakes all watches of a client.
pub(super) struct Hub {
    link: Link,
    channel: String,
    state: Mutex<State>,
    /// The last watch has gone.
    deserted: Notify,
}

#[derive(Default)]
struct State {
    watched: BTreeMap<LeaseName, Watched>,
    /// The number of the task that listens and looks.
    running: Option<u64>,
    tasks: u64,
    /// What is published from now on will be heard.
    is_subscribed: bool,
}

struct Watched {
    keys: Keys,
    /// What the last look found; `None`: nothing yet, or Redis was away since.
    seen: Option<Vec<Value>>,
    woken: Vec<Arc<Notify>>,
}

impl Watched {
    fn wake(&self) {
        self.woken.iter().for_each(|woken| woken.notify_one());
    }
}

impl Hub {
    pub(super) fn new(link: Link, channel: String) -> Self {
        Self { link, channel, state: Mutex::default(), deserted: Notify::new() }
    }

    fn join(self: &Arc<Self>, name: &LeaseName, keys: &Keys, woken: &Arc<Notify>) {
        let mut state = self.lock();
        let fresh = || Watched { keys: keys.clone(), seen: None, woken: Vec::new() };
        state.watched.entry(name.clone()).or_insert_with(fresh).woken.push(Arc::clone(woken));
        if state.is_subscribed {
            woken.notify_one();
        }
        drop(state);
        self.ensure_running();
    }

    /// Starts the task that listens and looks, if there is none: it ends with its runtime.
    fn ensure_running(self: &Arc<Self>) {
        let mut state = self.lock();
        if state.running.is_none() {
            state.tasks += 1;
            state.running = Some(state.tasks);
            tokio::spawn(Arc::clone(self).run(state.tasks));
        }
    }

    fn leave(&self, name: &LeaseName, woken: &Arc<Notify>) {
        let mut state = self.lock();
        if let Some(watched) = state.watched.get_mut(name) {
            watched.woken.retain(|other| !Arc::ptr_eq(other, woken));
            if watched.woken.is_empty() {
                state.watched.remove(name);
            }
        }
        if state.watched.is_empty() {
            self.deserted.notify_one();
        }
    }

    async fn run(self: Arc<Self>, task: u64) {
        let _running = Running(&self, task);
        tokio::select! {
            () = self.relay() => {}
            () = self.look() => {}
            () = self.until_deserted() => {}
        }
    }

    /// Returns when nobody waits any more; from then on the task does not count as running.
    async fn until_deserted(&self) {
        loop {
            self.deserted.notified().await;
            let mut state = self.lock();
            if state.watched.is_empty() {
                state.running = None;
                return;
            }
        }
    }

    /// Passes messages on.
    async fn relay(&self) {
        let mut failures = 0;
        loop {
            if let Ok(Ok(messages)) =
                timeout(SUBSCRIBE_TIMEOUT, self.link.subscribe(&self.channel)).await
            {
                failures = 0;
                let (mut sink, mut stream) = messages.split();
                let _subscribed = Subscribed::begin(self);
                loop {
                    match timeout(PROBE, stream.next()).await {
                        Ok(Some(message)) => {
                            self.wake(&String::from_utf8_lossy(message.get_payload_bytes()));
                        }
                        Ok(None) => break,
                        // Silence: is anybody there?
                        Err(_) => {
                            if !matches!(timeout(PROBE, sink.ping::<()>()).await, Ok(Ok(()))) {
                                break;
                            }
                        }
                    }
                }
            }
            failures = (failures + 1).min(6);
            sleep(jittered(BACKOFF * 2_u32.pow(failures))).await;
        }
    }

    /// Looks at all that is waited for, a batch at a time.
    async fn look(&self) {
        loop {
            sleep(jittered(LOOK)).await;
            let watched: Vec<(LeaseName, Keys)> = {
                let state = self.lock();
                let of =
                    |(name, watched): (&LeaseName, &Watched)| (name.clone(), watched.keys.clone());
                state.watched.iter().map(of).collect()
            };
            for batch in watched.chunks(READ_MAX) {
                let looked = timeout(LOOK_TIMEOUT, states(&self.link, batch)).await;
                let Ok(Ok(found)) = looked else {
                    // Whatever is found next may have changed meanwhile.
                    self.lock().watched.values_mut().for_each(|watched| watched.seen = None);
                    break;
                };
                let mut state = self.lock();
                for ((name, _), found) in batch.iter().zip(found) {
                    if let Some(watched) = state.watched.get_mut(name)
                        && watched.seen.as_ref() != Some(&found)
                    {
                        watched.seen = Some(found);
                        watched.wake();
                    }
                }
            }
        }
    }

    /// Wakes who waits for this lease.
    fn wake(&self, name: &str) {
        let state = self.lock();
        if let Some(watched) = LeaseName::new(name).ok().and_then(|name| state.watched.get(&name)) {
            watched.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that holds it can panic half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The subscription stands; dropped, it has ended, in whichever way.
struct Subscribed<'a>(&'a Hub);

impl<'a> Subscribed<'a> {
    /// Wakes everybody: something may have been missed before.
    fn begin(hub: &'a Hub) -> Self {
        let mut state = hub.lock();
        state.is_subscribed = true;
        state.watched.values().for_each(Watched::wake);
        Self(hub)
    }
}

impl Drop for Subscribed<'_> {
    fn drop(&mut self) {
        self.0.lock().is_subscribed = false;
    }
}

/// The task has ended, be it because its runtime has.
struct Running<'a>(&'a Hub, u64);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.lock().running.take_if(|task| *task == self.1);
    }
}

/// A watch on one lease.
pub(super) struct RedisWatch {
    hub: Arc<Hub>,
    name: LeaseName,
    keys: Keys,
    woken: Arc<Notify>,
    joined: bool,
}

impl RedisWatch {
    /// It costs nothing before it is first waited for.
    pub(super) fn new(hub: Arc<Hub>, name: LeaseName, keys: Keys) -> Self {
        Self { hub, name, keys, woken: Arc::new(Notify::new()), joined: false }
    }
}

impl Watch for RedisWatch {
    fn changed(&mut self) -> Boxed<'_, ()> {
        Box::pin(async {
            if !self.joined {
                self.joined = true;
                self.hub.join(&self.name, &self.keys, &self.woken);
            }
            while timeout(PROBE, self.woken.notified()).await.is_err() {
                self.hub.ensure_running();
            }
        })
    }
}

impl Drop for RedisWatch {
    fn drop(&mut self) {
        if self.joined {
            self.hub.leave(&self.name, &self.woken);
        }
    }
}

/// Between three quarters and five quarters of it.
fn jittered(pause: Duration) -> Duration {
    let part = (Nonce::random().bits() % 1024) as u32;
    pause * 3 / 4 + pause / 2 * part / 1024
}

/// How often all records that are waited for are looked at.
const LOOK: Duration = Duration::from_millis(800);
const LOOK_TIMEOUT: Duration = Duration::from_secs(5);
const SUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(10);
/// After so long a silence the subscription is probed.
const PROBE: Duration = Duration::from_secs(10);
const BACKOFF: Duration = Duration::from_millis(50);
