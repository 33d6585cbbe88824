//! What one entity costs its neighbours, and what a message costs that cannot be sent or is not wanted.
#![allow(clippy::disallowed_methods, reason = "real nodes take real time")]

mod kit;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use kit::{LONG, World, session_name, settings, soon, until};
use serde::{Deserialize, Serialize};
use tenure_cluster::messaging::{Ask, AskError, Lost, NotDone, Received};
use tenure_sharding::{BoxError, Entity, Hosted, Settings, Sharding, Shardings as _};
use tokio::time::timeout;

#[derive(Default)]
struct Book {
    /// Those that keep their thread wait for this.
    free: AtomicBool,
    holding: AtomicUsize,
    worked: AtomicUsize,
}

struct Worker(Arc<Book>);

#[derive(Serialize, Deserialize)]
enum Order {
    /// Keeps the thread for so many milliseconds.
    Work(u64),
    /// Computes for so many microseconds.
    Compute(u64),
    /// Keeps the thread until it is free to go on.
    Hold,
    Bytes(Vec<u8>),
    Here,
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

struct Long(Vec<u8>);

impl Ask for Long {
    type Reply = usize;
}

impl From<Long> for Order {
    fn from(long: Long) -> Self {
        Self::Bytes(long.0)
    }
}

fn keep_the_thread(millis: u64) {
    std::thread::sleep(Duration::from_millis(millis));
}

impl Entity for Worker {
    type Message = Order;

    async fn receive(&mut self, received: Received<Order>, _: &Hosted) -> Result<(), BoxError> {
        match received.message {
            Order::Work(millis) => {
                keep_the_thread(millis);
                self.0.worked.fetch_add(1, SeqCst);
            }
            Order::Compute(micros) => {
                let began = Instant::now();
                while began.elapsed() < Duration::from_micros(micros) {
                    std::hint::spin_loop();
                }
                self.0.worked.fetch_add(1, SeqCst);
            }
            Order::Hold => {
                self.0.holding.fetch_add(1, SeqCst);
                while !self.0.free.load(SeqCst) {
                    keep_the_thread(5);
                }
            }
            Order::Bytes(bytes) => received.reply.answer::<Long>(bytes.len()).await?,
            Order::Here => received.reply.answer::<Here>(self.0.worked.load(SeqCst)).await?,
        }
        Ok(())
    }
}

/// The oldest hosts all, and may coordinate.
fn start(world: &World, settings: Settings) -> (Sharding<Order>, Arc<Book>) {
    let book = Arc::<Book>::default();
    let made = book.clone();
    let kind = world.clusters[0].sharding("worker").settings(settings).lease(world.lease());
    (kind.start(move |_| Worker(made.clone())).unwrap(), book)
}

/// The youngest only sends.
fn proxy(world: &World, settings: Settings) -> Sharding<Order> {
    let youngest = &world.clusters[world.clusters.len() - 1];
    youngest.sharding("worker").settings(settings).lease(world.lease()).proxy().unwrap()
}

/// More than there are threads keep one each, for as long as they like. All are in one shard, and so in one crew,
/// with the one that is asked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entities_that_keep_their_thread_cost_nobody_else() {
    let world = World::new(1).await;
    let (workers, book) = start(&world, Settings { shards: 1, ..settings() });
    let busy = ["a", "b", "c", "d"].map(|id| workers.entity(id));
    let other = workers.entity("other");
    soon(other.ask(Here).within(LONG)).await.unwrap();
    // Once it is known that they take long.
    for _ in 0..3 {
        for entity in &busy {
            entity.tell(Order::Work(5)).await.unwrap();
            soon(entity.ask(Here).within(LONG)).await.unwrap();
        }
    }
    for entity in &busy {
        entity.tell(Order::Work(5)).await.unwrap();
        entity.tell(Order::Hold).await.unwrap();
    }
    until("all to keep their thread", || book.holding.load(SeqCst) == busy.len()).await;
    for _ in 0..100 {
        soon(other.ask(Here).within(LONG)).await.unwrap();
    }
    assert!(!book.free.swap(true, SeqCst));
    // One that does not take long any more is called where the others are.
    for entity in &busy {
        soon(entity.ask(Here).within(LONG)).await.unwrap();
    }
    world.end().await;
}

/// More is sent to all entities of a node than it can do, from another node, and all of it is done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_does_not_keep_up_holds_its_senders_back() {
    const TOLD: usize = 80_000;
    let world = World::new(2).await;
    let settings = Settings { shards: 8, buffer_messages: 2_000, ..settings() };
    let (_workers, book) = start(&world, settings.clone());
    let proxy = proxy(&world, settings);
    let entities: Vec<_> = (0..64).map(|number| proxy.entity(&format!("{number}"))).collect();
    for entity in &entities {
        soon(entity.ask(Here).within(LONG)).await.unwrap();
    }
    for told in 0..TOLD {
        entities[told % entities.len()].tell(Order::Compute(50)).await.unwrap();
    }
    until("all to be done", || book.worked.load(SeqCst) == TOLD).await;
    world.end().await;
}

