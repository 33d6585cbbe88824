//! A standby over real drivers: it takes what has stood still as soon as it may, and holds nothing
//! while it may not.
#![allow(clippy::disallowed_methods)] // It waits for real leases to end.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_lease::backend::{
    Acquire, Acquired, Backend, Boxed, Promise, Release, Released, Renew, Renewed, StoreError,
    StoreInfo,
};
use tenure_lease::{
    LeaseError, LeaseName, Loss, MemoryRecords, MemoryStore, Moment, Record, Settings, Standby,
    Store,
};
use tenure_testkit::faults::{Faults, Operation, Outage};

const TTL: Duration = Duration::from_secs(6);
/// What a busy machine may add: less than it would take to watch from when it is allowed.
const SLACK: Duration = Duration::from_secs(3);

fn settings() -> Settings {
    Settings { renew_interval: TTL / 6, ..Settings::new(TTL) }
}

/// A store without a clock, which pushes nothing: whoever wants a lease must have watched it.
#[derive(Clone)]
struct Observed(Arc<Mutex<MemoryRecords>>);

impl Observed {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(MemoryRecords::observed())))
    }
}

impl Backend for Observed {
    fn info(&self) -> StoreInfo {
        StoreInfo {
            kind: "observed",
            promise: Promise::Safe,
            ttl_min: Duration::from_millis(10),
            ttl_max: Duration::from_secs(3600),
            ttl_step: Duration::ZERO,
            frees_after_ttls: 1,
            pushes: false,
            pushes_renewals: false,
            reads_everything: false,
        }
    }

    fn acquire(&self, request: Acquire) -> Boxed<'_, Result<Acquired, StoreError>> {
        Box::pin(async move { self.0.lock().unwrap().acquire(Moment::now(), request) })
    }

    fn renew(&self, request: Renew) -> Boxed<'_, Result<Renewed, StoreError>> {
        Box::pin(async move { self.0.lock().unwrap().renew(Moment::now(), request) })
    }

    fn release(&self, request: Release) -> Boxed<'_, Result<Released, StoreError>> {
        Box::pin(async move { Ok(self.0.lock().unwrap().release(&request)) })
    }

    fn read(&self, names: Vec<LeaseName>) -> Boxed<'_, Result<Vec<Option<Record>>, StoreError>> {
        Box::pin(async move {
            let records = self.0.lock().unwrap();
            Ok(names.iter().map(|name| records.read(Moment::now(), name)).collect())
        })
    }
}

/// What contends, beside what holds: both wrapped, so that one can be cut off.
struct Pair {
    holder: Faults,
    heir: Faults,
}

impl Pair {
    fn new(backend: Arc<dyn Backend>) -> Self {
        Self { holder: Faults::new(Arc::clone(&backend)), heir: Faults::new(backend) }
    }

    /// Cuts the holder off between two renewals; returns when the last one was sent.
    async fn cut(&self) -> Moment {
        let renewals = self.holder.counts().sent(Operation::Renew);
        self.holder.counts().reached(Operation::Renew, renewals + 1).await;
        tokio::time::sleep(settings().renew_interval / 4).await;
        self.holder.outage(Some(Outage::Hangs));
        self.holder.counts().sent_at(Operation::Renew).expect("it was")
    }

    /// Allows the standby when three quarters of a ttl are over; it must hold the lease when one
    /// is, or as much later as it may have noticed the last renewal.
    async fn succeeds(&self, standby: &Standby, notices_after: Duration) {
        self.heir.counts().reached(Operation::Read, 2).await;
        let acquisitions = self.heir.counts().sent(Operation::Acquire);
        let renewed = self.cut().await;
        tokio::time::sleep((renewed + TTL * 3 / 4).since(Moment::now())).await;
        assert_eq!(self.heir.counts().sent(Operation::Acquire), acquisitions, "it only looks");
        standby.allow(true);
        let tenure = tokio::time::timeout(TTL * 5, standby.acquired()).await;
        assert!(tenure.expect("the holder is dead").unwrap().is_held());
        let took = Moment::now().since(renewed);
        println!("{took:?} after the last renewal, with a ttl of {TTL:?}");
        assert!(took >= TTL, "taken after {took:?}");
        assert!(took <= TTL + notices_after + SLACK, "taken after {took:?}");
    }

    async fn lease_succeeds(&self, notices_after: Duration) {
        let lease = |faults: &Faults| faults.store().lease("job").settings(settings());
        let _tenure = lease(&self.holder).acquire().await.unwrap();
        let standby = lease(&self.heir).standby().unwrap();
        self.succeeds(&standby, notices_after).await;
    }
}

/// How long after a renewal somebody who polls has seen it.
fn polls_after() -> Duration {
    settings().renew_interval * 12 / 10
}

#[tokio::test]
async fn a_lease_in_memory_is_taken_when_its_ttl_is_over() {
    Pair::new(Arc::new(MemoryStore::new())).lease_succeeds(Duration::ZERO).await;
}

#[tokio::test]
async fn a_lease_in_a_directory_is_taken_when_its_ttl_is_over() {
    let directory = std::env::temp_dir().join(format!("tenure-standby-{}", std::process::id()));
    let open = async || tenure_lease::open(&format!("file:{}", directory.display())).await.unwrap();
    let (first, second) = (open().await, open().await);
    let pair = Pair {
        holder: Faults::new(Arc::clone(first.backend())),
        heir: Faults::new(Arc::clone(second.backend())),
    };
    pair.lease_succeeds(Duration::ZERO).await;
    // Its holder may still be writing into it; what is left over is in the directory for temporary files.
    let _ = std::fs::remove_dir_all(directory);
}

