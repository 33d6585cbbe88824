//! A store that counts what it is asked for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tenure_lease::LeaseName;
use tenure_lease::backend::{
    Acquire, Acquired, Backend, Boxed, Release, Released, Renew, Renewed, StoreError, StoreInfo,
    Watch,
};
use tenure_lease::record::Record;

pub(super) struct Counting {
    inner: Arc<dyn Backend>,
    counts: Arc<Counts>,
}

#[derive(Default)]
pub(super) struct Counts {
    writes: AtomicU64,
    reads: AtomicU64,
}

impl Counting {
    pub(super) fn new(inner: Arc<dyn Backend>) -> (Self, Arc<Counts>) {
        let counts = Arc::<Counts>::default();
        (Self { inner, counts: Arc::clone(&counts) }, counts)
    }

    fn write(&self) {
        self.counts.writes.fetch_add(1, Ordering::Relaxed);
    }
}

impl Counts {
    /// Requests that change a record.
    pub(super) fn writes(&self) -> u64 {
        self.writes.load(Ordering::Relaxed)
    }

    /// Requests that read records, however many.
    pub(super) fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }
}

impl Backend for Counting {
    fn info(&self) -> StoreInfo {
        self.inner.info()
    }

    fn acquire(&self, request: Acquire) -> Boxed<'_, Result<Acquired, StoreError>> {
        self.write();
        self.inner.acquire(request)
    }

    fn renew(&self, request: Renew) -> Boxed<'_, Result<Renewed, StoreError>> {
        self.write();
        self.inner.renew(request)
    }

    fn release(&self, request: Release) -> Boxed<'_, Result<Released, StoreError>> {
        self.write();
        self.inner.release(request)
    }

    fn read(&self, names: Vec<LeaseName>) -> Boxed<'_, Result<Vec<Option<Record>>, StoreError>> {
        self.counts.reads.fetch_add(1, Ordering::Relaxed);
        self.inner.read(names)
    }

    fn watch(&self, name: &LeaseName) -> Option<Box<dyn Watch>> {
        self.inner.watch(name)
    }
}
