//! What the tests against real servers share: finding one, doing things to it, and the checks that
//! are the same for each of them.
#![allow(clippy::disallowed_methods)] // Real servers, real time.
#![allow(dead_code)] // Not every store's test needs all of it.

pub(crate) mod proxy;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use tokio::sync::Barrier;
use tokio::task::JoinSet;

use tenure_lease::backend::{
    Acquire, Acquired, Backend, Boxed, Release, StoreError, StoreErrorKind,
};
use tenure_lease::record::Version;
use tenure_lease::{LeaseName, Loss, Moment, Nonce, Owner, Record, Settings, Store, Token};
use tenure_testkit::cost::Cost;

use proxy::Proxy;

/// A server that scripts/servers started.
#[derive(Clone)]
pub(crate) struct Server {
    name: &'static str,
    pub(crate) address: String,
}

/// The right to use the server beside other tests of this process that mostly wait; or to have it
/// alone, to stop it or to keep it busy.
pub(crate) enum Turn {
    Beside(RwLockReadGuard<'static, ()>),
    Alone(RwLockWriteGuard<'static, ()>),
}

impl Turn {
    // A test that failed leaves the server as it found it, or the next one says so.

    pub(crate) fn beside() -> Self {
        Self::Beside(TURN.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn alone() -> Self {
        Self::Alone(TURN.write().unwrap_or_else(PoisonError::into_inner))
    }
}

static TURN: RwLock<()> = RwLock::new(());

impl Server {
    /// The server, to be used beside others who mostly wait; `None` if there is none, which is said.
    pub(crate) fn find(name: &'static str) -> Option<(Self, Turn)> {
        Self::named(name, name).map(|server| (server, Turn::beside()))
    }

    /// The server, and the right to stop it or to keep it busy.
    pub(crate) fn find_alone(name: &'static str) -> Option<(Self, Turn)> {
        Self::named(name, name).map(|server| (server, Turn::alone()))
    }

    /// The server of a store whose feature may have another name.
    pub(crate) fn named(name: &'static str, feature: &str) -> Option<Self> {
        let variable = format!("TENURE_TEST_{}", name.to_uppercase());
        let Ok(address) = std::env::var(&variable) else {
            eprintln!(
                "skipped: {variable} is not set; enable it with: scripts/servers run --only {name} \
                 -- cargo test -p tenure-stores --features {feature}"
            );
            return None;
        };
        Some(Self { name, address })
    }

    /// `restart`, `pause`, `resume` or `kill`.
    pub(crate) async fn control(&self, command: &'static str) {
        let script = std::env::var("TENURE_TEST_SERVERS_SCRIPT");
        let script = script.expect("scripts/servers sets TENURE_TEST_SERVERS_SCRIPT");
        run(&script, vec![command.to_owned(), self.name.to_owned()], vec![]).await;
    }
}

/// Runs a program of the operator's; its output.
pub(crate) async fn run(
    program: &str,
    arguments: Vec<String>,
    environment: Vec<(&'static str, String)>,
) -> Vec<u8> {
    let program = program.to_owned();
    let task = tokio::task::spawn_blocking(move || {
        let output = Command::new(&program).args(&arguments).envs(environment).output();
        let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
        assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
        output.stdout
    });
    task.await.expect("it ran")
}

/// A server of a test's own, which ends with it.
pub(crate) struct Private {
    child: Child,
    pub(crate) directory: PathBuf,
}

impl Private {
    /// A new folder with a certificate for 127.0.0.1 in it.
    pub(crate) async fn folder() -> PathBuf {
        let name = format!("tenure-test-{:016x}", Nonce::random().bits() as u64);
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir(&directory).expect("a folder");
        let (key, certificate) = (directory.join("key.pem"), directory.join("cert.pem"));
        let arguments = format!(
            "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=test -keyout {} -out {} \
             -addext basicConstraints=critical,CA:FALSE -addext subjectAltName=IP:127.0.0.1",
            key.display(),
            certificate.display()
        );
        run("openssl", arguments.split(' ').map(str::to_owned).collect(), vec![]).await;
        directory
    }

    pub(crate) fn start(
        program: &str,
        arguments: &[&str],
        directory: &Path,
        environment: &[(&str, &str)],
    ) -> Self {
        let child = Command::new(program)
            .args(arguments)
            .envs(environment.iter().copied())
            .current_dir(directory)
            .env("TMPDIR", directory)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let child = child.unwrap_or_else(|error| panic!("{program}: {error}"));
        Self { child, directory: directory.to_owned() }
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        // What cannot be ended or removed is left; the test has its verdict.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

pub(crate) fn fresh(stem: &str) -> LeaseName {
    let name = format!("{stem}-{:016x}", Nonce::random().bits() as u64);
    LeaseName::new(&name).expect("a stem, a hyphen and hexadecimal digits are a name")
}

pub(crate) fn request(name: &LeaseName, owner: &str, ttl: Duration) -> Acquire {
    Acquire {
        name: name.clone(),
        claim: Nonce::random(),
        owner: Owner::named(owner),
        ttl,
        session: None,
        note: None,
        create: true,
        takeover: None,
        expected: None,
        above: 0,
        unattended: false,
    }
}

/// Puts a request until it is answered: a store may leave one unanswered at any time, and a keeper
/// copes; so do the tests, except where the answer itself is the point.
async fn answered<'a, T>(put: impl Fn() -> Boxed<'a, Result<T, StoreError>>) -> T {
    for _ in 0..REPEATS {
        match put().await {
            Ok(answer) => return answer,
            Err(error) if error.kind() == StoreErrorKind::Unavailable => println!("{error}"),
            Err(error) => panic!("{error}"),
        }
        tokio::time::sleep(REPEAT_AFTER).await;
    }
    put().await.expect("an answer")
}

/// Wins what must be free; the claim and its token.
pub(crate) async fn win(backend: &dyn Backend, request: Acquire) -> (Nonce, Token) {
    let claim = request.claim;
    match answered(|| backend.acquire(request.clone())).await {
        Acquired::Won { token, .. } => (claim, token),
        // It was put before, and not answered.
        Acquired::Lost(Some(record)) if record.is_of(claim) => (claim, record.token),
        Acquired::Lost(record) => panic!("not won: {record:?}"),
    }
}

async fn read(backend: &dyn Backend, name: &LeaseName) -> Option<Record> {
    answered(|| backend.read(vec![name.clone()])).await.remove(0)
}

/// Eight clients on fifty names each of absent, released and expired records: one winner each.
pub(crate) async fn race(open: impl Fn() -> Store, ttl: Duration, frees_after: Duration) {
    let clients: Vec<Store> = (0..CLIENTS).map(|_| open()).collect();
    let (mut released, mut expired) = (JoinSet::new(), JoinSet::new());
    for _ in 0..NAMES {
        let (store, name) = (clients[0].clone(), fresh("race-released"));
        released.spawn(async move {
            let (claim, token) = win(&**store.backend(), request(&name, "first", ttl)).await;
            let release = Release { name: name.clone(), claim, known: vec![claim] };
            answered(|| store.backend().release(release.clone())).await;
            Raced { name, version: None, before: token }
        });
        let (store, name) = (clients[0].clone(), fresh("race-expired"));
        expired.spawn(async move {
            let (_, before) = win(&**store.backend(), request(&name, "first", ttl)).await;
            let record = read(&**store.backend(), &name).await;
            // A store that frees by itself does not need it, and one that watches does.
            Raced { name, version: record.map(|record| record.version), before }
        });
    }
    let (mut free, expired) = (released.join_all().await, expired.join_all().await);
    let absent = || Raced { name: fresh("race-absent"), version: None, before: Token::default() };
    free.extend((0..NAMES).map(|_| absent()));
    let expire = tokio::time::sleep(frees_after);
    meet(&clients, free, ttl * 4).await;
    expire.await;
    meet(&clients, expired, ttl * 4).await;
}

/// A name that all want at the same moment.
struct Raced {
    name: LeaseName,
    version: Option<Version>,
    /// The token that whoever had it before them had.
    before: Token,
}

/// All clients meet at each name, at a few names at a time. Whether a claim that was not
/// answered has won, the record tells.
async fn meet(clients: &[Store], names: Vec<Raced>, ttl: Duration) {
    let begun = Moment::now();
    let names = Arc::new(names);
    let mut racing = JoinSet::new();
    for place in 0..PLACES {
        let barrier = Arc::new(Barrier::new(clients.len()));
        for (client, store) in clients.iter().enumerate() {
            let (store, names, barrier) = (store.clone(), Arc::clone(&names), Arc::clone(&barrier));
            racing.spawn(async move {
                let (mut won, mut unanswered) = (Vec::new(), Vec::new());
                for (index, raced) in names.iter().enumerate().skip(place).step_by(PLACES) {
                    let mut attempt = request(&raced.name, &format!("client-{client}"), ttl);
                    attempt.takeover = raced.version.clone();
                    let claim = attempt.claim;
                    barrier.wait().await;
                    match store.backend().acquire(attempt).await {
                        Ok(Acquired::Won { token, .. }) => {
                            assert!(token > raced.before, "token {token} after {}", raced.before);
                            won.push(index);
                        }
                        Ok(Acquired::Lost(_)) => {}
                        Err(error) if error.kind() == StoreErrorKind::Unavailable => {
                            println!("{}: {error}", raced.name);
                            unanswered.push((index, claim));
                        }
                        Err(error) => panic!("{}: {error}", raced.name),
                    }
                }
                (won, unanswered)
            });
        }
    }
    let (mut winners, mut unanswered) = (vec![0; names.len()], Vec::new());
    for (won, unknown) in racing.join_all().await {
        won.into_iter().for_each(|index| winners[index] += 1);
        unanswered.extend(unknown);
    }
    for (index, claim) in unanswered {
        let Raced { name, before, .. } = &names[index];
        let record = read(&**clients[0].backend(), name).await.expect("somebody won it");
        if record.is_of(claim) {
            assert!(record.token > *before, "token {} after {before}", record.token);
            winners[index] += 1;
        }
    }
    for (raced, winners) in names.iter().zip(&winners) {
        assert_eq!(*winners, 1, "{} has {winners} winners", raced.name);
    }
    let took = Moment::now().since(begun);
    println!("{} races of {}, one winner each, in {took:?}", names.len(), clients.len());
}

/// From a release to the next tenure, waiting on a watch; printed beside what one write takes.
pub(crate) async fn hand_over(open: impl Fn() -> Store, settings: Settings) {
    let (stores, name) = ([open(), open()], fresh("hand-over"));
    let lease = |turn: usize| stores[turn % 2].lease(name.as_str()).settings(settings.clone());
    let mut tenure = lease(0).acquire().await.expect("acquired");
    let (mut took, mut writes) = (Vec::new(), Vec::new());
    for turn in 1..=HAND_OVERS {
        let next = lease(turn);
        let waiting = tokio::spawn(async move {
            let tenure = next.acquire().await.expect("acquired");
            (tenure, Moment::now())
        });
        tokio::time::sleep(Duration::from_millis(100)).await;
        let released = Moment::now();
        tenure.release().await;
        let (next, at) = waiting.await.expect("the next one");
        took.push(at.since(released));
        tenure = next;
        let written = Moment::now();
        tenure.write_note(vec![0; 8]).await.expect("written");
        writes.push(Moment::now().since(written));
    }
    took.sort();
    writes.sort();
    let (took, write) = (took[HAND_OVERS / 2], writes[HAND_OVERS / 2]);
    println!("hand-over p50 {took:?}, a renewal p50 {write:?}");
    assert!(took < settings.renew_interval / 2, "handed over in {took:?}: by polling");
}

/// A restart within half of the ttl: the tenure goes on, under its token. The ttl is at least this
/// long, and longer where a restart takes long.
pub(crate) async fn survives_restart(server: &Server, store: &Store, at_least: Duration) {
    let mut ttl = at_least.min(store.info().ttl_max);
    // A busy machine takes longer, sometimes longer than anybody could survive: then once more, with
    // a ttl that fits what it took.
    let (tenure, name) = loop {
        let name = fresh("restart");
        let lease = store.lease(name.as_str()).settings(Settings::new(ttl));
        let tenure = lease.acquire().await.expect("acquired");
        let begun = Moment::now();
        server.control("restart").await;
        let takes = Moment::now().since(begun);
        println!("restarted in {takes:?}; with a ttl of {ttl:?}");
        if takes * 3 <= ttl || ttl == store.info().ttl_max {
            break (tenure, name);
        }
        // Some stores count in whole seconds.
        ttl = Duration::from_secs((takes * 5).as_secs() + 1).min(store.info().ttl_max);
    };
    // Without a renewal after the restart it would be lost by then.
    tokio::select! {
        loss = tenure.lost() => panic!("lost over a restart: {loss}"),
        () = tokio::time::sleep(ttl) => {}
    }
    assert!(tenure.is_held());
    let record = store.inspect(name.as_str()).await.expect("inspected").expect("it is there");
    assert!(record.is_of(tenure.claim()) && record.token == tenure.token(), "{record:?}");
    tenure.release().await;
}

/// Away for two ttls: the holder stops in time, with a reason; when the server is back, what a live
/// holder has given up and what a dead one has left are each somebody's within five seconds.
pub(crate) async fn survives_outage(
    server: &Server,
    open: impl Fn() -> Store,
    settings: Settings,
    begin: &'static str,
    end: &'static str,
) {
    let (live, dead) = (fresh("outage-live"), fresh("outage-dead"));
    let (holder, rival) = (open(), open());
    let lease =
        |store: &Store, name: &LeaseName| store.lease(name.as_str()).settings(settings.clone());
    let tenure = lease(&holder, &live).acquire().await.expect("acquired");
    let left = win(&**holder.backend(), request(&dead, "dead", settings.ttl)).await;
    let waiting = |name: &LeaseName| {
        let lease = lease(&rival, name);
        tokio::spawn(async move {
            let tenure = lease.acquire().await.expect("acquired");
            (tenure, Moment::now())
        })
    };
    let (after_live, after_dead) = (waiting(&live), waiting(&dead));
    // They have seen both records before the server goes.
    tokio::time::sleep(settings.ttl / 10).await;
    server.control(begin).await;
    // It may have renewed until now.
    let gone = Moment::now();
    let loss = tokio::time::timeout(settings.ttl, tenure.lost()).await.expect("lost in time");
    let lost_after = Moment::now().since(gone);
    // A busy machine may look like a pause.
    assert!(matches!(loss, Loss::Expired | Loss::Paused), "the reason is {loss:?}");
    assert!(lost_after <= settings.kill_after(), "lost only after {lost_after:?}");
    tokio::time::sleep((gone + settings.ttl * 2).since(Moment::now())).await;
    server.control(end).await;
    let back = Moment::now();
    let token = tenure.token();
    drop(tenure);
    let (next_live, live_at) = after_live.await.expect("a next holder");
    let (next_dead, dead_at) = after_dead.await.expect("a next holder");
    let waits = (live_at.since(back), dead_at.since(back));
    println!("{begin}: lost {lost_after:?} after, the next holders {waits:?} after the return");
    assert!(waits.0 <= LATEST && waits.1 <= LATEST, "{waits:?}");
    assert!(next_live.token() > token && next_dead.token() > left.1);
    for (name, next) in [(&live, &next_live), (&dead, &next_dead)] {
        let record = rival.inspect(name.as_str()).await.expect("inspected").expect("there");
        assert!(next.is_held() && record.is_of(next.claim()), "{record:?}");
    }
}

/// A thousand attached leases cost the server one renewal per interval, of so many requests, and at
/// most one read per hundred leases and sweep. `through` opens the store at another address.
pub(crate) async fn cost_of_attached<O>(
    server: &str,
    settings: &Settings,
    for_a_renewal: u64,
    through: impl Fn(String) -> O,
) where
    O: Future<Output = Store>,
{
    let proxy = Proxy::new(server).await;
    let store = through(proxy.address.clone()).await;
    let cost = Cost::of(&store, settings, 1_000, || proxy.requests()).await;
    cost.check(settings);
    cost.check_metered(for_a_renewal);
}

/// Together longer than an election takes.
const REPEATS: usize = 10;
const REPEAT_AFTER: Duration = Duration::from_millis(300);
const NAMES: usize = 50;
const PLACES: usize = 5;
const HAND_OVERS: usize = 15;
const CLIENTS: usize = 8;
const LATEST: Duration = Duration::from_secs(5);
