//! Stores with exactly one planted defect each: a checker that cannot fail is not one.
//!
//! [`Mutants`] is a store in memory, written apart from the one that the library has, with a switch
//! for each [`Defect`]. Without a defect it passes the whole conformance suite, in both ways in
//! which a lease can end; with one it must fail the checks that the defect names. It can do
//! everything that a [`Factory`] may be able to do, so that no check is skipped.

mod defect;
mod server;
mod watch;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure_lease::backend::{
    Acquire, Acquired, Backend, Boxed, Promise, Release, Released, Renew, Renewed, StoreError,
    StoreInfo, Watch,
};
use tenure_lease::{LeaseName, Record, Store};

use crate::conformance::Factory;
pub use defect::Defect;
use server::Server;

/// How a lease in a [`Mutants`] store ends without a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// The store frees it.
    ByStore,
    /// A contender watches it.
    ByObservation,
}

/// Clients of a store with at most one defect.
pub struct Mutants {
    server: Arc<Server>,
    ttl: Duration,
    clients: AtomicU64,
}

impl std::fmt::Debug for Mutants {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mutants").finish_non_exhaustive()
    }
}

impl Mutants {
    /// A store that keeps every rule.
    pub fn sound(ends: Ends, ttl: Duration) -> Self {
        Self::new(None, ends, ttl)
    }

    /// A store that breaks one.
    pub fn with(defect: Defect, ends: Ends, ttl: Duration) -> Self {
        Self::new(Some(defect), ends, ttl)
    }

    fn new(defect: Option<Defect>, ends: Ends, ttl: Duration) -> Self {
        Self { server: Arc::new(Server::new(defect, ends)), ttl, clients: AtomicU64::new(0) }
    }

    fn client(&self, reachable: bool) -> Store {
        let number = self.clients.fetch_add(1, Ordering::Relaxed);
        let server = Arc::clone(&self.server);
        Store::new(Mutant { server, number, reachable, cache: Mutex::default() })
    }
}

impl Factory for Mutants {
    fn open(&self) -> Boxed<'_, Store> {
        Box::pin(async { self.client(true) })
    }

    fn ttl(&self) -> Duration {
        self.ttl
    }

    fn delete<'a>(&'a self, name: &'a LeaseName) -> Option<Boxed<'a, ()>> {
        Some(Box::pin(async { self.server.delete(name) }))
    }

    fn seize<'a>(&'a self, name: &'a LeaseName, identity: &'a str) -> Option<Boxed<'a, ()>> {
        Some(Box::pin(async { self.server.seize(name, identity) }))
    }

    fn write_newer<'a>(&'a self, name: &'a LeaseName) -> Option<Boxed<'a, ()>> {
        Some(Box::pin(async { self.server.write_newer(name) }))
    }

    fn open_unreachable(&self) -> Option<Boxed<'_, Store>> {
        Some(Box::pin(async { self.client(false) }))
    }

    fn restart(&self) -> Option<Boxed<'_, ()>> {
        Some(Box::pin(async { self.server.restart() }))
    }
}

/// A client of such a store.
struct Mutant {
    server: Arc<Server>,
    number: u64,
    reachable: bool,
    /// What it once read; only a defect ever looks.
    cache: Mutex<BTreeMap<LeaseName, Option<Record>>>,
}

impl Mutant {
    /// What a client says whose server cannot be reached; `no` is its defect.
    fn reach<T>(&self, no: T) -> Option<Result<T, StoreError>> {
        if self.reachable {
            None
        } else if self.server.has(Defect::UnknownIsNo) {
            Some(Ok(no))
        } else {
            Some(Err(StoreError::unavailable("the server cannot be reached")))
        }
    }
}

impl Backend for Mutant {
    fn info(&self) -> StoreInfo {
        let bounded = !self.server.has(Defect::BoundsAbsent);
        let (ttl_min, ttl_max) = if bounded {
            (Duration::from_millis(50), Duration::from_secs(3600))
        } else {
            (Duration::ZERO, Duration::MAX)
        };
        StoreInfo {
            kind: "mutant",
            promise: Promise::Safe,
            ttl_min,
            ttl_max,
            ttl_step: Duration::from_millis(1),
            frees_after_ttls: 1,
            pushes: true,
            pushes_renewals: true,
            reads_everything: false,
        }
    }

    fn acquire(&self, request: Acquire) -> Boxed<'_, Result<Acquired, StoreError>> {
        Box::pin(async move {
            match self.reach(Acquired::Lost(None)) {
                Some(answer) => answer,
                None => self.server.acquire(self.number, request).await,
            }
        })
    }

    fn renew(&self, request: Renew) -> Boxed<'_, Result<Renewed, StoreError>> {
        Box::pin(async move {
            self.reach(Renewed::Refused(None)).unwrap_or_else(|| self.server.renew(request))
        })
    }

    fn release(&self, request: Release) -> Boxed<'_, Result<Released, StoreError>> {
        Box::pin(async move {
            self.reach(Released::Refused).unwrap_or_else(|| self.server.release(&request))
        })
    }

    fn read(
        &self,
        mut names: Vec<LeaseName>,
    ) -> Boxed<'_, Result<Vec<Option<Record>>, StoreError>> {
        Box::pin(async move {
            if let Some(answer) = self.reach(names.iter().map(|_| None).collect()) {
                return answer;
            }
            if self.server.has(Defect::ReadOutOfOrder) {
                names.sort();
            }
            if self.server.has(Defect::ReadTruncated) {
                names.truncate(100);
            }
            let records = self.server.read(&names)?;
            if !self.server.has(Defect::StaleReads) {
                return Ok(records);
            }
            let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
            let cached =
                |(name, record): (LeaseName, _)| cache.entry(name).or_insert(record).clone();
            Ok(names.into_iter().zip(records).map(cached).collect())
        })
    }

    fn watch(&self, name: &LeaseName) -> Option<Box<dyn Watch>> {
        watch::watch(&self.server, name)
    }

    fn dry_run<'a>(&'a self, name: &'a LeaseName) -> Option<Boxed<'a, Result<(), StoreError>>> {
        let wrong = self.server.has(Defect::DryRunWrites);
        wrong.then(|| -> Boxed<'a, _> {
            Box::pin(async {
                self.server.write_newer(name);
                Ok(())
            })
        })
    }
}
