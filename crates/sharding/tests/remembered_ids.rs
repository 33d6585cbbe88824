//! What is remembered may be wrong: no id is started in a shard that it does not belong to, and none twice.
#![allow(clippy::disallowed_methods, reason = "real nodes take real time")]

mod kit;

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use kit::{All, LONG, SHARDS, World, placed, until};
use tenure_sharding::{Place, Remember, Remembering, Shard, shard_of};
use tokio::time::sleep;

/// Remembers one entity for each shard: twice, and among ids that it should not have.
struct Confused;

fn id_of(shard: Shard) -> String {
    (0..).map(|id| id.to_string()).find(|id| shard_of(id, SHARDS) == shard).unwrap()
}

impl Remember for Confused {
    fn load(&self, place: Place<'_>) -> Remembering<'_, Vec<String>> {
        let own = id_of(place.shard);
        let of_another = id_of(Shard((place.shard.0 + 1) % SHARDS));
        let long = (0..).map(|id| format!("{id:01001}"));
        let long = long.into_iter().find(|id| shard_of(id, SHARDS) == place.shard).unwrap();
        Box::pin(async move { Ok(vec![own.clone(), of_another, String::new(), long, own]) })
    }

    fn change(&self, _: Place<'_>, _: Vec<String>, _: Vec<String>) -> Remembering<'_, ()> {
        Box::pin(async { Ok(()) })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_is_started_once_where_it_belongs() {
    let world = World::new(1).await;
    let carts = world.start(|it, _| it.lease(world.lease()).remember_entities(Confused));
    placed(&carts).await;
    let all: Vec<String> = (0..SHARDS).map(|shard| id_of(Shard(shard))).collect();
    let active = || world.book.active.lock().unwrap().len();
    until("all to be there", || active() >= all.len()).await;
    sleep(Duration::from_millis(200)).await;
    assert_eq!(world.book.starts.load(SeqCst), u64::from(SHARDS), "no others, and none twice");
    for (shard, _) in world.book.tokens.lock().unwrap().iter() {
        assert!(world.book.active.lock().unwrap().contains_key(&id_of(*shard)));
    }
    for id in &all {
        assert!(carts[0].entity(id).ask(All).within(LONG).await.unwrap().is_empty());
    }
    assert_eq!(carts[0].status().entities, all.len());
    world.end().await;
}
