//! A web tier that is no member, and talks to a singleton and to entities while they move.
#![cfg(all(feature = "singleton", feature = "sharding"))]
#![allow(clippy::disallowed_methods, reason = "real nodes take real time")]

mod node_kit;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use node_kit::{formation, free_address, settings};
use serde::{Deserialize, Serialize};
use tenure::client::{Client, ClientSettings};
use tenure::cluster::messaging::{Ask, AskError, Received};
use tenure::cluster::{Cluster, Status};
use tenure::sharding::{Entity, Sharding, Shardings as _};
use tenure::singleton::{Actor, BoxError, Proxy, Singletons as _};
use tenure::{KeptSession, MemoryStore, Store};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// How often each number was handled, by anybody.
#[derive(Default)]
struct Book(Mutex<BTreeMap<u64, u32>>);

impl Book {
    fn note(&self, number: u64) {
        *self.0.lock().unwrap().entry(number).or_default() += 1;
    }
}

#[derive(Serialize, Deserialize)]
enum Order {
    Add(u64),
    Count(u64),
}

struct Count(u64);
impl Ask for Count {
    type Reply = u64;
}
impl From<Count> for Order {
    fn from(count: Count) -> Self {
        Self::Count(count.0)
    }
}

struct Counter(Arc<Book>);

impl Counter {
    async fn handle(&self, received: Received<Order>) -> Result<(), BoxError> {
        match received.message {
            Order::Add(number) => self.0.note(number),
            Order::Count(number) => {
                self.0.note(number);
                received.reply.answer::<Count>(number).await?;
            }
        }
        Ok(())
    }
}

impl Actor for Counter {
    type Message = Order;

    async fn receive(
        &mut self,
        received: Received<Order>,
        _: &tenure::singleton::Hosted,
    ) -> Result<(), BoxError> {
        self.handle(received).await
    }
}

impl Entity for Counter {
    type Message = Order;

    async fn receive(
        &mut self,
        received: Received<Order>,
        _: &tenure::sharding::Hosted,
    ) -> Result<(), BoxError> {
        self.handle(received).await
    }
}

struct Member {
    cluster: Cluster,
    session: KeptSession,
    counter: Proxy<Order>,
    carts: Sharding<Order>,
}

struct World {
    store: Store,
    book: Arc<Book>,
}

impl World {
    async fn join(&self, number: usize) -> Member {
        let formation = formation(&self.store, "shop").ttl(Duration::from_secs(3));
        let mut settings = settings("shop", "node", &free_address(), formation);
        settings.membership.heartbeat_interval = Duration::from_millis(200);
        settings.membership.acceptable_pause = Duration::from_secs(2);
        settings.membership.gossip_interval = Duration::from_millis(200);
        let cluster = timeout(LONG, Cluster::join(settings)).await.unwrap().unwrap();
        let session = self.store.lease(&format!("node-{number}")).ttl(TTL).kept_session().unwrap();
        let counter = self.start_counter(&cluster);
        let carts = self.start_carts(&cluster, &session);
        Member { cluster, session, counter, carts }
    }

    fn start_counter(&self, cluster: &Cluster) -> Proxy<Order> {
        let book = self.book.clone();
        let singleton =
            cluster.singleton("counter").lease(self.store.lease("shop.counter").ttl(TTL));
        singleton.start(move || Counter(book.clone())).unwrap()
    }

