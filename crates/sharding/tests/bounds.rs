//! What is bounded unless somebody chooses otherwise.
#![allow(clippy::disallowed_methods, reason = "real nodes take real time")]

mod kit;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use kit::{LONG, SHARDS, Where, World, placed, settings, soon, until};
use tenure_cluster::messaging::{Ask, Received};
use tenure_sharding::{
    BoxError, Entity, Hosted, Place, Remember, Remembering, Settings, Setup, ShardKey,
    Shardings as _, StartError, shard_of,
};
use tokio::time::sleep;

/// How many are being started, at most, and how many were.
#[derive(Default)]
struct Starts {
    now: AtomicUsize,
    most: AtomicUsize,
    all: AtomicUsize,
}

struct Slow(Arc<Starts>);

#[derive(serde::Serialize, serde::Deserialize)]
struct HowMany;

impl Ask for HowMany {
    type Reply = u64;
}

impl Entity for Slow {
    type Message = HowMany;

    async fn started(&mut self, _: &Hosted) -> Result<(), BoxError> {
        let now = self.0.now.fetch_add(1, SeqCst) + 1;
        self.0.most.fetch_max(now, SeqCst);
        sleep(Duration::from_millis(5)).await;
        self.0.now.fetch_sub(1, SeqCst);
        self.0.all.fetch_add(1, SeqCst);
        Ok(())
    }

    async fn receive(&mut self, received: Received<HowMany>, _: &Hosted) -> Result<(), BoxError> {
        received.reply.answer::<HowMany>(self.0.all.load(SeqCst) as u64).await?;
        Ok(())
    }
}

/// All of them belong to the only shard.
struct Many(usize);

impl Remember for Many {
    fn load(&self, _: Place<'_>) -> Remembering<'_, Vec<String>> {
        let ids = (0..self.0).map(|id| id.to_string()).collect();
        Box::pin(async move { Ok(ids) })
    }

    fn change(&self, _: Place<'_>, _: Vec<String>, _: Vec<String>) -> Remembering<'_, ()> {
        Box::pin(async { Ok(()) })
    }
}

/// Many that are remembered are started a few at a time, and one that somebody asks comes first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn remembered_entities_are_started_a_few_at_a_time() {
    let world = World::new(1).await;
    let starts = Arc::<Starts>::default();
    let slow = starts.clone();
    let few = world.clusters[0].sharding("slow").settings(Settings { shards: 1, ..settings() });
    let few = few.lease(world.lease()).remember_entities(Many(COUNT));
    let few = few.start(move |_| Slow(slow.clone())).unwrap();
    until("the first to be started", || starts.all.load(SeqCst) > 0).await;
    let last = few.entity(&(COUNT - 1).to_string());
    let before = soon(last.ask(HowMany).within(LONG)).await.unwrap();
    assert!(before < COUNT as u64, "it did not wait for all others");
    until("all to be started", || starts.all.load(SeqCst) == COUNT).await;
    let most = starts.most.load(SeqCst);
    assert!((2..=33).contains(&most), "{most} at once");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entities_are_bounded_unless_they_are_remembered() {
    let defaults = Settings::new(Setup::Gossip, SHARDS);
    assert_eq!(defaults.passivate_after, Some(Duration::from_secs(900)));
    assert_eq!(defaults.entities_max, Some(1_000_000));
    let world = World::new(1).await;
    let remembered = |kind: &str| {
        let it = world.clusters[0].sharding(kind).settings(settings()).lease(world.lease());
        it.remember_entities(Many(0))
    };
    let make = |_: &str| Slow(Arc::default());
    remembered("one").start(make).unwrap();
    let chosen = remembered("two").passivate_after(Duration::from_secs(60)).start(make);
    assert_eq!(chosen.unwrap_err(), StartError::RememberedAndPassivated);
    remembered("two").passivate_after(None).entities_max(None).start(make).unwrap();
    world.end().await;
}

/// Entities are placed by the key, and nodes with another one refuse each other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_places_entities_and_is_the_same_on_all_nodes() {
    let world = World::new(2).await;
    let start =
        |place: usize, secret: &str| world.host(world.carts(place).shard_key(secret), place);
    let carts = start(0, "secret");
    let (key, ids) = (ShardKey::from_secret("secret"), ["a", "b", "c", "d", "e"]);
    assert!(ids.iter().all(|id| carts.entity(id).shard() == key.shard_of(id, SHARDS)));
    assert!(ids.iter().any(|id| carts.entity(id).shard() != shard_of(id, SHARDS)));
    let stranger = start(1, "another");
    let why = || stranger.status().to_string();
    until("the other to say why", || why().contains("another shard_key")).await;
    soon(world.clusters[1].leave()).await;
    let world = World { clusters: vec![world.clusters[0].clone()], ..world };
    placed(std::slice::from_ref(&carts)).await;
    for id in ids {
        let (at, _) = carts.entity(id).ask(Where).within(LONG).await.unwrap();
        assert_eq!(at, world.clusters[0].me().address.to_string());
    }
    world.end().await;
}

const COUNT: usize = 500;
