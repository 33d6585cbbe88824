//! What it costs to stand by: a session that waits for the leases of another one.
#![allow(clippy::disallowed_methods)] // It measures for a while, in real time.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use tenure_lease::{MemoryStore, Moment, Session, Settings, Tenure};
use tenure_testkit::faults::{Faults, Operation, Outage};

/// Ten thousand waiting leases are read by thousands, and their session once per batch.
#[tokio::test]
async fn ten_thousand_waiting_leases_are_read_in_batches() {
    let leases = 10_000;
    let nodes = Nodes::new(Duration::from_secs(12)).await;
    let held = acquire_all(&nodes.first, leases).join_all().await;
    let mut waiting = acquire_all(&nodes.second, leases);
    nodes.standby.counts().reached(Operation::Acquire, 1 + leases).await;

    let counts = nodes.standby.counts();
    // The first watches wake everybody once.
    tokio::time::sleep(nodes.settings.renew_interval).await;
    let (reads, records) = (counts.sent(Operation::Read), counts.records_read());
    let intervals = 3;
    tokio::time::sleep(nodes.settings.renew_interval * intervals).await;
    let (reads, records) = (counts.sent(Operation::Read) - reads, counts.records_read() - records);
    println!("{intervals} renewal intervals: {reads} reads of {records} records");
    let looks = u64::from(intervals);
    assert!(records >= looks / 2 * leases, "each is looked at again: {records} records read");
    assert!(records <= 2 * looks * (leases + reads), "{records} records read");
    assert!(reads <= 2 * looks * (leases / 1_000 + 5), "{reads} reads");

    let (begun, before) = (Moment::now(), counts.sent(Operation::Read));
    drop(held);
    while let Some(tenure) = waiting.join_next().await {
        assert!(tenure.unwrap().is_held());
    }
    let reads = counts.sent(Operation::Read) - before;
    println!("all handed over in {:?}, with {reads} reads", Moment::now().since(begun));
}

/// Whoever finds that a session is over has found it for all who wait for it.
#[tokio::test]
async fn a_dead_session_is_taken_over_once() {
    let leases = 1_000;
    let nodes = Nodes::new(Duration::from_secs(3)).await;
    let held = acquire_all(&nodes.first, leases).join_all().await;
    let waiting = acquire_all(&nodes.second, leases);
    let counts = nodes.standby.counts();
    counts.reached(Operation::Acquire, 1 + leases).await;
    let acquires = counts.sent(Operation::Acquire);
    nodes.holder.outage(Some(Outage::Hangs));
    let taken = waiting.join_all().await;
    assert!(taken.iter().all(Tenure::is_held));
    let acquires = counts.sent(Operation::Acquire) - acquires;
    println!("{leases} leases taken by {acquires} acquisitions");
    // A few who were under way at the same moment.
    assert!(acquires <= leases + 64 + 1, "{acquires} acquisitions");
    drop(held);
}

struct Nodes {
    settings: Settings,
    holder: Faults,
    standby: Faults,
    first: Arc<Session>,
    second: Arc<Session>,
}

impl Nodes {
    async fn new(ttl: Duration) -> Self {
        let memory = MemoryStore::new();
        let holder = Faults::new(Arc::new(memory.clone()));
        let standby = Faults::new(Arc::new(memory));
        let settings = Settings { renew_interval: ttl / 6, ..Settings::new(ttl) };
        let session = async |faults: &Faults, node: &str| {
            let lease = faults.store().lease(node).settings(settings.clone());
            Arc::new(lease.session().await.expect("nobody else wants it"))
        };
        let first = session(&holder, "node-1").await;
        let second = session(&standby, "node-2").await;
        Self { settings, holder, standby, first, second }
    }
}

fn acquire_all(session: &Arc<Session>, leases: u64) -> JoinSet<Tenure> {
    let mut acquiring = JoinSet::new();
    for number in 0..leases {
        let session = Arc::clone(session);
        acquiring.spawn(async move {
            session.lease(&format!("shard-{number}")).acquire().await.expect("the session is held")
        });
    }
    acquiring
}
