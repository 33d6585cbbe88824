//! One receiver that does not keep up, and all others between the same two nodes.
#![allow(clippy::disallowed_methods, reason = "these tests run in real time, over real sockets")]

mod kit;
mod nodes;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use nodes::{eventually, nodes, soon};
use serde::{Deserialize, Serialize};
use tenure_cluster::Cluster;
use tenure_cluster::messaging::{Ask, Lost, NotDone};
use tenure_cluster::transport::{Handles, Local, Security, Transport, TransportSettings};

#[derive(Serialize, Deserialize)]
struct Echo(u64);

impl Ask for Echo {
    type Reply = u64;
}

/// Answers on every node.
fn answer(clusters: &[Cluster]) {
    for cluster in clusters {
        let mut echo = cluster.receiver::<Echo>("echo").unwrap();
        tokio::spawn(async move {
            while let Some(received) = echo.recv().await {
                let number = received.message.0;
                let _ = received.reply.answer::<Echo>(number).await;
            }
        });
    }
}

/// Takes one message in so much time, and counts them.
fn take_slowly(cluster: &Cluster, name: &str, each: Duration) -> Arc<AtomicU64> {
    let mut busy = cluster.receiver_with_room::<(u64, Vec<u8>)>(name, 10).unwrap();
    let taken = Arc::new(AtomicU64::new(0));
    let count = taken.clone();
    tokio::spawn(async move {
        let mut expected = 0;
        while let Some(received) = busy.recv().await {
            assert_eq!(received.message.0, expected, "in order, and none is missing");
            expected += 1;
            count.fetch_add(1, Relaxed);
            tokio::time::sleep(each).await;
        }
    });
    taken
}

/// Takes one now and then, whichever it is.
fn take_some(cluster: &Cluster, name: &str) {
    let mut slow = cluster.receiver_with_room::<(u64, Vec<u8>)>(name, 10).unwrap();
    tokio::spawn(async move {
        while slow.recv().await.is_some() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_receiver_costs_its_own_senders_only() {
    let clusters = nodes(2).await;
    answer(&clusters);
    let (near, far) = (clusters[0].me(), clusters[1].me());
    let taken = take_slowly(&clusters[1], "busy", Duration::from_millis(5));
    let mut letters = clusters[0].dead_letters();
    let told = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let (busy, count, stopped) = (clusters[0].to(&far, "busy"), told.clone(), stop.clone());
    let telling = tokio::spawn(async move {
        while !stopped.load(Relaxed) {
            let number = count.load(Relaxed);
            busy.tell((number, vec![0; 1000])).await.unwrap();
            count.fetch_add(1, Relaxed);
        }
    });
    // By now its sender waits.
    let mut last = u64::MAX;
    eventually(|| std::mem::replace(&mut last, told.load(Relaxed)) == told.load(Relaxed)).await;

    // Unrelated questions in both directions; their answers come on the lane that the flood is on.
    let (there, back) =
        (clusters[0].to::<Echo>(&far, "echo"), clusters[1].to::<Echo>(&near, "echo"));
    for number in 0..20 {
        let within = Duration::from_secs(2);
        assert_eq!(there.ask(Echo(number)).within(within).await, Ok(number));
        assert_eq!(back.ask(Echo(number)).within(within).await, Ok(number));
    }
    // It is told what it takes, more or less: its sender waits, and nothing is refused.
    let (before, after) = (told.load(Relaxed), taken.load(Relaxed));
    assert!(before - after < 200_000, "{before} were told, {after} taken");
    stop.store(true, Relaxed);
    eventually(|| taken.load(Relaxed) > after + 20).await;
    telling.abort();
    let dead = tokio::time::timeout(Duration::from_millis(100), letters.next()).await;
    assert!(dead.is_err(), "{dead:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_busy_receiver_holds_back_comes_in_the_end() {
    const TOLD: u64 = 2000;
    let clusters = nodes(2).await;
    let far = clusters[1].me();
    let taken = take_slowly(&clusters[1], "busy", Duration::from_millis(1));
    let own = clusters[1].to::<(u64, Vec<u8>)>(&far, "own");
    let mut mine = clusters[1].receiver_with_room::<(u64, Vec<u8>)>("own", 1).unwrap();
    let busy = clusters[0].to(&far, "busy");
    let telling = tokio::spawn(async move {
        for number in 0..TOLD {
            busy.tell((number, vec![0; 10_000])).await.unwrap();
        }
    });
    soon(telling).await.unwrap();
    eventually(|| taken.load(Relaxed) == TOLD).await;

    // Who tells on the receiver's own node has its turn while others flood it.
    let flood = clusters[0].to::<(u64, Vec<u8>)>(&far, "own");
    let flooding =
        tokio::spawn(async move { while flood.tell((0, vec![0; 1000])).await.is_ok() {} });
    for number in 1..=20 {
        let telling = own.tell((number, Vec::new()));
        let taking = async { while soon(mine.recv()).await.unwrap().message.0 != number {} };
        let (told, ()) = tokio::join!(telling, taking);
        assert_eq!(told, Ok(()));
    }
    flooding.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_does_not_wait_is_refused_on_its_own_node() {
    let clusters = nodes(2).await;
    let far = clusters[1].me();
    take_some(&clusters[1], "busy");
    let busy = clusters[0].to::<(u64, Vec<u8>)>(&far, "busy");
    let telling = busy.clone();
    let flooding = tokio::spawn(async move {
        let mut number = 0;
        while telling.tell((number, vec![0; 1000])).await.is_ok() {
            number += 1;
        }
    });
    let mut letters = clusters[0].dead_letters();
    eventually(|| busy.try_tell((0, Vec::new())) == Err(NotDone::Full)).await;
    // Those before that were refused by the receiver's node, and say so.
    while let Ok(Some(letter)) =
        tokio::time::timeout(Duration::from_millis(300), letters.next()).await
    {
        assert_eq!(letter.why, Lost::Full);
    }
    flooding.abort();
}

/// As one of an older version, which does not understand that it should.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_holds_nothing_back_is_refused_what_is_too_much() {
    const TOLD: u64 = 1000;
    let mut kit = kit::Kit::new();
    let clusters = nodes(2).await;
    answer(&clusters);
    take_some(&clusters[0], "busy");
    let mut letters = clusters[1].dead_letters();
    let Handles { control, data } = kit.handles();
    let local = Local { cluster: "shop".into(), name: "node".into(), node: clusters[1].me() };
    let (events, _told) = tokio::sync::mpsc::channel(256);
    let listen = Some("127.0.0.1:0".parse().unwrap());
    let older = Transport::bind(
        TransportSettings { listen, ..TransportSettings::default() },
        Security::PlaintextWithoutAnyProtection,
        local,
        Handles { control, data },
        events,
    )
    .unwrap();
    let lane = older.data(&clusters[0].me());
    for number in 0..TOLD {
        let message = tenure_cluster::messaging::Message::encode;
        let told = lane.send_with(|out| {
            out.extend_from_slice(b"\x01\x04busy");
            message(&(number, vec![0_u8; 100_000]), out).unwrap();
        });
        soon(told).await.unwrap();
    }
    let letter = soon(letters.next()).await.unwrap();
    assert_eq!((letter.why, letter.receiver.as_deref()), (Lost::Full, Some("busy")));
    let there = clusters[1].to::<Echo>(&clusters[0].me(), "echo");
    assert_eq!(there.ask(Echo(7)).within(Duration::from_secs(5)).await, Ok(7));
}
