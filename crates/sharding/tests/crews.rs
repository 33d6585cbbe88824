//! Entities that take long without awaiting anything, that do not stop, and those whose crew has failed.
#![allow(clippy::disallowed_methods, reason = "real nodes take real time")]

mod kit;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kit::{LONG, TTL, World, session_name, settings, soon, until};
use serde::{Deserialize, Serialize};
use tenure_cluster::messaging::{Ask, Received};
use tenure_sharding::{BoxError, Entity, Hosted, Settings, Sharding, Shardings as _, StopReason};
use tokio::time::{Instant, sleep};

/// What happened to all entities.
#[derive(Default)]
struct Book {
    /// Numbers that were added, and whether the shard was held then.
    added: Mutex<Vec<(u64, bool)>>,
    /// Those that are there, by id.
    active: Mutex<Vec<String>>,
    overlaps: AtomicUsize,
    /// One keeps the thread.
    holds: AtomicBool,
    /// The next one that stops never does.
    stuck: AtomicBool,
    /// How many were started.
    started: AtomicUsize,
    /// The one of this id panics when it is dropped.
    explodes: Mutex<Option<String>>,
}

impl Book {
    fn numbers(&self) -> Vec<u64> {
        self.added.lock().unwrap().iter().map(|(number, _)| *number).collect()
    }
}

struct Worker {
    book: Arc<Book>,
    id: String,
}

#[derive(Serialize, Deserialize)]
enum Order {
    Add(u64),
    /// The same, and keeps the thread for so many milliseconds.
    Heavy(u64, u64),
    /// Awaits for so many milliseconds.
    Sleep(u64),
    /// Keeps the thread until it may go on.
    Hold,
    Passivate,
    Here,
    /// Panics when it is dropped.
    Bomb(Bomb),
}

#[derive(Serialize, Deserialize)]
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("as it was told");
    }
}

struct Here;

impl Ask for Here {
    type Reply = ();
}

impl From<Here> for Order {
    fn from(_: Here) -> Self {
        Self::Here
    }
}

fn keep_the_thread(millis: u64) {
    std::thread::sleep(Duration::from_millis(millis));
}

impl Entity for Worker {
    type Message = Order;

    async fn started(&mut self, _: &Hosted) -> Result<(), BoxError> {
        self.book.started.fetch_add(1, SeqCst);
        {
            let mut active = self.book.active.lock().unwrap();
            let overlaps = usize::from(active.contains(&self.id));
            self.book.overlaps.fetch_add(overlaps, SeqCst);
            active.push(self.id.clone());
        }
        // As long as it takes to read what is known of it.
        sleep(Duration::from_millis(300)).await;
        Ok(())
    }

    async fn receive(
        &mut self,
        received: Received<Order>,
        hosted: &Hosted,
    ) -> Result<(), BoxError> {
        let add = |number| self.book.added.lock().unwrap().push((number, hosted.is_held()));
        match received.message {
            Order::Add(number) => add(number),
            Order::Heavy(number, millis) => {
                add(number);
                keep_the_thread(millis);
            }
            Order::Sleep(millis) => sleep(Duration::from_millis(millis)).await,
            Order::Hold => {
                sleep(Duration::from_millis(10)).await;
                self.book.holds.store(true, SeqCst);
                let began = Instant::now();
                while self.book.holds.load(SeqCst) && began.elapsed() < Duration::from_secs(10) {
                    keep_the_thread(5);
                }
            }
            Order::Passivate => hosted.passivate(),
            Order::Here => received.reply.answer::<Here>(()).await?,
            Order::Bomb(_) => {}
        }
        Ok(())
    }

    async fn stopped(&mut self, _: StopReason) {
        if self.book.stuck.swap(false, SeqCst) {
            std::future::pending().await
        }
        sleep(Duration::from_millis(50)).await;
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let mut active = self.book.active.lock().unwrap();
        if let Some(place) = active.iter().position(|id| *id == self.id) {
            active.remove(place);
        }
        drop(active);
        let explodes = self.book.explodes.lock().unwrap().as_ref() == Some(&self.id);
        assert!(!explodes, "as it was told");
    }
}

fn start(world: &World, settings: Settings) -> (Sharding<Order>, Arc<Book>) {
    let book = Arc::<Book>::default();
    let made = book.clone();
    let kind = world.clusters[0].sharding("worker").settings(settings);
    let workers = kind.start(move |id| Worker { book: made.clone(), id: id.to_owned() });
    (workers.unwrap(), book)
}

