//! A node that starts over, as a new incarnation in the same process, hosts again.
#![allow(clippy::disallowed_methods, reason = "real nodes take real time")]

mod kit;

use std::net::TcpListener;

use kit::{LONG, Message, SHARDS, World, placed, soon, until};
use tenure_cluster::Status;
use tenure_sharding::StopReason;

async fn starts_over(with_sessions: bool) {
    let mut world = World::new(1).await;
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap().to_string();
    drop(socket);
    let again = world.join_at(&address, true).await;
    let sessions: Vec<_> = (0..2).map(|place| world.session(place)).collect();
    let carts = world.start(|it, place| match with_sessions {
        true => it.lease(world.lease()).session(&sessions[place]),
        false => it.lease(world.lease()),
    });
    placed(&carts).await;
    for id in 0..40 {
        carts[0].entity(&id.to_string()).tell(Message::Add(1)).await.unwrap();
    }
    let all = || world.book.received.lock().unwrap().len() == 40;
    until("all to be received", all).await;
    let before = again.me();
    world.clusters[0].down(&before).await;
    until("it to stop", || {
        let stops = world.book.stops.lock().unwrap();
        stops.iter().any(|(_, reason)| *reason == StopReason::OutOfCluster)
    })
    .await;
    let is_up = || {
        let view = world.clusters[0].view();
        view.member(&again.me()).is_some_and(|it| it.status == Status::Up)
    };
    until("a new incarnation", || again.me() != before && is_up()).await;
    until("its share", || carts[1].status().hosted.len() == SHARDS as usize / 2).await;
    placed(&carts).await;
    for id in 0..40 {
        let cart = carts[1].entity(&id.to_string());
        cart.tell(Message::Add(2)).await.unwrap();
        let all = cart.ask(kit::All).within(LONG).await.unwrap();
        assert_eq!(all, [1, 2]);
    }
    soon(world.clusters[0].leave()).await;
    until("all of it", || carts[1].status().hosted.len() == SHARDS as usize).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_starts_over_hosts_again() {
    starts_over(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn also_with_sessions() {
    starts_over(true).await;
}
