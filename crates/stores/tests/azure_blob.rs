//! Azure Blob, against Azurite: see scripts/servers.
//!
//! Two habits of Azurite's that the service does not have bound what is shown here: it saves its
//! state every few seconds only, so nothing is asked of it after a kill; and after a restart it
//! takes all leases for expired, so nobody contends across one.
#![cfg(feature = "azure_blob")]
#![allow(clippy::disallowed_methods)] // Real servers, real time.

#[path = "azure_blob/identity.rs"]
mod identity;
mod server;

use std::time::Duration;

use tokio::task::JoinSet;

use tenure_lease::backend::{Acquire, Acquired, Boxed, Release, Renew, Renewed, StoreErrorKind};
use tenure_lease::record::SessionRef;
use tenure_lease::{LeaseName, Loss, Moment, Nonce, Settings, Store, Token};
use tenure_stores::azure_blob::AzureBlobStore;
use tenure_testkit::conformance::{self, Factory};

use server::{Server, Turn, fresh};

/// The shortest that Azure takes.
const TTL: Duration = Duration::from_secs(15);
const CONTAINER: &str = "tests";
/// Azurite's development account, whose key is public.
const ACCOUNT: &str = "devstoreaccount1";
const KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";
/// An account SAS that this key has signed, for blobs and all permissions.
const SAS: &str = "sv=2019-12-12&ss=b&srt=sco&sp=rwdlac&se=2099-01-01T00:00:00Z\
     &sig=YKAtmJudHaH98kax9IHOYkiCF9veHhGg4TBHNwluLXo%3D";

/// The same with the least that the store needs.
const SAS_LEAST: &str = "sv=2019-12-12&ss=b&srt=o&sp=rcw&se=2099-01-01T00:00:00Z\
     &sig=Zq9y5zgqlkRCqHM6r9VN5Ju2YqklTJLRr8j0YwTRvXM%3D";

#[derive(Clone)]
struct Azure(Server);

impl Azure {
    /// The server with our container in it, to be used beside others.
    fn find() -> Option<(Self, Turn)> {
        Self::prepared(Turn::beside)
    }

    /// The same, and the right to disturb it.
    fn find_alone() -> Option<(Self, Turn)> {
        Self::prepared(Turn::alone)
    }

    fn prepared(turn: fn() -> Turn) -> Option<(Self, Turn)> {
        let azure = Self(Server::named("azure", "azure_blob")?);
        let turn = turn();
        let store = AzureBlobStore::new(&azure.url(&format!("key={KEY}"))).expect("a URL");
        conformance::block_on(async {
            store.create_container().await.expect("created");
            store.create_container().await.expect("it is there");
        });
        Some((azure, turn))
    }

    fn url(&self, credentials: &str) -> String {
        let endpoint = &self.0.address;
        format!("azblob://{ACCOUNT}/{CONTAINER}?endpoint={endpoint}&prefix=leases&{credentials}")
    }

    fn store(&self) -> Store {
        self.store_with(&format!("key={KEY}"))
    }

    fn store_with(&self, credentials: &str) -> Store {
        Store::new(AzureBlobStore::new(&self.url(credentials)).expect("the URL is one"))
    }

    /// What an operator's tool sends; the status of the answer.
    async fn send(&self, method: &str, name: &LeaseName, query: &str, headers: &[&str]) -> u16 {
        let url = format!("{}/{CONTAINER}/leases/{name}?{query}{SAS}", self.0.address);
        let mut arguments = vec!["-s", "-o", "/dev/null", "-w", "%{http_code}", "-X", method];
        for header in headers {
            arguments.extend(["-H", header]);
        }
        arguments.extend(["-d", "", &url]);
        let arguments = arguments.into_iter().map(str::to_owned).collect();
        let status = server::run("curl", arguments, vec![]).await;
        String::from_utf8(status).expect("text").trim().parse().expect("a status")
    }

    async fn break_lease(&self, name: &LeaseName) -> bool {
        let headers = ["x-ms-lease-action: break", "x-ms-lease-break-period: 0", VERSION];
        self.send("PUT", name, "comp=lease&", &headers).await == 202
    }

    /// Takes the lease away, if there is one, and writes.
    async fn overwrite(&self, name: &LeaseName, content: &str) {
        self.break_lease(name).await;
        let url = format!("{}/{CONTAINER}/leases/{name}?{SAS}", self.0.address);
        let (kind, ttl) = ("x-ms-blob-type: BlockBlob", "x-ms-meta-ttl: 15");
        let put = ["-sfX", "PUT", "-H", kind, "-H", ttl, "-H", VERSION, "-d", content, &url];
        server::run("curl", put.map(str::to_owned).to_vec(), vec![]).await;
    }

