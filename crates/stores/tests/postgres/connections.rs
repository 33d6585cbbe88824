//! Whom a request waits for, and what a dead connection costs.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tenure_lease::backend::{
    Acquired, Backend, Release, Released, Renew, Renewed, StoreError, StoreErrorKind,
};
use tenure_lease::{LeaseName, Nonce, Store, Token};
use tokio::task::JoinSet;

use super::server::{request, win};
use super::stalling::Stalling;
use super::support::{block_on, name, server, variable, within};

const SOON: Duration = Duration::from_secs(2);
const TTL: Duration = Duration::from_secs(15);

/// Attempts that wait for a locked row take all connections but those of renewals and releases.
#[test]
fn renewals_and_releases_wait_for_nothing_else() {
    let Some((_turn, server)) = server() else { return };
    block_on(async {
        server.create_tables().await;
        let store = tenure_stores::open(&server.url("connections=1&listen=off")).await.unwrap();
        let (held, locked) = (Held::take(&store, "renewed").await, name("locked"));
        let free = Held::take(&store, locked.as_str()).await;
        free.release().await.unwrap();
        let mut psql = server.client().await;
        let lock = psql.transaction().await.unwrap();
        lock.execute(
            "SELECT FROM tenure_leases WHERE name = $1 FOR UPDATE",
            &[&free.name.as_str()],
        )
        .await
        .unwrap();
        let mut waiting = JoinSet::new();
        for _ in 0..20 {
            let (backend, attempt) = (Arc::clone(store.backend()), request(&free.name, "a", TTL));
            waiting.spawn(async move { backend.acquire(attempt).await });
        }
        // They wait for the row, and for each other.
        tokio::time::sleep(Duration::from_millis(300)).await;
        for _ in 0..3 {
            let renewed = within(SOON, "renewed", held.renew(false)).await.unwrap();
            assert_eq!(renewed, Renewed::Yes);
        }
        assert_eq!(within(SOON, "released", held.release()).await.unwrap(), Released::Yes);
        lock.commit().await.unwrap();
        let answers = within(SOON * 5, "attempts", waiting.join_all()).await;
        let won = |answer: &&Result<_, _>| matches!(answer, Ok(Acquired::Won { .. }));
        assert_eq!(answers.iter().filter(won).count(), 1, "{answers:?}");
    });
}

/// All connections stand still, and new ones work: a renewal on a fresh one is answered while the one
/// before it is still waited for, and cancels nothing; from then on everybody is.
#[test]
fn a_fresh_connection_replaces_those_that_stand_still() {
    let Some((_turn, server)) = server() else { return };
    block_on(async {
        server.create_tables().await;
        let stalling = Stalling::new(&server.place()).await;
        let store = server.store_at(stalling.address.clone(), "connections=2&listen=off").await;
        let held = Held::take(&store, "hedged").await;
        let mut others = Vec::new();
        for number in 0..4 {
            others.push(Held::take(&store, &format!("other-{number}")).await);
        }
        fill(&store, &held.name).await;
        stalling.stall();
        let opened = stalling.opened();
        // More of them than there are connections of renewals; the first one has one.
        let mut hanging = JoinSet::new();
        let first = hanging.spawn(held.clone().renew_as(held.next(), false));
        tokio::time::sleep(POLL).await;
        for other in others {
            hanging.spawn(other.clone().renew_as(other.next(), false));
        }
        tokio::time::sleep(POLL).await;
        assert!(hanging.try_join_next().is_none(), "they stand still");
        let mut hedges = JoinSet::new();
        for _ in 0..40 {
            hedges.spawn(held.clone().renew_as(held.next(), true));
        }
        let answers = within(SOON, "40 hedges", hedges.join_all()).await;
        // One after another, each of them finds the nonce that it knows, or that of another one.
        assert!(answers.contains(&Ok(Renewed::Yes)), "{answers:?}");
        for answer in answers {
            match answer.unwrap() {
                Renewed::Yes => {}
                Renewed::Refused(Some(record)) => assert!(record.is_of(held.claim)),
                Renewed::Refused(None) => panic!("the record is there"),
            }
        }
        let opened = stalling.opened() - opened;
        assert!(opened <= 24, "{opened} connections for 40 hedges");
        assert_eq!(stalling.cancels(), 0, "the first one is still waited for");
        // Nobody is served by a connection that stands still, while the old requests hang on.
        let names = vec![held.name.clone()];
        let backend = store.backend();
        for _ in 0..4 {
            within(SOON, "read", backend.read(names.clone())).await.unwrap();
        }
        let another = Held::take_at(backend, "another").await;
        let renewed =
            within(SOON, "renewed", another.clone().renew_as(another.next(), false)).await;
        assert_eq!(renewed, Ok(Renewed::Yes));
        assert!(!first.is_finished(), "it was left alone");
    });
}

/// The network dies silently under a full pool: one time-out, then all is well.
#[test]
fn dead_connections_cost_one_time_out() {
    let Some((_turn, server)) = server() else { return };
    block_on(async {
        server.create_tables().await;
        let stalling = Stalling::new(&server.place()).await;
        let store = server.store_at(stalling.address.clone(), "listen=off").await;
        let held = Held::take(&store, "timed-out").await;
        fill(&store, &held.name).await;
        stalling.stall();
        let lost = held.clone().renew_as(held.next(), false);
        assert!(tokio::time::timeout(POLL * 5, lost).await.is_err(), "it stands still");
        for _ in 0..8 {
            let renewed = held.clone().renew_as(held.next(), false);
            within(SOON, "renewed", renewed).await.unwrap();
        }
    });
}

