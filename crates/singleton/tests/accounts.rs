//! Every message that a singleton is told is handled, or a dead letter says why not.
#![allow(clippy::disallowed_methods, reason = "real nodes take real time")]

mod loopback;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure_cluster::messaging::{Ask, Lost, Received};
use tenure_cluster::{Address, Cluster, Status};
use tenure_lease::{LeaseName, MemoryStore, Store};
use tenure_singleton::{Actor, BoxError, Hosted, Proxy, Settings, Singletons as _};
use tokio::time::{sleep, timeout};

#[derive(Serialize, Deserialize)]
enum Message {
    Add,
    Number(u64),
    Fail,
    Panic,
    Handled,
}

struct Handled;

impl Ask for Handled {
    type Reply = u64;
}

impl From<Handled> for Message {
    fn from(_: Handled) -> Self {
        Self::Handled
    }
}

/// Counts what all instances have handled.
struct Counter {
    handled: Arc<AtomicU64>,
    numbers: Arc<Mutex<Vec<u64>>>,
    start_takes: Duration,
    message_takes: Duration,
}

impl Actor for Counter {
    type Message = Message;

    async fn started(&mut self, _: &Hosted) -> Result<(), BoxError> {
        sleep(self.start_takes).await;
        Ok(())
    }

    async fn receive(&mut self, received: Received<Message>, _: &Hosted) -> Result<(), BoxError> {
        match received.message {
            Message::Add => {
                if !self.message_takes.is_zero() {
                    sleep(self.message_takes).await;
                }
                self.handled.fetch_add(1, SeqCst);
                Ok(())
            }
            Message::Number(number) => {
                self.numbers.lock().unwrap().push(number);
                self.handled.fetch_add(1, SeqCst);
                Ok(())
            }
            Message::Handled => {
                let handled = self.handled.load(SeqCst);
                Ok(received.reply.answer::<Handled>(handled).await?)
            }
            Message::Fail => Err("as it was told".into()),
            Message::Panic => panic!("as it was told"),
        }
    }
}

/// Nodes, of which the first hosts a counter, and what the last has told it.
struct World {
    records: MemoryStore,
    clusters: Vec<Cluster>,
    handled: Arc<AtomicU64>,
    numbers: Arc<Mutex<Vec<u64>>>,
    /// On the first node, and on the last.
    first: Proxy<Message>,
    proxy: Proxy<Message>,
    told: u64,
    dead: Arc<AtomicU64>,
    unfinished: Arc<AtomicU64>,
}

impl World {
    async fn new(start_takes: Duration, message_takes: Duration) -> Self {
        Self::of(2, start_takes, message_takes).await
    }

    async fn of(nodes: usize, start_takes: Duration, message_takes: Duration) -> Self {
        let records = MemoryStore::default();
        let store = Store::new(records.clone());
        let mut clusters = Vec::new();
        for count in 1..=nodes {
            clusters.push(join(&store, count).await);
        }
        let handled = Arc::<AtomicU64>::default();
        let numbers = Arc::<Mutex<Vec<u64>>>::default();
        let mut proxies = Vec::new();
        for cluster in &clusters {
            let (handled, numbers) = (handled.clone(), numbers.clone());
            let make = move || Counter {
                handled: handled.clone(),
                numbers: numbers.clone(),
                start_takes,
                message_takes,
            };
            let settings = Settings {
                restart_backoff: Duration::from_millis(50),
                buffer: 100_000,
                ..Settings::default()
            };
            let lease = store.lease(LEASE).ttl(Duration::from_secs(2));
            let singleton = cluster.singleton("counter").lease(lease).settings(settings);
            proxies.push(singleton.start(make).unwrap());
        }
        let (dead, unfinished) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let (count, begun) = (dead.clone(), unfinished.clone());
        let mut letters = clusters[nodes - 1].dead_letters();
        tokio::spawn(async move {
            while let Some(letter) = letters.next().await {
                if letter.why == Lost::Unfinished {
                    begun.fetch_add(letter.count, SeqCst);
                }
                count.fetch_add(letter.count, SeqCst);
                println!("dead letter: {letter}");
            }
        });
        let (first, proxy) = (proxies[0].clone(), proxies.pop().unwrap());
        let mut host = proxy.host();
        let oldest = clusters[0].me();
        soon(host.wait_for(|host| host.as_ref() == Some(&oldest))).await.unwrap();
        Self { records, clusters, handled, numbers, first, proxy, told: 0, dead, unfinished }
    }

    async fn tell(&mut self, message: Message) {
        soon(self.proxy.tell(message)).await.unwrap();
        self.told += 1;
    }

    async fn tell_adds(&mut self, count: usize) {
        for _ in 0..count {
            self.tell(Message::Add).await;
        }
    }

