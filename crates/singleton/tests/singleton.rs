//! Real nodes on loopback, in one process.
#![allow(clippy::disallowed_methods, reason = "real nodes take real time")]

mod loopback;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure_cluster::messaging::{Ask, NotDone, Received};
use tenure_cluster::{Address, Cluster, Status as MemberStatus};
use tenure_lease::backend::{
    Acquire, Acquired, Backend, Boxed, Release, Released, Renew, Renewed, StoreError,
    StoreErrorKind, StoreInfo,
};
use tenure_lease::{Lease, LeaseName, MemoryStore, Moment, Record, Store, Token};
use tenure_singleton::{
    Actor, BoxError, Hosted, Proxy, Settings, Singletons as _, StartError, Status, StopReason,
};
use tokio::time::{sleep, timeout};

const TTL: Duration = Duration::from_secs(2);
/// Where starts are counted: what a busy machine loses would be one more.
const LONG_TTL: Duration = Duration::from_secs(10);

/// A store, and the nodes that share it.
struct World {
    records: MemoryStore,
    store: Store,
    clusters: Vec<Cluster>,
}

impl World {
    async fn new(count: usize) -> Self {
        let records = MemoryStore::default();
        let store = Store::new(records.clone());
        let mut world = Self { records, store, clusters: Vec::new() };
        for _ in 0..count {
            // One after the other: the first is the oldest.
            world.join(&loopback::address(), &[]).await;
        }
        world
    }

