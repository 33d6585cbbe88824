//! The keepers' thread hangs in a store that blocks it: the clock still ends what it must end.
#![allow(clippy::disallowed_methods)] // It waits for a real lease.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use tenure_lease::backend::{
    Acquire, Acquired, Backend, Boxed, Release, Released, Renew, Renewed, StoreError, StoreInfo,
};
use tenure_lease::{LeaseName, Loss, MemoryStore, Moment, Record, Store};

const TTL: Duration = Duration::from_secs(5);

/// Its renewals block the thread until they may end.
#[derive(Default)]
struct Blocking {
    inner: MemoryStore,
    end: Arc<(Mutex<bool>, Condvar)>,
}

impl Backend for Blocking {
    fn info(&self) -> StoreInfo {
        self.inner.info()
    }

    fn acquire(&self, request: Acquire) -> Boxed<'_, Result<Acquired, StoreError>> {
        self.inner.acquire(request)
    }

    fn renew(&self, request: Renew) -> Boxed<'_, Result<Renewed, StoreError>> {
        Box::pin(async {
            let (end, changed) = &*self.end;
            drop(changed.wait_while(end.lock().unwrap(), |end| !*end).unwrap());
            self.inner.renew(request).await
        })
    }

    fn release(&self, request: Release) -> Boxed<'_, Result<Released, StoreError>> {
        self.inner.release(request)
    }

    fn read(&self, names: Vec<LeaseName>) -> Boxed<'_, Result<Vec<Option<Record>>, StoreError>> {
        self.inner.read(names)
    }
}

#[tokio::test]
async fn the_loss_is_told_by_the_clock() {
    let blocking = Blocking::default();
    let end = Arc::clone(&blocking.end);
    let tenure = Store::new(blocking).lease("job").ttl(TTL).acquire().await.unwrap();
    let deadline = tenure.deadline();
    let lost = tokio::time::timeout(TTL * 10, tenure.lost()).await;
    assert_eq!(lost.expect("the clock goes on"), Loss::Expired);
    assert!(Moment::now() >= deadline && !tenure.is_held());
    assert_eq!(tenure.loss(), None, "the keeper has not said anything yet");
    *end.0.lock().unwrap() = true;
    end.1.notify_all();
}