    fn start_carts(&self, cluster: &Cluster, session: &KeptSession) -> Sharding<Order> {
        let book = self.book.clone();
        let settings = tenure::sharding::Settings {
            resend_interval: Duration::from_millis(200),
            patience: Duration::from_millis(500),
            rebalance_interval: Duration::from_secs(1),
            stable_after: Duration::from_millis(500),
            ..tenure::sharding::Settings::new(tenure::sharding::Setup::Sessions, 16)
        };
        let carts = cluster.sharding("cart").settings(settings);
        let carts = carts.lease(self.store.lease("shop.carts").ttl(TTL)).session(session);
        carts.start(move |_| Counter(book.clone())).unwrap()
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

/// What became of what was sent.
#[derive(Default)]
struct Account {
    done: Vec<u64>,
    not_done: Vec<u64>,
    unknown: Vec<u64>,
}

impl Account {
    fn note<T>(&mut self, number: u64, outcome: Result<T, AskError>) {
        match outcome {
            Ok(_) => self.done.push(number),
            Err(AskError::NotDone(_)) => self.not_done.push(number),
            Err(AskError::Unknown(_)) => self.unknown.push(number),
        }
    }
}

/// Twenty hand-overs of the singleton, and shards that go to and fro, while a web tier tells and asks;
/// on the way one of the members that it knows leaves. What is `Ok` was handled once, what is not done
/// never was, and nothing was handled twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_web_tier_loses_nothing_in_silence_through_twenty_hand_overs() {
    let world = World { store: Store::new(MemoryStore::default()), book: Arc::default() };
    let mut members = Vec::new();
    for number in 0..4 {
        members.push(world.join(number).await);
    }
    let up = |member: &Member| {
        member.cluster.view().members().filter(|it| it.1.status == Status::Up).count() == 4
    };
    until("all to be up", || members.iter().all(up)).await;
    let placed = |members: &[Member]| {
        let hosted: usize = members.iter().map(|it| it.carts.status().hosted.len()).sum();
        hosted == 16 && members.iter().all(|it| it.carts.status().homes.len() == 16)
    };
    until("all shards to have a place", || placed(&members)).await;

    let mut settings = ClientSettings::new("shop", "web");
    settings.plaintext_without_any_protection = true;
    settings.contacts = members[1..].iter().map(|member| member.cluster.me().address).collect();
    let client = Client::connect(settings).await.unwrap();
    let (stop, stopped) = watch::channel(false);
    let numbers = Arc::new(AtomicU64::new(0));
    let tier: Vec<_> = (0..8)
        .map(|worker| {
            let (client, stopped, numbers) = (client.clone(), stopped.clone(), numbers.clone());
            tokio::spawn(async move {
                let mut account = Account::default();
                let singleton = client.singleton::<Order>("counter");
                while !*stopped.borrow() {
                    let number = numbers.fetch_add(1, SeqCst);
                    let cart = client.entity::<Order>("cart", &(number % 40).to_string());
                    let to = if worker % 2 == 0 { &singleton } else { &cart };
                    match worker < 4 {
                        true => account.note(number, to.tell(Order::Add(number)).await),
                        false => account.note(number, to.ask(Count(number)).within(LONG).await),
                    }
                    sleep(Duration::from_millis(1)).await;
                }
                account
            })
        })
        .collect();

    let mut hand_overs = 0;
    for round in 0.. {
        let host = members[0].counter.host();
        until("the singleton to be somewhere", || host.borrow().is_some()).await;
        let at = host.borrow().clone();
        if let Some(place) = members.iter().position(|it| Some(it.cluster.me()) == at) {
            timeout(LONG, members[place].counter.stop()).await.unwrap();
            until("another host", || {
                host.borrow().as_ref().is_some_and(|it| Some(it) != at.as_ref())
            })
            .await;
            members[place].counter = world.start_counter(&members[place].cluster);
            hand_overs += 1;
        }
        let place = round % members.len();
        timeout(LONG, members[place].carts.stop()).await.unwrap();
        let Member { cluster, session, .. } = &members[place];
        members[place].carts = world.start_carts(cluster, session);
        until("all shards to have a place", || placed(&members)).await;
        if hand_overs == 10 {
            // A member that it talks through.
            let leaves = members.remove(1);
            timeout(LONG, leaves.cluster.leave()).await.unwrap();
            until("all shards to have a place", || placed(&members)).await;
        }
        if hand_overs == 20 {
            break;
        }
    }
    stop.send_replace(true);
    let mut all = Account::default();
    for worker in tier {
        let account = timeout(LONG, worker).await.unwrap().unwrap();
        all.done.extend(account.done);
        all.not_done.extend(account.not_done);
        all.unknown.extend(account.unknown);
    }
    for member in &members {
        timeout(LONG, member.cluster.leave()).await.unwrap();
    }
    let (sent, handled) = (numbers.load(SeqCst), world.book.0.lock().unwrap().clone());
    let late = all.unknown.iter().filter(|number| handled.contains_key(number)).count();
    println!(
        "sent {sent}: done {}, not done {}, unknown {} ({late} of them handled); handled {}",
        all.done.len(),
        all.not_done.len(),
        all.unknown.len(),
        handled.len(),
    );
    assert!(handled.values().all(|times| *times == 1), "something was handled twice");
    assert!(all.done.iter().all(|number| handled.contains_key(number)), "silently lost");
    assert!(
        !all.not_done.iter().any(|number| handled.contains_key(number)),
        "not done, but handled"
    );
    assert_eq!(sent as usize, all.done.len() + all.not_done.len() + all.unknown.len());
    assert_eq!(handled.len(), all.done.len() + late);
    assert!(all.done.len() > 200, "there was something to lose at each hand-over");
}

const TTL: Duration = Duration::from_secs(5);
/// What works takes less.
const LONG: Duration = Duration::from_secs(30);