    async fn join(&mut self, address: &str, roles: &[&str]) -> Cluster {
        let lease = self.store.lease("shop.formation").ttl(Duration::from_secs(3));
        let mut settings = tenure_cluster::Settings::new("shop")
            .name("node")
            .address(Address::new(address).unwrap())
            .formation(lease);
        settings.roles = roles.iter().map(ToString::to_string).collect();
        settings.plaintext_without_any_protection = true;
        settings.membership.heartbeat_interval = Duration::from_millis(200);
        settings.membership.acceptable_pause = Duration::from_secs(1);
        settings.membership.gossip_interval = Duration::from_millis(200);
        let cluster = soon(Cluster::join(settings)).await.unwrap();
        self.clusters.push(cluster.clone());
        let count = self.clusters.len();
        soon(async {
            while cluster.view().members().filter(|it| it.1.status == MemberStatus::Up).count()
                < count
            {
                sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
        cluster
    }

    fn lease(&self) -> Lease {
        self.store.lease("shop.cron").ttl(TTL)
    }

    async fn end(self) {
        for cluster in &self.clusters {
            soon(cluster.leave()).await;
        }
    }
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(30), future).await.expect("within half a minute")
}

async fn until(what: impl Fn() -> bool) {
    soon(async {
        while !what() {
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// What happened, on all nodes.
#[derive(Default)]
struct Book {
    active: Mutex<Vec<String>>,
    overlaps: AtomicU64,
    tokens: Mutex<Vec<Token>>,
    stops: Mutex<Vec<(String, StopReason)>>,
    starts: AtomicU64,
}

impl Book {
    fn begin(&self, node: &str, token: Token) {
        let mut active = self.active.lock().unwrap();
        if !active.is_empty() {
            self.overlaps.fetch_add(1, SeqCst);
        }
        active.push(node.to_owned());
        self.tokens.lock().unwrap().push(token);
        self.starts.fetch_add(1, SeqCst);
    }

    fn end(&self, node: &str, reason: StopReason) {
        self.active.lock().unwrap().retain(|it| it != node);
        self.stops.lock().unwrap().push((node.to_owned(), reason));
    }

    fn host(&self) -> Option<String> {
        self.active.lock().unwrap().first().cloned()
    }
}

/// Counts, and says where it is.
struct Counter {
    book: Arc<Book>,
    node: String,
    total: Vec<u64>,
    slow_stop: Duration,
}

#[derive(Serialize, Deserialize)]
enum Message {
    Add(u64),
    Where,
    All,
    Panic,
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
struct All;
impl Ask for All {
    type Reply = Vec<u64>;
}
impl From<All> for Message {
    fn from(_: All) -> Self {
        Self::All
    }
}

impl Actor for Counter {
    type Message = Message;

    async fn started(&mut self, hosted: &Hosted) -> Result<(), BoxError> {
        self.node = hosted.cluster().me().address.to_string();
        self.book.begin(&self.node, hosted.token());
        Ok(())
    }

    async fn receive(&mut self, received: Received<Message>, _: &Hosted) -> Result<(), BoxError> {
        match received.message {
            Message::Add(number) => self.total.push(number),
            Message::Where => received.reply.answer::<Where>(self.node.clone()).await?,
            Message::All => received.reply.answer::<All>(self.total.clone()).await?,
            Message::Panic => {
                self.book.active.lock().unwrap().clear();
                panic!("as it was told");
            }
        }
        Ok(())
    }

    async fn stopped(&mut self, reason: StopReason) {
        sleep(self.slow_stop).await;
        self.book.end(&self.node, reason);
    }
}

fn counter(book: &Arc<Book>, slow_stop: Duration) -> impl Fn() -> Counter + Send + Sync + 'static {
    let book = book.clone();
    move || Counter { book: book.clone(), node: String::new(), total: Vec::new(), slow_stop }
}

fn start(world: &World, book: &Arc<Book>, slow_stop: Duration) -> Vec<Proxy<Message>> {
    let start = |cluster: &Cluster| {
        let singleton = cluster.singleton("cron").lease(world.lease());
        singleton.start(counter(book, slow_stop)).unwrap()
    };
    world.clusters.iter().map(start).collect()
}

fn address(cluster: &Cluster) -> String {
    cluster.me().address.to_string()
}

/// Another holds the lease: nothing runs, and it says why. When the lease is free: at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquire_blocks_spawn() {
    let world = World::new(2).await;
    // Until it is given back.
    let tenure = world.lease().ttl(TTL * 30).acquire().await.unwrap();
    let book = Arc::<Book>::default();
    let proxies = start(&world, &book, Duration::ZERO);
    sleep(TTL * 2).await;
    assert_eq!(book.starts.load(SeqCst), 0);
    let Status::Nowhere { why_not: Some(why), .. } = proxies[0].status() else { panic!() };
    assert!(why.contains("another node still holds its lease"), "{why}");
    tenure.release().await;
    until(|| book.host() == Some(address(&world.clusters[0]))).await;
    for proxy in &proxies {
        let found = soon(proxy.ask(Where).within(Duration::from_secs(5))).await.unwrap();
        assert_eq!(found, address(&world.clusters[0]), "the oldest hosts it");
    }
    assert!(matches!(proxies[1].status(), Status::Hosted { .. }));
    world.end().await;
    assert_eq!(book.overlaps.load(SeqCst), 0);
}

/// The record is taken away: it stops at once, and is hosted again under a higher token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_lost_stops_entity() {
    let world = World::new(2).await;
    let book = Arc::<Book>::default();
    let _proxies = start(&world, &book, Duration::ZERO);
    until(|| book.host().is_some()).await;
    let name = world.lease().name().unwrap().clone();
    assert!(world.records.delete(&name));
    until(|| !book.stops.lock().unwrap().is_empty()).await;
    let (_, reason) = book.stops.lock().unwrap()[0].clone();
    assert!(matches!(reason, StopReason::LeaseLost(_)), "{reason}");
    until(|| book.starts.load(SeqCst) >= 2).await;
    let tokens = book.tokens.lock().unwrap().clone();
    assert!(tokens[0] < tokens[1], "{tokens:?}");
    world.end().await;
    assert_eq!(book.overlaps.load(SeqCst), 0);
}

/// A host that leaves stops, gives back, tells, and only then is gone; a singleton that takes long to
/// stop does not overlap its successor.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn release_on_leave() {
    let mut world = World::new(3).await;
    let book = Arc::<Book>::default();
    let proxies = start(&world, &book, Duration::from_secs(1));
    until(|| book.host().is_some()).await;
    let leaving = world.clusters.remove(0);
    soon(leaving.leave()).await;
    let (node, reason) = book.stops.lock().unwrap()[0].clone();
    assert_eq!(
        (node, reason),
        (address(&leaving), StopReason::Leaving),
        "it stopped before it was gone"
    );
    until(|| book.host() == Some(address(&world.clusters[0]))).await;
    let found = soon(proxies[2].ask(Where).within(Duration::from_secs(5))).await.unwrap();
    assert_eq!(found, address(&world.clusters[0]));
    world.end().await;
    assert_eq!(book.overlaps.load(SeqCst), 0);
}

/// While hosts come and go, messages told one after the other arrive in order, none twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn told_in_order_through_hand_overs() {
    let mut world = World::new(3).await;
    let book = Arc::<Book>::default();
    let proxy = world.clusters[2].singleton("cron").proxy::<Message>().unwrap();
    for number in 0..100 {
        proxy.tell(Message::Add(number)).await.unwrap();
    }
    let Status::Nowhere { waiting: 100, .. } = proxy.status() else { panic!("{}", proxy.status()) };
    let _proxies = start(&world, &book, Duration::ZERO);
    let all = soon(proxy.ask(All).within(Duration::from_secs(10))).await.unwrap();
    assert_eq!(all, (0..100).collect::<Vec<_>>());
    let (told, stop) = (AtomicU64::new(100), AtomicBool::new(false));
    let telling = async {
        while !stop.load(SeqCst) {
            proxy.tell(Message::Add(told.fetch_add(1, SeqCst))).await.unwrap();
            sleep(Duration::from_micros(300)).await;
        }
    };
    let leaving = world.clusters.remove(0);
    let moving = async {
        sleep(Duration::from_millis(300)).await;
        leaving.leave().await;
        until(|| book.host() == Some(address(&world.clusters[0]))).await;
        sleep(Duration::from_millis(300)).await;
        stop.store(true, SeqCst);
    };
    soon(async { tokio::join!(telling, moving) }).await;
    let all = soon(proxy.ask(All).within(Duration::from_secs(10))).await.unwrap();
    assert!(!all.is_empty());
    let expected: Vec<u64> = (all[0]..told.load(SeqCst)).collect();
    assert_eq!(all, expected, "from the first that the second host had, all of them");
    world.end().await;
}

/// What panics is started again, under the same token; proxies find it again on the same node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_restarts_it() {
    let world = World::new(2).await;
    let book = Arc::<Book>::default();
    let proxies = start(&world, &book, Duration::ZERO);
    let proxy = &proxies[1];
    soon(proxy.ask(Where).within(Duration::from_secs(5))).await.unwrap();
    proxy.tell(Message::Panic).await.unwrap();
    until(|| book.starts.load(SeqCst) == 2).await;
    let found = soon(proxy.ask(Where).within(Duration::from_secs(5))).await.unwrap();
    assert_eq!(found, address(&world.clusters[0]));
    let tokens = book.tokens.lock().unwrap().clone();
    assert_eq!(tokens[0], tokens[1]);
    world.end().await;
}

/// One that does not start here starts elsewhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unable_here_able_there() {
    let world = World::new(2).await;
    let first = address(&world.clusters[0]);
    let hosts = Arc::<Mutex<Vec<String>>>::default();
    let mut proxies = Vec::new();
    for cluster in &world.clusters {
        let (first, hosts) = (first.clone(), hosts.clone());
        let settings = Settings {
            restart_backoff: Duration::from_millis(20),
            start_attempts: 3,
            ..Settings::default()
        };
        let singleton = cluster.singleton("cron").settings(settings).lease(world.lease());
        let work = move |hosted: Hosted| {
            let (me, hosts) = (address(hosted.cluster()), hosts.clone());
            let fails = me == first;
            async move {
                if fails {
                    return Err("it does not work here".into());
                }
                hosts.lock().unwrap().push(me);
                hosted.stopping().await;
                Ok(())
            }
        };
        proxies.push(singleton.run(work).unwrap());
    }
    until(|| !hosts.lock().unwrap().is_empty()).await;
    assert_eq!(*hosts.lock().unwrap(), [address(&world.clusters[1])]);
    world.end().await;
}

