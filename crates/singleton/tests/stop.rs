//! A singleton that is stopped on one node, which stays in the cluster.
#![allow(clippy::disallowed_methods, reason = "real nodes take real time")]

mod loopback;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure_cluster::messaging::{Ask, Received};
use tenure_cluster::{Address, Cluster, Status};
use tenure_lease::{MemoryStore, Store};
use tenure_singleton::{
    Actor, BoxError, Hosted, Proxy, Settings, Singletons as _, StartError, StopReason,
};
use tokio::time::{sleep, timeout};

/// Where it is, and what has become of it.
#[derive(Default)]
struct Book {
    hosts: Mutex<Vec<String>>,
    stops: Mutex<Vec<StopReason>>,
    handled: Mutex<Vec<u64>>,
}

struct Counter {
    book: Arc<Book>,
    node: String,
}

#[derive(Serialize, Deserialize)]
enum Message {
    Add(u64),
    Where,
}

struct Where;
impl Ask for Where {
    type Reply = String;
}
impl From<Where> for Message {
    fn from(_: Where) -> Self {
        Self::Where
    }
}

impl Actor for Counter {
    type Message = Message;

    async fn started(&mut self, _: &Hosted) -> Result<(), BoxError> {
        let mut hosts = self.book.hosts.lock().unwrap();
        assert!(hosts.is_empty(), "{hosts:?} host it already");
        hosts.push(self.node.clone());
        Ok(())
    }

    async fn receive(&mut self, received: Received<Message>, _: &Hosted) -> Result<(), BoxError> {
        match received.message {
            Message::Add(number) => self.book.handled.lock().unwrap().push(number),
            Message::Where => received.reply.answer::<Where>(self.node.clone()).await?,
        }
        Ok(())
    }

    async fn stopped(&mut self, reason: StopReason) {
        self.book.stops.lock().unwrap().push(reason);
        self.book.hosts.lock().unwrap().clear();
    }
}

struct World {
    store: Store,
    book: Arc<Book>,
    with_lease: bool,
    clusters: Vec<Cluster>,
}

impl World {
    async fn new(count: usize, with_lease: bool) -> Self {
        let store = Store::new(MemoryStore::default());
        let mut world = Self { store, book: Arc::default(), with_lease, clusters: Vec::new() };
        for _ in 0..count {
            world.join().await;
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
        let cluster = timeout(LONG, Cluster::join(settings)).await.unwrap().unwrap();
        self.clusters.push(cluster);
        let count = self.clusters.len();
        let up = |cluster: &Cluster| {
            cluster.view().members().filter(|it| it.1.status == Status::Up).count() == count
        };
        until("all to be up", || self.clusters.iter().all(up)).await;
    }

    fn start(&self, place: usize) -> Result<Proxy<Message>, StartError> {
        let cluster = &self.clusters[place];
        let mut singleton = cluster
            .singleton("counter")
            .settings(Settings { stable_after: Duration::from_millis(500), ..Settings::default() });
        if self.with_lease {
            singleton = singleton.lease(self.store.lease("shop.counter").ttl(TTL));
        }
        let (book, node) = (self.book.clone(), cluster.me().address.to_string());
        singleton.start(move || Counter { book: book.clone(), node: node.clone() })
    }

    fn is_at(&self, place: usize) -> bool {
        *self.book.hosts.lock().unwrap() == [self.clusters[place].me().address.to_string()]
    }

    async fn end(self) {
        for cluster in &self.clusters {
            timeout(LONG, cluster.leave()).await.unwrap();
        }
        assert!(self.book.hosts.lock().unwrap().is_empty());
    }
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    let waited = timeout(LONG, async {
        while !holds() {
            sleep(Duration::from_millis(5)).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("waited for {what}"));
}

/// The oldest stops hosting: the next one hosts, the handle goes on as a proxy, and a third node that
/// joins later, after the second has stopped as well, hosts in turn.
async fn stops(with_lease: bool) {
    let mut world = World::new(2, with_lease).await;
    let one = world.start(0).unwrap();
    let two = world.start(1).unwrap();
    until("the oldest to host", || world.is_at(0)).await;

    timeout(LONG, one.stop()).await.unwrap();
    assert_eq!(*world.book.stops.lock().unwrap(), [StopReason::Stopped]);
    until("the other to host", || world.is_at(1)).await;
    assert!(!world.clusters[0].is_over(), "it stays in the cluster");
    one.tell(Message::Add(1)).await.unwrap();
    let place = one.ask(Where).within(LONG).await.unwrap();
    assert_eq!(place, world.clusters[1].me().address.to_string());
    until("what was told", || *world.book.handled.lock().unwrap() == [1]).await;
    let status = one.status().to_string();
    assert!(status.contains("runs on"), "{status}");

    world.join().await;
    let three = world.start(2).unwrap();
    timeout(LONG, two.stop()).await.unwrap();
    until("the third to host", || world.is_at(2)).await;
    let place = two.ask(Where).within(LONG).await.unwrap();
    assert_eq!(place, world.clusters[2].me().address.to_string());

    let again = world.start(0);
    if with_lease {
        // It is the best placed one.
        let again = again.unwrap();
        until("the first to host again", || world.is_at(0)).await;
        timeout(LONG, again.stop()).await.unwrap();
        until("the third to host again", || world.is_at(2)).await;
        timeout(LONG, three.stop()).await.unwrap();
        let record = world.store.inspect("shop.counter").await.unwrap().unwrap();
        assert!(record.holder.is_none(), "nobody has the lease: {record:?}");
    } else {
        assert!(matches!(again, Err(StartError::Started(_))), "nothing would exclude the third");
    }
    world.end().await;
}

#[tokio::test]
async fn a_singleton_is_stopped_on_one_node_and_started_again() {
    stops(true).await;
}

#[tokio::test]
async fn also_without_a_lease() {
    stops(false).await;
}

/// Nobody else can host it: what is told waits until it is started again.
#[tokio::test]
async fn what_is_told_while_it_is_stopped_everywhere_waits() {
    let world = World::new(1, true).await;
    let one = world.start(0).unwrap();
    until("it to host", || world.is_at(0)).await;
    timeout(LONG, one.stop()).await.unwrap();
    timeout(LONG, one.stop()).await.unwrap();
    until("its proxy to know", || !one.status().to_string().contains("runs on")).await;
    one.tell(Message::Add(7)).await.unwrap();
    let status = one.status().to_string();
    assert!(status.contains("it was stopped on this node"), "{status}");
    world.start(0).unwrap();
    until("it to be handled", || *world.book.handled.lock().unwrap() == [7]).await;
    world.end().await;
}

const TTL: Duration = Duration::from_secs(2);
/// What works takes less.
const LONG: Duration = Duration::from_secs(20);
