//! Real nodes on loopback in one process, and entities that keep a book.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure_cluster::messaging::{Ask, Received};
use tenure_cluster::transport::Switch;
use tenure_cluster::{Address, Cluster, Status as MemberStatus};
use tenure_lease::{KeptSession, Lease, MemoryStore, Store, Token};
use tenure_sharding::{
    BoxError, Builder, Entity, Hosted, Settings, Setup, Shard, Sharding, Shardings as _, StopReason,
};
use tokio::time::{sleep, timeout};

pub(crate) const TTL: Duration = Duration::from_secs(2);
pub(crate) const SHARDS: u32 = 16;

/// A store, and the nodes that share it.
pub(crate) struct World {
    pub(crate) records: MemoryStore,
    pub(crate) store: Store,
    pub(crate) clusters: Vec<Cluster>,
    pub(crate) book: Arc<Book>,
    /// Cuts all of these nodes off from each other.
    pub(crate) switch: Switch,
}

impl World {
    pub(crate) async fn new(count: usize) -> Self {
        if std::env::var_os("TENURE_LOG").is_some() {
            let log = tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG);
            let _ = log.with_test_writer().try_init(); // Another test may have.
        }
        let records = MemoryStore::default();
        let store = Store::new(records.clone());
        let (book, switch) = (Arc::default(), Switch::default());
        let mut world = Self { records, store, clusters: Vec::new(), book, switch };
        for _ in 0..count {
            // One after the other: the first is the oldest.
            world.join().await;
        }
        world
    }

    pub(crate) async fn join(&mut self) -> Cluster {
        self.join_named("node").await
    }

    /// At an address that no node had before.
    pub(crate) async fn join_named(&mut self, name: &str) -> Cluster {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap().to_string();
        drop(socket);
        self.join_as(name, &address, false).await
    }

    pub(crate) async fn join_at(&mut self, address: &str, rejoin: bool) -> Cluster {
        self.join_as("node", address, rejoin).await
    }

    async fn join_as(&mut self, name: &str, address: &str, rejoin: bool) -> Cluster {
        let lease = self.store.lease("shop.formation").ttl(Duration::from_secs(3));
        let mut settings = tenure_cluster::Settings::new("shop")
            .name(name)
            .address(Address::new(address).unwrap())
            .formation(lease);
        settings.plaintext_without_any_protection = true;
        settings.rejoin = rejoin;
        settings.transport.switch = Some(self.switch.clone());
        settings.membership.heartbeat_interval = Duration::from_millis(200);
        settings.membership.acceptable_pause = Duration::from_secs(1);
        settings.membership.gossip_interval = Duration::from_millis(200);
        let cluster = soon(Cluster::join(settings)).await.unwrap();
        self.clusters.push(cluster.clone());
        let count = self.clusters.len();
        let up = || {
            let view = cluster.view();
            view.members().filter(|it| it.1.status == MemberStatus::Up).count() >= count
        };
        until("all to be up", up).await;
        cluster
    }

    pub(crate) fn lease(&self) -> Lease {
        self.store.lease("shop.carts").ttl(TTL)
    }

    /// The session of the node at this place.
    pub(crate) fn session(&self, place: usize) -> KeptSession {
        self.store.lease(&session_name(place)).ttl(TTL).kept_session().unwrap()
    }

    pub(crate) fn carts(&self, place: usize) -> Builder {
        self.clusters[place].sharding("cart").settings(settings())
    }

    /// Hosted on all nodes.
    pub(crate) fn start(&self, with: impl Fn(Builder, usize) -> Builder) -> Vec<Sharding<Message>> {
        let start = |place| self.host(with(self.carts(place), place), place);
        (0..self.clusters.len()).map(start).collect()
    }

    pub(crate) fn host(&self, builder: Builder, place: usize) -> Sharding<Message> {
        let (book, node) = (self.book.clone(), self.clusters[place].me().address.to_string());
        let make = move |id: &str| Cart::new(&book, &node, id);
        builder.start(make).unwrap()
    }

    pub(crate) async fn end(self) {
        for cluster in &self.clusters {
            soon(cluster.leave()).await;
        }
        assert_eq!(self.book.overlaps.load(SeqCst), 0, "an entity was in two places at once");
        assert!(self.book.active.lock().unwrap().is_empty(), "all entities have stopped");
    }
}

pub(crate) fn session_name(place: usize) -> String {
    format!("node-{place}")
}

pub(crate) fn settings() -> Settings {
    Settings {
        resend_interval: Duration::from_millis(200),
        patience: Duration::from_millis(500),
        rebalance_interval: Duration::from_secs(1),
        removal_margin: Duration::from_secs(1),
        stable_after: Duration::from_millis(500),
        ..Settings::new(Setup::Gossip, SHARDS)
    }
}

pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(LONG, future).await.expect("within half a minute")
}

pub(crate) async fn until(what: &str, holds: impl Fn() -> bool) {
    let waited = timeout(LONG, async {
        while !holds() {
            sleep(Duration::from_millis(5)).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("waited for {what}"));
}

/// All shards have a place, as each of these nodes knows.
pub(crate) async fn placed(carts: &[Sharding<Message>]) {
    let count = SHARDS as usize;
    let hosted = || carts.iter().map(|it| it.status().hosted.len()).sum::<usize>() == count;
    let known = || carts.iter().all(|it| it.status().homes.len() == count);
    let waited = timeout(LONG, async {
        while !(hosted() && known()) {
            sleep(Duration::from_millis(5)).await;
        }
    });
    if waited.await.is_err() {
        let lines: Vec<_> = carts.iter().map(|it| it.status().to_string()).collect();
        panic!("not all shards have a place: {lines:#?}");
    }
}

/// The same, and each node has its share: none moves for balance any more.
pub(crate) async fn spread(carts: &[Sharding<Message>]) {
    let fair = SHARDS as usize / carts.len();
    until("all to have their share", || carts.iter().all(|it| it.status().hosted.len() >= fair))
        .await;
    placed(carts).await;
}

/// What happened, on all nodes.
#[derive(Default)]
pub(crate) struct Book {
    /// Where each entity is.
    pub(crate) active: Mutex<BTreeMap<String, String>>,
    pub(crate) overlaps: AtomicU64,
    pub(crate) starts: AtomicU64,
    pub(crate) tokens: Mutex<Vec<(Shard, Token)>>,
    pub(crate) stops: Mutex<Vec<(String, StopReason)>>,
    /// What each entity has received.
    pub(crate) received: Mutex<BTreeMap<String, Vec<u64>>>,
}

impl Book {
    pub(crate) fn received(&self, id: &str) -> Vec<u64> {
        self.received.lock().unwrap().get(id).cloned().unwrap_or_default()
    }
}

/// Adds up, and says where it is.
pub(crate) struct Cart {
    book: Arc<Book>,
    node: String,
    id: String,
}

#[derive(Serialize, Deserialize)]
pub(crate) enum Message {
    Add(u64),
    Where,
    All,
    Panic,
    Fail,
    Passivate,
    Sleep(u64),
}

macro_rules! ask {
    ($name:ident, $reply:ty) => {
        pub(crate) struct $name;
        impl Ask for $name {
            type Reply = $reply;
        }
        impl From<$name> for Message {
            fn from(_: $name) -> Self {
                Self::$name
            }
        }
    };
}

ask!(Where, (String, Token));
ask!(All, Vec<u64>);

impl Cart {
    pub(crate) fn new(book: &Arc<Book>, node: &str, id: &str) -> Self {
        Self { book: book.clone(), node: node.to_owned(), id: id.to_owned() }
    }
}

impl Drop for Cart {
    fn drop(&mut self) {
        let mut active = self.book.active.lock().unwrap();
        if active.get(&self.id) == Some(&self.node) {
            active.remove(&self.id);
        }
    }
}

impl Entity for Cart {
    type Message = Message;

    async fn started(&mut self, hosted: &Hosted) -> Result<(), BoxError> {
        assert_eq!(hosted.id(), self.id);
        let mut active = self.book.active.lock().unwrap();
        if active.insert(self.id.clone(), self.node.clone()).is_some() {
            self.book.overlaps.fetch_add(1, SeqCst);
        }
        self.book.starts.fetch_add(1, SeqCst);
        self.book.tokens.lock().unwrap().push((hosted.shard(), hosted.token()));
        Ok(())
    }

    async fn receive(
        &mut self,
        received: Received<Message>,
        hosted: &Hosted,
    ) -> Result<(), BoxError> {
        match received.message {
            Message::Add(number) => {
                let mut all = self.book.received.lock().unwrap();
                all.entry(self.id.clone()).or_default().push(number);
            }
            Message::Where => {
                let place = (self.node.clone(), hosted.token());
                received.reply.answer::<Where>(place).await?;
            }
            Message::All => received.reply.answer::<All>(self.book.received(&self.id)).await?,
            Message::Panic => panic!("as it was told"),
            Message::Fail => return Err("as it was told".into()),
            Message::Passivate => hosted.passivate(),
            Message::Sleep(millis) => sleep(Duration::from_millis(millis)).await,
        }
        Ok(())
    }

    async fn stopped(&mut self, reason: StopReason) {
        self.book.stops.lock().unwrap().push((self.id.clone(), reason));
    }
}

/// What works takes less.
pub(crate) const LONG: Duration = Duration::from_secs(30);