/// A store that lets nobody write until it is opened.
struct Closed {
    records: MemoryStore,
    open: Arc<AtomicBool>,
    asked: Arc<AtomicU64>,
}

impl Backend for Closed {
    fn info(&self) -> StoreInfo {
        self.records.info()
    }

    fn acquire(&self, request: Acquire) -> Boxed<'_, Result<Acquired, StoreError>> {
        self.asked.fetch_add(1, SeqCst);
        if self.open.load(SeqCst) {
            return self.records.acquire(request);
        }
        Box::pin(async { Err(StoreError::new(StoreErrorKind::Denied, "you may not write here")) })
    }

    fn renew(&self, request: Renew) -> Boxed<'_, Result<Renewed, StoreError>> {
        self.records.renew(request)
    }

    fn release(&self, request: Release) -> Boxed<'_, Result<Released, StoreError>> {
        self.records.release(request)
    }

    fn read(&self, names: Vec<LeaseName>) -> Boxed<'_, Result<Vec<Option<Record>>, StoreError>> {
        self.records.read(names)
    }
}

/// A store that says no is asked again after the retry interval, and not in between.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retry_interval() {
    let world = World::new(1).await;
    let (open, asked) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
    let (records, book) = (MemoryStore::default(), Arc::<Book>::default());
    let store = Store::new(Closed { records, open: open.clone(), asked: asked.clone() });
    let interval = Duration::from_millis(500);
    let settings = Settings { acquire_retry_interval: interval, ..Settings::default() };
    let singleton = world.clusters[0].singleton("cron").settings(settings);
    let began = Moment::now();
    let proxy = singleton
        .lease(store.lease("shop.cron").ttl(TTL))
        .start(counter(&book, Duration::ZERO))
        .unwrap();
    until(|| asked.load(SeqCst) >= 5).await;
    let took = Moment::now().since(began);
    assert!(took >= interval * 4, "five in {took:?}");
    let Status::Nowhere { why_not: Some(why), .. } = proxy.status() else { panic!() };
    assert!(why.contains("the store refuses the lease"), "{why}");
    assert_eq!(book.starts.load(SeqCst), 0);
    open.store(true, SeqCst);
    until(|| book.host().is_some()).await;
    world.end().await;
}

