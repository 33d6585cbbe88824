//! Waiting for a change of a key.
//!
//! A watch is a blocking query, asked again and again. Consul goes on with one until its wait is
//! over, also when whoever asked has hung up, and counts its connection all the while; it takes 200
//! of them from one address. So a query that has begun is seen through, and whoever comes to wait
//! for the same lease meanwhile joins it. A few leases have a query of their own; the many share
//! one of the whole prefix, which tells more than they want to know, and is therefore asked less
//! often.
#![allow(clippy::disallowed_methods)] // It waits between queries, and serves many from one task.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch::{Receiver, Sender};

use tenure_lease::backend::{Boxed, StoreError, Watch};
use tenure_lease::{LeaseName, Nonce};

use super::api::Api;
use super::content::Entry;

/// The watches of a store.
pub(super) struct Watches {
    api: Arc<Api>,
    queries: Mutex<Queries>,
}

#[derive(Default)]
struct Queries {
    /// Leases with a query of their own.
    single: BTreeMap<LeaseName, Waiters>,
    /// Leases that share one.
    shared: BTreeMap<LeaseName, Waiters>,
    shared_runs: bool,
}

struct Waiters {
    /// How often they were woken; 0: nothing is known yet.
    woken: Sender<u64>,
    /// The number of the key's last write when they last were; 0: there was no key.
    seen: Option<u64>,
}

impl Watches {
    pub(super) fn new(api: Arc<Api>) -> Arc<Self> {
        Arc::new(Self { api, queries: Mutex::default() })
    }

    pub(super) fn watch(self: &Arc<Self>, name: &LeaseName) -> Box<dyn Watch> {
        Box::new(ConsulWatch { watches: Arc::clone(self), name: name.clone(), woken: None })
    }

    fn join(self: &Arc<Self>, name: &LeaseName) -> Receiver<u64> {
        let mut queries = self.queries();
        if let Some(waiters) = queries.single.get(name).or_else(|| queries.shared.get(name)) {
            let mut woken = waiters.woken.subscribe();
            if *woken.borrow() > 0 {
                woken.mark_changed();
            }
            return woken;
        }
        let waiters = Waiters { woken: Sender::new(0), seen: None };
        let woken = waiters.woken.subscribe();
        if queries.single.len() < SINGLE_MAX {
            queries.single.insert(name.clone(), waiters);
            tokio::spawn(Arc::clone(self).serve_one(name.clone()));
        } else {
            queries.shared.insert(name.clone(), waiters);
            if !std::mem::replace(&mut queries.shared_runs, true) {
                tokio::spawn(Arc::clone(self).serve_many());
            }
        }
        woken
    }

    /// Asks for one lease, for as long as somebody waits for it.
    async fn serve_one(self: Arc<Self>, name: LeaseName) {
        let mut place = Place::default();
        loop {
            let asked = self.api.await_change(&name, place.index, WAIT);
            let entry = place.go_on(asked).await;
            let failed = entry.is_none();
            let absent = {
                let mut queries = self.queries();
                let Some(waiters) = queries.single.get_mut(&name) else { return };
                if waiters.woken.is_closed() {
                    queries.single.remove(&name);
                    return;
                }
                waiters.tell(entry.map(|entry| entry.modify_index));
                waiters.seen == Some(0)
            };
            if failed {
                tokio::time::sleep(place.pause()).await;
            } else if absent || place.index == 0 {
                // On a key that is not there, Consul wakes for its neighbours, too.
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    /// Asks for the whole prefix, for as long as there are many to be served.
    async fn serve_many(self: Arc<Self>) {
        let mut place = Place::default();
        loop {
            let asked = self.api.await_any_change(place.index, WAIT);
            let entries = place.go_on(asked).await;
            let pause = entries.as_ref().map(|entries| PAUSE_EACH * entries.len() as u32);
            let mut entries: Option<BTreeMap<String, Entry>> =
                entries.map(|entries| entries.into_iter().collect());
            {
                let mut queries = self.queries();
                queries.shared.retain(|_, waiters| !waiters.woken.is_closed());
                if queries.shared.is_empty() {
                    queries.shared_runs = false;
                    return;
                }
                for (name, waiters) in &mut queries.shared {
                    let entry = |entries: &mut BTreeMap<_, _>| entries.remove(name.as_str());
                    let entry = entries.as_mut().map(|found| entry(found).unwrap_or_default());
                    waiters.tell(entry.map(|entry| entry.modify_index));
                }
            }
            // Every renewal of anybody's is an answer of the whole prefix.
            let pause = pause.map_or_else(|| place.pause(), |pause| pause.clamp(PAUSE, PAUSE_MAX));
            tokio::time::sleep(pause).await;
        }
    }

    fn queries(&self) -> MutexGuard<'_, Queries> {
        // Maps of who waits for what: sound after any panic.
        self.queries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiters {
    /// Wakes them if the key was written, by a renewal, too: they count the ttl from the last one
    /// that they have seen. `None`: there was no answer, so the next one is news.
    fn tell(&mut self, write: Option<u64>) {
        if write.is_some() && write != self.seen {
            self.woken.send_modify(|woken| *woken += 1);
        }
        self.seen = write;
    }
}

/// One who waits.
struct ConsulWatch {
    watches: Arc<Watches>,
    name: LeaseName,
    woken: Option<Receiver<u64>>,
}

impl Watch for ConsulWatch {
    fn changed(&mut self) -> Boxed<'_, ()> {
        Box::pin(async {
            let woken = self.woken.get_or_insert_with(|| self.watches.join(&self.name));
            if woken.changed().await.is_err() {
                // A query ends only when nobody waits; if it could not go on, polling does.
                std::future::pending::<()>().await;
            }
        })
    }
}

/// Where a query goes on from.
#[derive(Default)]
struct Place {
    index: u64,
    failures: u32,
}

impl Place {
    /// Takes an answer in; `None` if there was none.
    async fn go_on<T>(
        &mut self,
        asked: impl Future<Output = Result<(u64, T), StoreError>>,
    ) -> Option<T> {
        match tokio::time::timeout(WAIT_TIMEOUT, asked).await {
            Ok(Ok((index, found))) => {
                self.failures = 0;
                // An index that went back is no place to go on from.
                self.index = if index < self.index { 0 } else { index };
                Some(found)
            }
            Ok(Err(_)) | Err(_) => {
                self.index = 0;
                self.failures = (self.failures + 1).min(6);
                None
            }
        }
    }

    /// How long to wait after a failure.
    fn pause(&self) -> Duration {
        let whole = (PAUSE * 2_u32.pow(self.failures)).min(PAUSE_MAX);
        let part = (Nonce::random().bits() % 1024) as u32;
        whole / 2 + whole / 2 * part / 1024
    }
}

/// So many leases have a query, and so a connection, of their own.
const SINGLE_MAX: usize = 16;
const WAIT: Duration = Duration::from_secs(10);
/// Consul adds up to a sixteenth to a wait; some time after that the connection is dead.
const WAIT_TIMEOUT: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(50);
/// For each lease that an answer of the whole prefix tells of: several times what that costs.
const PAUSE_EACH: Duration = Duration::from_micros(50);
const PAUSE_MAX: Duration = Duration::from_secs(3);
