//! The faults do what they say, and nothing else.
#![allow(clippy::disallowed_methods)] // They take real time.

use std::sync::Arc;
use std::time::Duration;

use tenure_lease::backend::{Acquire, Acquired, Backend, Release};
use tenure_lease::{LeaseName, MemoryStore, Moment, Nonce, Owner};
use tenure_testkit::faults::{Answered, Fault, Faults, Operation, Outage};

#[tokio::test]
async fn an_unsent_request_is_not_applied() {
    let (faults, inner) = faults();
    faults.next(Operation::Acquire, Fault::Unsent);
    assert!(faults.acquire(request("a")).await.is_err());
    assert!(!is_held(&inner, "a").await);
    assert!(faults.acquire(request("a")).await.is_ok(), "one fault, one request");
    assert_eq!(faults.counts().sent(Operation::Acquire), 2);
    assert_eq!(faults.counts().applied(Operation::Acquire), 1);
}

#[tokio::test]
async fn a_lost_reply_is_an_error_after_the_fact() {
    let (faults, inner) = faults();
    faults.next(Operation::Acquire, Fault::ReplyLost);
    assert!(faults.acquire(request("a")).await.is_err());
    assert!(is_held(&inner, "a").await);
}

#[tokio::test]
async fn what_was_sent_arrives_although_nobody_waits() {
    for fault in [Fault::ReplyNever, Fault::Late(SHORT), Fault::ReplyLate(SHORT * 100)] {
        let (faults, inner) = faults();
        faults.next(Operation::Acquire, fault);
        let given_up = tokio::time::timeout(SHORT / 10, faults.acquire(request("a"))).await;
        assert!(given_up.is_err(), "answered at once");
        faults.counts().reached(Operation::Acquire, 1).await;
        assert!(is_held(&inner, "a").await);
    }
}

#[tokio::test]
async fn a_late_reply_is_late() {
    let (faults, _) = faults();
    faults.next(Operation::Acquire, Fault::ReplyLate(SHORT));
    let begun = Moment::now();
    assert!(faults.acquire(request("a")).await.is_ok());
    assert!(Moment::now().since(begun) >= SHORT);
}

#[tokio::test]
async fn a_repeated_request_has_two_answers() {
    for (answered, won) in [(Answered::First, true), (Answered::Second, false)] {
        let (faults, _) = faults();
        faults.next(Operation::Acquire, Fault::Twice(answered));
        let answer = faults.acquire(request("a")).await;
        assert_eq!(matches!(answer, Ok(Acquired::Won { .. })), won, "{answered:?}");
        assert_eq!(faults.counts().applied(Operation::Acquire), 2);
    }
}

#[tokio::test]
async fn something_may_happen_before() {
    let (faults, inner) = faults();
    let thief = inner.clone();
    let theft = move || -> tenure_lease::backend::Boxed<'static, ()> {
        let thief = thief.clone();
        Box::pin(async move { assert!(thief.acquire(request("a")).await.is_ok()) })
    };
    faults.next(Operation::Acquire, Fault::Before(Arc::new(theft)));
    assert!(matches!(faults.acquire(request("a")).await, Ok(Acquired::Lost(Some(_)))));
}

#[tokio::test]
async fn an_outage_fails_or_hangs_and_ends() {
    let (faults, inner) = faults();
    faults.outage(Some(Outage::Fails));
    assert!(faults.acquire(request("a")).await.is_err());
    faults.outage(Some(Outage::Hangs));
    assert!(tokio::time::timeout(SHORT, faults.acquire(request("a"))).await.is_err());
    assert!(!is_held(&inner, "a").await);
    faults.outage(None);
    assert!(faults.acquire(request("a")).await.is_ok());
}

#[tokio::test]
async fn a_silenced_watch_says_nothing() {
    let (faults, inner) = faults();
    let acquire = request("a");
    let (name, claim) = (acquire.name.clone(), acquire.claim);
    assert!(inner.acquire(acquire).await.is_ok());
    let mut watch = faults.watch(&name).expect("a memory store pushes");
    watch.changed().await;
    faults.silence_watches(true);
    let release = Release { name, claim, known: vec![claim] };
    assert!(inner.release(release).await.is_ok());
    assert!(tokio::time::timeout(SHORT, watch.changed()).await.is_err());
    faults.silence_watches(false);
    assert!(inner.acquire(request("a")).await.is_ok());
    watch.changed().await;
    assert_eq!(faults.counts().wakes(), 2);
}

#[tokio::test]
async fn reads_are_counted_by_record() {
    let (faults, _) = faults();
    let names = ["a", "b", "c"].map(|name| LeaseName::new(name).unwrap());
    assert_eq!(faults.read(names.to_vec()).await, Ok(vec![None, None, None]));
    assert!(faults.acquire(request("a")).await.is_ok());
    let counts = faults.counts();
    assert_eq!((counts.sent(Operation::Read), counts.records_read()), (1, 3));
    assert_eq!((counts.writes(), counts.sent_in_all()), (1, 2));
}

fn faults() -> (Faults, MemoryStore) {
    let inner = MemoryStore::new();
    (Faults::new(Arc::new(inner.clone())), inner)
}

fn request(name: &str) -> Acquire {
    Acquire {
        name: LeaseName::new(name).unwrap(),
        claim: Nonce::random(),
        owner: Owner::named("me"),
        ttl: Duration::from_secs(60),
        session: None,
        note: None,
        create: true,
        takeover: None,
        expected: None,
        above: 0,
        unattended: false,
    }
}

async fn is_held(store: &MemoryStore, name: &str) -> bool {
    let records = store.read(vec![LeaseName::new(name).unwrap()]).await.unwrap();
    records[0].as_ref().is_some_and(|record| record.holder.is_some())
}

const SHORT: Duration = Duration::from_millis(500);
