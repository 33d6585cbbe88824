//! What the processes of `accounted` run: hosts, which note what they handle, and senders, which note what
//! they sent and what they heard of it.
#![allow(clippy::disallowed_methods, reason = "real processes take real time")]

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tenure::cluster::Cluster;
use tenure::cluster::messaging::{Ask, AskError, NotDone, Received};
use tenure::sharding::{Entity, Sharding, Shardings as _};
use tenure::singleton::{Actor, BoxError, Proxy, Singletons as _};
use tenure::{KeptSession, Lease, Store};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::node_kit::{formation, settings};

pub(crate) const HOSTS: usize = 3;
pub(crate) const SENDERS: usize = 2;
/// The singleton is receiver 0, the others are entities.
const RECEIVERS: u64 = 33;
/// Receivers that do not keep up: their mailboxes are full when their process dies.
const SLOW: RangeInclusive<u64> = 1..=6;
/// Tasks of a sender that tell, each with receivers of its own, so that they tell in order.
const TELLERS: u64 = 8;
const ASKERS: u64 = 32;
const TTL: Duration = Duration::from_secs(3);

/// Who sent a message, to whom, and the place in that order: unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct Id(pub(crate) u64);

impl Id {
    fn told(sender: usize, receiver: u64, place: u64) -> Self {
        Self((sender as u64) << 60 | receiver << 48 | place)
    }

    /// A question: those have no order.
    fn asked(sender: usize, receiver: u64, place: u64) -> Self {
        Self(Self::told(sender, receiver, place).0 | 1 << 47)
    }

    pub(crate) fn is_asked(self) -> bool {
        self.0 & 1 << 47 != 0
    }

    pub(crate) fn sender(self) -> usize {
        (self.0 >> 60) as usize
    }

    fn receiver(self) -> u64 {
        self.0 >> 48 & 0xfff
    }

    /// Sender and receiver.
    pub(crate) fn way(self) -> u64 {
        self.0 >> 48
    }
}

#[derive(Serialize, Deserialize)]
enum Order {
    Do(Id),
    Answer(Id),
    Fail(Id),
    Panic(Id),
}

struct Question(Id);

impl Ask for Question {
    type Reply = Id;
}

impl From<Question> for Order {
    fn from(question: Question) -> Self {
        Self::Answer(question.0)
    }
}

/// Where a host notes what it handles: what is in it survives any end of the process.
#[derive(Clone)]
struct Book(Arc<File>);

impl Book {
    fn note(&self, id: Id) {
        let now = UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
        let entry = [id.0.to_le_bytes(), now.to_le_bytes()];
        (&*self.0).write_all(entry.as_flattened()).unwrap();
    }

    async fn handle(&self, received: Received<Order>) -> Result<(), BoxError> {
        match received.message {
            Order::Do(id) => {
                if SLOW.contains(&id.receiver()) {
                    sleep(Duration::from_millis(5)).await; // So that others wait.
                }
                self.note(id);
            }
            Order::Answer(id) => {
                self.note(id);
                received.reply.answer::<Question>(id).await?;
            }
            Order::Fail(id) => return Err(format!("{id:?} fails, as it should").into()),
            Order::Panic(id) => panic!("{id:?} panics, as it should"),
        }
        Ok(())
    }
}

struct Till(Book);

impl Actor for Till {
    type Message = Order;

    async fn receive(
        &mut self,
        received: Received<Order>,
        _: &tenure::singleton::Hosted,
    ) -> Result<(), BoxError> {
        self.0.handle(received).await
    }
}

struct Account(Book);

impl Entity for Account {
    type Message = Order;

    async fn receive(
        &mut self,
        received: Received<Order>,
        _: &tenure::sharding::Hosted,
    ) -> Result<(), BoxError> {
        self.0.handle(received).await
    }
}

/// What a process needs to be one of the five.
pub(crate) struct Place {
    dir: PathBuf,
    cluster: Cluster,
    store: Store,
    session: KeptSession,
}

