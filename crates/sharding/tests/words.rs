//! What coordinator and regions say to each other.
#![allow(clippy::disallowed_methods, reason = "real nodes take real time")]

mod kit;

use std::time::Duration;

use kit::{World, spread, until};
use tenure_cluster::messaging::NotDone;
use tokio::time::sleep;

/// Shards find their places however much waits on the way from the coordinator to the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn words_do_not_wait_behind_messages() {
    let world = World::new(2).await;
    let mut slow = world.clusters[1].receiver_with_room::<Vec<u8>>("slow", 10).unwrap();
    let taking = tokio::spawn(async move {
        while slow.recv().await.is_some() {
            sleep(Duration::from_millis(100)).await;
        }
    });
    // What is on its way takes minutes.
    let sender = world.clusters[0].to::<Vec<u8>>(&world.clusters[1].me(), "slow");
    let flooding: Vec<_> = (0..8)
        .map(|_| {
            let sender = sender.clone();
            tokio::spawn(async move { while sender.tell(vec![0; 10_000]).await.is_ok() {} })
        })
        .collect();
    let full = || (0..100).all(|_| sender.try_tell(vec![0]) == Err(NotDone::Full));
    until("the lane to be full", full).await;

    let carts = world.start(|it, _| it.lease(world.lease()));
    spread(&carts).await;
    until("it to be full still", full).await;
    flooding.iter().for_each(|task| task.abort());
    taking.abort();
    world.end().await;
}
