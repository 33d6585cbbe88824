//! Faults between a keeper and its store: lost and late answers, repeated requests, outages,
//! watches that fall silent, and a count of everything that was asked.
//!
//! A store seldom fails by saying no. It fails by saying nothing, after it has done what was asked
//! or before, and by saying yes too late. [`Faults`] wraps any backend and fails in these ways when
//! it is told to. It is a network, not a library call: a request that was sent is applied even if
//! the caller has given up waiting for its answer.
#![allow(clippy::disallowed_methods)] // It delays answers, in real time.

mod counts;

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{oneshot, watch};

use tenure_lease::backend::{
    Acquire, Acquired, Backend, Boxed, Release, Released, Renew, Renewed, StoreError, StoreInfo,
    Watch,
};
use tenure_lease::{LeaseName, Record, Store};

pub use counts::{Counts, Operation};

/// A backend that fails as it is told. Clones are handles of the same one.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use std::sync::Arc;
/// use tenure_lease::MemoryStore;
/// use tenure_testkit::faults::{Fault, Faults, Operation};
///
/// let faults = Faults::new(Arc::new(MemoryStore::new()));
/// faults.next(Operation::Acquire, Fault::ReplyLost);
/// let tenure = faults.store().lease("nightly").acquire().await.unwrap();
/// assert!(tenure.is_held());
/// // The first attempt won; the second one found that out.
/// assert_eq!(faults.counts().sent(Operation::Acquire), 2);
/// # }
/// ```
#[derive(Clone)]
pub struct Faults {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Faults {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Faults").finish_non_exhaustive()
    }
}

struct Shared {
    inner: Arc<dyn Backend>,
    script: Mutex<[VecDeque<Fault>; 4]>,
    counts: Counts,
    outage: watch::Sender<Option<Outage>>,
    silent: watch::Sender<bool>,
}

/// What happens to one request.
#[derive(Clone)]
pub enum Fault {
    /// It never arrives, and the caller learns so at once.
    Unsent,
    /// It is applied, and the connection breaks before the answer.
    ReplyLost,
    /// It is applied, and no answer ever comes.
    ReplyNever,
    /// It arrives this much later, whether or not the caller still waits.
    Late(Duration),
    /// It is applied at once and answered this much later.
    ReplyLate(Duration),
    /// It is applied twice, as by a proxy that repeats what it is unsure of; the caller gets this
    /// answer.
    Twice(Answered),
    /// Something else happens first: another client takes the record, an operator deletes it.
    Before(Arc<dyn Fn() -> Boxed<'static, ()> + Send + Sync>),
}

/// Which answer to a repeated request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answered {
    /// To the first.
    First,
    /// To the second.
    Second,
}

/// How a store that is away looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outage {
    /// Every request fails at once: connection refused.
    Fails,
    /// No request is ever answered: packets are dropped.
    Hangs,
}

impl Faults {
    /// Wraps a backend; it behaves until it is told otherwise.
    pub fn new(inner: Arc<dyn Backend>) -> Self {
        let shared = Shared {
            inner,
            script: Mutex::default(),
            counts: Counts::default(),
            outage: watch::Sender::new(None),
            silent: watch::Sender::new(false),
        };
        Self { shared: Arc::new(shared) }
    }

    /// A store that speaks through it.
    pub fn store(&self) -> Store {
        Store::new(self.clone())
    }

    /// The next request of this kind that has no fault yet meets this one.
    pub fn next(&self, operation: Operation, fault: Fault) {
        self.script()[operation.index()].push_back(fault);
    }

    /// Begins or, with `None`, ends an outage. What hangs when it ends goes on hanging.
    pub fn outage(&self, outage: Option<Outage>) {
        self.shared.outage.send_replace(outage);
    }

    /// Makes all watches fall silent without a word, as a half-open connection does, or wakes them
    /// again.
    pub fn silence_watches(&self, silent: bool) {
        self.shared.silent.send_replace(silent);
    }

    /// What was asked so far.
    pub fn counts(&self) -> &Counts {
        &self.shared.counts
    }

