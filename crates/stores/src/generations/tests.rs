#![allow(clippy::disallowed_methods)] // What was given up is known by how long it took.

use std::sync::atomic::AtomicU32;

use super::*;

/// Generations whose pools are numbers.
struct Store {
    generations: Generations<u32>,
    made: AtomicU32,
}

impl Store {
    fn new() -> Self {
        let places = Places { fresh: 2, renewals: 1, others: 1 };
        Self { generations: Generations::new(places), made: AtomicU32::new(0) }
    }

    async fn enter(&self, lane: Lane) -> Passage<'_, u32> {
        self.generations.enter(lane, || self.made.fetch_add(1, Ordering::Relaxed) + 1).await
    }

    async fn pool_of(&self, lane: Lane) -> u32 {
        let passage = self.enter(lane).await;
        let pool = *passage.pool();
        passage.answered();
        pool
    }
}

/// Longer than a generation counts as fresh and a lost interest as none.
async fn a_while() {
    tokio::time::sleep(FRESH_FOR.max(SUSPECT_AFTER)).await;
}

#[tokio::test]
async fn a_generation_lasts_while_it_answers() {
    let store = Store::new();
    assert_eq!(store.pool_of(Lane::Other).await, 1);
    assert_eq!(store.pool_of(Lane::Renewal).await, 1);
    // Somebody who did not wait.
    drop(store.enter(Lane::Other).await);
    assert_eq!(store.pool_of(Lane::Other).await, 1);
}

#[tokio::test]
async fn one_request_without_an_answer_retires_all_connections() {
    let store = Store::new();
    let never_answered = store.enter(Lane::Other).await;
    a_while().await;
    drop(never_answered);
    assert_eq!(store.pool_of(Lane::Other).await, 1, "it had no idle connections");
    let given_up = store.enter(Lane::Other).await;
    a_while().await;
    drop(given_up);
    assert_eq!(store.pool_of(Lane::Renewal).await, 2);
    store.enter(Lane::Other).await.failed();
    assert_eq!(store.pool_of(Lane::Renewal).await, 3);
}

#[tokio::test]
async fn a_fresh_connection_that_works_becomes_everybodys() {
    let store = Store::new();
    let hangs = store.enter(Lane::Renewal).await;
    assert_eq!(*hangs.pool(), 1);
    a_while().await;
    let fresh = store.enter(Lane::FreshRenewal).await;
    let another = store.enter(Lane::FreshRenewal).await;
    assert_eq!((*fresh.pool(), *another.pool()), (2, 2), "they share it");
    let beyond = store.enter(Lane::FreshRenewal).await;
    assert_eq!(*beyond.pool(), 2, "the newest that there is");
    assert_eq!(store.pool_of(Lane::Other).await, 1, "not yet");
    fresh.answered();
    assert_eq!(store.pool_of(Lane::Other).await, 2);
    // The one that hung is answered after all, and changes nothing.
    hangs.answered();
    assert_eq!(store.pool_of(Lane::Other).await, 2);
}

#[tokio::test]
async fn who_waits_for_a_place_goes_on_to_the_next_generation() {
    let store = Store::new();
    assert_eq!(store.pool_of(Lane::Other).await, 1);
    let (other, renewal) = (store.enter(Lane::Other).await, store.enter(Lane::Renewal).await);
    let fresh = async {
        a_while().await;
        store.pool_of(Lane::FreshRenewal).await
    };
    let waiting = async {
        let both = tokio::join!(store.pool_of(Lane::Other), store.pool_of(Lane::Renewal));
        assert_eq!(both, (2, 2));
    };
    assert_eq!(tokio::join!(fresh, waiting).0, 2);
    drop((other, renewal));
    assert_eq!(store.pool_of(Lane::Other).await, 2, "they hung in a generation that is gone");
}

#[tokio::test]
async fn renewals_do_not_wait_for_others() {
    let store = Store::new();
    let _other = store.enter(Lane::Other).await;
    assert_eq!(store.pool_of(Lane::Renewal).await, 1);
    assert_eq!(Lane::of_renewal(true).go_on(), Lane::Renewal);
    assert_eq!(Lane::Other.go_on(), Lane::Other);
}
