//! Guards that entities give to work of theirs: their shard waits for it.
#![allow(clippy::disallowed_methods, reason = "real nodes take real time")]

mod kit;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use kit::{LONG, SHARDS, TTL, World, session_name, settings, soon, until};
use serde::{Deserialize, Serialize};
use tenure_cluster::messaging::{Ask, Received};
use tenure_sharding::{
    BoxError, Entity, Hosted, HostedGuard, Settings, Sharding, Shardings as _, StopReason, shard_of,
};
use tokio::time::{Instant, sleep};

/// What happened, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Event {
    /// On the node at this place.
    Started(usize),
    /// Work beside it was told to stop.
    Told(StopReason),
    /// That work has ended.
    Ended,
}

#[derive(Default)]
struct Book {
    events: Mutex<Vec<Event>>,
    /// Guards that nobody drops.
    kept: Mutex<Vec<HostedGuard>>,
}

impl Book {
    fn add(&self, event: Event) {
        self.events.lock().unwrap().push(event);
    }

    fn events(&self) -> Vec<Event> {
        self.events.lock().unwrap().clone()
    }
}

struct Worker {
    book: Arc<Book>,
    place: usize,
}

#[derive(Serialize, Deserialize)]
enum Order {
    /// Starts work that takes so many milliseconds to stop.
    Work(u64),
    /// Keeps a guard for good.
    Keep,
    Here,
    /// Panics when it is dropped, which it is when there is no room for it.
    Bomb(Bomb),
    Sleep(u64),
}

#[derive(Serialize, Deserialize)]
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        assert!(std::thread::panicking(), "as it was told");
    }
}

struct Here;

impl Ask for Here {
    type Reply = usize;
}

impl From<Here> for Order {
    fn from(_: Here) -> Self {
        Self::Here
    }
}

impl Entity for Worker {
    type Message = Order;

    async fn started(&mut self, _: &Hosted) -> Result<(), BoxError> {
        self.book.add(Event::Started(self.place));
        Ok(())
    }

    async fn receive(
        &mut self,
        received: Received<Order>,
        hosted: &Hosted,
    ) -> Result<(), BoxError> {
        match received.message {
            Order::Work(millis) => {
                let (book, guard) = (self.book.clone(), hosted.guard().clone());
                tokio::spawn(async move {
                    let reason = guard.stopping().await;
                    assert!(!guard.is_held());
                    book.add(Event::Told(reason));
                    sleep(Duration::from_millis(millis)).await;
                    book.add(Event::Ended);
                });
            }
            Order::Keep => self.book.kept.lock().unwrap().push(hosted.guard()),
            Order::Here => received.reply.answer::<Here>(self.place).await?,
            Order::Bomb(_) => {}
            Order::Sleep(millis) => sleep(Duration::from_millis(millis)).await,
        }
        Ok(())
    }
}

fn start(world: &World, place: usize, settings: Settings, book: &Arc<Book>) -> Sharding<Order> {
    let book = book.clone();
    let kind = world.clusters[place].sharding("worker").settings(settings);
    let kind = kind.lease(world.store.lease("shop.workers").ttl(TTL));
    kind.start(move |_| Worker { book: book.clone(), place }).unwrap()
}

/// Two nodes, and an entity that the second one hosts.
async fn two(settings: Settings) -> (World, [Sharding<Order>; 2], Arc<Book>, String) {
    let (world, book) = (World::new(2).await, Arc::<Book>::default());
    let workers = [0, 1].map(|place| start(&world, place, settings.clone(), &book));
    until("both to host", || workers.iter().all(|it| it.status().hosted.len() >= 8)).await;
    let here = workers[1].status().hosted;
    let at_home = |id: &String| here.iter().any(|(shard, _)| *shard == shard_of(id, SHARDS));
    let id = (0..).map(|id| id.to_string()).find(at_home).unwrap();
    (world, workers, book, id)
}