    fn script(&self) -> MutexGuard<'_, [VecDeque<Fault>; 4]> {
        // A queue is sound between any two of its operations.
        self.shared.script.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a request to the inner backend, with whatever is scripted for it.
    fn put<R, T, F>(
        &self,
        operation: Operation,
        request: R,
        apply: F,
    ) -> Boxed<'_, Result<T, StoreError>>
    where
        R: Clone + Send + Sync + 'static,
        T: Send + 'static,
        F: Fn(Arc<dyn Backend>, R) -> Boxed<'static, Result<T, StoreError>> + Send + Sync + 'static,
    {
        Box::pin(async move {
            self.shared.counts.add_sent(operation);
            let outage = *self.shared.outage.borrow();
            match outage {
                Some(Outage::Fails) => return Err(StoreError::unavailable("an outage (injected)")),
                Some(Outage::Hangs) => return std::future::pending().await,
                None => {}
            }
            let fault = self.script()[operation.index()].pop_front();
            let inner = Arc::clone(&self.shared.inner);
            let Some(fault) = fault else {
                let answer = apply(inner, request).await;
                self.shared.counts.add_applied(operation);
                return answer;
            };
            let this = self.clone();
            let (sender, answer) = oneshot::channel();
            // On a task of its own: what was sent arrives, even if nobody waits for it any more.
            tokio::spawn(async move {
                let once = || apply(Arc::clone(&this.shared.inner), request.clone());
                let answer = this.meet(operation, fault, once).await;
                // The caller may have given up.
                let _ = sender.send(answer);
            });
            match answer.await {
                Ok(Some(answer)) => answer,
                Ok(None) => std::future::pending().await,
                Err(_) => Err(StoreError::unavailable("the request was dropped with its runtime")),
            }
        })
    }

    /// The answer to a request that meets a fault; `None`: none ever comes.
    async fn meet<T, F>(
        &self,
        operation: Operation,
        fault: Fault,
        once: impl Fn() -> F,
    ) -> Option<Result<T, StoreError>>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let apply = async || {
            let answer = once().await;
            self.shared.counts.add_applied(operation);
            answer
        };
        Some(match fault {
            Fault::Unsent => Err(StoreError::unavailable("not sent (injected)")),
            Fault::ReplyLost => {
                let _ = apply().await;
                Err(StoreError::unavailable("the reply was lost (injected)"))
            }
            Fault::ReplyNever => {
                let _ = apply().await;
                return None;
            }
            Fault::Late(delay) => {
                tokio::time::sleep(delay).await;
                apply().await
            }
            Fault::ReplyLate(delay) => {
                let answer = apply().await;
                tokio::time::sleep(delay).await;
                answer
            }
            Fault::Twice(answered) => {
                let (first, second) = (apply().await, apply().await);
                if answered == Answered::First { first } else { second }
            }
            Fault::Before(event) => {
                event().await;
                apply().await
            }
        })
    }
}

impl Backend for Faults {
    fn info(&self) -> StoreInfo {
        self.shared.inner.info()
    }

    fn acquire(&self, request: Acquire) -> Boxed<'_, Result<Acquired, StoreError>> {
        self.put(Operation::Acquire, request, |inner, request| {
            Box::pin(async move { inner.acquire(request).await })
        })
    }

    fn renew(&self, request: Renew) -> Boxed<'_, Result<Renewed, StoreError>> {
        self.put(Operation::Renew, request, |inner, request| {
            Box::pin(async move { inner.renew(request).await })
        })
    }

    fn release(&self, request: Release) -> Boxed<'_, Result<Released, StoreError>> {
        self.put(Operation::Release, request, |inner, request| {
            Box::pin(async move { inner.release(request).await })
        })
    }

    fn read(&self, names: Vec<LeaseName>) -> Boxed<'_, Result<Vec<Option<Record>>, StoreError>> {
        self.shared.counts.add_read(names.len());
        self.put(Operation::Read, names, |inner, names| {
            Box::pin(async move { inner.read(names).await })
        })
    }

    fn watch(&self, name: &LeaseName) -> Option<Box<dyn Watch>> {
        let inner = self.shared.inner.watch(name)?;
        Some(Box::new(FaultyWatch { inner, faults: self.clone() }))
    }

    fn dry_run<'a>(&'a self, name: &'a LeaseName) -> Option<Boxed<'a, Result<(), StoreError>>> {
        self.shared.inner.dry_run(name)
    }

    #[cfg(unix)]
    fn lifeline(&self, claim: tenure_lease::Nonce) -> Option<std::os::fd::OwnedFd> {
        self.shared.inner.lifeline(claim)
    }
}

struct FaultyWatch {
    inner: Box<dyn Watch>,
    faults: Faults,
}

impl Watch for FaultyWatch {
    fn changed(&mut self) -> Boxed<'_, ()> {
        Box::pin(async {
            let (mut silent, mut outage) =
                (self.faults.shared.silent.subscribe(), self.faults.shared.outage.subscribe());
            loop {
                self.inner.changed().await;
                // What happens in the silence is never told.
                if !*silent.borrow_and_update() && outage.borrow_and_update().is_none() {
                    self.faults.shared.counts.add_wake();
                    return;
                }
            }
        })
    }
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsent => f.write_str("Unsent"),
            Self::ReplyLost => f.write_str("ReplyLost"),
            Self::ReplyNever => f.write_str("ReplyNever"),
            Self::Late(delay) => write!(f, "Late({delay:?})"),
            Self::ReplyLate(delay) => write!(f, "ReplyLate({delay:?})"),
            Self::Twice(answered) => write!(f, "Twice({answered:?})"),
            Self::Before(_) => f.write_str("Before(..)"),
        }
    }
}