/// What is given up is cancelled, through a pooler too, and nothing else is.
#[test]
fn a_pooler_cancels_nothing_of_others() {
    let Some(pooled) = variable("PGBOUNCER") else { return };
    let Some((_turn, server)) = server() else { return };
    block_on(async {
        server.create_tables().await;
        let url = server.url_at(&pooled, "listen=off");
        let store = tenure_stores::open(&url).await.unwrap();
        let held = Held::take(&store, "pooled").await;
        let mut impatient = JoinSet::new();
        for number in 0..200_u32 {
            let (backend, names) = (Arc::clone(store.backend()), vec![held.name.clone(); 500]);
            impatient.spawn(async move {
                tokio::time::sleep(Duration::from_millis(u64::from(number) * 5)).await;
                let patience = Duration::from_micros(u64::from(number % 20) * 200);
                tokio::time::timeout(patience, backend.read(names)).await.is_err()
            });
        }
        let mut renewals = 0;
        while !impatient.is_empty() {
            within(SOON, "renewed", held.renew(false)).await.expect("not cancelled");
            renewals += 1;
            while impatient.try_join_next().is_some() {}
        }
        eprintln!("{renewals} renewals beside 200 reads that were given up");
        // The last requests to cancel end before this runtime does: some poolers do not survive it.
        tokio::time::sleep(SOON).await;
    });
}

/// What `tenure lease list` shows.
#[test]
fn names_are_listed() {
    let Some((_turn, server)) = server() else { return };
    block_on(async {
        let store = server.store().await;
        let list = || store.backend().list().expect("it can");
        assert!(list().await.unwrap().is_empty(), "there is no table yet");
        server.create_tables().await;
        for name in ["b", "a.1", "a-1"] {
            Held::take(&store, name).await;
        }
        server.execute("INSERT INTO tenure_leases (name, term, ttl_ms) VALUES ('', 1, 1)").await;
        let names: Vec<String> = list().await.unwrap().iter().map(ToString::to_string).collect();
        assert_eq!(names, ["a-1", "a.1", "b", "creates-tables"]);
    });
}

/// No number that is asked for, or found in the database, ends the process.
#[test]
fn terms_have_an_end() {
    let Some((_turn, server)) = server() else { return };
    block_on(async {
        server.create_tables().await;
        let store = server.store().await;
        let (backend, lease) = (store.backend(), name("last"));
        let mut attempt = request(&lease, "a", TTL);
        for above in [u64::MAX, u64::MAX - 1, 1 << 63] {
            attempt.above = above;
            let error = backend.acquire(attempt.clone()).await.unwrap_err();
            assert!(error.to_string().contains("can be asked for"), "{error}");
        }
        attempt.above = i64::MAX as u64;
        let (_, token) = win(&**backend, attempt).await;
        assert_eq!(token.term, 1 << 63);
        for (set, column) in [
            ("UPDATE tenure_leases SET owner = NULL, term = 18446744073709551615", "tenure_leases"),
            ("UPDATE tenure_leases SET owner = NULL, term = 99999999999999999999", "tenure_leases"),
            ("DELETE FROM tenure_leases", "tenure_terms"),
        ] {
            server.execute(set).await;
            let error = backend.acquire(request(&lease, "b", TTL)).await.unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Damaged, "{set} ({column}): {error}");
        }
    });
}

/// As many requests at once as there are connections, and more.
async fn fill(store: &Store, name: &LeaseName) {
    let mut burst = JoinSet::new();
    for _ in 0..32 {
        let (backend, names) = (Arc::clone(store.backend()), vec![name.clone()]);
        burst.spawn(async move { backend.read(names).await.unwrap() });
    }
    burst.join_all().await;
}

/// A tenure, renewed by hand.
#[derive(Clone)]
struct Held {
    backend: Arc<dyn Backend>,
    name: LeaseName,
    claim: Nonce,
    token: Token,
    /// All nonces that may stand there.
    known: Arc<std::sync::Mutex<Vec<Nonce>>>,
}

impl Held {
    async fn take(store: &Store, name: &str) -> Self {
        Self::take_at(store.backend(), name).await
    }

    async fn take_at(backend: &Arc<dyn Backend>, name: &str) -> Self {
        let name = LeaseName::new(name).unwrap();
        let (claim, token) = win(&**backend, request(&name, "a", TTL)).await;
        let known = Arc::new(std::sync::Mutex::new(vec![claim]));
        Self { backend: Arc::clone(backend), name, claim, token, known }
    }

    /// A renewal that knows all that were sent before it.
    fn next(&self) -> Renew {
        let mut nonces = self.known.lock().unwrap();
        let (known, nonce) = (nonces.clone(), Nonce::random());
        nonces.push(nonce);
        Renew {
            name: self.name.clone(),
            claim: self.claim,
            token: self.token,
            known,
            nonce,
            ttl: TTL,
            note: None,
            fresh_connection: false,
        }
    }

    async fn renew(&self, fresh: bool) -> Result<Renewed, StoreError> {
        self.clone().renew_as(self.next(), fresh).await
    }

    fn renew_as(
        self,
        mut renew: Renew,
        fresh: bool,
    ) -> impl Future<Output = Result<Renewed, StoreError>> + Send {
        renew.fresh_connection = fresh;
        async move { self.backend.renew(renew).await }
    }

    async fn release(&self) -> Result<Released, StoreError> {
        let known = self.known.lock().unwrap().clone();
        let release = Release { name: self.name.clone(), claim: self.claim, known };
        self.backend.release(release).await
    }
}

const POLL: Duration = Duration::from_millis(200);