/// More is sent to one entity than it can ever do, from another node. Whoever asks its neighbours, from there or
/// from their own node, is answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_flooded_entity_costs_its_own_senders_only() {
    const TOLD: usize = 30_000;
    let world = World::new(2).await;
    let (workers, book) = start(&world, settings());
    let proxy = proxy(&world, settings());
    let others: Vec<String> = (0..32).map(|number| format!("other-{number}")).collect();
    for id in &others {
        soon(proxy.entity(id).ask(Here).within(LONG)).await.unwrap();
    }
    let mut letters = world.clusters[1].dead_letters();
    let busy = proxy.entity("busy");
    for _ in 0..TOLD {
        busy.tell(Order::Work(5)).await.unwrap();
    }
    for id in &others {
        soon(proxy.entity(id).ask(Here).within(Duration::from_secs(5))).await.unwrap();
        soon(workers.entity(id).ask(Here).within(Duration::from_secs(5))).await.unwrap();
    }
    assert!(book.worked.load(SeqCst) < TOLD, "it is still at it");
    // What was too much was told, and the rest is done.
    let mut dead = 0;
    while let Ok(Some(letter)) = timeout(Duration::from_millis(500), letters.next()).await {
        assert_eq!((letter.why, letter.count), (Lost::Full, 1));
        dead += 1;
    }
    let dead = dead + letters.missed() as usize;
    until("the rest", || book.worked.load(SeqCst) + dead == TOLD).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_too_long_is_an_error_wherever_the_shard_is() {
    let world = World::new(2).await;
    let long = || vec![0; 2 << 20];
    let proxy = proxy(&world, settings());
    let is_too_long = |why: &NotDone| matches!(why, NotDone::TooLong { len, max } if len > max);
    let check = async |workers: &Sharding<Order>| {
        let entity = workers.entity("a");
        let told = entity.tell(Order::Bytes(long())).await.unwrap_err();
        assert!(is_too_long(&told), "{told}");
        let asked = entity.ask(Long(long())).within(LONG).await.unwrap_err();
        assert!(matches!(&asked, AskError::NotDone(why) if is_too_long(why)), "{asked}");
    };
    // Nowhere, here, there.
    check(&proxy).await;
    let (workers, _) = start(&world, settings());
    assert_eq!(soon(workers.entity("a").ask(Here).within(LONG)).await, Ok(0));
    check(&workers).await;
    assert_eq!(soon(proxy.entity("a").ask(Here).within(LONG)).await, Ok(0));
    check(&proxy).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_question_whose_time_is_over_takes_no_room() {
    const ROOM: usize = 100;
    let world = World::new(1).await;
    let small = Settings { shards: 1, buffer_messages: ROOM, ..settings() };
    let proxy = proxy(&world, small);
    let asked: Vec<_> = (0..ROOM)
        .map(|_| {
            let entity = proxy.entity("a");
            tokio::spawn(async move { entity.ask(Here).within(Duration::from_millis(200)).await })
        })
        .collect();
    for asked in asked {
        assert!(soon(asked).await.unwrap().is_err(), "nobody hosts it");
    }
    for _ in 0..ROOM {
        proxy.entity("a").tell(Order::Work(0)).await.unwrap();
    }
    assert_eq!(proxy.entity("a").tell(Order::Work(0)).await, Err(NotDone::Full));
    world.end().await;
}

/// A message waits for room on the way to a node that is cut off. Its shard moves, and the message with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_on_the_way_to_a_node_goes_where_its_shard_goes() {
    let world = World::new(2).await;
    let sessions = [world.session(0), world.session(1)];
    let books = [Arc::<Book>::default(), Arc::default()];
    let start = |place: usize| {
        let made = books[place].clone();
        let kind = world.clusters[place].sharding("worker").settings(settings());
        let kind = kind.lease(world.lease()).session(&sessions[place]);
        kind.start(move |_| Worker(made.clone())).unwrap()
    };
    let workers = [start(0), start(1)];
    until("both to host", || workers.iter().all(|it| it.status().hosted.len() == 8)).await;
    let (hosted, _) = workers[1].status().hosted[0];
    let there = |id: &String| workers[0].entity(id).shard() == hosted;
    let id = (0..).map(|number| format!("id-{number}")).find(there).unwrap();
    let entity = workers[0].entity(&id);
    soon(entity.ask(Here).within(LONG)).await.unwrap();

    world.switch.cut(world.clusters.iter().map(|cluster| cluster.me().address));
    let telling = tokio::spawn({
        let entity = entity.clone();
        async move {
            // More than fits on the way, and than waits for a shard.
            for _ in 0..100 {
                if entity.tell(Order::Bytes(vec![0; 500_000])).await.is_err() {
                    break;
                }
            }
            entity.tell(Order::Work(0)).await
        }
    });
    assert!(world.records.delete(&session_name(1).parse().unwrap()));
    let told = soon(telling).await.unwrap();
    assert!(matches!(told, Ok(()) | Err(NotDone::Full)), "{told:?}");
    soon(async { while entity.tell(Order::Work(0)).await.is_err() {} }).await;
    until("it to be here", || books[0].worked.load(SeqCst) > 0).await;
    world.switch.cut([]);
    world.end().await;
}
