//! `store.schedule(…).run(…)`, on a real store and by real clocks.
#![allow(clippy::disallowed_methods, reason = "real tasks, by real clocks")]

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tenure_cron::{
    Interrupted, Ledger, Missed, OpenSlot, OpenState, Schedule, Slot, SlotId, StoreSchedule as _,
    change_orders,
};
use tenure_lease::backend::{Acquire, Acquired};
use tenure_lease::{LeaseName, MemoryStore, Nonce, Owner, Settings, Store};
use tokio::sync::{mpsc, watch};

fn store() -> Store {
    Store::new(MemoryStore::new())
}

async fn ledger(store: &Store, name: &str) -> Ledger {
    let record = store.inspect(name).await.unwrap().unwrap();
    Ledger::parse(&record.note).unwrap().unwrap()
}

/// Three "machines" and a slot each second: each slot is run by one of them.
#[tokio::test(flavor = "multi_thread")]
async fn of_three_one_runs_each_slot() {
    let store = store();
    let (stop, stopped) = watch::channel(false);
    let ran = Arc::new(Mutex::new(Vec::new()));
    let (tell, mut told) = mpsc::channel(100);
    let machines: Vec<_> = (0..3)
        .map(|number| {
            let (store, ran, tell) = (store.clone(), Arc::clone(&ran), tell.clone());
            let mut stopped = stopped.clone();
            tokio::spawn(async move {
                let job = store.schedule("tick").at("@every 1s").missed(Missed::All);
                let stop = async { drop(stopped.wait_for(|stop| *stop).await) };
                job.owner(format!("machine-{number}"))
                    .run_until(stop, async move |run| {
                        ran.lock().unwrap().push((run.slot(), run.attempt(), run.token().term));
                        tell.send(()).await.map_err(|error| error.to_string())
                    })
                    .await
            })
        })
        .collect();
    for _ in 0..3 {
        told.recv().await.unwrap();
    }
    stop.send_replace(true);
    for machine in machines {
        machine.await.unwrap().unwrap();
    }
    let ledger = ledger(&store, "tick").await;
    let ran = ran.lock().unwrap();
    let mut slots: Vec<SlotId> = ran.iter().map(|(slot, ..)| *slot).collect();
    slots.dedup();
    assert_eq!(slots.len(), ran.len(), "{ran:?}");
    assert!(ledger.open.is_none(), "{ledger:?}");
    assert_eq!(ledger.totals.done, ran.len() as u64, "{ledger:?}");
    assert_eq!(ledger.totals.sum(), ledger.totals.done);
}

#[tokio::test]
async fn what_is_told_to_stop_hands_its_slot_over() {
    let store = store();
    let job = store.schedule("slow").at("@every 1s");
    let (stop, mut stopped) = watch::channel(false);
    let first = job.run_until(async { drop(stopped.wait_for(|stop| *stop).await) }, async |_| {
        stop.send_replace(true);
        std::future::pending::<Result<(), String>>().await
    });
    first.await.unwrap();
    let open = ledger(&store, "slow").await.open.unwrap();
    let slot = open.slot;
    let (tell, mut told) = mpsc::channel(1);
    tokio::select! {
        ended = job.run(async |run| {
            tell.send((run.slot(), run.attempt())).await.map_err(|error| error.to_string())
        }) => panic!("{ended:?}"),
        told = told.recv() => assert_eq!(told, Some((slot, 2))),
    }
}

#[tokio::test]
async fn what_must_not_run_twice_is_left_interrupted() {
    let store = store();
    let job = store.schedule("once").at("@every 1s").interrupted(Interrupted::Leave);
    let (stop, mut stopped) = watch::channel(false);
    let stop_it = async { drop(stopped.wait_for(|stop| *stop).await) };
    job.run_until(stop_it, async |_| {
        stop.send_replace(true);
        std::future::pending::<Result<(), String>>().await
    })
    .await
    .unwrap();
    let ledger = ledger(&store, "once").await;
    assert_eq!((ledger.open, ledger.totals.interrupted), (None, 1));
}

