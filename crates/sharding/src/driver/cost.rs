//! What it costs the store to guard many kinds on many nodes.
#![allow(clippy::disallowed_methods, reason = "it measures for a while, in real time")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::sync::mpsc;

use tenure_lease::backend::{
    Acquire, Acquired, Backend, Boxed, Release, Released, Renew, Renewed, StoreError, StoreInfo,
    Watch,
};
use tenure_lease::record::SessionRef;
use tenure_lease::{LeaseName, MemoryStore, Record, Store};

use super::guard::{Guard, Guarded, Guards};
use super::observer::Observer;

/// The store as one node sees it.
#[derive(Clone)]
struct Counting {
    records: MemoryStore,
    reads: Arc<AtomicU64>,
    writes: Arc<AtomicU64>,
}

impl Backend for Counting {
    fn info(&self) -> StoreInfo {
        self.records.info()
    }

    fn acquire(&self, request: Acquire) -> Boxed<'_, Result<Acquired, StoreError>> {
        self.writes.fetch_add(1, Relaxed);
        self.records.acquire(request)
    }

    fn renew(&self, request: Renew) -> Boxed<'_, Result<Renewed, StoreError>> {
        self.writes.fetch_add(1, Relaxed);
        self.records.renew(request)
    }

    fn release(&self, request: Release) -> Boxed<'_, Result<Released, StoreError>> {
        self.writes.fetch_add(1, Relaxed);
        self.records.release(request)
    }

    fn read(&self, names: Vec<LeaseName>) -> Boxed<'_, Result<Vec<Option<Record>>, StoreError>> {
        self.reads.fetch_add(1, Relaxed);
        self.records.read(names)
    }

    fn watch(&self, name: &LeaseName) -> Option<Box<dyn Watch>> {
        self.records.watch(name)
    }
}

/// Each node holds its session; one of them coordinates all kinds, and it and the two that come next look
/// at all sessions, for each kind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_nodes_with_five_kinds_ask_the_store_seldom() {
    let records = MemoryStore::new();
    let node = |_| {
        let (records, reads, writes) = (records.clone(), Arc::default(), Arc::default());
        Counting { records, reads, writes }
    };
    let nodes: Vec<Counting> = (0..NODES).map(node).collect();
    let stores: Vec<Store> = nodes.iter().map(|node| Store::new(node.clone())).collect();
    let mut sessions = Vec::new();
    let mut all = BTreeSet::new();
    for (number, store) in stores.iter().enumerate() {
        let kept = store.lease(&format!("node-{number}")).kept_session().unwrap();
        let tenure = kept.held().await;
        let (name, term) = (tenure.tenure().name().clone(), tenure.tenure().token().term);
        all.insert(SessionRef { name, term });
        sessions.push(kept);
    }
    let (tell, mut told) = mpsc::unbounded_channel();
    let mut guards = Vec::new();
    for (number, store) in stores.iter().enumerate() {
        let second = Duration::from_secs(1);
        let observer = Observer::new(store.clone(), second, second);
        for kind in 0..KINDS {
            let lease = Some(store.lease(&format!("shop.kind-{kind}")));
            let session = Some(sessions[number].clone());
            let guard = Guards { lease, session };
            let mut guard = Guard::new(guard, Some(observer.clone()), None, tell.clone());
            if number < LOOK {
                guard.look(true);
                guard.observe(&all, &BTreeSet::new());
            }
            if number == 0 {
                guard.contend(0);
            }
            guards.push(guard);
        }
    }
    let mut tenures = Vec::new();
    while tenures.len() < KINDS {
        if let Some(Guarded::Won(tenure, _)) = told.recv().await {
            tenures.push(tenure);
        }
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let count = || -> Vec<(u64, u64)> {
        nodes.iter().map(|it| (it.reads.load(Relaxed), it.writes.load(Relaxed))).collect()
    };
    let before = count();
    tokio::time::sleep(MEASURED).await;
    let after = count();
    let rate = |count: u64| count as f64 / MEASURED.as_secs_f64();
    let rates: Vec<(f64, f64)> = before
        .iter()
        .zip(&after)
        .map(|(before, after)| (rate(after.0 - before.0), rate(after.1 - before.1)))
        .collect();
    let mean = rates.iter().map(|(reads, writes)| reads + writes).sum::<f64>() / NODES as f64;
    println!("{NODES} nodes, {KINDS} kinds: {mean:.2} requests a second for each node");
    for (number, (reads, writes)) in rates.iter().enumerate().take(LOOK + 1) {
        println!("node {number}: {reads:.2} reads and {writes:.2} writes a second");
    }
    assert!(mean <= 2.0, "{mean}");
    assert!(rates.iter().all(|(reads, _)| *reads <= 2.0), "{rates:?}");
    assert!(rates[LOOK..].iter().all(|(reads, _)| *reads == 0.0), "{rates:?}");
}

const NODES: usize = 50;
const KINDS: usize = 5;
/// How many of the oldest look.
const LOOK: usize = 3;
const MEASURED: Duration = Duration::from_secs(8);
