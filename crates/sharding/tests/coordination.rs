//! What must not end coordination, or give a shard away too early: real nodes.
#![allow(clippy::disallowed_methods, reason = "real nodes take real time")]

mod kit;

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kit::{LONG, Message, SHARDS, TTL, World, placed, session_name, settings, soon, until};
use serde::{Deserialize, Serialize};
use tenure_cluster::messaging::{Ask, Received};
use tenure_cluster::{Address, Incarnation, Node};
use tenure_lease::backend::{
    Acquire, Acquired, Backend, Boxed, Release, Released, Renew, Renewed, StoreError, StoreInfo,
};
use tenure_lease::record::SessionRef;
use tenure_lease::{LeaseName, MemoryStore, Nonce, Owner, Record, Store};
use tenure_sharding::{
    BoxError, Entity, Host, Hosted, Load, Placement, RosterEntry, Settings, Shard, Shardings as _,
    Strategy, shard_of,
};
use tokio::time::sleep;

/// A store that can be replaced by an empty one, and that says nothing unasked.
#[derive(Clone, Default)]
struct Plain(Arc<Mutex<MemoryStore>>);

impl Plain {
    fn now(&self) -> MemoryStore {
        self.0.lock().unwrap().clone()
    }
}

impl Backend for Plain {
    fn info(&self) -> StoreInfo {
        StoreInfo { pushes: false, ..self.now().info() }
    }

    fn acquire(&self, request: Acquire) -> Boxed<'_, Result<Acquired, StoreError>> {
        Box::pin(async move { self.now().acquire(request).await })
    }

    fn renew(&self, request: Renew) -> Boxed<'_, Result<Renewed, StoreError>> {
        Box::pin(async move { self.now().renew(request).await })
    }

    fn release(&self, request: Release) -> Boxed<'_, Result<Released, StoreError>> {
        Box::pin(async move { self.now().release(request).await })
    }

    fn read(&self, names: Vec<LeaseName>) -> Boxed<'_, Result<Vec<Option<Record>>, StoreError>> {
        Box::pin(async move { self.now().read(names).await })
    }
}

/// The lease's store is restored from a backup: whoever wins next has a lower term than regions obey, is
/// refused, and asks for a higher one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_lost_history_does_not_end_coordination() {
    let world = World::new(2).await;
    let restored = Plain::default();
    let store = Store::new(restored.clone());
    let lease = || store.lease("shop.carts").ttl(TTL);
    lease().above(1_000_000).acquire().await.unwrap().release().await;
    let carts = world.start(|it, _| it.lease(lease()));
    placed(&carts).await;
    let before = carts[1].status().coordinator.unwrap().1;
    assert!(before > 1_000_000);
    *restored.0.lock().unwrap() = MemoryStore::new();
    until("a coordinator that is obeyed", || {
        let status = carts[1].status();
        carts[0].status().coordinates && status.coordinator.is_some_and(|it| it.1 > before)
    })
    .await;
    world.clusters[1].leave().await;
    until("it to move shards", || carts[0].status().hosted.len() == SHARDS as usize).await;
    world.end().await;
}

/// As `tenure lease break` does.
async fn break_lease(store: &Store, name: &str) {
    let record = store.inspect(name).await.unwrap().unwrap();
    let request = Acquire {
        name: name.parse().unwrap(),
        claim: Nonce::random(),
        owner: Owner::named("operator"),
        ttl: record.ttl,
        session: None,
        note: None,
        create: false,
        takeover: Some(record.version),
        expected: None,
        above: 0,
        unattended: true,
    };
    let broken = store.backend().acquire(request).await.unwrap();
    assert!(matches!(broken, Acquired::Won { .. }));
}

