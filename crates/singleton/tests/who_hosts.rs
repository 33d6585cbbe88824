//! Members that do not run a singleton: it is served all the same, whatever guards it and whichever of
//! the nodes it is. Real nodes.
#![allow(clippy::disallowed_methods, reason = "real nodes take real time")]

mod loopback;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use tenure_cluster::messaging::Receiver;
use tenure_cluster::{Address, Cluster, Status as MemberStatus};
use tenure_lease::{MemoryStore, Store};
use tenure_singleton::{Builder, Proxy, Settings, Singletons as _};
use tokio::time::{sleep, timeout};

const TTL: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug)]
enum Guard {
    Gossip,
    Lease,
    Session,
}

/// What one of three members is.
#[derive(Clone, Copy, Debug)]
enum Other {
    /// It opened a proxy.
    Proxy,
    /// It has never heard of singletons.
    Without,
    /// Its program takes what is said about singletons, and never says anything.
    Mute,
}

struct World {
    store: Store,
    clusters: Vec<Cluster>,
    /// How many instances run, and whether there were ever two.
    running: Arc<AtomicUsize>,
    twice: Arc<AtomicUsize>,
}

impl World {
    async fn new(count: usize) -> Self {
        let store = Store::new(MemoryStore::default());
        let mut world =
            Self { store, clusters: Vec::new(), running: Arc::default(), twice: Arc::default() };
        for _ in 0..count {
            world.join().await;
        }
        world
    }

    /// One after the other: the first is the oldest.
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
        self.clusters.push(cluster.clone());
        let count = self.clusters.len();
        let is_up = |status: MemberStatus| status == MemberStatus::Up;
        soon(async {
            while cluster.view().members().filter(|it| is_up(it.1.status)).count() < count {
                sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
    }

    fn cron(&self, place: usize, guard: Guard) -> Builder {
        let settings = Settings {
            stable_after: Duration::from_secs(1),
            removal_margin: Duration::from_secs(1),
            ..Settings::default()
        };
        let builder = self.clusters[place].singleton("cron").settings(settings);
        match guard {
            Guard::Gossip => builder,
            Guard::Lease => builder.lease(self.store.lease("shop.cron").ttl(TTL)),
            Guard::Session => {
                let session = self.store.lease(&format!("node-{place}")).ttl(TTL).kept_session();
                builder.session(&session.unwrap(), "shop.cron")
            }
        }
    }

    fn run(&self, place: usize, guard: Guard) -> Proxy<()> {
        let (running, twice) = (self.running.clone(), self.twice.clone());
        let work = move |hosted: tenure_singleton::Hosted| {
            let (running, twice) = (running.clone(), twice.clone());
            async move {
                if running.fetch_add(1, SeqCst) > 0 {
                    twice.fetch_add(1, SeqCst);
                }
                hosted.stopping().await;
                running.fetch_sub(1, SeqCst);
                Ok(())
            }
        };
        self.cron(place, guard).run(work).unwrap()
    }

    async fn until_runs(&self, what: &str, proxies: &[Proxy<()>]) -> f64 {
        let begun = Instant::now();
        let runs = async {
            while self.running.load(SeqCst) == 0 {
                sleep(Duration::from_millis(5)).await;
            }
        };
        let waited = timeout(PATIENCE, runs).await;
        let lines: Vec<_> = proxies.iter().map(|it| it.status().to_string()).collect();
        waited.unwrap_or_else(|_| panic!("{what}: {lines:#?}"));
        begun.elapsed().as_secs_f64()
    }

    async fn end(self) {
        for cluster in &self.clusters {
            soon(cluster.leave()).await;
        }
        assert_eq!(self.twice.load(SeqCst), 0, "it ran twice at once");
    }
}

/// Three members, of which the one at `place` (0 is the oldest) does not run it. How long it took until it
/// ran, and, after the older of the others has left in order, until it did again.
async fn serve(guard: Guard, other: Other, place: usize) -> (f64, f64) {
    let world = World::new(3).await;
    let mut _deaf: Option<Receiver<u8>> = None;
    let mut _proxy: Option<Proxy<()>> = None;
    match other {
        Other::Proxy => _proxy = Some(world.cron(place, Guard::Gossip).proxy().unwrap()),
        Other::Without => {}
        Other::Mute => {
            let deaf = world.clusters[place].receiver("tenure/board/singletons");
            _deaf = Some(deaf.unwrap());
        }
    }
    let places: Vec<usize> = (0..3).filter(|it| *it != place).collect();
    let proxies: Vec<_> = places.iter().map(|it| world.run(*it, guard)).collect();
    let what = format!("{guard:?}, {other:?} at {place}");
    let first = world.until_runs(&what, &proxies).await;
    soon(world.clusters[places[0]].leave()).await;
    let second = world.until_runs(&what, &proxies).await;
    world.end().await;
    (first, second)
}

async fn table(guard: Guard) {
    let (mut rows, mut failed) = (tokio::task::JoinSet::new(), Vec::new());
    for other in [Other::Proxy, Other::Without, Other::Mute] {
        for place in 0..3 {
            rows.spawn(async move { (other, place, serve(guard, other, place).await) });
        }
    }
    while let Some(row) = rows.join_next().await {
        match row {
            Ok((other, place, (first, second))) => println!(
                "{guard:?}, {other:?} at {place}: runs after {first:.1} s, after a leave {second:.1} s"
            ),
            Err(error) => failed.push(error.to_string()),
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gossip_runs_it_beside_members_that_do_not() {
    table(Guard::Gossip).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_runs_it_beside_members_that_do_not() {
    table(Guard::Lease).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_runs_it_beside_members_that_do_not() {
    table(Guard::Session).await;
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(30), future).await.expect("within half a minute")
}

/// Many ttls, on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(20);

/// Without a lease the oldest that runs it has it. One that is older, and starts later, waits for that one to
/// leave.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_member_that_starts_late_waits() {
    let world = World::new(3).await;
    let young = world.run(1, Guard::Gossip);
    world.until_runs("the younger one", std::slice::from_ref(&young)).await;
    let old = world.run(0, Guard::Gossip);
    sleep(Duration::from_secs(3)).await;
    assert_eq!(world.twice.load(SeqCst), 0, "{}", old.status());
    soon(world.clusters[1].leave()).await;
    world.until_runs("the older one", &[old]).await;
    world.end().await;
}