    async fn read(&self, name: &LeaseName) -> String {
        let url = format!("{}/{CONTAINER}/leases/{name}?{SAS}", self.0.address);
        let get = ["-sf", "-H", VERSION, &url].map(str::to_owned).to_vec();
        String::from_utf8(server::run("curl", get, vec![]).await).expect("text")
    }
}

const VERSION: &str = "x-ms-version: 2021-12-02";

impl Factory for Azure {
    fn open(&self) -> Boxed<'_, Store> {
        Box::pin(async { self.store() })
    }

    fn skips(&self) -> &'static [&'static str] {
        conformance::POLLED
    }

    fn ttl(&self) -> Duration {
        TTL
    }

    fn delete<'a>(&'a self, name: &'a LeaseName) -> Option<Boxed<'a, ()>> {
        Some(Box::pin(async move {
            // What is leased cannot be deleted.
            self.break_lease(name).await;
            let status = self.send("DELETE", name, "", &[VERSION]).await;
            assert!(status == 202 || status == 404, "{status}");
        }))
    }

    fn seize<'a>(&'a self, name: &'a LeaseName, identity: &'a str) -> Option<Boxed<'a, ()>> {
        Some(Box::pin(self.overwrite(name, identity)))
    }

    fn write_newer<'a>(&'a self, name: &'a LeaseName) -> Option<Boxed<'a, ()>> {
        Some(Box::pin(self.overwrite(name, "{\"format\":2,\"term\":\"of another kind\"}")))
    }

    fn open_unreachable(&self) -> Option<Boxed<'_, Store>> {
        // Port 1 answers nobody here.
        let url = format!("azblob://{ACCOUNT}/none?endpoint=http://127.0.0.1:1/a&key={KEY}");
        let store = AzureBlobStore::new(&url).expect("the URL is one");
        Some(Box::pin(async { Store::new(store) }))
    }

    fn restart(&self) -> Option<Boxed<'_, ()>> {
        Some(Box::pin(self.0.control("restart")))
    }
}

#[test]
fn conformance() {
    let Some((azure, _turn)) = Azure::find_alone() else { return };
    conformance::test(azure);
}

#[test]
fn cost_of_attached() {
    let Some((azure, _turn)) = Azure::find_alone() else { return };
    conformance::block_on(async {
        let endpoint = azure.0.address.clone();
        let place = endpoint.strip_prefix("http://").expect("a plain endpoint");
        let (address, _) = place.split_once('/').expect("the account's path");
        let through = async |proxy: String| {
            let url = azure.url(&format!("key={KEY}")).replace(address, &proxy);
            Store::new(AzureBlobStore::new(&url).expect("the URL is one"))
        };
        // Read, lease, write.
        server::cost_of_attached(address, &Settings::new(TTL), 3, through).await;
    });
}

/// Many are read at once, whether we may list them or not, and as they are now.
#[test]
fn many_are_read_as_they_are() {
    let Some((azure, _turn)) = Azure::find_alone() else { return };
    conformance::block_on(async {
        let store = azure.store();
        let names: Vec<_> = (0..20).map(|_| fresh("many")).collect();
        let session = SessionRef { name: fresh("session"), term: 7 };
        let win = |name: &LeaseName| {
            let session = Some(session.clone());
            let request = Acquire { session, ..server::request(name, "a", TTL) };
            let store = store.clone();
            async move { server::win(&**store.backend(), request).await }
        };
        names.iter().map(win).collect::<JoinSet<_>>().join_all().await;
        let least = azure.store_with(&format!("sas={SAS_LEAST}"));
        for _ in 0..2 {
            let [one, other] = [&store, &least].map(|store| store.backend().read(names.clone()));
            let (one, other) = (one.await.expect("read"), other.await.expect("read"));
            assert_eq!(one, other);
            assert!(one.iter().flatten().all(|record| record.session() == Some(&session)));
        }
        azure.delete(&names[0]).expect("it can").await;
        azure.overwrite(&names[1], "mine now").await;
        let records = store.backend().read(names.clone()).await.expect("read");
        assert_eq!(records[0], None);
        let owner = |index: usize| records[index].as_ref().and_then(|r| r.owner()).cloned();
        assert_eq!(owner(1).expect("it is held").name, "mine now");
        assert!(records[2..].iter().flatten().all(|r| r.session() == Some(&session)));
    });
}

