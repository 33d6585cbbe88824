//! What a session costs: one write per renewal interval, however many leases are attached to it,
//! and a few batches of reads per proof interval.
#![allow(clippy::disallowed_methods)] // It measures for a while, in real time.

use std::time::Duration;

use tenure_lease::{MemoryStore, Settings, Store};
use tenure_testkit::cost::Cost;

/// Ten thousand attached leases are held by one write per renewal interval.
#[tokio::test]
async fn ten_thousand_attached_leases_cost_one_write_per_renewal() {
    let cost = cost(10_000).await;
    assert_eq!(cost.records_read % 1_000, 0, "a thousand at once");
}

/// A sweep reads a thousand records at once.
#[tokio::test]
async fn a_sweep_of_a_thousand_records_is_one_read() {
    let cost = cost(1_000).await;
    assert_eq!(cost.records_read, cost.reads * 1_000, "{cost:?}");
}

async fn cost(leases: usize) -> Cost {
    // Long enough for a busy machine to attach all of them within a proof interval.
    let ttl = Duration::from_secs(6);
    let settings = Settings { renew_interval: ttl / 6, ..Settings::new(ttl) };
    let cost = Cost::of(&Store::new(MemoryStore::new()), &settings, leases, || 0).await;
    cost.check(&settings);
    cost
}
