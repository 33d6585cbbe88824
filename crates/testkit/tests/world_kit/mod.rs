//! Five whole nodes with a singleton and sharded entities, every message accounted for.
#![allow(clippy::disallowed_methods, reason = "time is virtual")]
#![allow(dead_code, reason = "each test uses a part")]

mod book;
mod steered;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure_cluster::messaging::{Ask, AskError, Received};
use tenure_cluster::{Cluster, Settings};
use tenure_lease::KeptSession;
use tenure_sharding::{Entity, Sharding, Shardings as _};
use tenure_singleton::{Actor, BoxError, Proxy, Singletons as _};
use tenure_testkit::world::{Node, Nodes, Working, World};
use tokio::time::{sleep, timeout};

use book::{Account, Book};
pub(crate) use steered::{hosts_cut_off, rolling};

/// How many entities there are; the singleton is receiver 0.
pub(crate) const ENTITIES: u64 = 12;
const TTL: Duration = Duration::from_secs(4);

/// Who sent a message, to whom, and its place in that order: unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Id {
    sender: u64,
    receiver: u64,
    place: u64,
    asked: bool,
}

#[derive(Serialize, Deserialize)]
pub(crate) enum Order {
    Do(Id),
    Answer(Id),
    /// Is somebody there?
    Probe,
}

struct Probe;

impl Ask for Probe {
    type Reply = ();
}

impl From<Probe> for Order {
    fn from(_: Probe) -> Self {
        Self::Probe
    }
}

pub(crate) struct Question(Id);

impl Ask for Question {
    type Reply = Id;
}

impl From<Question> for Order {
    fn from(question: Question) -> Self {
        Self::Answer(question.0)
    }
}

/// How a service behaves that a schedule is to meet more often.
#[derive(Clone, Copy, Default)]
pub(crate) struct Habits {
    /// The singleton fails now and then, and every other message is for it, of five times as many.
    till_fails: bool,
}

struct Till {
    node: Node,
    book: Book,
    habits: Habits,
    working: Option<Working>,
}

impl Actor for Till {
    type Message = Order;

    async fn started(&mut self, _: &tenure_singleton::Hosted) -> Result<(), BoxError> {
        self.working = Some(self.node.working("the singleton"));
        sleep(Duration::from_millis(self.node.random(1..200))).await;
        Ok(())
    }

    async fn receive(
        &mut self,
        received: Received<Order>,
        hosted: &tenure_singleton::Hosted,
    ) -> Result<(), BoxError> {
        if self.node.random(0..20) == 0 {
            sleep(Duration::from_millis(self.node.random(1..30))).await;
        }
        if !hosted.is_held() {
            return Err("a fence refuses what a stopped process still does".into());
        }
        if self.habits.till_fails && !self.book.is_calm() && self.node.random(0..2000) == 0 {
            return Err("it fails now and then".into());
        }
        self.book.handle(received).await
    }

    async fn stopped(&mut self, _: tenure_singleton::StopReason) {
        // Some take too long, and are dropped.
        let most = if self.node.random(0..4) == 0 { 20_000 } else { 50 };
        sleep(Duration::from_millis(self.node.random(1..most))).await;
        self.working = None;
    }
}

struct Cart {
    node: Node,
    book: Book,
    working: Option<Working>,
}

impl Entity for Cart {
    type Message = Order;

    async fn started(&mut self, hosted: &tenure_sharding::Hosted) -> Result<(), BoxError> {
        self.working = Some(self.node.working(&format!("entity {}", hosted.id())));
        sleep(Duration::from_millis(self.node.random(1..30))).await;
        Ok(())
    }

    async fn receive(
        &mut self,
        received: Received<Order>,
        hosted: &tenure_sharding::Hosted,
    ) -> Result<(), BoxError> {
        if self.node.random(0..20) == 0 {
            sleep(Duration::from_millis(self.node.random(1..30))).await;
        }
        if !hosted.is_held() {
            return Err("a fence refuses what a stopped process still does".into());
        }
        self.book.handle(received).await
    }