/// When the session is lost while many messages wait for an entity, each of which takes long, at most the
/// one that it is at is finished: the others are received under the next session, in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_is_not_received_after_the_session_is_lost() {
    const COUNT: u64 = 600;
    let world = World::new(1).await;
    let (session, book) = (world.session(0), Arc::<Book>::default());
    let kind = world.clusters[0].sharding("worker").settings(settings());
    let kind = kind.lease(world.store.lease("shop.workers").ttl(TTL)).session(&session);
    let made = book.clone();
    let workers = kind.start(move |id| Worker { book: made.clone(), id: id.to_owned() }).unwrap();
    for number in 0..COUNT {
        workers.entity("a").tell(Order::Heavy(number, 10)).await.unwrap();
    }
    until("some", || book.numbers().len() > 20).await;
    assert!(world.records.delete(&session_name(0).parse().unwrap()));
    until("the last", || book.numbers().last() == Some(&(COUNT - 1))).await;
    let added = book.added.lock().unwrap().clone();
    let late = added.iter().filter(|(_, held)| !held).count();
    assert!(late <= 5, "{late} were received after the session was lost");
    assert!(added.is_sorted(), "in order");
    // The one that was about to begin may be lost with the session.
    assert!(added.len() as u64 >= COUNT - 1, "{}", added.len());
    assert_eq!(book.overlaps.load(SeqCst), 0);
    world.end().await;
}

/// Others of its crew go on as they were, and another one takes its place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entity_that_panics_when_it_is_dropped_costs_itself_alone() {
    let world = World::new(1).await;
    let (workers, book) = start(&world, settings());
    let ids: Vec<String> = (0..40).map(|number| format!("worker-{number}")).collect();
    for id in &ids {
        soon(workers.entity(id).ask(Here).within(LONG)).await.unwrap();
    }
    *book.explodes.lock().unwrap() = Some(ids[0].clone());
    workers.entity(&ids[0]).tell(Order::Passivate).await.unwrap();
    until("it to be gone", || !book.active.lock().unwrap().contains(&ids[0])).await;
    for id in &ids {
        soon(workers.entity(id).ask(Here).within(LONG)).await.unwrap();
    }
    assert_eq!(book.started.load(SeqCst), ids.len() + 1, "one of them was started again");
    *book.explodes.lock().unwrap() = None;
    world.end().await;
}

/// Keeps its thread when it is told to stop, so that the others are not told before their time is over.
/// All of them panic when they are dropped.
struct Brittle {
    fates: Arc<Fates>,
}

#[derive(Default)]
struct Fates {
    made: AtomicUsize,
    dropped: AtomicUsize,
    /// Whether one has kept the thread, and none panics any more.
    calm: AtomicBool,
}

impl Entity for Brittle {
    type Message = Order;

    async fn receive(&mut self, received: Received<Order>, _: &Hosted) -> Result<(), BoxError> {
        Ok(received.reply.answer::<Here>(()).await?)
    }

    async fn stopped(&mut self, _: StopReason) {
        if !self.fates.calm.load(SeqCst) {
            std::thread::sleep(2 * TTL);
        }
    }
}

impl Drop for Brittle {
    fn drop(&mut self) {
        self.fates.dropped.fetch_add(1, SeqCst);
        assert!(self.fates.calm.load(SeqCst), "as it was told");
    }
}

/// The session is lost, and entities are dropped without having been told to stop. Each of them panics then;
/// all are dropped nevertheless, no crew is lost, and the next ones are served under the next session.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn entities_that_panic_when_a_lost_session_drops_them_cost_no_crew() {
    const COUNT: usize = 20;
    let world = World::new(1).await;
    let (session, fates) = (world.session(0), Arc::<Fates>::default());
    let kind = world.clusters[0].sharding("brittle").settings(settings());
    let kind = kind.lease(world.store.lease("shop.brittle").ttl(TTL)).session(&session);
    let made = fates.clone();
    let brittle = kind.shards(2).start(move |_| {
        made.made.fetch_add(1, SeqCst);
        Brittle { fates: made.clone() }
    });
    let brittle = brittle.unwrap();
    let all = async || {
        for id in (0..COUNT).map(|id| id.to_string()) {
            soon(brittle.entity(&id).ask(Here).within(LONG)).await.unwrap();
        }
    };
    all().await;
    assert!(world.records.delete(&session_name(0).parse().unwrap()));
    until("all to be dropped", || fates.dropped.load(SeqCst) == COUNT).await;
    fates.calm.store(true, SeqCst);
    all().await;
    assert_eq!(fates.made.load(SeqCst), 2 * COUNT);
    world.end().await;
    assert_eq!(fates.dropped.load(SeqCst), 2 * COUNT);
}

