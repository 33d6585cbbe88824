//! What becomes of messages and entities while a database that remembers them fails.
#![allow(clippy::disallowed_methods, reason = "real nodes take real time")]

mod kit;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kit::{Message, SHARDS, World, placed, settings, soon, spread, until};
use tenure_cluster::messaging::Lost;
use tenure_lease::Token;
use tenure_sharding::{
    Builder, Place, Remember, RememberError, Remembering, Settings, Shard, Shardings as _,
    StartError, shard_of,
};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

/// A database that does what it is told.
#[derive(Clone)]
struct Database(Arc<Inner>);

struct Inner {
    /// What loads do, and what changes do.
    mood: watch::Sender<[Mood; 2]>,
    shards: Mutex<BTreeMap<Shard, (Token, BTreeSet<String>)>>,
    calls: AtomicUsize,
    /// Who has called since this was last looked at.
    callers: Mutex<BTreeSet<(Shard, Token)>>,
}

#[derive(Clone, Copy, PartialEq)]
enum Mood {
    Works,
    Fails,
    Panics,
    /// Answers when its mood is another one.
    Hangs,
    Refuses,
}

use Mood::{Fails, Hangs, Panics, Refuses, Works};

impl Database {
    fn new(mood: [Mood; 2]) -> Self {
        let (mood, shards) = (watch::Sender::new(mood), Mutex::default());
        let (calls, callers) = (AtomicUsize::new(0), Mutex::default());
        Self(Arc::new(Inner { mood, shards, calls, callers }))
    }

    fn set(&self, mood: [Mood; 2]) {
        self.0.mood.send_replace(mood);
    }

    fn all(&self) -> BTreeSet<String> {
        let shards = self.0.shards.lock().unwrap();
        shards.values().flat_map(|(_, ids)| ids.clone()).collect()
    }

    fn run<T: Send + 'static>(
        &self,
        index: usize,
        place: Place<'_>,
        work: impl FnOnce(&mut BTreeSet<String>) -> T + Send + 'static,
    ) -> Remembering<'_, T> {
        let Place { shard, token, .. } = place;
        Box::pin(async move {
            self.0.calls.fetch_add(1, SeqCst);
            self.0.callers.lock().unwrap().insert((shard, token));
            let mut mood = self.0.mood.subscribe();
            let mood = mood.wait_for(|mood| mood[index] != Hangs).await.unwrap()[index];
            assert!(mood != Panics, "as it was told");
            let mut shards = self.0.shards.lock().unwrap();
            let (fence, ids) = shards.entry(shard).or_default();
            if mood == Refuses || token < *fence {
                return Err(RememberError::Refused { held: token, fence: *fence });
            }
            if mood == Fails {
                return Err(RememberError::Failed("as it was told".into()));
            }
            *fence = token;
            Ok(work(ids))
        })
    }
}

impl Remember for Database {
    fn load(&self, place: Place<'_>) -> Remembering<'_, Vec<String>> {
        self.run(0, place, |ids| ids.iter().cloned().collect())
    }

    fn change(
        &self,
        place: Place<'_>,
        added: Vec<String>,
        removed: Vec<String>,
    ) -> Remembering<'_, ()> {
        self.run(1, place, move |ids| {
            ids.extend(added);
            ids.retain(|id| !removed.contains(id));
        })
    }
}

fn remembered(
    world: &World,
    database: &Database,
    settings: Settings,
) -> impl Fn(Builder, usize) -> Builder + use<> {
    let (lease, database) = (world.lease(), database.clone());
    move |it, _| {
        it.settings(settings.clone()).lease(lease.clone()).remember_entities(database.clone())
    }
}

/// Ids of one shard.
fn of_one_shard() -> impl Iterator<Item = String> {
    (0..).map(|id| id.to_string()).filter(|id| shard_of(id, SHARDS) == Shard(3))
}