/// The next host does not begin before work has ended that was given a guard.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_waits_for_work_that_its_entities_started() {
    let (world, workers, book, id) = two(settings()).await;
    let entity = workers[0].entity(&id);
    entity.tell(Order::Work(700)).await.unwrap();
    assert_eq!(soon(entity.ask(Here).within(LONG)).await, Ok(1));
    soon(world.clusters[1].leave()).await;
    assert_eq!(soon(entity.ask(Here).within(LONG)).await, Ok(0));
    let events = book.events();
    let [Event::Started(1), Event::Told(reason), rest @ ..] = &events[..] else {
        panic!("{events:?}");
    };
    assert!(is_planned(reason), "{reason:?}");
    assert_eq!(rest, [Event::Ended, Event::Started(0)]);
    world.end().await;
}

/// The coordinator may ask for the shards before the node that leaves gives them up.
fn is_planned(reason: &StopReason) -> bool {
    matches!(reason, StopReason::HandOff | StopReason::Leaving)
}

/// Not for longer than a shard may take to stop.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_that_is_kept_delays_no_longer_than_a_stop_may_take() {
    let stop_within = Duration::from_millis(600);
    let (world, workers, book, id) = two(Settings { stop_within, ..settings() }).await;
    let entity = workers[0].entity(&id);
    entity.tell(Order::Keep).await.unwrap();
    assert_eq!(soon(entity.ask(Here).within(LONG)).await, Ok(1));
    let began = Instant::now();
    soon(world.clusters[1].leave()).await;
    assert_eq!(soon(entity.ask(Here).within(LONG)).await, Ok(0));
    assert!(began.elapsed() >= stop_within, "{:?}", began.elapsed());
    let kept = book.kept.lock().unwrap().pop().unwrap();
    assert!(is_planned(&soon(kept.stopping()).await));
    drop(kept);
    world.end().await;
}

/// Work beside the entities hears of a lost session, and what comes next begins after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_with_a_guard_stops_when_the_session_is_lost() {
    let (world, book) = (World::new(1).await, Arc::<Book>::default());
    let (session, made) = (world.session(0), book.clone());
    let kind = world.clusters[0].sharding("worker").settings(settings());
    let kind = kind.lease(world.store.lease("shop.workers").ttl(TTL)).session(&session);
    let workers = kind.start(move |_| Worker { book: made.clone(), place: 0 }).unwrap();
    let entity = workers.entity("a");
    entity.tell(Order::Work(100)).await.unwrap();
    assert_eq!(soon(entity.ask(Here).within(LONG)).await, Ok(0));
    assert!(world.records.delete(&session_name(0).parse().unwrap()));
    until("it to end", || book.events().contains(&Event::Ended)).await;
    assert_eq!(soon(entity.ask(Here).within(LONG)).await, Ok(0));
    let events = book.events();
    assert!(matches!(events[1], Event::Told(StopReason::SessionLost(_))), "{events:?}");
    assert_eq!(events[2..], [Event::Ended, Event::Started(0)]);
    world.end().await;
}

/// A crew fails with its shards: nothing begins anew before work has ended that was given a guard.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crew_that_fails_waits_for_work_that_its_entities_started() {
    let (world, book) = (World::new(1).await, Arc::<Book>::default());
    let settings = Settings { shards: 1, mailbox: 1, ..settings() };
    let workers = start(&world, 0, settings, &book);
    let entity = workers.entity("a");
    entity.tell(Order::Work(500)).await.unwrap();
    assert_eq!(soon(entity.ask(Here).within(LONG)).await, Ok(0));
    entity.tell(Order::Sleep(60_000)).await.unwrap();
    // One waits; there is no room for the next.
    entity.tell(Order::Sleep(1)).await.unwrap();
    entity.tell(Order::Bomb(Bomb)).await.unwrap();
    until("it to begin anew", || book.events().len() == 4).await;
    let (told, ended) = (Event::Told(StopReason::HandOff), Event::Ended);
    assert_eq!(book.events(), [Event::Started(0), told, ended, Event::Started(0)]);
    world.end().await;
}
