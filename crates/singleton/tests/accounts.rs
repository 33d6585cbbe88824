//! Every message that a singleton is told is handled, or a dead letter says why not.
#![allow(clippy::disallowed_methods, reason = "real nodes take real time")]

mod loopback;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure_cluster::messaging::{Lost, Received};
use tenure_cluster::{Address, Cluster, Status};
use tenure_lease::{LeaseName, MemoryStore, Store};
use tenure_singleton::{Actor, BoxError, Hosted, Proxy, Settings, Singletons as _};
use tokio::time::{sleep, timeout};

#[derive(Serialize, Deserialize)]
enum Message {
    Add,
    Fail,
    Panic,
}

/// Counts what all instances have handled.
struct Counter {
    handled: Arc<AtomicU64>,
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
            Message::Fail => Err("as it was told".into()),
            Message::Panic => panic!("as it was told"),
        }
    }
}

/// Two nodes, of which the first hosts a counter, and what the second has told it.
struct World {
    records: MemoryStore,
    clusters: [Cluster; 2],
    handled: Arc<AtomicU64>,
    proxy: Proxy<Message>,
    told: u64,
    dead: Arc<AtomicU64>,
    unfinished: Arc<AtomicU64>,
}

impl World {
    async fn new(start_takes: Duration, message_takes: Duration) -> Self {
        let records = MemoryStore::default();
        let store = Store::new(records.clone());
        let clusters = [join(&store, 1).await, join(&store, 2).await];
        let handled = Arc::<AtomicU64>::default();
        let mut proxies = Vec::new();
        for cluster in &clusters {
            let handled = handled.clone();
            let make = move || Counter { handled: handled.clone(), start_takes, message_takes };
            let settings =
                Settings { restart_backoff: Duration::from_millis(50), ..Settings::default() };
            let lease = store.lease(LEASE).ttl(Duration::from_secs(2));
            let singleton = cluster.singleton("counter").lease(lease).settings(settings);
            proxies.push(singleton.start(make).unwrap());
        }
        let (dead, unfinished) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let (count, begun) = (dead.clone(), unfinished.clone());
        let mut letters = clusters[1].dead_letters();
        tokio::spawn(async move {
            while let Some(letter) = letters.next().await {
                if letter.why == Lost::Unfinished {
                    begun.fetch_add(letter.count, SeqCst);
                }
                count.fetch_add(letter.count, SeqCst);
            }
        });
        let proxy = proxies.pop().unwrap();
        let mut host = proxy.host();
        let first = clusters[0].me();
        soon(host.wait_for(|host| host.as_ref() == Some(&first))).await.unwrap();
        Self { records, clusters, handled, proxy, told: 0, dead, unfinished }
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

const LEASE: &str = "shop.counter";
