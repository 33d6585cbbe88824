//! Schedules that are steered towards what random faults seldom meet.
#![allow(clippy::disallowed_methods, reason = "time is virtual")]

use std::time::Duration;

use tenure_testkit::world::World;
use tokio::time::timeout;

use super::{Habits, Shop};

/// The singleton's host, or another node, loses the other nodes and the store at once, as a machine without
/// its network does: leases are lost while stops may take too long.
pub(crate) async fn hosts_cut_off(world: World) {
    let shop = Shop::open(world, 5, Habits::default()).await;
    let world = &shop.world;
    for _ in 0..world.random(1..4) {
        let all = shop.nodes.len() as u64;
        let host = shop.singleton_host().filter(|_| world.random(0..4) > 0);
        let node = host.unwrap_or_else(|| world.random(0..all) as usize);
        let others: Vec<usize> = (0..shop.nodes.len()).filter(|it| *it != node).collect();
        shop.nodes.partition(&[node], &others);
        // The store may be found missing earlier than the others, or later.
        world.sleep(world.random_millis(0..2000)).await;
        shop.nodes.store_away(&[node]);
        world.sleep(world.random_millis(3000..30_000)).await;
        shop.must_be_right();
        shop.nodes.heal();
        shop.nodes.store_back();
        shop.supervise().await;
        world.sleep(world.random_millis(500..10_000)).await;
        shop.must_be_right();
    }
    shop.recover().await;
}

/// No connection is cut, so each lost message has a dead letter of its own: nodes leave and come back, the
/// singleton fails and is handed over, the store is away for a while, all of it under load.
pub(crate) async fn rolling(world: World) {
    let shop = Shop::open(world, 5, Habits { till_fails: true }).await;
    let world = &shop.world;
    for _ in 0..world.random(2..8) {
        let node = world.random(0..shop.nodes.len() as u64) as usize;
        match world.random(0..4) {
            0 => {
                let leave = shop.nodes.run(node, |service| async move {
                    // A node without its lease may take longer to leave.
                    let _ = timeout(Duration::from_secs(30), service.cluster.leave()).await;
                });
                let _ = leave.await; // It may have ended itself.
                shop.supervise().await;
            }
            1 => {
                shop.nodes.store_away(&[node]);
                world.sleep(world.random_millis(500..8000)).await;
                shop.nodes.store_back();
            }
            _ => {
                let hand_over = shop.nodes.run(node, |service| async move {
                    let _ = timeout(Duration::from_secs(2), service.till.hand_over()).await;
                });
                let _ = hand_over.await; // Likewise.
            }
        }
        world.sleep(world.random_millis(100..2000)).await;
        shop.must_be_right();
    }
    shop.recover().await;
}

impl Shop {
    /// Which node runs the singleton.
    fn singleton_host(&self) -> Option<usize> {
        let hosts = self.world.workers("the singleton");
        hosts.first()?.strip_prefix("node-")?.parse().ok()
    }
}