    async fn stopped(&mut self, _: tenure_sharding::StopReason) {
        sleep(Duration::from_millis(self.node.random(1..20))).await;
        self.working = None;
    }
}

/// What runs on a node.
pub(crate) struct Service {
    pub(crate) cluster: Cluster,
    pub(crate) till: Proxy<Order>,
    pub(crate) carts: Sharding<Order>,
    sender: u64,
    book: Book,
    quiet: Arc<AtomicBool>,
    _session: KeptSession,
}

/// The settings of every node here: a lease that fails over within seconds.
pub(crate) fn settings(node: &Node) -> Settings {
    let store = node.store();
    node.settings("shop")
        .formation(store.lease("shop.formation").ttl(TTL))
        .arbitration(store.lease("shop.arbitration").ttl(TTL))
}

/// A node that is removed before it is up, because others could not reach it, is started again by whoever looks
/// after it.
async fn joined(node: &Node) -> Cluster {
    loop {
        match Cluster::join(settings(node)).await {
            Ok(cluster) => return cluster,
            Err(_) => sleep(Duration::from_secs(1)).await,
        }
    }
}

impl Service {
    /// Joins, hosts, and sends from then on.
    pub(crate) async fn start(
        node: Node,
        habits: Habits,
        book: Book,
        quiet: Arc<AtomicBool>,
    ) -> Result<Self, BoxError> {
        let store = node.store();
        let cluster = joined(&node).await;
        let session = store.lease(&node.name()).ttl(TTL).kept_session()?;
        let (at, noted) = (node.clone(), book.clone());
        let till = cluster
            .singleton("till")
            .lease(store.lease("shop.till").ttl(TTL))
            .start(move || Till { node: at.clone(), book: noted.clone(), habits, working: None })?;
        let (at, noted) = (node.clone(), book.clone());
        let carts = cluster
            .sharding("cart")
            .shards(8)
            .lease(store.lease("shop.carts").ttl(TTL))
            .session(&session)
            .start(move |_| Cart { node: at.clone(), book: noted.clone(), working: None })?;
        let sender = {
            let mut entries = book.entries();
            entries.accounts.push(Account::of(node.name(), node.address()));
            entries.accounts.len() as u64 - 1
        };
        let mut letters = cluster.dead_letters();
        let counted = book.clone();
        tokio::spawn(async move {
            while let Some(letter) = letters.next().await {
                counted.take_letter(sender, &letter);
            }
        });
        let service = Self { cluster, till, carts, sender, book, quiet, _session: session };
        for asks in [false, true] {
            tokio::spawn(service.talker(&node, habits).talk(asks));
        }
        Ok(service)
    }

    fn talker(&self, node: &Node, habits: Habits) -> Talker {
        Talker {
            node: node.clone(),
            habits,
            till: self.till.clone(),
            carts: self.carts.clone(),
            sender: self.sender,
            book: self.book.clone(),
            quiet: self.quiet.clone(),
        }
    }

    /// Its process is about to go.
    pub(crate) fn is_gone(&self) {
        self.book.gone(self.sender);
    }
}

#[derive(Clone)]
struct Talker {
    node: Node,
    habits: Habits,
    till: Proxy<Order>,
    carts: Sharding<Order>,
    sender: u64,
    book: Book,
    quiet: Arc<AtomicBool>,
}

impl Talker {
    /// Ten messages a second; or five times as many, in bursts of three.
    async fn talk(self, asks: bool) {
        let is_busy = self.habits.till_fails;
        let (burst, pause) = if is_busy { (3, 60) } else { (1, 100) };
        let mut receiver = 0;
        for place in 0.. {
            if place % burst == 0 {
                sleep(Duration::from_millis(pause)).await;
                if self.quiet.load(Relaxed) {
                    return;
                }
                let to_till = is_busy && place / burst % 2 == 0;
                receiver = if to_till { 0 } else { self.node.random(0..ENTITIES + 1) };
            }
            let id = Id { sender: self.sender, receiver, place, asked: asks };
            match asks {
                true => drop(tokio::spawn(self.clone().ask(id))),
                false => self.tell(id).await,
            }
        }
    }

