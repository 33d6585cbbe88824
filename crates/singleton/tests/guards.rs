//! Clones of its guard that an actor gives to work of its own, and questions of a node that leaves.
#![allow(clippy::disallowed_methods, reason = "real nodes take real time")]

mod loopback;

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure_cluster::messaging::{Ask, AskError, NotDone, Received};
use tenure_cluster::{Address, Cluster, Status};
use tenure_lease::{MemoryStore, Store};
use tenure_singleton::{Actor, BoxError, Hosted, Proxy, Settings, Singletons as _, StopReason};
use tokio::time::{Instant, sleep, timeout};

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
    /// How many milliseconds a start takes.
    start_takes: AtomicU64,
    /// Guards that nobody drops.
    kept: Mutex<Vec<Hosted>>,
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
    Fail,
    Where,
}

struct Where;

impl Ask for Where {
    type Reply = usize;
}

impl From<Where> for Order {
    fn from(_: Where) -> Self {
        Self::Where
    }
}

impl Actor for Worker {
    type Message = Order;

    async fn started(&mut self, _: &Hosted) -> Result<(), BoxError> {
        sleep(Duration::from_millis(self.book.start_takes.load(SeqCst))).await;
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
                let (book, hosted) = (self.book.clone(), hosted.clone());
                tokio::spawn(async move {
                    let reason = hosted.stopping().await;
                    assert!(!hosted.is_held());
                    book.add(Event::Told(reason));
                    sleep(Duration::from_millis(millis)).await;
                    book.add(Event::Ended);
                });
            }
            Order::Keep => self.book.kept.lock().unwrap().push(hosted.clone()),
            Order::Fail => return Err("as it was told".into()),
            Order::Where => received.reply.answer::<Where>(self.place).await?,
        }
        Ok(())
    }
}

struct World {
    store: Store,
    book: Arc<Book>,
    clusters: Vec<Cluster>,
    workers: Vec<Proxy<Order>>,
}

impl World {
    /// Two nodes, of which the first hosts.
    async fn new(with_lease: bool, settings: Settings) -> Self {
        let store = Store::new(MemoryStore::default());
        let (clusters, workers) = (Vec::new(), Vec::new());
        let mut world = Self { store, book: Arc::default(), clusters, workers };
        for place in 0..2 {
            world.join().await;
            let mut singleton =
                world.clusters[place].singleton("worker").settings(settings.clone());
            if with_lease {
                singleton = singleton.lease(world.store.lease("shop.worker").ttl(TTL));
            }
            let book = world.book.clone();
            let worker = singleton.start(move || Worker { book: book.clone(), place }).unwrap();
            assert_eq!(soon(worker.ask(Where).within(LONG)).await, Ok(0));
            world.workers.push(worker);
        }
        world
    }

    async fn join(&mut self) {
        let lease = self.store.lease("shop.formation").ttl(Duration::from_secs(3));
        let mut settings = tenure_cluster::Settings::new("shop")
            .name("node")
            .address(Address::new(&loopback::address()).unwrap())
            .formation(lease);
        settings.plaintext_without_any_protection = true;
        settings.membership.heartbeat_interval = Duration::from_millis(200);
        settings.membership.acceptable_pause = Duration::from_secs(1);
        settings.membership.gossip_interval = Duration::from_millis(200);
        let cluster = soon(Cluster::join(settings)).await.unwrap();
        self.clusters.push(cluster);
        let count = self.clusters.len();
        let up = |cluster: &Cluster| {
            cluster.view().members().filter(|it| it.1.status == Status::Up).count() == count
        };
        until("all to be up", || self.clusters.iter().all(up)).await;
    }

    async fn end(self) {
        for cluster in &self.clusters {
            soon(cluster.leave()).await;
        }
    }
}

fn settings() -> Settings {
    Settings { stable_after: Duration::from_millis(500), ..Settings::default() }
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(LONG, future).await.expect("within half a minute")
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    let waited = timeout(LONG, async {
        while !holds() {
            sleep(Duration::from_millis(5)).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("waited for {what}"));
}

/// With a lease and without one: the next host does not begin before that work has ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_host_waits_for_work_that_the_actor_started() {
    for with_lease in [true, false] {
        let world = World::new(with_lease, settings()).await;
        world.workers[1].tell(Order::Work(700)).await.unwrap();
        assert_eq!(soon(world.workers[1].ask(Where).within(LONG)).await, Ok(0));
        soon(world.clusters[0].leave()).await;
        assert_eq!(soon(world.workers[1].ask(Where).within(LONG)).await, Ok(1));
        let (told, ended) = (Event::Told(StopReason::Leaving), Event::Ended);
        assert_eq!(world.book.events(), [Event::Started(0), told, ended, Event::Started(1)]);
        world.end().await;
    }
}

/// Without a lease, not for longer than a stop may take.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_lease_a_guard_that_is_kept_delays_no_longer_than_a_stop_may_take() {
    let stop_within = Duration::from_millis(600);
    let world = World::new(false, Settings { stop_within, ..settings() }).await;
    world.workers[1].tell(Order::Keep).await.unwrap();
    assert_eq!(soon(world.workers[1].ask(Where).within(LONG)).await, Ok(0));
    let began = Instant::now();
    soon(world.clusters[0].leave()).await;
    assert_eq!(soon(world.workers[1].ask(Where).within(LONG)).await, Ok(1));
    assert!(began.elapsed() >= stop_within, "{:?}", began.elapsed());
    world.book.kept.lock().unwrap().clear();
    world.end().await;
}

/// An actor that fails: the next instance, on the same node, waits for it, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_instance_waits_for_work_of_the_one_that_failed() {
    let world = World::new(true, settings()).await;
    world.workers[1].tell(Order::Work(1500)).await.unwrap();
    world.workers[1].tell(Order::Fail).await.unwrap();
    assert_eq!(soon(world.workers[1].ask(Where).within(LONG)).await, Ok(0));
    let (told, ended) = (Event::Told(StopReason::Ended), Event::Ended);
    assert_eq!(world.book.events(), [Event::Started(0), told, ended, Event::Started(0)]);
    world.end().await;
}

/// What is asked on a node that leaves, before it has handed over, is answered by the next host, which takes a
/// while to start. What is asked later is certainly not done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_leaves_waits_for_its_answers() {
    for with_lease in [true, false] {
        let world = World::new(with_lease, settings()).await;
        world.book.start_takes.store(1000, SeqCst);
        // Each asks again as soon as it has an answer, so that at any time some wait for theirs.
        let askers: Vec<_> = (0..8)
            .map(|_| {
                let worker = world.workers[0].clone();
                tokio::spawn(async move {
                    loop {
                        match soon(worker.ask(Where).within(LONG)).await {
                            Ok(0) => {}
                            last => return last,
                        }
                    }
                })
            })
            .collect();
        soon(world.clusters[0].leave()).await;
        let mut answered = 0;
        for asker in askers {
            match soon(asker).await.unwrap() {
                Ok(place) => answered += place,
                Err(AskError::NotDone(NotDone::Closed(_))) => {}
                Err(error) => panic!("with a lease {with_lease}: {error}"),
            }
        }
        assert!(answered > 0, "with a lease {with_lease}: none by the next host");
        let late = soon(world.workers[0].ask(Where).within(LONG)).await;
        assert!(matches!(late, Err(AskError::NotDone(NotDone::Closed(_)))), "{late:?}");
        world.book.start_takes.store(0, SeqCst);
        world.end().await;
    }
}

const TTL: Duration = Duration::from_secs(2);
/// What works takes less.
const LONG: Duration = Duration::from_secs(30);
