//! Entities that come and go: passivated by time and by number, while messages come; who has what.
#![allow(clippy::disallowed_methods, reason = "real nodes take real time")]

mod kit;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kit::{All, LONG, Message, SHARDS, World, placed, settings, soon, spread, until};
use serde::{Deserialize, Serialize};
use tenure_cluster::messaging::Received;
use tenure_sharding::{
    BoxError, Entity, Hosted, Settings, Shard, Sharding, Shardings as _, StopReason, Strategy,
    shard_of,
};
use tokio::time::sleep;

/// What is known of all counters: how many there are, and what they have written down.
#[derive(Default)]
struct Ledger {
    live: AtomicUsize,
    most: AtomicUsize,
    written: Mutex<HashMap<String, Vec<u64>>>,
    stops: AtomicUsize,
    received: AtomicUsize,
}

/// Keeps what it is told in memory, and writes it down, slowly, when it stops.
struct Counter {
    ledger: Arc<Ledger>,
    id: String,
    told: Vec<u64>,
}

#[derive(Serialize, Deserialize)]
struct Add(u64);

impl Counter {
    fn new(ledger: &Arc<Ledger>, id: &str) -> Self {
        let live = ledger.live.fetch_add(1, SeqCst) + 1;
        ledger.most.fetch_max(live, SeqCst);
        Self { ledger: ledger.clone(), id: id.to_owned(), told: Vec::new() }
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        self.ledger.live.fetch_sub(1, SeqCst);
    }
}

impl Entity for Counter {
    type Message = Add;

    async fn started(&mut self, _: &Hosted) -> Result<(), BoxError> {
        self.told = self.ledger.written.lock().unwrap().get(&self.id).cloned().unwrap_or_default();
        Ok(())
    }

    async fn receive(&mut self, received: Received<Add>, _: &Hosted) -> Result<(), BoxError> {
        self.told.push(received.message.0);
        self.ledger.received.fetch_add(1, SeqCst);
        Ok(())
    }

    async fn stopped(&mut self, _: StopReason) {
        // Some take a while, and are sent something meanwhile.
        if self.id.len().is_multiple_of(2) {
            sleep(Duration::from_millis(1)).await;
        }
        self.ledger.stops.fetch_add(1, SeqCst);
        let told = std::mem::take(&mut self.told);
        self.ledger.written.lock().unwrap().insert(self.id.clone(), told);
    }
}

/// However many are sent messages, there are never more than so many, and no message is lost: those that
/// come while an entity stops go to the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_load_there_are_never_more_than_so_many_and_nothing_is_lost() {
    let world = World::new(1).await;
    let ledger = Arc::<Ledger>::default();
    let made = ledger.clone();
    let few = Settings { entities_max: Some(MOST), ..settings() };
    let counters = world.clusters[0].sharding("counter").settings(few);
    let counters = counters.start(move |id| Counter::new(&made, id)).unwrap();
    let telling = (0..2_u64).map(|sender| {
        let counters = counters.clone();
        tokio::spawn(async move {
            let mut random = sender + 1;
            let mut told: HashMap<String, Vec<u64>> = HashMap::new();
            for number in 0..20_000 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                // Some are sent more than others.
                let id = (random >> 33) % if number % 3 == 0 { 3000 } else { 60 };
                let id = format!("{sender}-{id}");
                counters.entity(&id).tell(Add(number)).await.unwrap();
                told.entry(id).or_default().push(number);
            }
            told
        })
    });
    let mut told = HashMap::new();
    for task in telling.collect::<Vec<_>>() {
        told.extend(tokio::time::timeout(LONG, task).await.unwrap().unwrap());
    }
    until("all to be received", || ledger.received.load(SeqCst) == 40_000).await;
    assert!(counters.status().entities <= MOST);
    tokio::time::timeout(LONG, world.clusters[0].leave()).await.unwrap();
    let (most, stops) = (ledger.most.load(SeqCst), ledger.stops.load(SeqCst));
    println!("{} entities, at most {most} at a time, stopped {stops} times", told.len());
    assert!(most <= MOST && stops > told.len(), "{most} at a time, {stops} stops");
    let written = ledger.written.lock().unwrap();
    for (id, told) in &told {
        assert_eq!(written.get(id), Some(told), "{id}");
    }
    assert_eq!(ledger.live.load(SeqCst), 0);
}