/// A session is broken: its holder has not noticed before its next renewal, and works on until then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_session_frees_nothing_before_its_holder_has_stopped() {
    let world = World::new(2).await;
    let store = Store::new(Plain::default());
    // It is renewed every two seconds; the coordinator looks at it twice a second.
    let session = |place| store.lease(&session_name(place)).ttl(TTL * 3).kept_session();
    let sessions = [session(0).unwrap(), session(1).unwrap()];
    let lease = store.lease("shop.carts").ttl(TTL);
    let carts = world.start(|it, place| it.lease(lease.clone()).session(&sessions[place]));
    placed(&carts).await;
    let over = AtomicBool::new(false);
    let send = async {
        while !over.load(SeqCst) {
            for id in 0..40 {
                carts[0].entity(&id.to_string()).tell(Message::Add(1)).await.unwrap();
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    let work = async {
        until("all to be received", || world.book.received.lock().unwrap().len() == 40).await;
        let name = session_name(1);
        let read = || async { store.inspect(&name).await.unwrap().unwrap() };
        let before = read().await;
        soon(async {
            while read().await.version == before.version {
                sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        break_lease(&store, &name).await;
        until("the other node to host all", || carts[0].status().hosted.len() == SHARDS as usize)
            .await;
        let term = || sessions[1].current().map(|session| session.tenure().token().term);
        until("another session", || term() > Some(before.token.term)).await;
        over.store(true, SeqCst);
    };
    tokio::join!(send, work);
    placed(&carts).await;
    world.end().await;
}

/// The record of a session on the roster is not there when the coordinator first looks: whoever held it
/// may not have noticed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_vanished_is_waited_out() {
    let world = World::new(1).await;
    let address = Address::new("127.0.0.1:1").unwrap();
    let node = Node { address, incarnation: Incarnation(7) };
    let session = SessionRef { name: "ghost".parse().unwrap(), term: 7 };
    let host = Host { node, session: Some(session) };
    let entry = RosterEntry { cluster: 1, up_number: 1 };
    let note = serde_json::json!({ "version": 1, "hosts": [(host, entry)] }).to_string();
    world.lease().note(note.into()).acquire().await.unwrap().release().await;
    let me = world.session(0);
    let began = Instant::now();
    let carts = world.start(|it, _| it.lease(world.lease()).session(&me));
    placed(&carts).await;
    assert!(began.elapsed() >= TTL, "{:?}", began.elapsed());
    world.end().await;
}

/// A session in another store than the lease: the coordinator would not find it, and think it over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_in_another_store_is_no_session() {
    let world = World::new(1).await;
    let other = Store::new(MemoryStore::new());
    let me = other.lease("node-0").ttl(TTL).kept_session().unwrap();
    let carts = world.start(|it, _| it.lease(world.lease()).session(&me));
    until("it to say so", || {
        let why = carts[0].status().why_not;
        why.is_some_and(|why| why.contains("another store than the coordinator's lease"))
    })
    .await;
    sleep(TTL).await;
    assert!(me.current().is_some() && carts[0].status().hosted.is_empty());
    world.end().await;
}

/// A node that leaves without ever having had its session wants it no more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_leaves_without_a_session_contends_for_none() {
    let world = World::new(2).await;
    let other = world.store.lease(&session_name(1)).ttl(TTL).owner("other");
    let other = other.acquire().await.unwrap();
    let sessions = [world.session(0), world.session(1)];
    let carts = world.start(|it, place| it.lease(world.lease()).session(&sessions[place]));
    placed(&carts).await;
    assert!(carts[1].status().hosted.is_empty());
    soon(world.clusters[1].leave()).await;
    other.release().await;
    sleep(Duration::from_millis(500)).await;
    let record = world.store.inspect(&session_name(1)).await.unwrap().unwrap();
    assert!(record.holder.is_none() && sessions[1].current().is_none(), "{record:?}");
    world.end().await;
}

/// Places all shards but one; or panics.
#[derive(Debug, Default)]
struct Odd {
    panics: AtomicBool,
    never: Option<Shard>,
}

impl Placement for Odd {
    fn place(&self, shard: Shard, regions: &[Load]) -> Option<usize> {
        assert!(!self.panics.load(SeqCst), "as it was told");
        let least = regions.iter().enumerate().min_by_key(|(_, load)| load.shards);
        least.filter(|_| Some(shard) != self.never).map(|(place, _)| place)
    }

    fn moves(&self, regions: &[Load], homes: &[(Shard, usize)], limit: usize) -> Vec<Shard> {
        assert!(!self.panics.load(SeqCst), "as it was told");
        let most = regions.iter().map(|load| load.shards).max().unwrap_or_default();
        let least = regions.iter().map(|load| load.shards).min().unwrap_or_default();
        let fullest = homes.iter().filter(|(_, place)| regions[*place].shards == most);
        fullest.map(|(shard, _)| *shard).take(limit.min((most - least) / 2)).collect()
    }
}

#[derive(Clone, Debug)]
struct Shareable(Arc<Odd>);

impl Placement for Shareable {
    fn place(&self, shard: Shard, regions: &[Load]) -> Option<usize> {
        self.0.place(shard, regions)
    }

    fn moves(&self, regions: &[Load], homes: &[(Shard, usize)], limit: usize) -> Vec<Shard> {
        self.0.moves(regions, homes, limit)
    }
}

/// A strategy that panics leaves shards where they are, or nowhere, and ends nothing else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_strategy_that_panics_ends_nothing() {
    let world = World::new(2).await;
    let odd = Arc::new(Odd { panics: AtomicBool::new(true), never: None });
    let strategy = Strategy::custom(Shareable(odd.clone()));
    let carts = world.start(|it, _| it.strategy(strategy.clone()).lease(world.lease()));
    until("somebody to coordinate", || carts[0].status().coordinates).await;
    sleep(Duration::from_secs(1)).await;
    assert!(carts[0].status().coordinates && carts[0].status().hosted.is_empty());
    odd.panics.store(false, SeqCst);
    placed(&carts).await;
    odd.panics.store(true, SeqCst);
    carts[0].rebalance().unwrap();
    sleep(Duration::from_secs(1)).await;
    assert!(carts[0].status().coordinates, "{}", carts[0].status());
    assert_eq!(carts[0].status().hosted.len() + carts[1].status().hosted.len(), SHARDS as usize);
    odd.panics.store(false, SeqCst);
    world.end().await;
}

/// A message whose end may panic.
#[derive(Serialize, Deserialize)]
struct Bomb {
    armed: bool,
}

impl Drop for Bomb {
    fn drop(&mut self) {
        assert!(!std::mem::take(&mut self.armed) || std::thread::panicking(), "as it was told");
    }
}

struct Ping;

impl Ask for Ping {
    type Reply = ();
}

impl From<Ping> for Bomb {
    fn from(_: Ping) -> Self {
        Self { armed: false }
    }
}

struct Pinged;

impl Entity for Pinged {
    type Message = Bomb;

    async fn receive(&mut self, received: Received<Bomb>, _: &Hosted) -> Result<(), BoxError> {
        Ok(received.reply.answer::<Ping>(()).await?)
    }
}

/// What looks after shards panics: it begins anew, and they are hosted again.
async fn control_panics(with_sessions: bool) {
    let world = World::new(2).await;
    let sessions = [world.session(0), world.session(1)];
    let never = Some(shard_of("nowhere", SHARDS));
    let strategy = Strategy::custom(Odd { panics: AtomicBool::default(), never });
    let start = |place: usize| {
        let settings = Settings { buffer_messages: 1, strategy: strategy.clone(), ..settings() };
        let kind = world.clusters[place].sharding("bomb").settings(settings);
        let kind = kind.lease(world.store.lease("shop.bombs").ttl(TTL));
        let kind = if with_sessions { kind.session(&sessions[place]) } else { kind };
        kind.start(|_| Pinged).unwrap()
    };
    let bombs = [start(0), start(1)];
    let all = SHARDS as usize - 1;
    let hosted = || bombs.iter().map(|it| it.status().hosted.len()).sum::<usize>();
    for place in [1, 0] {
        until("all to be hosted, some of them there", || {
            bombs.iter().for_each(|it| drop(it.rebalance())); // It may have had its session late.
            hosted() == all && !bombs[place].status().hosted.is_empty()
        })
        .await;
        let tokens = bombs[place].status().hosted;
        let nowhere = bombs[place].entity("nowhere");
        // One waits there, and the next finds no room; it may wait already.
        let _ = nowhere.tell(Bomb { armed: false }).await;
        assert!(nowhere.tell(Bomb { armed: true }).await.is_err());
        until("all to be hosted anew", || {
            hosted() == all && tokens.iter().all(|it| !bombs[place].status().hosted.contains(it))
        })
        .await;
        for id in (0..40).map(|id| id.to_string()).filter(|id| Some(shard_of(id, SHARDS)) != never)
        {
            for bombs in &bombs {
                bombs.entity(&id).ask(Ping).within(LONG).await.unwrap();
            }
        }
    }
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn control_that_panics_begins_anew() {
    control_panics(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_sessions_too() {
    control_panics(true).await;
}
