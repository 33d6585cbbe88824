//! A proxy whose connections go silent: they stay open, and nothing comes through any more. New ones
//! work.
#![allow(clippy::disallowed_methods)] // Real servers, real time.

use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use tenure_lease::backend::{Acquire, Acquired, Release, Released, Renew, Renewed};
use tenure_lease::{LeaseName, Nonce, Store, Token};

pub(crate) struct SilentProxy {
    pub(crate) address: String,
    /// How often all connections were silenced.
    silenced: watch::Sender<u64>,
}

impl SilentProxy {
    pub(crate) async fn new(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("it is bound").to_string();
        let (silenced, server) = (watch::Sender::new(0), server.to_owned());
        let silence = silenced.clone();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let (server, mut silence) = (server.clone(), silence.subscribe());
                tokio::spawn(async move {
                    let mut server = TcpStream::connect(&server).await.expect("it listens");
                    server.set_nodelay(true).expect("a socket");
                    client.set_nodelay(true).expect("a socket");
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
                        _ = silence.changed() => std::future::pending().await,
                    }
                });
            }
        });
        Self { address, silenced }
    }

    /// Lets nothing through on the connections that there are.
    pub(crate) fn silence(&self) {
        self.silenced.send_modify(|times| *times += 1);
    }
}

/// After a burst has filled the pool, all of its connections go silent. A renewal that hangs is left
/// alone; one on a fresh connection is answered, and everybody else then, too. Without such a
/// renewal, one time-out is all that the silence costs.
pub(crate) async fn costs_one_connection(proxy: &SilentProxy, store: &Store, request: Acquire) {
    let backend = store.backend();
    let (name, claim, ttl) = (request.name.clone(), request.claim, request.ttl);
    let won = backend.acquire(request).await.expect("an answer");
    let Acquired::Won { token, .. } = won else { panic!("{won:?}") };
    let mut held = Held { name, claim, token, ttl, known: vec![claim] };

    burst(store, &held.name).await;
    proxy.silence();
    let hanging = backend.renew(held.renewal(false));
    tokio::pin!(hanging);
    assert!(timeout(HEDGE, &mut hanging).await.is_err(), "its connection is silent");
    let fresh = timeout(SOON, backend.renew(held.renewal(true))).await;
    assert_eq!(fresh.expect("on a fresh connection").expect("an answer"), Renewed::Yes);
    assert!(timeout(HEDGE, &mut hanging).await.is_err(), "it was left alone");
    let read = timeout(SOON, backend.read(vec![held.name.clone()])).await;
    read.expect("everybody uses the fresh connection").expect("an answer");
    let renewed = timeout(SOON, backend.renew(held.renewal(false))).await;
    assert_eq!(renewed.expect("and so do renewals").expect("an answer"), Renewed::Yes);

    burst(store, &held.name).await;
    proxy.silence();
    let read = timeout(HEDGE, backend.read(vec![held.name.clone()])).await;
    assert!(read.is_err(), "its connection is silent");
    let release = Release { name: held.name.clone(), claim: held.claim, known: held.known.clone() };
    let released = timeout(SOON, backend.release(release)).await;
    assert_eq!(released.expect("on a new connection").expect("an answer"), Released::Yes);
}

/// Two renewals of one tenure that are under way at once: neither is told that the tenure is not
/// its own unless the record shows the other's nonce.
pub(crate) async fn renewals_at_once(store: &Store, request: Acquire) {
    let backend = store.backend();
    let (name, claim, ttl) = (request.name.clone(), request.claim, request.ttl);
    let won = backend.acquire(request).await.expect("an answer");
    let Acquired::Won { token, .. } = won else { panic!("{won:?}") };
    let mut held = Held { name, claim, token, ttl, known: vec![claim] };
    for _ in 0..20 {
        let (first, second) = (held.renewal(false), held.renewal(true));
        let answers = tokio::join!(backend.renew(first), backend.renew(second));
        let answers = [answers.0, answers.1];
        assert!(answers.contains(&Ok(Renewed::Yes)), "{answers:?}");
        for answer in answers {
            let Ok(Renewed::Refused(record)) = answer else { continue };
            let record = record.expect("it is there");
            let nonce = record.holder.as_ref().and_then(|holder| holder.nonce);
            assert!(record.is_of(claim) && held.known.contains(&nonce.unwrap()), "{record:?}");
        }
    }
}

struct Held {
    name: LeaseName,
    claim: Nonce,
    token: Token,
    ttl: Duration,
    known: Vec<Nonce>,
}

impl Held {
    fn renewal(&mut self, fresh_connection: bool) -> Renew {
        let (nonce, known) = (Nonce::random(), self.known.clone());
        self.known.push(nonce);
        Renew {
            name: self.name.clone(),
            claim: self.claim,
            token: self.token,
            known,
            nonce,
            ttl: self.ttl,
            note: None,
            fresh_connection,
        }
    }
}

/// Reads at once, so that many connections are open.
async fn burst(store: &Store, name: &LeaseName) {
    let mut reading = JoinSet::new();
    for _ in 0..20 {
        let (store, name) = (store.clone(), name.clone());
        reading.spawn(async move { store.inspect(name.as_str()).await.expect("an answer") });
    }
    reading.join_all().await;
}

/// As long as a renewal waits before it sends another one.
const HEDGE: Duration = Duration::from_millis(300);
/// Less than a time-out.
const SOON: Duration = Duration::from_secs(2);
