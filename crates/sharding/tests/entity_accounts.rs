//! What an entity was told and does not handle is a dead letter that names it.
#![allow(clippy::disallowed_methods, reason = "real nodes take real time")]

mod kit;

use std::time::Duration;

use kit::{Message, SHARDS, World, placed, session_name, soon, until};
use tenure_cluster::messaging::{DeadLetter, Lost};
use tenure_sharding::{EntityRef, Sharding, shard_of};
use tokio::time::{sleep, timeout};

/// The way from the second node to an entity on the first.
fn on_the_first(carts: &[Sharding<Message>]) -> EntityRef<Message> {
    let hosted: Vec<_> = carts[0].status().hosted.iter().map(|(shard, _)| *shard).collect();
    let mut ids = (0..).map(|id| format!("cart {id}"));
    carts[1].entity(&ids.find(|id| hosted.contains(&shard_of(id, SHARDS))).unwrap())
}

fn is_about(letter: &DeadLetter, entity: &EntityRef<Message>) -> bool {
    letter.id.as_deref() == Some(entity.id())
        && letter.receiver.as_deref() == Some("tenure/sharding/cart")
        && letter.why == Lost::Unfinished
        && letter.count == 1
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_fails_is_a_dead_letter_and_the_rest_is_handled() {
    let world = World::new(2).await;
    let carts = world.start(|it, _| it.lease(world.lease()));
    placed(&carts).await;
    let entity = on_the_first(&carts);
    let mut letters = world.clusters[1].dead_letters();
    for number in 0..200 {
        match number {
            50 => entity.tell(Message::Fail).await.unwrap(),
            100 => entity.tell(Message::Panic).await.unwrap(),
            _ => entity.tell(Message::Add(number)).await.unwrap(),
        }
    }
    for _ in 0..2 {
        let letter = soon(letters.next()).await.unwrap();
        assert!(is_about(&letter, &entity), "{letter}");
    }
    until("the rest", || world.book.received(entity.id()).len() == 198).await;
    let more = timeout(Duration::from_millis(100), letters.next()).await;
    assert!(more.is_err(), "{more:?}");
    world.end().await;
}

/// It waits for something, in a task of its own, when its shard has to stop at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_lost_session_interrupts_is_a_dead_letter() {
    let world = World::new(2).await;
    let sessions = [world.session(0), world.session(1)];
    let carts = world.start(|it, place| it.lease(world.lease()).session(&sessions[place]));
    placed(&carts).await;
    let entity = on_the_first(&carts);
    let mut letters = world.clusters[1].dead_letters();
    entity.tell(Message::Add(1)).await.unwrap();
    entity.tell(Message::Sleep(60_000)).await.unwrap();
    until("it to begin", || world.book.received(entity.id()).len() == 1).await;
    sleep(Duration::from_millis(100)).await;
    assert!(world.records.delete(&session_name(0).parse().unwrap()));
    let letter = soon(letters.next()).await.unwrap();
    assert!(is_about(&letter, &entity), "{letter}");
    world.end().await;
}