/// Who gets no messages goes; who gets some stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_idle_go_and_the_others_stay() {
    let world = World::new(1).await;
    let carts = world.start(|it, _| it.passivate_after(Duration::from_secs(3)));
    placed(&carts).await;
    for id in 0..20 {
        carts[0].entity(&id.to_string()).tell(Message::Add(1)).await.unwrap();
    }
    let stops = || world.book.stops.lock().unwrap().clone();
    soon(async {
        while stops().len() < 19 {
            carts[0].entity("7").tell(Message::Add(2)).await.unwrap();
            sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    assert_eq!(stops().len(), 19, "{:?}", stops());
    assert!(stops().iter().all(|(id, why)| id != "7" && *why == StopReason::Passivated));
    until("the last", || stops().len() == 20).await;
    until("the count", || carts[0].status().entities == 0).await;
    let all = carts[0].entity("3").ask(All).within(LONG).await.unwrap();
    assert_eq!(all, [1]);
    world.end().await;
}

/// Any node says where an entity is, and what every region has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_what() {
    let world = World::new(3).await;
    let carts = world.start(|it, _| it.lease(world.lease()));
    spread(&carts).await;
    for id in 0..50 {
        carts[id % 3].entity(&id.to_string()).ask(All).within(LONG).await.unwrap();
    }
    // They are counted a moment after they have answered.
    let counted = || carts.iter().map(|it| it.status().entities).sum::<usize>() == 50;
    until("all to be counted", counted).await;
    let regions = carts[1].regions(LONG).await;
    assert_eq!(regions.len(), 3);
    let (mut entities, mut shards) = (0, 0);
    for (node, stats) in &regions {
        let stats = stats.as_ref().unwrap();
        entities += stats.entities;
        shards += stats.shards.len();
        for id in (0..50).map(|id| id.to_string()) {
            let here = stats.shards.iter().any(|(shard, _)| *shard == shard_of(&id, SHARDS));
            assert_eq!(carts[2].home(&id).as_ref() == Some(node), here, "{id}");
        }
    }
    assert_eq!((entities, shards), (50, SHARDS as usize));
    world.end().await;
}

/// The strategy decides, on real nodes too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shards_are_pinned() {
    let world = World::new(2).await;
    let second = world.clusters[1].me().address;
    let pins = (0..SHARDS - 2).map(|shard| (Shard(shard), second.clone()));
    let pinned = Strategy::pinned(pins);
    let carts = world.start(|it, _| it.lease(world.lease()).strategy(pinned.clone()));
    placed(&carts).await;
    until("all to be where they are pinned", || carts[1].status().hosted.len() >= 14).await;
    placed(&carts).await;
    let homes = carts[0].status().homes;
    assert!(homes[..14].iter().all(|(_, node)| node.address == second), "{homes:?}");
    world.end().await;
}

/// With `POD_IP` a node has another address after each restart. Its shards are its own nevertheless.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_gets_its_shards_back_at_another_address() {
    let mut world = World::new(0).await;
    for place in 0..3 {
        world.join_named(&format!("shop-{place}")).await;
    }
    let pins = (0..SHARDS).map(|shard| (Shard(shard), format!("shop-{}", shard % 3)));
    let strategy = Strategy::pinned(pins);
    let host = |world: &World, place| {
        let builder = world.carts(place).lease(world.lease()).strategy(strategy.clone());
        world.host(builder, place)
    };
    let is_pinned = |carts: &[Sharding<Message>]| {
        carts.iter().zip(0..).all(|(cart, place)| {
            let hosted = cart.status().hosted;
            hosted.len() >= SHARDS as usize / 3 && hosted.iter().all(|it| it.0.0 % 3 == place)
        })
    };
    let mut carts: Vec<_> = (0..3).map(|place| host(&world, place)).collect();
    until("all to be where they are pinned", || is_pinned(&carts)).await;
    soon(world.clusters.remove(2).leave()).await;
    carts.pop();
    placed(&carts).await;
    world.join_named("shop-2").await;
    carts.push(host(&world, 2));
    until("all to be where they are pinned again", || is_pinned(&carts)).await;
    placed(&carts).await;
    world.end().await;
}

const MOST: usize = 200;
