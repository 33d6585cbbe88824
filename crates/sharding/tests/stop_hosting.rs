//! A kind that is stopped on one node, which stays in the cluster, and started there again.
#![allow(clippy::disallowed_methods, reason = "real nodes take real time")]

mod kit;

use kit::{All, LONG, Message, SHARDS, Where, World, session_name, soon, spread, until};
use tenure_sharding::{Builder, Shardings as _, StartError, StopReason};

/// The oldest, which coordinates, stops hosting: the others get its shards, its handle goes on as a
/// proxy, and the same happens to the next one. Started again, each gets its share.
async fn stops_and_starts_again(world: World, with: impl Fn(Builder, usize) -> Builder) {
    let carts = world.start(&with);
    spread(&carts).await;
    for id in 0..32 {
        carts[0].entity(&id.to_string()).tell(Message::Add(1)).await.unwrap();
    }
    for place in [0, 1] {
        soon(carts[place].stop()).await;
        assert_eq!(carts[place].status().hosted, [], "nothing is left there");
        let node = world.clusters[place].me().address.to_string();
        assert!(!world.book.active.lock().unwrap().values().any(|at| *at == node));
        let others: Vec<_> = (0..3).filter(|it| *it != place).map(|it| carts[it].clone()).collect();
        spread(&others).await;
        for id in 0..32 {
            let cart = carts[place].entity(&id.to_string());
            cart.tell(Message::Add(2)).await.unwrap();
            let (at, _) = cart.ask(Where).within(LONG).await.unwrap();
            assert_ne!(at, node, "its handle goes on as a proxy");
        }
        let again = world.host(with(world.carts(place), place), place);
        spread(&carts).await;
        assert_eq!(again.kind(), "cart");
        // It is here now.
        let twice = with(world.carts(place), place).start(|_| -> kit::Cart { unreachable!() });
        assert!(matches!(twice, Err(StartError::Started(_))));
    }
    for id in 0..32 {
        let all = carts[2].entity(&id.to_string()).ask(All).within(LONG).await.unwrap();
        assert_eq!(all, [1, 2, 2], "of {id}");
    }
    let stops = world.book.stops.lock().unwrap().clone();
    assert!(stops.iter().all(|(_, reason)| *reason == StopReason::HandOff), "{stops:?}");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kind_is_stopped_on_a_node_and_started_again() {
    stops_and_starts_again(World::new(3).await, |it, _| it).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn also_with_a_lease() {
    let world = World::new(3).await;
    let lease = world.lease();
    stops_and_starts_again(world, |it, _| it.lease(lease.clone())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn also_with_sessions() {
    let world = World::new(3).await;
    let (lease, sessions) = (world.lease(), [world.session(0), world.session(1), world.session(2)]);
    let with = |it: Builder, place: usize| it.lease(lease.clone()).session(&sessions[place]);
    stops_and_starts_again(world, with).await;
}

/// Whoever stops gives its lease and its session back; but a session that another kind lives on stays,
/// and the next coordinator does not wait for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lease_and_the_session_are_given_back() {
    let world = World::new(2).await;
    let sessions = [world.session(0), world.session(1)];
    let carts = world.start(|it, place| it.lease(world.lease()).session(&sessions[place]));
    spread(&carts).await;
    soon(carts[1].stop()).await;
    until("the first to have all", || carts[0].status().hosted.len() == SHARDS as usize).await;
    let is_free = async |name: &str| {
        let record = world.store.inspect(name).await.unwrap().unwrap();
        record.holder.is_none()
    };
    soon(async {
        while !is_free(&session_name(1)).await {
            tokio::task::yield_now().await
        }
    })
    .await;
    assert!(!is_free(&session_name(0)).await && !is_free("shop.carts").await);

    let other = world.clusters[0].sharding("other").settings(kit::settings());
    let other = other.lease(world.store.lease("shop.other").ttl(kit::TTL)).session(&sessions[0]);
    let other = world.host(other, 0);
    until("the other kind", || other.status().hosted.len() == SHARDS as usize).await;
    soon(carts[0].stop()).await;
    assert!(is_free("shop.carts").await);
    assert!(!is_free(&session_name(0)).await, "another kind lives on it");
    let again = world.host(world.carts(1).lease(world.lease()).session(&sessions[1]), 1);
    until("the second to have all", || again.status().hosted.len() == SHARDS as usize).await;
    assert_eq!(other.status().hosted.len(), SHARDS as usize);
    world.end().await;
}
