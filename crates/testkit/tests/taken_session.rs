//! Who takes a dead session over gives its record back at once, so that the node whose session it
//! was need not wait for it when it comes again.
#![allow(clippy::disallowed_methods)] // It waits for real leases to end.

use std::sync::Arc;
use std::time::Duration;

use tenure_lease::MemoryStore;
use tenure_testkit::faults::{Fault, Faults, Operation, Outage};

#[tokio::test]
async fn a_taken_session_is_given_back() {
    taken(None).await;
}

/// Also when the first attempt to give it back was not answered, while the lease that it was taken
/// for is held.
#[tokio::test]
async fn a_taken_session_is_given_back_until_the_store_answers() {
    taken(Some(Fault::Unsent)).await;
}

async fn taken(fault: Option<Fault>) {
    let memory = MemoryStore::new();
    let dead = Faults::new(Arc::new(memory.clone()));
    let heir = Faults::new(Arc::new(memory));
    let ttl = Duration::from_secs(3);
    let session = dead.store().lease("node-1").ttl(ttl).session().await.unwrap();
    let _attached = session.lease("shard").acquire().await.unwrap();
    dead.outage(Some(Outage::Hangs));
    if let Some(fault) = fault {
        heir.next(Operation::Release, fault);
    }
    let tenure = heir.store().lease("shard").ttl(ttl).acquire().await.unwrap();
    let freed = async {
        while heir.store().inspect("node-1").await.unwrap().unwrap().holder.is_some() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let freed = tokio::time::timeout(ttl / 2, freed).await;
    assert!(freed.is_ok(), "the session's record is still held");
    assert!(tenure.is_held());
}
