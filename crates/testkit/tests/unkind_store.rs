//! What users of leases meet when the store is away: answers in time, and no work that ends for good.
#![allow(clippy::disallowed_methods)] // It waits for real leases.

use std::sync::Arc;
use std::time::Duration;

use tenure_lease::{LeaseError, Loss, MemoryStore, Moment};
use tenure_testkit::faults::{Faults, Outage};

const TTL: Duration = Duration::from_secs(4);

fn faults() -> Faults {
    Faults::new(Arc::new(MemoryStore::new()))
}

#[tokio::test]
async fn a_single_attempt_returns_as_soon_as_the_store_fails() {
    let faults = faults();
    faults.outage(Some(Outage::Fails));
    for _ in 0..20 {
        let begun = Moment::now();
        let tried = faults.store().lease("job").ttl(TTL).try_acquire().await;
        assert!(matches!(tried, Err(LeaseError::Store(_))), "{tried:?}");
        let took = Moment::now().since(begun);
        assert!(took < TTL, "its caller was not woken: {took:?}");
    }
}

#[tokio::test]
async fn a_single_attempt_returns_when_the_store_hangs() {
    let faults = faults();
    faults.outage(Some(Outage::Hangs));
    let begun = Moment::now();
    let tried = faults.store().lease("job").ttl(TTL).try_acquire().await;
    assert!(matches!(tried, Err(LeaseError::Store(_))), "{tried:?}");
    let took = Moment::now().since(begun);
    assert!(took < TTL, "{took:?}, with an operation time-out of {:?}", TTL / 4);
}

#[tokio::test]
async fn a_release_does_not_wait_longer_than_the_lease_lasts() {
    let faults = faults();
    let tenure = faults.store().lease("job").ttl(TTL).acquire().await.unwrap();
    faults.outage(Some(Outage::Fails));
    let begun = Moment::now();
    tenure.release().await;
    let took = Moment::now().since(begun);
    assert!(took <= TTL + TTL / 2, "{took:?}");
}

#[tokio::test]
async fn work_that_ended_because_of_a_loss_runs_again_with_the_next_tenure() {
    let faults = faults();
    let mut losses = Vec::new();
    let ended: Result<&str, LeaseError> = faults
        .store()
        .lease("job")
        .ttl(TTL)
        .run(async |tenure| {
            if losses.len() == 2 {
                return Ok("by itself");
            }
            faults.outage(Some(Outage::Fails));
            let loss = tenure.lost().await;
            faults.outage(None);
            losses.push(loss.clone());
            // As the work of a new user ends: with success, or with an error.
            if losses.len() == 1 { Ok("because of a loss") } else { Err(LeaseError::Over(loss)) }
        })
        .await;
    assert_eq!(ended.unwrap(), "by itself");
    assert_eq!(losses, [Loss::Expired, Loss::Expired]);
}

#[tokio::test]
async fn work_that_ends_while_the_lease_is_held_ends_the_run() {
    let faults = faults();
    let mut runs = 0;
    let ended: Result<(), LeaseError> = faults
        .store()
        .lease("job")
        .run(async |_| {
            runs += 1;
            Err(LeaseError::Over(Loss::Released))
        })
        .await;
    assert!(ended.is_err());
    assert_eq!(runs, 1);
}