/// Renewals of one tenure beside each other, as the keeper sends them when answers are late: each
/// answer that is a no tells what stands there, which is the nonce of another of them.
#[test]
fn renewals_beside_each_other() {
    let Some((azure, _turn)) = Azure::find() else { return };
    conformance::block_on(async {
        let (store, name) = (azure.store(), fresh("hedged"));
        let (claim, token) =
            server::win(&**store.backend(), server::request(&name, "a", TTL)).await;
        let (mut last, mut refused, mut unknown) = (claim, 0, 0);
        for round in 0..40 {
            // Every other time the blob is leased for longer, which is another request.
            let ttl = if round % 2 == 0 { TTL } else { TTL + Duration::from_secs(round) };
            let (mut renewals, mut known) = (JoinSet::new(), vec![last]);
            for index in 0..6 {
                let nonce = Nonce::random();
                let renewal = Renew {
                    name: name.clone(),
                    claim,
                    token,
                    known: known.clone(),
                    nonce,
                    ttl,
                    note: None,
                    fresh_connection: index > 0,
                };
                known.push(nonce);
                let store = store.clone();
                renewals.spawn(async move { store.backend().renew(renewal).await });
            }
            for answer in renewals.join_all().await {
                match answer {
                    Ok(Renewed::Yes) => {}
                    Ok(Renewed::Refused(record)) => {
                        let holder = record.expect("it is there").holder.expect("it is held");
                        assert_eq!(holder.claim, Some(claim), "round {round}");
                        assert!(known.contains(&holder.nonce.expect("ours")), "round {round}");
                        refused += 1;
                    }
                    Err(error) => {
                        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
                        unknown += 1;
                    }
                }
            }
            let record = store.inspect(name.as_str()).await.expect("read").expect("it is there");
            last = record.holder.expect("it is held").nonce.expect("ours");
            assert!(known[1..].contains(&last), "round {round}");
        }
        println!("of 240 renewals {refused} were refused and {unknown} not answered");
    });
}

/// What is there is listed, if that is allowed.
#[test]
fn list() {
    let Some((azure, _turn)) = Azure::find() else { return };
    conformance::block_on(async {
        let (store, name) = (azure.store(), fresh("listed"));
        let list = async |store: &Store| store.backend().list().expect("it can").await;
        assert!(!list(&store).await.expect("listed").contains(&name));
        server::win(&**store.backend(), server::request(&name, "a", TTL)).await;
        let names = list(&store).await.expect("listed");
        assert!(names.contains(&name) && names.is_sorted(), "{names:?}");
        let error = list(&azure.store_with(&format!("sas={SAS_LEAST}"))).await.expect_err("denied");
        assert_eq!(error.kind(), StoreErrorKind::Denied, "{error}");
    });
}

#[test]
fn race() {
    let Some((azure, _turn)) = Azure::find_alone() else { return };
    conformance::block_on(server::race(|| azure.store(), TTL, TTL));
}

#[test]
fn restart() {
    let Some((azure, _turn)) = Azure::find_alone() else { return };
    let store = azure.store();
    conformance::block_on(server::survives_restart(&azure.0, &store, TTL));
}

#[test]
fn outage() {
    let Some((azure, _turn)) = Azure::find_alone() else { return };
    let settings = Settings::new(TTL);
    let open = || azure.store();
    conformance::block_on(server::survives_outage(&azure.0, open, settings, "pause", "resume"));
}

