//! Who coordinates, and who hosts: real nodes.
#![allow(clippy::disallowed_methods, reason = "real nodes take real time")]

mod kit;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use kit::{All, Cart, LONG, Message, SHARDS, TTL, Where, World, placed, session_name, soon, until};
use tenure_cluster::messaging::AskError;
use tenure_lease::KeptSession;
use tenure_sharding::{Shardings as _, StartError, StopReason};
use tokio::time::sleep;

/// Another holds the lease: nobody coordinates, nothing is hosted, messages wait, and it says why. When
/// the lease is free: at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquire_blocks_coordinator_activity() {
    let world = World::new(2).await;
    // Until it is given back.
    let tenure = world.lease().ttl(LONG * 2).acquire().await.unwrap();
    let carts = world.start(|it, _| it.lease(world.lease()));
    carts[1].entity("a").tell(Message::Add(1)).await.unwrap();
    sleep(TTL * 2).await;
    assert_eq!(world.book.starts.load(SeqCst), 0);
    for cart in &carts {
        let status = cart.status();
        assert!(status.hosted.is_empty() && !status.coordinates, "{status}");
    }
    let why = carts[0].status().why_not.unwrap();
    assert!(why.contains("another node still holds the coordinator's lease"), "{why}");
    assert_eq!(carts[1].status().waiting, 1);
    tenure.release().await;
    placed(&carts).await;
    assert!(carts[0].status().coordinates, "{}", carts[0].status());
    until("what waited", || world.book.received("a") == [1]).await;
    world.end().await;
}

/// The record is taken away: the coordinator gives no more orders, then coordinates again with a higher
/// term; shards go on meanwhile, where they are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_lease_stops_activity() {
    let world = World::new(2).await;
    let carts = world.start(|it, _| it.lease(world.lease()));
    placed(&carts).await;
    let (before, hosted) = (carts[1].status(), carts[1].status().hosted);
    assert!(world.records.delete(world.lease().name().unwrap()));
    until("the coordinator to be passive", || !carts[0].status().coordinates).await;
    carts[0].entity("a").tell(Message::Add(1)).await.unwrap();
    until("a shard that goes on", || world.book.received("a") == [1]).await;
    until("another term", || carts[1].status().coordinator > before.coordinator).await;
    assert_eq!(carts[1].status().hosted, hosted, "nothing has moved");
    world.end().await;
}

/// A node that leaves hands its shards off and gives the lease back; nothing that was told is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn release_on_leave() {
    let mut world = World::new(3).await;
    let mut carts = world.start(|it, _| it.lease(world.lease()));
    placed(&carts).await;
    for id in 0..50 {
        carts[2].entity(&id.to_string()).tell(Message::Add(id)).await.unwrap();
    }
    let all = || world.book.received.lock().unwrap().len() == 50;
    until("all to be received", all).await;
    let (leaving, _) = (world.clusters.remove(0), carts.remove(0));
    soon(leaving.leave()).await;
    let stops = world.book.stops.lock().unwrap().clone();
    assert!(!stops.is_empty());
    let expected =
        |reason: &StopReason| matches!(reason, StopReason::Leaving | StopReason::HandOff);
    assert!(stops.iter().all(|(_, reason)| expected(reason)), "{stops:?}");
    placed(&carts).await;
    assert!(carts.iter().any(|it| it.status().coordinates));
    for id in 0..50 {
        let all = carts[0].entity(&id.to_string()).ask(All).within(LONG).await.unwrap();
        assert_eq!(all, [id]);
    }
    world.end().await;
}

/// A node goes only when nobody sends to it any more: whatever was asked there is answered, or asked again
/// where the shard is by then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_leaves_leaves_no_question_open() {
    let mut world = World::new(3).await;
    let mut carts = world.start(|it, _| it.lease(world.lease()));
    placed(&carts).await;
    let over = Arc::new(AtomicBool::new(false));
    let ask = |id: usize| {
        let (cart, over) = (carts[2].entity(&id.to_string()), over.clone());
        async move {
            let mut asked = 0;
            while !over.load(SeqCst) {
                cart.ask(Where).within(LONG).await?;
                asked += 1;
            }
            Ok::<usize, AskError>(asked)
        }
    };
    let asking: Vec<_> = (0..50).map(|id| tokio::spawn(ask(id))).collect();
    for _ in 0..2 {
        let (leaving, _) = (world.clusters.remove(0), carts.remove(0));
        soon(leaving.leave()).await;
        placed(&carts).await;
    }
    over.store(true, SeqCst);
    for asked in asking {
        assert!(soon(asked).await.unwrap().unwrap() > 0);
    }
    world.end().await;
}