    async fn tell(&self, id: Id) {
        let told = match id.receiver {
            0 => self.till.tell(Order::Do(id)).await,
            receiver => self.carts.entity(&receiver.to_string()).tell(Order::Do(id)).await,
        };
        let mut entries = self.book.entries();
        let account = &mut entries.accounts[id.sender as usize];
        match told {
            Ok(()) => account.told.insert(id),
            Err(_) => account.not_done.insert(id),
        };
    }

    async fn ask(self, id: Id) {
        let within = Duration::from_secs(3);
        let asked = match id.receiver {
            0 => self.till.ask(Question(id)).within(within).await,
            receiver => {
                let cart = self.carts.entity(&receiver.to_string());
                cart.ask(Question(id)).within(within).await
            }
        };
        let mut entries = self.book.entries();
        if asked == Ok(id) && !entries.handled.contains(&id) {
            entries.wrong.push(format!("{id:?} was answered and not handled"));
        }
        let account = &mut entries.accounts[id.sender as usize];
        match asked {
            Ok(_) => account.answered += 1,
            Err(AskError::NotDone(_)) => drop(account.not_done.insert(id)),
            Err(AskError::Unknown(_)) => account.unknown += 1,
        }
    }
}

/// Faults for up to 50 s; then everything must work again.
pub(crate) async fn five_nodes(world: World) {
    let shop = Shop::open(world, 5, Habits::default()).await;
    shop.disturb(shop.world.random_millis(15_000..50_000)).await;
    shop.recover().await;
}

/// Five nodes, and what happened to their messages.
pub(crate) struct Shop {
    pub(crate) world: World,
    pub(crate) nodes: Nodes<Service>,
    pub(crate) book: Book,
    quiet: Arc<AtomicBool>,
}

impl Shop {
    pub(crate) async fn open(world: World, count: usize, habits: Habits) -> Self {
        let (book, quiet) = (Book::default(), Arc::new(AtomicBool::new(false)));
        let (noted, silent) = (book.clone(), quiet.clone());
        let nodes = Nodes::start(&world, count, move |node| {
            Service::start(node, habits, noted.clone(), silent.clone())
        });
        nodes.until_all_started().await;
        Self { world, nodes, book, quiet }
    }

    fn some_nodes(&self) -> Vec<usize> {
        let count = self.nodes.len() as u64;
        let chosen = self.world.random(1..count);
        let first = self.world.random(0..count);
        (0..chosen).map(|offset| ((first + offset * 2 + offset / 3) % count) as usize).collect()
    }

    async fn kill(&self, node: usize, machine: bool) {
        if let Some(service) = self.nodes.service(node) {
            service.is_gone();
        }
        match machine {
            true => self.nodes.lose_machine(node).await,
            false => self.nodes.crash(node).await,
        }
    }