/// Whatever an operator does to a held record by another tool, its holder learns within one renewal
/// interval, and terms rise on.
#[test]
fn operator() {
    let Some((azure, _turn)) = Azure::find() else { return };
    conformance::block_on(async {
        let (store, settings) = (azure.store(), Settings::new(TTL));
        let name = fresh("operated");
        let mut last = Token::default();
        // The next holder waits for a ttl after each.
        for edit in ["deleted", "broken", "overwritten"] {
            let lease = store.lease(name.as_str()).settings(settings.clone());
            let waited = Moment::now();
            let tenure = lease.acquire().await.expect("acquired");
            let waited = Moment::now().since(waited);
            assert!(tenure.token() > last, "token {} after {last}", tenure.token());
            last = tenure.token();
            // Without the lease's id nobody writes or deletes.
            assert_eq!(azure.send("DELETE", &name, "", &[VERSION]).await, 412);
            match edit {
                "deleted" => azure.delete(&name).expect("it can").await,
                "broken" => assert!(azure.break_lease(&name).await),
                _ => azure.overwrite(&name, "mine now").await,
            }
            let limit = settings.renew_interval.mul_f64(1.2) + Duration::from_secs(1);
            let edited = Moment::now();
            let loss = tokio::time::timeout(limit, tenure.lost()).await;
            let loss = loss.unwrap_or_else(|_| panic!("{edit}: not lost within {limit:?}"));
            println!(
                "{edit}: {loss} after {:?} (acquired after {waited:?})",
                Moment::now().since(edited)
            );
            match (edit, &loss) {
                ("deleted", Loss::Deleted) => {}
                ("overwritten", Loss::Stolen { by: Some(by) }) if by.name == "mine now" => {}
                ("broken", Loss::Stolen { by: None }) => {}
                _ => panic!("{edit}: the reason is {loss:?}"),
            }
            tenure.release().await;
        }
        // Deleted and put back as it was: the record says what it said, and is leased again.
        let lease = store.lease(name.as_str()).settings(settings.clone());
        let tenure = lease.acquire().await.expect("acquired");
        let content = azure.read(&name).await;
        azure.delete(&name).expect("it can").await;
        azure.overwrite(&name, &content).await;
        tokio::time::sleep(settings.renew_interval * 2).await;
        assert!(tenure.is_held(), "lost: {}", tenure.lost().await);
        assert_eq!(azure.send("DELETE", &name, "", &[VERSION]).await, 412);
        tenure.release().await;
    });
}

/// A claim that leased the blob and wrote no record leaves the name to others when it is released,
/// or after its ttl; and a record that is written under a lease proves itself by its nonce.
#[test]
fn a_lease_without_a_record_is_nobodys() {
    let Some((azure, _turn)) = Azure::find() else { return };
    conformance::block_on(async {
        let (store, name) = (azure.store(), fresh("orphan"));
        let backend = store.backend();
        let (claim, token) = server::win(&**backend, server::request(&name, "a", TTL)).await;
        let release = Release { name: name.clone(), claim, known: vec![claim] };
        backend.release(release.clone()).await.expect("released");
        let lease_id = format!("{claim}");
        let part = |from: usize, to: usize| &lease_id[from..to];
        let guid = [part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32)].join("-");
        let proposed = format!("x-ms-proposed-lease-id: {guid}");
        let headers = ["x-ms-lease-action: acquire", "x-ms-lease-duration: 15", &proposed, VERSION];
        assert_eq!(azure.send("PUT", &name, "comp=lease&", &headers).await, 201);
        let answer = backend.acquire(server::request(&name, "b", TTL)).await.expect("answered");
        assert!(matches!(answer, Acquired::Lost(Some(_))), "{answer:?}");
        // It is not that claim's tenure any more, and its lease goes all the same.
        backend.release(release).await.expect("answered");
        let (claim, next) = server::win(&**backend, server::request(&name, "b", TTL)).await;
        assert!(next > token);
        let renew = Renew {
            name: name.clone(),
            claim,
            token: next,
            known: vec![Nonce::random()],
            nonce: Nonce::random(),
            ttl: TTL,
            note: None,
            fresh_connection: false,
        };
        let answer = backend.renew(renew).await.expect("answered");
        assert!(matches!(answer, Renewed::Refused(Some(_))), "{answer:?}");
    });
}

/// A SAS token that may read, create and write is enough; a wrong key or token is named as the trouble, and not shown.
#[test]
fn credentials() {
    let Some((azure, _turn)) = Azure::find() else { return };
    conformance::block_on(async {
        let store = azure.store_with(&format!("sas={SAS_LEAST}"));
        let name = fresh("sas");
        store.preflight(name.as_str()).await.expect("it may do all that it needs");
        let wrong = SAS.replace("sig=", "sig=AAAA");
        for refused in ["key=c2VjcmV0".to_owned(), format!("sas={wrong}")] {
            let refused = azure.store_with(&refused);
            let attempt = server::request(&name, "a", TTL);
            let error = refused.backend().acquire(attempt).await.expect_err("it may not");
            println!("{error}");
            assert_eq!(error.kind(), StoreErrorKind::Denied, "{error}");
            assert!(!error.to_string().contains("AAAA"), "{error}");
        }
        let url = azure.url(&format!("key={KEY}")).replace(CONTAINER, "missing");
        let missing = AzureBlobStore::new(&url).expect("a URL");
        let error = Store::new(missing).inspect("a").await.expect_err("there is none");
        println!("{error}");
        assert!(error.to_string().contains("create the container"), "{error}");
    });
}