#[tokio::test]
async fn a_run_past_its_deadline_has_failed_and_is_retried() {
    let store = store();
    let job = store
        .schedule("hangs")
        .at("@every 1s")
        .deadline(Duration::from_millis(50))
        .retries(1, Duration::from_millis(50));
    let (tell, mut told) = mpsc::channel(10);
    let work = job.run(async |run| {
        let attempt = (run.slot(), run.attempt());
        let _ = tell.try_send(attempt);
        if run.attempt() == 1 { std::future::pending().await } else { Err("no") }
    });
    tokio::select! {
        ended = work => panic!("{ended:?}"),
        () = async {
            let (slot, attempt) = told.recv().await.unwrap();
            assert_eq!(attempt, 1);
            assert_eq!(told.recv().await.unwrap(), (slot, 2));
            told.recv().await.unwrap();
        } => {}
    }
    assert!(ledger(&store, "hangs").await.totals.failed >= 1);
}

#[tokio::test]
async fn a_paused_job_skips_its_slots() {
    let store = store();
    let since = tenure_cron::Slot::from_unix(0);
    change_orders(&store, |orders| orders.pause("idle", "me", since)).await.unwrap().unwrap();
    let job = store.schedule("idle").at("@every 1s");
    let ran = job.run(async |_| Ok::<(), String>(()));
    let skipped = async {
        let mut looks = tokio::time::interval(Duration::from_millis(50));
        loop {
            looks.tick().await;
            let record = store.inspect("idle").await.unwrap();
            let note = record.map(|record| record.note).unwrap_or_default();
            match Ledger::parse(&note).unwrap() {
                Some(ledger) if ledger.totals.skipped >= 2 => break ledger,
                _ => {}
            }
        }
    };
    tokio::select! {
        ended = ran => panic!("{ended:?}"),
        ledger = skipped => assert_eq!(ledger.totals.sum(), ledger.totals.skipped),
    }
}

/// The holder died during its run. The record is free when its ttl is over, and is taken then: not at the next
/// of some looks.
#[tokio::test]
async fn a_holder_that_died_is_succeeded_when_its_ttl_is_over() {
    let store = store();
    let ttl = Duration::from_secs(6);
    let schedule = Schedule::parse("@every 1s", "UTC").unwrap();
    let slot = Slot::from_unix(1_900_000_000);
    let mut ledger = Ledger::new(&schedule, slot);
    ledger.open = Some(OpenSlot {
        slot: SlotId::At(slot),
        attempt: 1,
        interrupted: 0,
        term: 1,
        by: "died".into(),
        claimed: slot,
        state: OpenState::Running,
        behind: false,
    });
    let died = Instant::now();
    let acquired = store.backend().acquire(Acquire {
        name: LeaseName::new("job").unwrap(),
        claim: Nonce::random(),
        owner: Owner::named("died"),
        ttl,
        session: None,
        note: Some(ledger.to_bytes()),
        create: true,
        takeover: None,
        expected: None,
        above: 0,
        unattended: false,
    });
    assert!(matches!(acquired.await, Ok(Acquired::Won { .. })));
    // Looks every 2 s from here on would be at 1.9, 3.9, 5.9 and 7.9 s.
    tokio::time::sleep(Duration::from_millis(1_900)).await;
    let job = store.schedule("job").at("@every 1s").settings(Settings::new(ttl));
    let (tell, mut told) = mpsc::channel(1);
    tokio::select! {
        ended = job.run(async |run| {
            let _ = tell.try_send((run.slot(), run.attempt()));
            Ok::<(), String>(())
        }) => panic!("{ended:?}"),
        told = told.recv() => assert_eq!(told, Some((SlotId::At(slot), 2))),
    }
    let after = died.elapsed();
    assert!(after >= ttl && after < ttl + Duration::from_millis(1_500), "after {after:?}");
}

#[tokio::test]
async fn a_note_that_is_no_ledger_is_left_alone() {
    let store = store();
    let tenure = store.lease("mailer").note(b"something else".to_vec()).acquire().await.unwrap();
    tenure.release().await;
    let job = store.schedule("mailer").at("@every 1s");
    let error = job.run(async |_| Ok::<(), String>(())).await.unwrap_err();
    assert!(error.to_string().contains("no ledger"), "{error}");
    assert_eq!(store.inspect("mailer").await.unwrap().unwrap().note, b"something else");
}