#[tokio::test]
async fn a_lease_that_must_be_watched_is_taken_when_it_has_stood_still_for_its_ttl() {
    Pair::new(Arc::new(Observed::new())).lease_succeeds(polls_after()).await;
}

#[tokio::test]
async fn an_attached_lease_is_taken_when_its_session_has_stood_still_for_its_ttl() {
    let pair = Pair::new(Arc::new(Observed::new()));
    let session = async |faults: &Faults, node: &str| {
        faults.store().lease(node).settings(settings()).session().await.unwrap()
    };
    let dead = session(&pair.holder, "node-1").await;
    let _tenure = dead.lease("job").acquire().await.unwrap();
    let living = session(&pair.heir, "node-2").await;
    let standby = living.lease("job").standby().unwrap();
    pair.succeeds(&standby, polls_after()).await;
}

/// Waits until the record says that it is held, or that it is not.
async fn until_held(store: &Store, held: bool) {
    let record = async || store.inspect("job").await.unwrap();
    let changed = async {
        while record().await.is_some_and(|record| record.holder.is_some()) != held {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(TTL / 2, changed).await.expect("at once");
}

async fn each_kind(check: impl AsyncFn(&Store, Standby)) {
    let store = Store::new(MemoryStore::new());
    check(&store, store.lease("job").ttl(TTL).standby().unwrap()).await;
    let store = Store::new(MemoryStore::new());
    let session = store.lease("node-1").ttl(TTL).session().await.unwrap();
    check(&store, session.lease("job").standby().unwrap()).await;
}

#[tokio::test]
async fn what_nobody_has_taken_is_given_back_when_it_is_not_allowed_any_more() {
    each_kind(async |store, standby| {
        for _ in 0..3 {
            standby.allow(true);
            until_held(store, true).await;
            standby.allow(false);
            until_held(store, false).await;
        }
        standby.allow(true);
        let tenure = standby.acquired().await.unwrap();
        assert!(tenure.is_held() && tenure.loss().is_none());
        standby.allow(false);
        tokio::time::sleep(TTL / 4).await;
        assert!(tenure.is_held(), "what was taken stays");
    })
    .await;
}

#[tokio::test]
async fn what_nobody_has_taken_is_given_back_when_the_standby_is_dropped() {
    each_kind(async |store, standby| {
        standby.allow(true);
        until_held(store, true).await;
        drop(standby);
        until_held(store, false).await;
    })
    .await;
}

#[tokio::test]
async fn who_stops_waiting_can_wait_again() {
    each_kind(async |store, standby| {
        assert!(tokio::time::timeout(TTL / 8, standby.acquired()).await.is_err());
        standby.allow(true);
        until_held(store, true).await;
        assert!(standby.acquired().await.unwrap().is_held());
        let again = standby.acquired().await;
        assert!(matches!(again, Err(LeaseError::Over(Loss::Released))), "{again:?}");
    })
    .await;
}

/// However its permission flickers: what is handed out is held, and what is not is free.
#[tokio::test]
async fn a_permission_that_flickers_leaves_nothing_behind() {
    let store = Store::new(MemoryStore::new());
    let session = store.lease("node-1").ttl(TTL).session().await.unwrap();
    for round in 0..300_u64 {
        let standby = if round % 2 == 0 {
            store.lease("job").ttl(TTL).standby().unwrap()
        } else {
            session.lease("job").standby().unwrap()
        };
        for step in 0..4 {
            standby.allow(step % 2 == 0);
            let wait = Duration::from_micros(round * 7 * (step + 1) % 900);
            if let Ok(tenure) = tokio::time::timeout(wait, standby.acquired()).await {
                let tenure = tenure.unwrap();
                let holder = store.inspect("job").await.unwrap().unwrap().holder.unwrap();
                assert_eq!(holder.claim, Some(tenure.claim()), "round {round}");
                assert!(tenure.is_held());
                break;
            }
        }
        standby.allow(false);
        until_held(&store, false).await;
    }
}

#[tokio::test]
async fn it_says_when_the_store_does_not_answer() {
    let faults = Faults::new(Arc::new(MemoryStore::new()));
    let lease = faults.store().lease("job").settings(settings());
    let standby = lease.standby().unwrap();
    assert_eq!(standby.trouble(), None);
    faults.outage(Some(Outage::Fails));
    let trouble = tokio::time::timeout(TTL, standby.changed(None)).await.expect("it looks again");
    assert!(trouble.is_some() && trouble == standby.trouble());
    faults.outage(None);
    let over = tokio::time::timeout(TTL, standby.changed(trouble.as_ref())).await;
    assert_eq!(over.expect("it looks again"), None);
}

#[tokio::test]
async fn it_ends_with_its_session_and_does_not_hold_that_up() {
    let store = Store::new(MemoryStore::new());
    let session = store.lease("node-1").ttl(TTL).session().await.unwrap();
    let waiting = session.lease("other").standby().unwrap();
    let won = session.lease("job").standby().unwrap();
    won.allow(true);
    until_held(&store, true).await;
    tokio::time::timeout(TTL, session.release()).await.expect("nobody works");
    for standby in [waiting, won] {
        let over = standby.acquired().await;
        assert!(matches!(over, Err(LeaseError::Over(_))), "{over:?}");
    }
}
