//! Wake-ups by LISTEN and NOTIFY, on one connection of its own.
//!
//! A trigger notifies when a tenure ends, with the name of the lease (see `schema.sql`); renewals
//! do not. One connection listens for all who wait in this process, as long as somebody does. It is
//! made again by itself, and whoever waits is woken each time it stands, because notifications are
//! not kept for those who were away.
#![allow(clippy::disallowed_methods)] // It connects again after a pause, on a task of its own.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_lease::backend::{Boxed, Watch};
use tenure_lease::{LeaseName, Nonce};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tokio_postgres::AsyncMessage;

use super::pool::dial;
use super::url::Target;

/// Listens for all watches of a store.
pub(super) struct Listener {
    target: Target,
    state: Mutex<State>,
    /// The last watch has gone.
    deserted: Notify,
}

#[derive(Default)]
struct State {
    watches: BTreeMap<LeaseName, Vec<Arc<Notify>>>,
    /// The number of the task that listens, or tries to.
    running: Option<u64>,
    tasks: u64,
    /// What is notified from now on will be heard.
    stands: bool,
}

impl Listener {
    pub(super) fn new(target: Target) -> Arc<Self> {
        Arc::new(Self { target, state: Mutex::default(), deserted: Notify::new() })
    }

    /// A watch; it costs nothing before it is first waited for.
    pub(super) fn watch(self: &Arc<Self>, name: &LeaseName) -> PostgresWatch {
        PostgresWatch {
            listener: Arc::clone(self),
            name: name.clone(),
            woken: Arc::new(Notify::new()),
            joined: false,
        }
    }

    fn join(self: &Arc<Self>, name: &LeaseName, woken: &Arc<Notify>) {
        let mut state = self.lock();
        state.watches.entry(name.clone()).or_default().push(Arc::clone(woken));
        if state.stands {
            woken.notify_one();
        }
        if state.running.is_none() {
            state.tasks += 1;
            state.running = Some(state.tasks);
            tokio::spawn(Arc::clone(self).run(state.tasks));
        }
    }

    fn leave(&self, name: &LeaseName, woken: &Arc<Notify>) {
        let mut state = self.lock();
        if let Some(watches) = state.watches.get_mut(name) {
            watches.retain(|other| !Arc::ptr_eq(other, woken));
            if watches.is_empty() {
                state.watches.remove(name);
            }
        }
        if state.watches.is_empty() {
            self.deserted.notify_one();
        }
    }

    async fn run(self: Arc<Self>, task: u64) {
        let _running = Running(&self, task);
        let mut failures = 0;
        loop {
            let heard = tokio::select! {
                heard = self.listen() => heard,
                () = self.until_deserted() => return,
            };
            failures = if heard { 0 } else { failures + 1 };
            tokio::select! {
                () = sleep(pause(failures)) => {}
                () = self.until_deserted() => return,
            }
        }
    }

    /// Returns when nobody waits any more; from then on the task does not count as running.
    async fn until_deserted(&self) {
        loop {
            self.deserted.notified().await;
            let mut state = self.lock();
            if state.watches.is_empty() {
                state.running = None;
                return;
            }
        }
    }

    /// Listens until the connection ends; whether it ever stood.
    async fn listen(&self) -> bool {
        let _silent = Silent(self);
        let Ok((client, mut connection)) = dial(&self.target).await else { return false };
        let mut messages = poll_fn(move |cx| connection.poll_message(cx));
        {
            let command = timeout(self.target.timeout, client.batch_execute(LISTEN));
            tokio::pin!(command);
            loop {
                tokio::select! {
                    done = &mut command => match done {
                        Ok(Ok(())) => break,
                        _ => return false,
                    },
                    message = &mut messages => match message {
                        Some(Ok(_)) => {}
                        _ => return false,
                    },
                }
            }
        }
        self.stands();
        while let Some(Ok(message)) = (&mut messages).await {
            if let AsyncMessage::Notification(notification) = message {
                self.wake(notification.payload());
            }
        }
        true
    }

    fn stands(&self) {
        let mut state = self.lock();
        state.stands = true;
        state.watches.values().flatten().for_each(|woken| woken.notify_one());
    }

    /// Wakes who waits for this lease; for any, if it is unnamed.
    fn wake(&self, name: &str) {
        let state = self.lock();
        let named = |other: &LeaseName| name.is_empty() || other.as_str() == name;
        let watches = state.watches.iter().filter(|(other, _)| named(other));
        watches.flat_map(|(_, watches)| watches).for_each(|woken| woken.notify_one());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that holds it can panic half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The connection has ended, in whichever way.
struct Silent<'a>(&'a Listener);

impl Drop for Silent<'_> {
    fn drop(&mut self) {
        self.0.lock().stands = false;
    }
}

/// The task has ended, be it because its runtime has: the next watch starts another.
struct Running<'a>(&'a Listener, u64);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.lock().running.take_if(|task| *task == self.1);
    }
}

/// A watch on one lease.
pub(super) struct PostgresWatch {
    listener: Arc<Listener>,
    name: LeaseName,
    woken: Arc<Notify>,
    joined: bool,
}

impl Watch for PostgresWatch {
    fn changed(&mut self) -> Boxed<'_, ()> {
        Box::pin(async {
            if !self.joined {
                self.joined = true;
                self.listener.join(&self.name, &self.woken);
            }
            self.woken.notified().await;
        })
    }
}

impl Drop for PostgresWatch {
    fn drop(&mut self) {
        if self.joined {
            self.listener.leave(&self.name, &self.woken);
        }
    }
}

/// Doubles with each failure, up to five seconds, and differs from process to process.
fn pause(failures: u32) -> Duration {
    let longest = PAUSE_MIN * 2_u32.saturating_pow(failures.min(6));
    let share = (Nonce::random().bits() as u32) % 1000;
    longest.min(PAUSE_MAX) / 2 * (1000 + share) / 1000
}

const LISTEN: &str = "LISTEN tenure_leases";
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