/// One that is declared down stops, gives back, and only then may the next one start, however long it
/// takes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn downed_stops_then_releases() {
    let mut world = World::new(3).await;
    let book = Arc::<Book>::default();
    let _proxies = start(&world, &book, Duration::from_secs(2));
    until(|| book.host().is_some()).await;
    let downed = world.clusters.remove(0);
    world.clusters[0].down(&downed.me()).await;
    until(|| book.host() == Some(address(&world.clusters[0]))).await;
    let (node, reason) = book.stops.lock().unwrap()[0].clone();
    assert_eq!((node, reason), (address(&downed), StopReason::OutOfCluster));
    world.end().await;
    assert_eq!(book.overlaps.load(SeqCst), 0);
}

/// Two managers of two clusters that know nothing of each other: the lease alone decides.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_managers_race_and_one_wins() {
    let (one, mut other) = (World::new(1).await, World::new(1).await);
    other.store = one.store.clone();
    let book = Arc::<Book>::default();
    let start = |world: &World| {
        let singleton = world.clusters[0].singleton("cron").lease(world.lease().ttl(LONG_TTL));
        singleton.start(counter(&book, Duration::from_millis(300))).unwrap()
    };
    let (_one, _other) = (start(&one), start(&other));
    until(|| book.host().is_some()).await;
    sleep(TTL * 2).await;
    assert_eq!(book.starts.load(SeqCst), 1);
    let (host, standby) = match book.host() == Some(address(&one.clusters[0])) {
        true => (one, other),
        false => (other, one),
    };
    host.end().await;
    until(|| book.host() == Some(address(&standby.clusters[0]))).await;
    standby.end().await;
    assert_eq!(book.overlaps.load(SeqCst), 0);
}

/// Without a lease: the oldest, and the next one as soon as it has said that it has stopped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_lease_path() {
    let mut world = World::new(3).await;
    let book = Arc::<Book>::default();
    let start = |cluster: &Cluster| {
        cluster.singleton("cron").start(counter(&book, Duration::from_secs(1))).unwrap()
    };
    let _proxies: Vec<_> = world.clusters.iter().map(start).collect();
    for turn in 0..3 {
        until(|| book.host() == Some(address(&world.clusters[0]))).await;
        let (leaving, left) = (world.clusters.remove(0), Moment::now());
        soon(leaving.leave()).await;
        let took = Moment::now().since(left);
        assert!(took < Settings::default().removal_margin, "turn {turn}: {took:?}");
    }
    assert_eq!(book.overlaps.load(SeqCst), 0);
    assert_eq!(book.starts.load(SeqCst), 3);
}

