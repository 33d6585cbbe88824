//! A store that can be taken away from one process: nothing that is asked is answered any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tenure_lease::backend::{
    Acquire, Acquired, Backend, Boxed, Release, Released, Renew, Renewed, StoreError, StoreInfo,
    Watch,
};
use tenure_lease::{LeaseName, Nonce, Record, Store};
use tokio::sync::watch;

/// Stands between a process and its store. Clones share one switch.
#[derive(Clone)]
pub(super) struct Outage {
    inner: Arc<dyn Backend>,
    answers: watch::Sender<bool>,
    asked: Arc<AtomicU64>,
}

impl Outage {
    pub(super) fn new(store: &Store) -> Self {
        Self {
            inner: store.backend().clone(),
            answers: watch::Sender::new(true),
            asked: Arc::default(),
        }
    }

    /// Takes the store away, or gives it back.
    pub(super) fn set(&self, answers: bool) {
        self.answers.send_replace(answers);
    }

    /// How often the store was asked, whether it answered or not.
    pub(super) fn asked(&self) -> u64 {
        self.asked.load(Relaxed)
    }

    /// What was asked while the store is away never arrives, and an answer that was on its way does
    /// not either; whoever asked gives up by itself, as with any silent server.
    fn put<'a, T: Send + 'a>(&'a self, asked: Boxed<'a, T>) -> Boxed<'a, T> {
        self.asked.fetch_add(1, Relaxed);
        Box::pin(async {
            if !*self.answers.borrow() {
                return std::future::pending().await;
            }
            let answer = asked.await;
            if !*self.answers.borrow() {
                return std::future::pending().await;
            }
            answer
        })
    }
}

impl Backend for Outage {
    fn info(&self) -> StoreInfo {
        self.inner.info()
    }

    fn acquire(&self, request: Acquire) -> Boxed<'_, Result<Acquired, StoreError>> {
        self.put(self.inner.acquire(request))
    }

    fn renew(&self, request: Renew) -> Boxed<'_, Result<Renewed, StoreError>> {
        self.put(self.inner.renew(request))
    }

    fn release(&self, request: Release) -> Boxed<'_, Result<Released, StoreError>> {
        self.put(self.inner.release(request))
    }

    fn read(&self, names: Vec<LeaseName>) -> Boxed<'_, Result<Vec<Option<Record>>, StoreError>> {
        self.put(self.inner.read(names))
    }

    fn watch(&self, name: &LeaseName) -> Option<Box<dyn Watch>> {
        let inner = self.inner.watch(name)?;
        Some(Box::new(Deaf { inner, answers: self.answers.subscribe() }))
    }

    fn dry_run<'a>(&'a self, name: &'a LeaseName) -> Option<Boxed<'a, Result<(), StoreError>>> {
        Some(self.put(self.inner.dry_run(name)?))
    }

    fn lifeline(&self, claim: Nonce) -> Option<std::os::fd::OwnedFd> {
        self.inner.lifeline(claim)
    }
}

/// A watch that hears nothing while the store is away, and looks once when it is back.
struct Deaf {
    inner: Box<dyn Watch>,
    answers: watch::Receiver<bool>,
}

impl Watch for Deaf {
    fn changed(&mut self) -> Boxed<'_, ()> {
        Box::pin(async {
            loop {
                let answers = *self.answers.borrow_and_update();
                tokio::select! {
                    () = self.inner.changed(), if answers => return,
                    changed = self.answers.changed() => match changed {
                        Ok(()) if *self.answers.borrow() => return,
                        Ok(()) => {}
                        // Its backend is gone, and with it whoever watches.
                        Err(_) => std::future::pending().await,
                    }
                }
            }
        })
    }
}