/// How long nothing else went on, at most.
fn watch_for_gaps() -> Arc<Mutex<Duration>> {
    let longest = Arc::<Mutex<Duration>>::default();
    let kept = longest.clone();
    tokio::spawn(async move {
        loop {
            let began = Instant::now();
            sleep(Duration::from_millis(5)).await;
            let mut longest = kept.lock().unwrap();
            *longest = longest.max(began.elapsed());
        }
    });
    longest
}

/// Messages that take long each do not keep the thread: neither those that waited for their entity nor those
/// that find it idle. Nor do they keep other entities from theirs.
#[tokio::test]
async fn slow_messages_leave_others_their_turn() {
    let world = World::new(1).await;
    let (workers, book) = start(&world, settings());
    soon(workers.entity("other").ask(Here).within(LONG)).await.unwrap();
    let gaps = watch_for_gaps();
    for number in 0..250 {
        workers.entity("a").tell(Order::Heavy(number, 10)).await.unwrap();
    }
    let mut longest = Duration::ZERO;
    while book.numbers().len() < 250 {
        let began = Instant::now();
        soon(workers.entity("other").ask(Here).within(LONG)).await.unwrap();
        longest = longest.max(began.elapsed());
        sleep(Duration::from_millis(5)).await;
    }
    assert!(longest < Duration::from_secs(1), "another was kept waiting for {longest:?}");
    for number in 250..500 {
        workers.entity("a").tell(Order::Heavy(number, 10)).await.unwrap();
    }
    until("all", || book.numbers().len() == 500).await;
    assert_eq!(book.numbers(), (0..500).collect::<Vec<_>>());
    let gap = *gaps.lock().unwrap();
    assert!(gap < Duration::from_secs(1), "nothing else went on for {gap:?}");
    world.end().await;
}

/// Something of the user's panics where it is not expected, and takes a crew with it. Whatever had come
/// goes on in order, and nothing begins anew before all of it has ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_a_crew_had_is_given_back_when_it_fails() {
    let world = World::new(1).await;
    let (workers, book) = start(&world, Settings { shards: 1, mailbox: 3, ..settings() });
    let [a, b, c] = ["a", "b", "c"].map(|id| workers.entity(id));
    soon(a.ask(Here).within(LONG)).await.unwrap();
    soon(b.ask(Here).within(LONG)).await.unwrap();
    a.tell(Order::Hold).await.unwrap();
    // It may be the thread that looks after timers: no other is used until it is free again.
    while !book.holds.load(SeqCst) {
        keep_the_thread(5);
    }
    b.tell(Order::Sleep(60_000)).await.unwrap();
    b.tell(Order::Add(100)).await.unwrap();
    for number in 1..4 {
        a.tell(Order::Add(number)).await.unwrap();
    }
    // There is no room for it.
    a.tell(Order::Bomb(Bomb)).await.unwrap();
    let rest = tokio::spawn(async move {
        for number in 201..203 {
            c.tell(Order::Add(number)).await.unwrap();
        }
    });
    keep_the_thread(500);
    assert!(book.numbers().is_empty(), "one of them still goes on");
    book.holds.store(false, SeqCst);
    soon(rest).await.unwrap();
    until("all", || book.numbers().len() == 6).await;
    let of = |entity| -> Vec<u64> {
        book.numbers().into_iter().filter(|number| number / 100 == entity).collect()
    };
    assert_eq!((of(0), of(1), of(2)), (vec![1, 2, 3], vec![100], vec![201, 202]));
    assert_eq!(book.overlaps.load(SeqCst), 0, "an entity was there twice");
    world.end().await;
}

/// An entity that does not stop when it is passivated is dropped after `stop_within`; what has come for it is
/// for the next one. Whoever is at work by then is left alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_does_not_stop_is_dropped() {
    let world = World::new(1).await;
    let quick = Settings { stop_within: Duration::from_millis(600), ..settings() };
    let (workers, book) = start(&world, quick);
    let a = workers.entity("a");
    book.stuck.store(true, SeqCst);
    a.tell(Order::Passivate).await.unwrap();
    until("it to be stuck", || !book.stuck.load(SeqCst)).await;
    a.tell(Order::Add(1)).await.unwrap();
    until("the next one", || book.numbers() == [1]).await;
    // This one stops in time, and the next one is at work for longer.
    a.tell(Order::Passivate).await.unwrap();
    a.tell(Order::Sleep(1200)).await.unwrap();
    a.tell(Order::Add(2)).await.unwrap();
    until("the last one", || book.numbers() == [1, 2]).await;
    assert_eq!(book.active.lock().unwrap().len(), 1);
    assert_eq!(book.overlaps.load(SeqCst), 0);
    world.end().await;
}