/// Each host in turn leaves and comes back at its address; the next one leaves a second after that. With
/// a lease and without one; `TENURE_ROUNDS=50` for many.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rolling_restart_on_fixed_addresses() {
    let rounds = std::env::var("TENURE_ROUNDS").map_or(3, |count| count.parse().unwrap());
    for leased in [false, true] {
        let mut world = World::new(3).await;
        let book = Arc::<Book>::default();
        let start = |world: &World, cluster: &Cluster| {
            let mut singleton = cluster.singleton("cron");
            if leased {
                singleton = singleton.lease(world.lease().ttl(LONG_TTL));
            }
            singleton.start(counter(&book, Duration::from_millis(300))).unwrap()
        };
        let _proxies: Vec<_> = world.clusters.iter().map(|it| start(&world, it)).collect();
        for round in 0..rounds {
            until(|| book.host() == Some(address(&world.clusters[0]))).await;
            let leaving = world.clusters.remove(0);
            soon(leaving.leave()).await;
            let again = world.join(&address(&leaving), &[]).await;
            start(&world, &again);
            sleep(Duration::from_secs(1)).await;
            assert_eq!(book.overlaps.load(SeqCst), 0, "round {round}, leased: {leased}");
        }
        assert_eq!(book.starts.load(SeqCst), rounds + 1);
        world.end().await;
    }
}

/// A node without the role never hosts it, and finds it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn roles() {
    let mut world = World::new(1).await;
    let worker = world.join(&loopback::address(), &["worker"]).await;
    let book = Arc::<Book>::default();
    let mut proxies = Vec::new();
    for cluster in &world.clusters {
        let singleton = cluster.singleton("cron").role("worker").lease(world.lease());
        proxies.push(singleton.start(counter(&book, Duration::ZERO)).unwrap());
    }
    let found = soon(proxies[0].ask(Where).within(Duration::from_secs(5))).await.unwrap();
    assert_eq!(found, address(&worker));
    let again = worker.singleton("cron").role("worker").start(counter(&book, Duration::ZERO));
    assert!(matches!(again, Err(StartError::Started(_))));
    world.end().await;
}

/// A lease that could never be held is found when the singleton is started: it would never run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_cannot_work_is_refused_at_start() {
    let world = World::new(1).await;
    let book = Arc::<Book>::default();
    let cron = || world.clusters[0].singleton("cron");
    let session = world.store.lease("node-0").ttl(TTL).kept_session().unwrap();
    for (builder, words) in [
        (cron().lease(world.store.lease("app_cron")), "app_cron"),
        (cron().lease(world.lease().ttl(Duration::from_millis(1))), "keeps ttls from 10ms"),
        (cron().session(&session, "app_cron"), "app_cron"),
    ] {
        let error = builder.start(counter(&book, Duration::ZERO)).map(drop).unwrap_err();
        assert!(matches!(error, StartError::Lease(_)), "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
    // Whoever only talks to it needs no lease.
    assert!(cron().lease(world.store.lease("app_cron")).proxy::<Message>().is_ok());
    world.end().await;
}

/// More than is allowed to wait is an error to the sender; a question that finds no host is not done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_is_bounded() {
    let world = World::new(1).await;
    let settings = Settings { buffer: 3, ..Settings::default() };
    let proxy =
        world.clusters[0].singleton("nobody").settings(settings).proxy::<Message>().unwrap();
    for number in 0..3 {
        proxy.tell(Message::Add(number)).await.unwrap();
    }
    assert_eq!(proxy.tell(Message::Add(3)).await, Err(NotDone::Full));
    let asked = proxy.ask(Where).within(Duration::from_millis(300)).await;
    assert!(asked.unwrap_err().to_string().starts_with("not done"));
    world.end().await;
}

/// Several on one session: one lease each, one renewal for all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_on_one_session() {
    let world = World::new(1).await;
    let session = world.store.lease("node-1").ttl(TTL).kept_session().unwrap();
    soon(session.held()).await;
    let running = Arc::new(AtomicU64::new(0));
    for number in 0..10 {
        let running = running.clone();
        let singleton = world.clusters[0]
            .singleton(&format!("job-{number}"))
            .session(&session, &format!("shop.job-{number}"));
        singleton
            .run(move |hosted| {
                let running = running.clone();
                async move {
                    assert!(hosted.tenure().is_some_and(|tenure| tenure.is_held()));
                    running.fetch_add(1, SeqCst);
                    hosted.stopping().await;
                    running.fetch_sub(1, SeqCst);
                    Ok(())
                }
            })
            .unwrap();
    }
    until(|| running.load(SeqCst) == 10).await;
    world.end().await;
    assert_eq!(running.load(SeqCst), 0);
}