    /// One fault after another.
    pub(crate) async fn disturb(&self, time: Duration) {
        let (world, nodes) = (&self.world, &self.nodes);
        let until = world.elapsed() + time;
        let mut paused: Option<usize> = None;
        while world.elapsed() < until {
            let pause = world.random_millis(200..5000);
            let node = world.random(0..nodes.len() as u64) as usize;
            let some = self.some_nodes();
            let others: Vec<usize> = (0..nodes.len()).filter(|it| !some.contains(it)).collect();
            match world.random(0..12) {
                0 => nodes.partition(&some, &others),
                1 => nodes.one_way(&some, &others),
                2 | 3 => nodes.heal(),
                4 => nodes.break_connections(node, (node + 1) % nodes.len()),
                5 if nodes.is_running(node) => self.kill(node, false).await,
                6 if nodes.is_running(node) => self.kill(node, true).await,
                5..8 if !nodes.is_running(node) => nodes.restart(node).await,
                7 if paused.is_none() => {
                    paused = Some(node);
                    nodes.pause(node);
                }
                7 => self.go_on(&mut paused).await,
                8 => nodes.store_away(&some),
                9 => nodes.store_back(),
                10 => world.lose_store_requests(world.random(0..40)),
                // A process that is stopped would not answer before this goes on.
                _ if paused != Some(node) => {
                    let hand_over = |it: Arc<Service>| async move {
                        let _ = timeout(Duration::from_secs(2), it.till.hand_over()).await;
                    };
                    let _ = nodes.run(node, hand_over).await; // It may just be killed.
                }
                _ => {}
            }
            world.sleep(pause).await;
            self.must_be_right();
        }
        self.go_on(&mut paused).await;
        nodes.heal();
        nodes.store_back();
        world.lose_store_requests(0);
    }

    async fn go_on(&self, paused: &mut Option<usize>) {
        if let Some(node) = paused.take() {
            self.nodes.resume(node).await;
        }
    }

    fn must_be_right(&self) {
        let wrong = self.book.wrong();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    /// Starts nodes again that do not run, or have ended themselves, as a supervisor does.
    async fn supervise(&self) {
        for node in 0..self.nodes.len() {
            let over = self.nodes.service(node).filter(|it| it.cluster.is_over());
            over.iter().for_each(|service| service.is_gone());
            if over.is_some() || !self.nodes.is_running(node) {
                self.nodes.restart(node).await;
            }
        }
    }

    fn are_all_in_touch(&self) -> bool {
        let (services, count) = (self.nodes.services(), self.nodes.len());
        let is_whole = |service: &Arc<Service>| {
            let view = service.cluster.view();
            view.members().len() == count && view.observations().next().is_none()
        };
        services.len() == count && services.iter().all(is_whole)
    }

    /// After all faults: everything is served again, from everywhere, and the account is even.
    pub(crate) async fn recover(&self) {
        self.book.calm();
        let (world, nodes) = (&self.world, &self.nodes);
        let until = world.elapsed() + Duration::from_secs(120);
        while !self.are_all_in_touch() {
            assert!(world.elapsed() < until, "not all are members, and in touch");
            self.supervise().await;
            world.sleep(Duration::from_millis(50)).await;
        }
        world.note("all are members, and in touch");
        for node in 0..nodes.len() {
            let served = nodes.run(node, |service| async move {
                for receiver in 0..=ENTITIES {
                    let mut served = false;
                    for _ in 0..20 {
                        if service.is_served(receiver).await {
                            served = true;
                            break;
                        }
                        sleep(Duration::from_millis(500)).await;
                    }
                    if !served {
                        return Err(receiver);
                    }
                }
                Ok(())
            });
            match served.await {
                Ok(Ok(())) => {}
                Ok(Err(0)) => panic!("the singleton is not served from node-{node}"),
                Ok(Err(entity)) => panic!("entity {entity} is not served from node-{node}"),
                Err(error) => panic!("{error}"),
            }
        }
        world.note("everything is served again");
        self.quiet.store(true, Relaxed);
        let until = world.elapsed() + Duration::from_secs(60);
        loop {
            let lost = self.book.lost_in_silence();
            if lost.is_empty() {
                break;
            }
            assert!(world.elapsed() < until, "{}", lost.join("\n"));
            world.sleep(Duration::from_millis(100)).await;
        }
        self.must_be_right();
        world.note(self.book.totals());
    }
}

impl Service {
    async fn is_served(&self, receiver: u64) -> bool {
        let within = Duration::from_secs(2);
        match receiver {
            0 => self.till.ask(Probe).within(within).await.is_ok(),
            receiver => {
                let cart = self.carts.entity(&receiver.to_string());
                cart.ask(Probe).within(within).await.is_ok()
            }
        }
    }
}