impl Place {
    async fn join(dir: &Path, address: &str, name: String) -> Self {
        let store = tenure::open(&store_url(dir)).await.unwrap();
        let formation = formation(&store, "accounts").ttl(TTL);
        let settings = settings("accounts", &name, address, formation);
        let cluster = Cluster::join(settings).await.unwrap();
        let session = store.lease(&name).ttl(TTL).kept_session().unwrap();
        Self { dir: dir.to_owned(), cluster, store, session }
    }

    fn lease(&self, name: &str) -> Lease {
        self.store.lease(name).ttl(TTL)
    }

    fn singleton(&self) -> tenure::singleton::Builder {
        let settings = tenure::singleton::Settings {
            restart_backoff: Duration::from_millis(50),
            start_attempts: 100,
            ..Default::default()
        };
        self.cluster.singleton("till").settings(settings).lease(self.lease(TILL))
    }

    fn sharding(&self) -> tenure::sharding::Builder {
        let kind = self.cluster.sharding("account").shards(30);
        kind.lease(self.lease("accounts.shards")).session(&self.session)
    }
}

/// The lease of the singleton; hosts and senders have sessions by their names.
pub(crate) const TILL: &str = "accounts.till";

pub(crate) fn store_url(dir: &Path) -> String {
    format!("file:{}", dir.join("leases").display())
}

pub(crate) fn host_name(host: usize) -> String {
    format!("host-{host}")
}

/// A host: until SIGTERM, or however it ends. SIGUSR1 hands the singleton over.
pub(crate) async fn host(dir: &Path, address: &str, host: usize, run: usize) {
    let book = dir.join(format!("book-{host}-{run}"));
    let book = OpenOptions::new().append(true).create_new(true).open(book).unwrap();
    let book = Book(Arc::new(book));
    let place = Place::join(dir, address, host_name(host)).await;
    let (till, account) = (book.clone(), book);
    let proxy = place.singleton().start(move || Till(till.clone())).unwrap();
    place.sharding().start(move |_| Account(account.clone())).unwrap();
    let mut hand_over = signal(SignalKind::user_defined1()).unwrap();
    tokio::spawn(async move {
        while hand_over.recv().await.is_some() {
            let _ = proxy.hand_over().await; // Perhaps it is not here.
        }
    });
    let _ = place.cluster.leave_when_terminated().await;
}

/// The ways of one sender.
struct Ways {
    sender: usize,
    till: Proxy<Order>,
    accounts: Sharding<Order>,
}

impl Ways {
    async fn tell(&self, receiver: u64, order: Order) -> Result<(), NotDone> {
        match receiver {
            0 => self.till.tell(order).await,
            _ => self.accounts.entity(&format!("account {receiver}")).tell(order).await,
        }
    }

    async fn ask(&self, receiver: u64, question: Question) -> Result<Id, AskError> {
        let within = Duration::from_secs(5);
        match receiver {
            0 => self.till.ask(question).within(within).await,
            _ => {
                let entity = self.accounts.entity(&format!("account {receiver}"));
                entity.ask(question).within(within).await
            }
        }
    }

    /// Tells so many, `each` every ten milliseconds. What is not taken is told again.
    async fn tell_all(&self, teller: u64, count: u64, each: u64) -> (Vec<Id>, u64) {
        let (mut told, mut not_done) = (Vec::new(), 0);
        let mut tick = interval(Duration::from_millis(10));
        let receivers = (teller..RECEIVERS).step_by(TELLERS as usize).cycle();
        for (place, receiver) in (0..count).zip(receivers) {
            if place % each == 0 {
                tick.tick().await;
            }
            let id = Id::told(self.sender, receiver, place);
            let order = || match place % 2500 {
                1200 => Order::Fail(id),
                2400 => Order::Panic(id),
                _ => Order::Do(id),
            };
            while self.tell(receiver, order()).await.is_err() {
                not_done += 1;
                sleep(Duration::from_millis(20)).await;
            }
            told.push(id);
        }
        (told, not_done)
    }

