//! What jobs cost a store: requests per slot and per hour, for some jobs on some machines.
//!
//! `cargo run -p tenure-cron --example requests -- JOBS MACHINES`: each job has a slot every 20 s, longer than the ttl,
//! so that its lease is given back in between, as it is with a slot every hour. A minute of that is counted.
#![allow(clippy::disallowed_methods)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenure_cron::{Ledger, OrdersWatch, RunEnd, SlotRunner, StoreSchedule as _};
use tenure_lease::backend::{
    Acquire, Acquired, Backend, Boxed, Release, Released, Renew, Renewed, StoreError, StoreInfo,
    Watch,
};
use tenure_lease::{LeaseName, MemoryStore, Record, Store};

/// A store that counts reads, and everything else.
struct Counting {
    store: MemoryStore,
    reads: Arc<AtomicU64>,
    writes: Arc<AtomicU64>,
}

impl Backend for Counting {
    fn info(&self) -> StoreInfo {
        self.store.info()
    }

    fn acquire(&self, request: Acquire) -> Boxed<'_, Result<Acquired, StoreError>> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.store.acquire(request)
    }

    fn renew(&self, request: Renew) -> Boxed<'_, Result<Renewed, StoreError>> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.store.renew(request)
    }

    fn release(&self, request: Release) -> Boxed<'_, Result<Released, StoreError>> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.store.release(request)
    }

    fn read(&self, names: Vec<LeaseName>) -> Boxed<'_, Result<Vec<Option<Record>>, StoreError>> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.store.read(names)
    }

    fn watch(&self, name: &LeaseName) -> Option<Box<dyn Watch>> {
        self.store.watch(name)
    }
}

/// A command that takes a second.
struct Second;

impl SlotRunner for Second {
    async fn run_slot(&mut self, _: &tenure_cron::CurrentRun<'_>) -> RunEnd {
        tokio::time::sleep(Duration::from_secs(1)).await;
        RunEnd::Exited(0)
    }
}

#[tokio::main]
async fn main() {
    let mut numbers = std::env::args().skip(1).map(|word| word.parse::<u64>().expect("a number"));
    let (jobs, machines) = (numbers.next().unwrap_or(1), numbers.next().unwrap_or(1));
    let (reads, writes) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let counting = Counting {
        store: MemoryStore::new(),
        reads: Arc::clone(&reads),
        writes: Arc::clone(&writes),
    };
    let store = Store::new(counting);
    for machine in 0..machines {
        let orders = Arc::new(OrdersWatch::start(&store));
        for job in 0..jobs {
            let job = store
                .schedule(&format!("job-{job}"))
                .at("@every 20s")
                .owner(format!("machine-{machine}"));
            let orders = Arc::clone(&orders);
            tokio::spawn(async move { job.keep(&orders, std::future::pending(), Second).await });
        }
    }
    // The first slots find out who runs them.
    tokio::time::sleep(Duration::from_secs(45)).await;
    let count = || [reads.load(Ordering::Relaxed), writes.load(Ordering::Relaxed)];
    let before = count();
    tokio::time::sleep(Duration::from_secs(60)).await;
    let [reads, writes] = [0, 1].map(|of| count()[of] - before[of]);
    let orders = machines * 4;
    let slots = jobs * 3;
    let hourly = |count: u64| count as f64 / slots as f64 * jobs as f64;
    let record = store.inspect("job-0").await.ok().flatten().expect("a record");
    let ledger = Ledger::parse(&record.note).ok().flatten().expect("a ledger");
    println!(
        "{jobs} jobs, {machines} machines: {:.1} reads and {:.1} writes per slot; with a slot every hour {:.0} reads \
         ({} of them for orders) and {:.0} writes an hour; a ledger of {} slots has {} bytes",
        (reads - orders.min(reads)) as f64 / slots as f64,
        writes as f64 / slots as f64,
        hourly(reads - orders.min(reads)) + (machines * 240) as f64,
        machines * 240,
        hourly(writes),
        ledger.totals.sum(),
        record.note.len(),
    );
}
