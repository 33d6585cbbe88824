//! Liveness calls as users write them: some block, some say no for a while.
#![allow(clippy::disallowed_methods)] // It waits for real leases.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use tenure_lease::{Loss, MemoryStore, Settings, Store, Token};

const TTL: Duration = Duration::from_secs(5);
const SOON: Duration = Duration::from_secs(20);

/// One that blocks costs its own lease, and holds up nobody else's.
#[tokio::test]
async fn a_call_that_blocks_does_not_delay_the_loss_of_another_lease() {
    let store = Store::new(MemoryStore::new());
    let (release, blocked) = mpsc::channel::<()>();
    let blocked = Arc::new(Mutex::new(blocked));
    let (called, mut calls) = tokio::sync::mpsc::unbounded_channel();
    let stuck = store.lease("stuck").ttl(TTL).liveness(move || {
        called.send(()).unwrap();
        let end = blocked.lock().unwrap().recv();
        async move { end.is_ok() }
    });
    let stuck = stuck.acquire().await.unwrap();
    // Its own deadline is far away.
    let other = store.lease("other").ttl(TTL * 60).acquire().await.unwrap();
    let asked = tokio::time::timeout(SOON, calls.recv()).await;
    assert!(asked.is_ok(), "it is asked before a renewal");

    assert!(other.report_fence(Token::new(u64::MAX, 0)));
    let lost = tokio::time::timeout(SOON, other.lost()).await.expect("the keeper is not held up");
    assert!(matches!(lost, Loss::TokenRegressed { .. }), "{lost:?}");
    let lost = tokio::time::timeout(SOON, stuck.lost()).await.expect("nor is its own deadline");
    assert_eq!(lost, Loss::Unresponsive);
    assert!(calls.try_recv().is_err(), "one call at a time, however long it blocks");
    drop(release);
}

/// A future that never ends is dropped in time, and the question put again.
#[tokio::test]
async fn no_and_no_answer_are_not_final() {
    let store = Store::new(MemoryStore::new());
    let calls = Arc::new(AtomicUsize::new(0));
    let (renewed, mut renewals) = tokio::sync::mpsc::unbounded_channel();
    // Time enough for three questions before the deadline, also on a busy machine.
    let settings =
        Settings { renew_interval: TTL / 5, operation_timeout: TTL / 20, ..Settings::new(TTL * 2) };
    let lease = store.lease("moody").settings(settings).liveness(move || {
        let call = calls.fetch_add(1, Ordering::Relaxed);
        let renewed = renewed.clone();
        async move {
            match call % 3 {
                0 => false,
                1 => std::future::pending().await,
                _ => renewed.send(()).is_ok(),
            }
        }
    });
    let tenure = lease.acquire().await.unwrap();
    for _ in 0..3 {
        let renewal = tokio::time::timeout(SOON, renewals.recv()).await;
        assert!(renewal.is_ok(), "{:?}", tenure.loss());
    }
    assert!(tenure.is_held(), "{:?}", tenure.loss());
}
