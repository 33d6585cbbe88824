//! Sessions as users drive them.
#![allow(clippy::disallowed_methods)] // It waits for real leases.

use std::time::Duration;

use tenure_lease::{Loss, MemoryStore, Store, Token};

/// Nobody waits for its end.
const TTL: Duration = Duration::from_secs(10);

#[tokio::test]
async fn an_attached_acquisition_that_nobody_waits_for_is_given_back() {
    let store = Store::new(MemoryStore::new());
    let session = store.lease("node-1").ttl(TTL).session().await.unwrap();
    for round in 0..50 {
        // Dropped at every stage: before it was sent, while it is contended for, just won.
        let wait = Duration::from_micros(round * 20);
        let _ = tokio::time::timeout(wait, session.lease("shard").acquire()).await;
    }
    let other = store.lease("node-2").ttl(TTL).session().await.unwrap();
    let free = tokio::time::timeout(TTL * 10, other.lease("shard").acquire()).await;
    assert!(free.expect("nobody holds it").unwrap().is_held());
    assert!(session.tenure().is_held());
}

#[tokio::test]
async fn the_sessions_own_tenure_is_a_tenure() {
    let store = Store::new(MemoryStore::new());
    let session = store.lease("node-1").ttl(TTL).session().await.unwrap();
    let attached = session.lease("shard").acquire().await.unwrap();
    session.tenure().write_note(b"slots".to_vec()).await.unwrap();
    assert_eq!(store.inspect("node-1").await.unwrap().unwrap().note, b"slots");
    assert!(session.tenure().report_fence(Token::new(u64::MAX, 0)));
    assert!(matches!(session.tenure().lost().await, Loss::TokenRegressed { .. }));
    assert!(matches!(attached.lost().await, Loss::TokenRegressed { .. }));
    assert!(!attached.is_held());
}