/// While it cannot be known which entities there are, messages wait, in order and bounded; the database
/// is asked again, with pauses.
async fn waits_for_the_load(mood: Mood) {
    let world = World::new(1).await;
    let database = Database::new([mood, Works]);
    let few = Settings { buffer_messages: 20, ..settings() };
    let carts = world.start(remembered(&world, &database, few));
    placed(&carts).await;
    let mut letters = world.clusters[0].dead_letters();
    let id = of_one_shard().next().unwrap();
    for number in 0..30 {
        carts[0].entity(&id).tell(Message::Add(number)).await.unwrap();
    }
    let mut lost = 0;
    while lost < 10 {
        let letter = soon(letters.next()).await.unwrap();
        assert_eq!(letter.why, Lost::Full);
        lost += letter.count;
    }
    let (calls, began) = (database.0.calls.load(SeqCst), Instant::now());
    sleep(Duration::from_millis(500)).await;
    assert!(world.book.received(&id).is_empty());
    let calls = database.0.calls.load(SeqCst) - calls;
    let most = SHARDS as usize * (began.elapsed().as_millis() as usize / 100);
    assert!(calls > 0 && calls <= most, "{calls} calls");
    database.set([Works, Works]);
    until("what waited", || world.book.received(&id) == (0..20).collect::<Vec<_>>()).await;
    assert_eq!(lost, 10);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_wait_for_a_load_that_fails() {
    waits_for_the_load(Fails).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_wait_for_a_load_that_panics() {
    waits_for_the_load(Panics).await;
}

/// While it cannot be written down which entities there are, new ones wait, and no more of them than
/// messages may: one whose first message was refused is not made, nor remembered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_entities_wait_than_messages_may() {
    let world = World::new(1).await;
    let database = Database::new([Works, Fails]);
    let few = Settings { buffer_messages: 20, ..settings() };
    let carts = world.start(remembered(&world, &database, few));
    placed(&carts).await;
    let ids: Vec<String> = of_one_shard().take(100).collect();
    let mut letters = world.clusters[0].dead_letters();
    for id in &ids {
        carts[0].entity(id).tell(Message::Add(1)).await.unwrap();
    }
    let mut lost = 0;
    while lost < 80 {
        lost += soon(letters.next()).await.unwrap().count;
    }
    assert_eq!(carts[0].status().entities, 0);
    database.set([Works, Works]);
    let all = || world.book.received.lock().unwrap().len() == 20;
    until("those that waited", all).await;
    until("no others", || database.all() == ids[..20].iter().cloned().collect()).await;
    assert_eq!(world.book.starts.load(SeqCst), 20);
    world.end().await;
}

/// A shard whose database does not answer can be handed off at once, with what waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_waits_for_its_database_is_handed_off() {
    for mood in [[Hangs, Works], [Works, Hangs]] {
        let mut world = World::new(2).await;
        let database = Database::new(mood);
        let mut carts = world.start(remembered(&world, &database, settings()));
        spread(&carts).await;
        for id in 0..40 {
            carts[0].entity(&id.to_string()).tell(Message::Add(id)).await.unwrap();
        }
        sleep(Duration::from_millis(100)).await;
        let (leaving, _) = (world.clusters.remove(1), carts.remove(1));
        let began = Instant::now();
        soon(leaving.leave()).await;
        assert!(began.elapsed() < settings().stop_within / 2, "{:?}", began.elapsed());
        placed(&carts).await;
        assert_eq!(world.book.starts.load(SeqCst), 0);
        database.set([Works, Works]);
        for id in 0..40 {
            until("each, once", || world.book.received(&id.to_string()) == [id]).await;
        }
        assert_eq!(database.all().len(), 40);
        world.end().await;
    }
}

/// A shard that the fence says is elsewhere receives nothing more and is given back, with what waits. It is
/// tried again with another token, wherever: when that is not refused, all is received, in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_refused_receives_nothing_more_and_is_given_back() {
    let world = World::new(2).await;
    let database = Database::new([Works, Works]);
    let carts = world.start(remembered(&world, &database, settings()));
    spread(&carts).await;
    let (there, token) = carts[1].status().hosted[0];
    let mut ids = (0..).map(|id| id.to_string()).filter(|id| shard_of(id, SHARDS) == there);
    let (old, new) = (ids.next().unwrap(), ids.next().unwrap());
    let (old, new) = (carts[0].entity(&old), carts[0].entity(&new));
    old.tell(Message::Add(1)).await.unwrap();
    until("the first", || world.book.received(old.id()) == [1]).await;
    // It is at work while the shard is refused; what waits for it is not received there any more.
    old.tell(Message::Sleep(3000)).await.unwrap();
    old.tell(Message::Add(2)).await.unwrap();
    let calls = database.0.calls.load(SeqCst);
    database.set([Refuses, Refuses]);
    new.tell(Message::Add(1)).await.unwrap();
    until("it to be refused", || database.0.calls.load(SeqCst) > calls).await;
    for number in 3..6 {
        old.tell(Message::Add(number)).await.unwrap();
    }
    sleep(Duration::from_millis(3500)).await;
    assert_eq!(world.book.received(old.id()), [1]);
    assert!(world.book.received(new.id()).is_empty());
    database.set([Works, Works]);
    until("the rest", || world.book.received(old.id()) == [1, 2, 3, 4, 5]).await;
    until("the new one", || world.book.received(new.id()) == [1]).await;
    let tokens = world.book.tokens.lock().unwrap().clone();
    let last = tokens.iter().rfind(|(shard, _)| *shard == there).unwrap().1;
    assert!(last > token, "{last} is of another allocation than {token}");
    world.end().await;
}