    /// Waits until everything is accounted for: what was handled, and the dead letters.
    async fn account(&self) -> (u64, u64) {
        let account = || (self.handled.load(SeqCst), self.dead.load(SeqCst));
        let even = timeout(Duration::from_secs(20), async {
            while account().0 + account().1 < self.told {
                sleep(Duration::from_millis(10)).await;
            }
        });
        let (handled, dead) = (even.await, account()).1;
        assert_eq!(handled + dead, self.told, "{handled} handled, {dead} dead letters");
        (handled, dead)
    }

    async fn end(self) {
        for cluster in &self.clusters {
            soon(cluster.leave()).await;
        }
    }
}

async fn join(store: &Store, count: usize) -> Cluster {
    let mut settings = tenure_cluster::Settings::new("shop")
        .name("node")
        .address(Address::new(&loopback::address()).unwrap())
        .formation(store.lease("shop.formation").ttl(Duration::from_secs(3)));
    settings.plaintext_without_any_protection = true;
    settings.membership.gossip_interval = Duration::from_millis(200);
    let cluster = soon(Cluster::join(settings)).await.unwrap();
    let is_up = |status| status == Status::Up;
    soon(async {
        while cluster.view().members().filter(|it| is_up(it.1.status)).count() < count {
            sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    cluster
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(30), future).await.expect("within half a minute")
}

#[tokio::test]
async fn what_is_told_while_it_starts_waits() {
    let mut world = World::new(Duration::from_millis(700), Duration::ZERO).await;
    world.tell_adds(300).await;
    assert_eq!(world.handled.load(SeqCst), 0, "it is still starting");
    assert_eq!(world.account().await, (300, 0));
    world.end().await;
}

#[tokio::test]
async fn a_question_behind_more_messages_than_there_is_room_for_is_answered() {
    let mut world = World::new(Duration::from_millis(400), Duration::ZERO).await;
    world.tell_adds(3 * ROOM).await;
    let handled = world.proxy.ask(Handled).within(Duration::from_secs(20)).await;
    assert_eq!(handled, Ok(world.told));
    world.end().await;
}

#[tokio::test]
async fn a_message_that_fails_costs_itself_alone() {
    for bad in [Message::Fail, Message::Panic] {
        let mut world = World::new(Duration::ZERO, Duration::ZERO).await;
        world.tell_adds(100).await;
        world.tell(bad).await;
        world.tell_adds(100).await;
        assert_eq!(world.account().await, (200, 1));
        assert_eq!(world.unfinished.load(SeqCst), 1);
        world.end().await;
    }
}

#[tokio::test]
async fn what_waits_when_the_lease_is_lost_is_accounted_for() {
    let mut world = World::new(Duration::ZERO, Duration::from_millis(20)).await;
    world.tell_adds(300).await;
    world.records.delete(&LeaseName::new(LEASE).unwrap());
    let (handled, dead) = world.account().await;
    assert!(handled >= 1 && dead >= 1, "{handled} handled, {dead} dead letters");
    world.end().await;
}

/// Five messages in a millisecond, through a hand-over: all are handled, in order, none twice.
async fn hand_over_under_load(start_takes: Duration, leave: bool) {
    let mut world = World::of(3, start_takes, Duration::ZERO).await;
    let (proxy, second) = (world.proxy.clone(), world.clusters[1].me());
    let mut host = proxy.host();
    let stop = Arc::<AtomicBool>::default();
    let told = tokio::spawn({
        let (proxy, stop) = (proxy.clone(), stop.clone());
        async move {
            let (mut told, mut tick) = (0, tokio::time::interval(Duration::from_millis(1)));
            while !stop.load(SeqCst) {
                tick.tick().await;
                for _ in 0..5 {
                    proxy.tell(Message::Number(told)).await.unwrap();
                    told += 1;
                }
            }
            told
        }
    });
    sleep(Duration::from_secs(1)).await;
    if leave {
        soon(world.clusters[0].leave()).await;
    } else {
        soon(world.first.hand_over()).await.unwrap();
    }
    soon(host.wait_for(|host| host.as_ref() == Some(&second))).await.unwrap();
    sleep(start_takes + Duration::from_secs(1)).await;
    stop.store(true, SeqCst);
    world.told = soon(told).await.unwrap();
    let (handled, dead) = world.account().await;
    assert_eq!((handled, dead), (world.told, 0));
    let numbers = world.numbers.lock().unwrap().clone();
    assert_eq!(numbers, (0..world.told).collect::<Vec<_>>(), "in order");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_leaves_under_load_loses_nothing() {
    hand_over_under_load(Duration::from_millis(300), true).await;
    hand_over_under_load(Duration::ZERO, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_hands_over_under_load_loses_nothing() {
    hand_over_under_load(Duration::from_millis(300), false).await;
    hand_over_under_load(Duration::ZERO, false).await;
}

const LEASE: &str = "shop.counter";
/// How many messages an inbox has room for.
const ROOM: usize = 4096;