    /// Asks until all is told. What came of each question.
    async fn ask_all(&self, asker: u64, done: &AtomicBool) -> Vec<(Id, &'static str)> {
        let mut asked = Vec::new();
        let mut tick = interval(Duration::from_millis(4));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for place in 0.. {
            if done.load(Relaxed) {
                break;
            }
            tick.tick().await;
            let receiver = Some((asker + place * ASKERS) % RECEIVERS);
            let receiver = receiver.filter(|receiver| !SLOW.contains(receiver)).unwrap_or(0);
            let id = Id::asked(self.sender, receiver, asker << 40 | place);
            let outcome = match self.ask(receiver, Question(id)).await {
                Ok(answer) => {
                    assert_eq!(answer, id);
                    "answered"
                }
                Err(AskError::NotDone(_)) => "not_done",
                Err(AskError::Unknown(_)) => "unknown",
            };
            asked.push((id, outcome));
        }
        asked
    }
}

/// A sender: tells so many messages in so many seconds, and asks meanwhile. Writes down what it heard when
/// the file `end` is there.
pub(crate) async fn send(dir: &Path, address: &str, sender: usize, count: u64, seconds: u64) {
    let place = Place::join(dir, address, format!("sender-{sender}")).await;
    let mut letters = place.cluster.dead_letters();
    let (done, over) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let ended = over.clone();
    let counted = place.dir.join(format!("letters-{sender}"));
    let counting = tokio::spawn(async move {
        let (mut account, mut count) = (String::new(), 0);
        let mut tick = interval(Duration::from_millis(100));
        loop {
            tokio::select! {
                letter = letters.next() => match letter {
                    Some(letter) => {
                        count += letter.count;
                        writeln!(account, "letter {:?} {}", letter.why, letter.count).unwrap();
                    }
                    None => break,
                },
                _ = tick.tick() => {
                    fs::write(&counted, count.to_string()).unwrap();
                    if ended.load(Relaxed) {
                        break;
                    }
                }
            }
        }
        writeln!(account, "letter Missed {}", letters.missed()).unwrap();
        account
    });
    let till = place.singleton().proxy().unwrap();
    let accounts = place.sharding().proxy().unwrap();
    let ways = Arc::new(Ways { sender, till, accounts });
    let each = (count / TELLERS / (seconds * 100)).max(1);
    let tellers: Vec<_> = (0..TELLERS)
        .map(|teller| {
            let ways = ways.clone();
            tokio::spawn(async move { ways.tell_all(teller, count / TELLERS, each).await })
        })
        .collect();
    let askers: Vec<_> = (0..ASKERS)
        .map(|asker| {
            let (ways, done) = (ways.clone(), done.clone());
            tokio::spawn(async move { ways.ask_all(asker, &done).await })
        })
        .collect();
    let mut account = String::new();
    for teller in tellers {
        let (told, not_done) = teller.await.unwrap();
        for id in told {
            writeln!(account, "told {}", id.0).unwrap();
        }
        writeln!(account, "letter NotDone {not_done}").unwrap();
    }
    done.store(true, Relaxed);
    for asker in askers {
        for (id, outcome) in asker.await.unwrap() {
            writeln!(account, "{outcome} {}", id.0).unwrap();
        }
    }
    fs::write(place.dir.join(format!("sent-{sender}")), "").unwrap();
    while !place.dir.join("end").exists() {
        sleep(Duration::from_millis(50)).await;
    }
    over.store(true, Relaxed);
    account += &counting.await.unwrap();
    let written = place.dir.join(format!("account-{sender}.new"));
    fs::write(&written, account).unwrap();
    fs::rename(written, place.dir.join(format!("account-{sender}"))).unwrap();
}