/// No lease: the oldest coordinates, and everything else is as it is with one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_lease_the_path_is_unchanged() {
    let mut world = World::new(2).await;
    let mut carts = world.start(|it, _| it);
    placed(&carts).await;
    assert!(carts[0].status().coordinates && !carts[1].status().coordinates);
    for id in 0..20 {
        carts[1].entity(&id.to_string()).tell(Message::Add(id)).await.unwrap();
        let all = carts[1].entity(&id.to_string()).ask(All).within(LONG).await.unwrap();
        assert_eq!(all, [id], "in order");
        carts[0].entity(&id.to_string()).ask(All).within(LONG).await.unwrap();
    }
    let (leaving, _) = (world.clusters.remove(0), carts.remove(0));
    soon(leaving.leave()).await;
    placed(&carts).await;
    assert_eq!(carts[0].status().hosted.len(), SHARDS as usize);
    world.end().await;
}

/// The budget to stop in is a fifth of the ttl, so a busy machine needs a long one.
fn long_session(world: &World, place: usize) -> KeptSession {
    world.store.lease(&session_name(place)).ttl(TTL * 5).kept_session().unwrap()
}

/// With sessions: a process that loses its session stops all of its shards within the stop budget, and
/// hosts again when it has the next one, under higher tokens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_session_stops_all_shards_in_time() {
    let world = World::new(2).await;
    let sessions: Vec<_> = (0..2).map(|place| long_session(&world, place)).collect();
    let carts = world.start(|it, place| it.lease(world.lease()).session(&sessions[place]));
    placed(&carts).await;
    for id in 0..50 {
        carts[0].entity(&id.to_string()).tell(Message::Add(id)).await.unwrap();
    }
    let all = || world.book.received.lock().unwrap().len() == 50;
    until("all to be received", all).await;
    // One that takes long, and must not.
    let there = carts[1].status().hosted;
    let slow = (0..)
        .map(|id| id.to_string())
        .find(|id| there.iter().any(|(shard, _)| *shard == tenure_sharding::shard_of(id, SHARDS)));
    let slow = slow.unwrap();
    carts[1].entity(&slow).tell(Message::Sleep(60_000)).await.unwrap();
    sleep(Duration::from_millis(50)).await;
    let before = world.book.tokens.lock().unwrap().len();
    let held = sessions[1].current().unwrap();
    assert!(world.records.delete(held.tenure().name()));
    held.tenure().lost().await;
    let budget = held.tenure().time_to_stop();
    drop(held);
    let gone = || {
        let active = world.book.active.lock().unwrap();
        !active.values().any(|node| *node == world.clusters[1].me().address.to_string())
    };
    tokio::time::timeout(budget, until("all to stop", gone)).await.expect("in time");
    let lost = |(_, reason): &(String, StopReason)| matches!(reason, StopReason::SessionLost(_));
    assert!(world.book.stops.lock().unwrap().iter().any(lost));
    placed(&carts).await;
    for id in 0..50 {
        let all = carts[1].entity(&id.to_string()).ask(All).within(LONG).await.unwrap();
        assert_eq!(all, [id]);
    }
    let tokens = world.book.tokens.lock().unwrap().clone();
    for (shard, token) in &tokens[before..] {
        let earlier = tokens[..before].iter().filter(|(other, _)| other == shard);
        assert!(earlier.map(|(_, token)| token).all(|other| other <= token), "{shard}");
    }
    world.end().await;
}

/// What is handed off may take its time to stop; but not once the session is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_lost_during_a_hand_off_leaves_no_more_time() {
    let world = World::new(2).await;
    let sessions: Vec<_> = (0..2).map(|place| long_session(&world, place)).collect();
    let carts = world.start(|it, place| it.lease(world.lease()).session(&sessions[place]));
    placed(&carts).await;
    let there = carts[1].status().hosted;
    let is_there =
        |id: &String| there.iter().any(|(at, _)| *at == tenure_sharding::shard_of(id, SHARDS));
    let slow = (0..).map(|id| id.to_string()).find(is_there).unwrap();
    carts[1].entity(&slow).tell(Message::Sleep(60_000)).await.unwrap();
    let active = || {
        let address = world.clusters[1].me().address.to_string();
        world.book.active.lock().unwrap().values().filter(|node| **node == address).count()
    };
    until("it to be at work", || active() > 0).await;
    let held = sessions[1].current().unwrap();
    let leaving = world.clusters[1].clone();
    let left = tokio::spawn(async move { leaving.leave().await });
    until("the others to stop", || carts[1].status().hosted.len() <= 1).await;
    assert_eq!(active(), 1, "it has ten seconds to stop");
    assert!(world.records.delete(held.tenure().name()));
    held.tenure().lost().await;
    let budget = held.tenure().time_to_stop();
    drop(held);
    tokio::time::timeout(budget, until("it to stop", || active() == 0)).await.expect("in time");
    soon(left).await.unwrap();
    world.end().await;
}