/// Whoever passivated itself is not back where its shard goes: that is written before, or the time to stop
/// is over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_gone_is_written_down_before_its_shard_is_handed_over() {
    for comes_back in [true, false] {
        let mut world = World::new(2).await;
        let database = Database::new([Works, Works]);
        let quick = Settings { stop_within: Duration::from_secs(2), ..settings() };
        let mut carts = world.start(remembered(&world, &database, quick));
        spread(&carts).await;
        let (there, _) = carts[1].status().hosted[0];
        let id = (0..).map(|id| id.to_string()).find(|id| shard_of(id, SHARDS) == there).unwrap();
        let cart = carts[0].entity(&id);
        cart.tell(Message::Add(1)).await.unwrap();
        until("it to be there", || world.book.received(&id) == [1]).await;
        database.set([Works, Hangs]);
        cart.tell(Message::Passivate).await.unwrap();
        until("it to stop", || !world.book.stops.lock().unwrap().is_empty()).await;
        let (leaving, _) = (world.clusters.remove(1), carts.remove(1));
        let began = Instant::now();
        let left = tokio::spawn(async move { leaving.leave().await });
        if comes_back {
            sleep(Duration::from_millis(500)).await;
            assert!(!left.is_finished(), "it waits for the database");
            database.set([Works, Works]);
        }
        soon(left).await.unwrap();
        assert!(comes_back || began.elapsed() >= Duration::from_secs(2), "{:?}", began.elapsed());
        placed(&carts).await;
        if comes_back {
            assert!(database.all().is_empty());
            sleep(Duration::from_millis(300)).await;
            assert_eq!(world.book.starts.load(SeqCst), 1, "it is not made again");
        }
        database.set([Works, Works]);
        world.end().await;
    }
}

/// A shard that has gone elsewhere does not go on asking.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_asks_for_a_shard_that_is_gone() {
    let mut world = World::new(1).await;
    let database = Database::new([Fails, Works]);
    let with = remembered(&world, &database, settings());
    let mut carts = world.start(&with);
    placed(&carts).await;
    world.join().await;
    carts.push(world.host(with(world.carts(1), 1), 1));
    spread(&carts).await;
    database.0.callers.lock().unwrap().clear();
    // The longest pause, and a bit.
    sleep(Duration::from_millis(5500)).await;
    let callers = database.0.callers.lock().unwrap().clone();
    let hosted: BTreeSet<_> = carts.iter().flat_map(|it| it.status().hosted).collect();
    assert_eq!(callers, hosted);
    world.end().await;
}

/// One that passivates itself is remembered no more, unless messages come: whatever is written when.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_passivates_itself_is_forgotten_unless_messages_come() {
    let world = World::new(1).await;
    let database = Database::new([Works, Works]);
    let carts = world.start(remembered(&world, &database, settings()));
    placed(&carts).await;
    let cart = carts[0].entity("a");
    cart.tell(Message::Add(1)).await.unwrap();
    until("it to be remembered", || database.all().contains("a")).await;
    cart.tell(Message::Passivate).await.unwrap();
    until("it to be forgotten", || database.all().is_empty()).await;
    // Its removal is on its way when the next message comes.
    cart.tell(Message::Add(2)).await.unwrap();
    until("it to be back", || world.book.received("a") == [1, 2]).await;
    database.set([Works, Hangs]);
    let stops = world.book.stops.lock().unwrap().len();
    cart.tell(Message::Passivate).await.unwrap();
    until("it to stop", || world.book.stops.lock().unwrap().len() > stops).await;
    cart.tell(Message::Add(3)).await.unwrap();
    cart.tell(Message::Add(4)).await.unwrap();
    sleep(Duration::from_millis(100)).await;
    assert_eq!(world.book.received("a"), [1, 2], "it is written down first");
    database.set([Works, Works]);
    until("both", || world.book.received("a") == [1, 2, 3, 4]).await;
    assert!(database.all().contains("a"));
    // Messages come while it stops: it is never forgotten.
    for number in 5..50 {
        cart.tell(Message::Passivate).await.unwrap();
        cart.tell(Message::Add(number)).await.unwrap();
    }
    until("all", || world.book.received("a").last() == Some(&49)).await;
    assert_eq!(world.book.received("a"), (1..50).collect::<Vec<_>>());
    let agree = || database.all().contains("a") == (carts[0].status().entities == 1);
    until("what is remembered to be what is there", agree).await;
    world.end().await;
}

/// Tokens of a cluster without a lease begin anew with the next one, below the fence of the database.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_outlives_the_cluster_needs_a_lease() {
    let world = World::new(1).await;
    let kind = world.clusters[0].sharding("cart").shards(8);
    let alone = kind.remember_entities(Database::new([Works, Works]));
    let alone = alone.proxy::<Message>();
    assert!(alone.is_ok(), "who only sends remembers nothing");
    drop(alone);
    let kind = world.clusters[0].sharding("other").settings(settings());
    let alone = kind.remember_entities(Database::new([Works, Works]));
    let make = |_: &str| Silent;
    assert_eq!(alone.start(make).unwrap_err(), StartError::RememberedAlone);
    world.end().await;
}

struct Silent;

impl tenure_sharding::Entity for Silent {
    type Message = u64;

    async fn receive(
        &mut self,
        _: tenure_cluster::messaging::Received<u64>,
        _: &tenure_sharding::Hosted,
    ) -> Result<(), tenure_sharding::BoxError> {
        Ok(())
    }
}