/// With sessions: a node that leaves gives its session up, so that the next coordinator waits for nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_leaves_gives_its_session_up() {
    let mut world = World::new(3).await;
    let sessions: Vec<_> = (0..3).map(|place| world.session(place)).collect();
    let mut carts = world.start(|it, place| it.lease(world.lease()).session(&sessions[place]));
    placed(&carts).await;
    let (leaving, _) = (world.clusters.remove(0), carts.remove(0));
    soon(leaving.leave()).await;
    placed(&carts).await;
    let holder = || async { world.store.inspect(&session_name(0)).await.unwrap().unwrap().holder };
    soon(async {
        while holder().await.is_some() {
            sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    // Nobody wants it here any more: a successor finds it free.
    sleep(Duration::from_millis(300)).await;
    assert!(holder().await.is_none() && sessions[0].current().is_none());
    let next = soon(sessions[0].held()).await;
    assert!(next.tenure().is_held(), "unless somebody does");
    drop(next);
    world.end().await;
}

/// A node with another number of shards is refused, and both sides say so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_number_of_shards_is_refused() {
    let world = World::new(2).await;
    let one = world.host(world.carts(0).lease(world.lease()), 0);
    placed(std::slice::from_ref(&one)).await;
    let two = world.host(world.carts(1).shards(SHARDS * 2).lease(world.lease()), 1);
    let says = |text: &str, why: Option<String>| why.is_some_and(|why| why.contains(text));
    let node = world.clusters[0].me().to_string();
    until("the newcomer to say so", || {
        says(&format!("{SHARDS} shards on {node}"), two.status().why_not)
    })
    .await;
    let node = world.clusters[1].me().to_string();
    until("the other one to say so", || {
        says(&format!("{} shards on {node}", SHARDS * 2), one.status().why_not)
    })
    .await;
    assert_eq!(one.status().hosted.len(), SHARDS as usize);
    assert!(two.status().hosted.is_empty());
    world.end().await;
}

/// What cannot work is said when it is started.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_work_is_said() {
    let world = World::new(1).await;
    let carts = || world.clusters[0].sharding("cart");
    let none = carts().proxy::<Message>().unwrap_err();
    assert!(none.to_string().contains("shards 0"), "{none}");
    let alone = carts().shards(8).session(&world.session(0)).proxy::<Message>();
    assert_eq!(alone.unwrap_err(), StartError::SessionAlone);
    for (lease, words) in [
        (world.store.lease("shop_carts"), "shop_carts"),
        (world.store.lease("shop.carts").ttl(Duration::from_millis(1)), "keeps ttls from 10ms"),
    ] {
        let book = world.book.clone();
        let make = move |id: &str| Cart::new(&book, "never", id);
        let error = carts().shards(8).lease(lease).start(make).unwrap_err();
        assert!(matches!(error, StartError::Lease(_)), "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
    let _first = world.host(world.carts(0), 0);
    assert!(world.carts(0).proxy::<Message>().is_ok(), "the same again");
    let other = world.carts(0).proxy::<u64>().unwrap_err();
    assert_eq!(other, StartError::Started("cart".into()));
    let other = carts().shards(8).proxy::<Message>().unwrap_err();
    assert_eq!(other, StartError::Started("cart".into()));
    world.end().await;
}

/// A node that joins gets its share; entities go on there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_joins_gets_its_share() {
    let mut world = World::new(1).await;
    let mut carts = world.start(|it, _| it.lease(world.lease()));
    placed(&carts).await;
    world.join().await;
    carts.push(world.host(world.carts(1).lease(world.lease()), 1));
    until("its share", || carts[1].status().hosted.len() == SHARDS as usize / 2).await;
    placed(&carts).await;
    let second = world.clusters[1].me().address.to_string();
    let mut there = 0;
    for id in 0..30 {
        let (node, _) = carts[0].entity(&id.to_string()).ask(Where).within(LONG).await.unwrap();
        there += usize::from(node == second);
    }
    assert!(there > 5, "{there}");
    world.end().await;
}
