//! Redis, against a real server: see scripts/servers.
#![cfg(feature = "redis")]
#![allow(clippy::disallowed_methods)] // Real servers, real time.

mod port;
mod server;
mod stalling;

use std::time::Duration;

use tenure_lease::backend::{Acquired, Boxed, Promise, Renew, Renewed, StoreErrorKind};
use tenure_lease::record::Expiry;
use tenure_lease::{LeaseName, Loss, Moment, Nonce, Settings, Store, Token};
use tenure_stores::redis_store::RedisStore;
use tenure_testkit::conformance::{self, Factory};

use server::proxy::Proxy;
use server::{Private, Server, fresh, request};
use stalling::Stalling;

const TTL: Duration = Duration::from_secs(3);
const PREFIX: &str = "tests";

#[derive(Clone)]
struct Redis(Server);

impl Redis {
    fn store(&self) -> Store {
        Self::at(&self.0.address)
    }

    fn at(address: &str) -> Store {
        let url = format!("redis://{address}/0?prefix={PREFIX}");
        Store::new(RedisStore::new(&url).expect("the URL is one"))
    }

    /// Runs Redis's own tool.
    async fn tool(&self, arguments: &[&str]) -> String {
        let (host, port) = self.0.address.rsplit_once(':').expect("host and port");
        let mut all = vec!["-h", host, "-p", port];
        all.extend(arguments);
        let all = all.into_iter().map(str::to_owned).collect();
        let output = server::run("redis-cli", all, vec![]).await;
        String::from_utf8_lossy(&output).trim().to_owned()
    }
}

fn live(name: &LeaseName) -> String {
    format!("{{{PREFIX}:{name}}}:live")
}

fn kept(name: &LeaseName) -> String {
    format!("{{{PREFIX}:{name}}}:kept")
}

impl Factory for Redis {
    fn open(&self) -> Boxed<'_, Store> {
        Box::pin(async { self.store() })
    }

    /// Long enough for the dozens of steps that some checks take within it on a busy machine.
    fn ttl(&self) -> Duration {
        Duration::from_secs(10)
    }

    fn delete<'a>(&'a self, name: &'a LeaseName) -> Option<Boxed<'a, ()>> {
        Some(Box::pin(async move { drop(self.tool(&["DEL", &live(name), &kept(name)]).await) }))
    }

    fn seize<'a>(&'a self, name: &'a LeaseName, identity: &'a str) -> Option<Boxed<'a, ()>> {
        Some(Box::pin(async move { drop(self.tool(&["SET", &live(name), identity]).await) }))
    }

    fn write_newer<'a>(&'a self, name: &'a LeaseName) -> Option<Boxed<'a, ()>> {
        Some(Box::pin(async move {
            drop(self.tool(&["HSET", &kept(name), "format", "2", "term", "other"]).await);
        }))
    }

    fn open_unreachable(&self) -> Option<Boxed<'_, Store>> {
        // Port 1 answers nobody here.
        let store = RedisStore::new("redis://127.0.0.1:1/0").expect("the URL is one");
        Some(Box::pin(async { Store::new(store) }))
    }

    fn restart(&self) -> Option<Boxed<'_, ()>> {
        Some(Box::pin(self.0.control("restart")))
    }
}

#[test]
fn lost_replies() {
    let Some((server, _turn)) = Server::find("redis") else { return };
    conformance::block_on(async {
        let through = async |address: String| Redis::at(&address);
        let (direct, settings) = (Redis::at(&server.address), Settings::new(TTL));
        server::proxy::cut_replies(&server.address, &direct, &settings, [1; 3], through).await;
    });
}

#[test]
fn cost_of_attached() {
    let Some((server, _turn)) = Server::find_alone("redis") else { return };
    conformance::block_on(async {
        let through = async |address: String| Redis::at(&address);
        let settings = Settings::new(TTL * 2);
        server::cost_of_attached(&server.address, &settings, 1, through).await;
    });
}

#[test]
fn conformance() {
    let Some((server, _turn)) = Server::find_alone("redis") else { return };
    let redis = Redis(server);
    assert_eq!(redis.store().info().promise, Promise::BestEffort);
    conformance::test(redis);
}

#[test]
fn race() {
    let Some((server, _turn)) = Server::find_alone("redis") else { return };
    let redis = Redis(server);
    let free = TTL + TTL / 2;
    conformance::block_on(server::race(|| redis.store(), TTL, free));
}

#[test]
fn hand_over() {
    let Some((server, _turn)) = Server::find("redis") else { return };
    let redis = Redis(server);
    conformance::block_on(server::hand_over(|| redis.store(), Settings::new(TTL)));
}

#[test]
fn restart() {
    let Some((server, _turn)) = Server::find_alone("redis") else { return };
    let store = Redis(server.clone()).store();
    conformance::block_on(server::survives_restart(&server, &store, TTL * 2));
}

#[test]
fn outage() {
    let Some((server, _turn)) = Server::find_alone("redis") else { return };
    let redis = Redis(server.clone());
    conformance::block_on(async {
        for (begin, end) in [("pause", "resume"), ("kill", "restart")] {
            let settings = Settings::new(TTL * 2);
            server::survives_outage(&server, || redis.store(), settings, begin, end).await;
        }
    });
}

/// Whatever an operator does to a held record by redis-cli, its holder learns within one renewal
/// interval, and terms rise on.
#[test]
fn operator() {
    let Some((server, _turn)) = Server::find("redis") else { return };
    let redis = Redis(server);
    conformance::block_on(async {
        let (store, settings) = (redis.store(), Settings::new(TTL * 2));
        let name = fresh("operated");
        let (live, kept, mut last) = (live(&name), kept(&name), Token::default());
        for edit in ["deleted", "forgotten", "shortened", "overwritten", "edited", "expired"] {
            let lease = store.lease(name.as_str()).settings(settings.clone());
            let tenure = lease.acquire().await.expect("acquired");
            assert!(tenure.token() > last, "{edit}: token {} after {last}", tenure.token());
            last = tenure.token();
            match edit {
                "deleted" => drop(redis.tool(&["DEL", &live, &kept]).await),
                "forgotten" => drop(redis.tool(&["DEL", &kept]).await),
                "shortened" => drop(redis.tool(&["DEL", &live]).await),
                "overwritten" => drop(redis.tool(&["SET", &live, "mine now"]).await),
                "edited" => drop(redis.tool(&["HSET", &kept, "nonce", "0"]).await),
                _ => drop(redis.tool(&["PEXPIRE", &live, "1"]).await),
            }
            let limit = settings.renew_interval.mul_f64(1.2) + settings.operation_timeout;
            let edited = Moment::now();
            let loss = tokio::time::timeout(limit, tenure.lost()).await;
            let loss = loss.unwrap_or_else(|_| panic!("{edit}: not lost within {limit:?}"));
            println!("{edit}: {loss} after {:?}", Moment::now().since(edited));
            match (edit, &loss) {
                ("deleted" | "forgotten" | "shortened" | "expired", Loss::Deleted) => {}
                ("overwritten", Loss::Stolen { by: Some(by) }) if by.name == "mine now" => {}
                ("edited", Loss::Stolen { by: Some(_) }) => {}
                _ => panic!("{edit}: the reason is {loss:?}"),
            }
            tenure.release().await;
        }
    });
}

/// A live key that was deleted before its time frees nothing before its time.
#[test]
fn a_deleted_live_key_frees_nothing() {
    let Some((server, _turn)) = Server::find("redis") else { return };
    let redis = Redis(server);
    conformance::block_on(async {
        let (store, name) = (redis.store(), fresh("shortened"));
        let backend = store.backend();
        let sent = Moment::now();
        server::win(&**backend, request(&name, "a", TTL)).await;
        redis.tool(&["DEL", &live(&name)]).await;
        loop {
            let asked = backend.acquire(request(&name, "b", TTL)).await.expect("answered");
            let now = Moment::now();
            match asked {
                Acquired::Won { .. } => {
                    assert!(now >= sent + TTL, "freed after {:?}", now.since(sent));
                    assert!(now <= sent + TTL * 2, "freed only after {:?}", now.since(sent));
                    break;
                }
                Acquired::Lost(Some(record)) => {
                    assert!(matches!(record.expiry, Expiry::ByStore(_)), "{record:?}");
                }
                Acquired::Lost(None) => panic!("the record is gone"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
}

/// Terms are whole numbers of 64 bits, also where Lua's are not.
#[test]
fn terms_are_exact() {
    let Some((server, _turn)) = Server::find("redis") else { return };
    let redis = Redis(server);
    conformance::block_on(async {
        let (store, name) = (redis.store(), fresh("exact"));
        let backend = store.backend();
        for above in [(1 << 53) + 1, 9_999_999_999_999_999, (1 << 62) + 3, u64::MAX - 9] {
            let mut attempt = request(&name, "a", TTL);
            let record = backend.read(vec![name.clone()]).await.expect("read").remove(0);
            (attempt.above, attempt.takeover) = (above, record.map(|record| record.version));
            let (_, token) = server::win(&**backend, attempt).await;
            assert_eq!(token.term, above + 1);
            let mut attempt = request(&name, "b", TTL);
            let record = backend.read(vec![name.clone()]).await.expect("read").remove(0);
            attempt.takeover = record.map(|record| record.version);
            let (_, token) = server::win(&**backend, attempt).await;
            assert_eq!(token.term, above + 2);
        }
    });
}

/// A restart that forgets all scripts costs nothing.
#[test]
fn scripts_may_be_flushed() {
    let Some((server, _turn)) = Server::find_alone("redis") else { return };
    let redis = Redis(server);
    conformance::block_on(async {
        let (store, name) = (redis.store(), fresh("flushed"));
        server::win(&**store.backend(), request(&name, "a", TTL)).await;
        redis.tool(&["SCRIPT", "FLUSH"]).await;
        let record = store.inspect(name.as_str()).await.expect("read").expect("there");
        redis.tool(&["SCRIPT", "FLUSH"]).await;
        let mut attempt = request(&name, "b", TTL);
        attempt.takeover = Some(record.version);
        server::win(&**store.backend(), attempt).await;
    });
}

/// However many leases a process waits for, it looks at all of them at once; and a renewal wakes who
/// waits for it.
#[test]
fn waiting_costs_one_look_a_second() {
    let Some((server, _turn)) = Server::find("redis") else { return };
    conformance::block_on(async {
        let direct = Redis::at(&server.address);
        let name = fresh("looked-at");
        let (claim, token) = server::win(&**direct.backend(), request(&name, "a", TTL * 9)).await;
        let proxy = Proxy::new(&server.address).await;
        let store = Redis::at(&proxy.address);
        let mut waiting = tokio::task::JoinSet::new();
        for number in 0..200 {
            let name = LeaseName::new(&format!("{name}-{number}")).expect("a name");
            let mut watch = store.backend().watch(&name).expect("it pushes");
            waiting.spawn(async move {
                loop {
                    watch.changed().await;
                }
            });
        }
        let mut watch = store.backend().watch(&name).expect("it pushes");
        let soon = Duration::from_secs(3);
        // Established, and looked at for the first time.
        for _ in 0..2 {
            tokio::time::timeout(soon, watch.changed()).await.expect("it stands");
        }
        let (before, begun) = (proxy.requests(), Moment::now());
        tokio::time::sleep(soon).await;
        let looks = proxy.requests() - before;
        println!("{looks} looks in {:?}", Moment::now().since(begun));
        assert!(looks <= 8, "{looks} requests in {:?}", Moment::now().since(begun));
        let renewed = direct.backend().renew(renewal(&name, claim, token, vec![claim])).await;
        assert_eq!(renewed, Ok(Renewed::Yes));
        tokio::time::timeout(soon, watch.changed()).await.expect("a renewal wakes");
    });
}

/// The connection stands still, and new ones work: a renewal on a fresh one is answered while the one
/// before it is still waited for, and from then on everybody is.
#[test]
fn a_fresh_connection_replaces_one_that_stands_still() {
    let Some((server, _turn)) = Server::find("redis") else { return };
    conformance::block_on(async {
        let stalling = Stalling::new(&server.address).await;
        let (store, name) = (Redis::at(&stalling.address), fresh("hedged"));
        let backend = store.backend();
        let (claim, token) = server::win(&**backend, request(&name, "a", TTL * 9)).await;
        let first = renewal(&name, claim, token, vec![claim]);
        let mut known = vec![claim, first.nonce];
        assert_eq!(backend.renew(first).await, Ok(Renewed::Yes));
        stalling.stall();
        let opened = stalling.opened();
        let hangs = renewal(&name, claim, token, known.clone());
        known.push(hangs.nonce);
        let mut hangs = backend.renew(hangs);
        let (moment, soon) = (Duration::from_millis(300), Duration::from_secs(2));
        assert!(tokio::time::timeout(moment, &mut hangs).await.is_err(), "it stands still");
        let mut hedges = tokio::task::JoinSet::new();
        for _ in 0..40 {
            let mut hedge = renewal(&name, claim, token, known.clone());
            hedge.fresh_connection = true;
            known.push(hedge.nonce);
            let backend = std::sync::Arc::clone(backend);
            hedges.spawn(async move { backend.renew(hedge).await.expect("answered") });
        }
        let answers = tokio::time::timeout(soon, hedges.join_all()).await.expect("in time");
        assert!(answers.contains(&Renewed::Yes), "{answers:?}");
        for answer in answers {
            assert!(!matches!(answer, Renewed::Refused(None)), "the record is there");
        }
        assert!(stalling.opened() - opened <= 16, "{} opened", stalling.opened() - opened);
        for _ in 0..2 {
            let read = backend.read(vec![name.clone()]);
            tokio::time::timeout(soon, read).await.expect("in time").expect("read");
            let renewed = backend.renew(renewal(&name, claim, token, known.clone()));
            tokio::time::timeout(soon, renewed).await.expect("in time").expect("renewed");
        }
        assert!(tokio::time::timeout(moment, hangs).await.is_err(), "it was left alone");
    });
}

/// Renewals have a connection of their own: what hangs on the other one does not hold them up.
#[test]
fn renewals_wait_for_nothing_else() {
    let Some((server, _turn)) = Server::find("redis") else { return };
    conformance::block_on(async {
        let stalling = Stalling::new(&server.address).await;
        let (store, name) = (Redis::at(&stalling.address), fresh("first"));
        let backend = store.backend();
        let (claim, token) = server::win(&**backend, request(&name, "a", TTL * 9)).await;
        // What the acquisition came by.
        stalling.stall();
        let mut reads = backend.read(vec![name.clone()]);
        let moment = Duration::from_millis(300);
        assert!(tokio::time::timeout(moment, &mut reads).await.is_err(), "it stands still");
        let renewed = backend.renew(renewal(&name, claim, token, vec![claim]));
        let renewed = tokio::time::timeout(Duration::from_secs(2), renewed).await;
        assert_eq!(renewed.expect("in time"), Ok(Renewed::Yes));
    });
}

#[test]
fn names_are_listed() {
    let Some((server, _turn)) = Server::find("redis") else { return };
    conformance::block_on(async {
        let prefix = fresh("listed");
        let url = format!("redis://{}/0?prefix={prefix}", server.address);
        let store = Store::new(RedisStore::new(&url).expect("the URL is one"));
        let list = || store.backend().list().expect("it can");
        assert_eq!(list().await.expect("listed"), []);
        let mut names: Vec<_> = (0..50).map(|_| fresh("name")).collect();
        for name in &names {
            server::win(&**store.backend(), request(name, "a", TTL)).await;
        }
        names.sort();
        assert_eq!(list().await.expect("listed"), names);
    });
}

/// The last term of all is not followed by one that nobody can read.
#[test]
fn terms_have_an_end() {
    let Some((server, _turn)) = Server::find("redis") else { return };
    conformance::block_on(async {
        let (store, name) = (Redis::at(&server.address), fresh("last"));
        let mut attempt = request(&name, "a", TTL);
        attempt.above = u64::MAX - 1;
        let (_, token) = server::win(&**store.backend(), attempt).await;
        assert_eq!(token.term, u64::MAX);
        let record = store.inspect(name.as_str()).await.expect("read").expect("there");
        let mut attempt = request(&name, "b", TTL);
        attempt.takeover = Some(record.version);
        let error = store.backend().acquire(attempt).await.expect_err("there is none above");
        assert_eq!(error.kind(), StoreErrorKind::Damaged);
        let record = store.inspect(name.as_str()).await.expect("read").expect("there");
        assert_eq!(record.token.term, u64::MAX, "it is as it was");
    });
}

fn renewal(name: &LeaseName, claim: Nonce, token: Token, known: Vec<Nonce>) -> Renew {
    let (nonce, name) = (Nonce::random(), name.clone());
    let ttl = TTL * 9;
    Renew { name, claim, token, known, nonce, ttl, note: None, fresh_connection: false }
}

/// A password that is wrong is named as the trouble, and not shown.
#[test]
fn a_refused_password_is_not_shown() {
    let Some((server, _turn)) = Server::find("redis") else { return };
    let url = format!("redis://me:a-secret@{}/0", server.address);
    let store = Store::new(RedisStore::new(&url).expect("the URL is one"));
    conformance::block_on(async {
        let error = store.inspect("secret").await.expect_err("there is no such user").to_string();
        assert!(!error.contains("a-secret") && error.contains("password"), "{error}");
    });
}

/// With TLS, and a user who may touch the store's keys and channel only.
#[test]
fn tls_and_users() {
    let Some((_, _turn)) = Server::find("redis") else { return };
    conformance::block_on(async {
        let directory = Private::folder().await;
        let port = port::free_port().to_string();
        let user = "user me on >a-secret ~{leases:* &leases:changed -@all +evalsha +eval \
                    +script|load +hset +hmget +set +get +del +persist +pttl +type +time +exists \
                    +publish +subscribe +ping +select\n";
        std::fs::write(directory.join("redis.conf"), user).expect("written");
        let arguments = format!(
            "redis.conf --port 0 --tls-port {port} --bind 127.0.0.1 --tls-cert-file cert.pem \
             --tls-key-file key.pem --tls-ca-cert-file cert.pem --tls-auth-clients no --save"
        );
        let mut arguments: Vec<_> = arguments.split(' ').collect();
        arguments.push("");
        let _redis = Private::start("redis-server", &arguments, &directory, &[]);
        let ca = directory.join("cert.pem");
        let url = |password: &str, ca: &str| {
            format!("rediss://me:{password}@127.0.0.1:{port}/0?prefix=leases{ca}")
        };
        let ca = format!("&ca={}", ca.display());
        let open = |url: String| Store::new(RedisStore::new(&url).expect("a URL"));
        let store = open(url("a-secret", &ca));
        let ready = async {
            while let Err(error) = store.preflight("ready").await {
                println!("not ready: {error}");
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), ready).await.expect("it comes up");
        let lease = store.lease("nightly").settings(Settings::new(TTL));
        let tenure = lease.acquire().await.expect("acquired");
        let waiting = lease.clone();
        let next = tokio::spawn(async move { waiting.acquire().await.expect("acquired") });
        tokio::time::sleep(TTL / 4).await;
        let released = Moment::now();
        tenure.release().await;
        drop(next.await.expect("the next one"));
        println!("handed over in {:?}", Moment::now().since(released));
        for url in [url("wrong-secret", &ca), url("a-secret", "")] {
            let error = open(url).inspect("nightly").await.expect_err("refused").to_string();
            println!("{error}");
            assert!(!error.contains("secret"), "{error}");
        }
    });
}

/// What a step of Redis's clock does, which is one reason for its label: forward, it ends a tenure
/// early, and the holder learns; back, a dead holder's tenure lasts longer.
#[test]
fn clock_steps() {
    let Some((_, _turn)) = Server::find("redis") else { return };
    conformance::block_on(async {
        let directory = Private::folder().await;
        let clock = directory.join("clock");
        let step = |by: &str| std::fs::write(&clock, by).expect("written");
        step("0");
        // libfaketime does not go together with Redis's allocator.
        std::fs::write(directory.join("clock.c"), CLOCK).expect("written");
        let library = directory.join("clock.so").display().to_string();
        let source = directory.join("clock.c").display().to_string();
        let compile = ["-shared", "-fPIC", "-O1", "-o", &library, &source];
        server::run("cc", compile.map(str::to_owned).to_vec(), vec![]).await;
        let port = port::free_port().to_string();
        let arguments = ["--port", &port, "--bind", "127.0.0.1", "--save", ""];
        let environment = [("LD_PRELOAD", library.as_str())];
        let _redis = Private::start("redis-server", &arguments, &directory, &environment);
        let url = format!("redis://127.0.0.1:{port}/0");
        let store = Store::new(RedisStore::new(&url).expect("a URL"));
        let ready = async {
            while store.preflight("ready").await.is_err() {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), ready).await.expect("it comes up");
        let (early, late, lone) = (fresh("early"), fresh("late"), fresh("lone"));
        let (backend, ttl) = (store.backend(), Duration::from_secs(30));
        let lease = |name: &LeaseName| store.lease(name.as_str()).settings(Settings::new(TTL));
        let held = lease(&early).settings(Settings::new(ttl)).acquire().await.expect("acquired");
        let unrivalled = lease(&lone).acquire().await.expect("acquired");
        step("60");
        let (_, next) = server::win(&**backend, request(&early, "b", ttl)).await;
        assert!(next > held.token(), "token {next} after {}", held.token());
        let begun = Moment::now();
        let loss = tokio::time::timeout(ttl / 2, held.lost()).await.expect("it learns");
        println!(
            "+60 s: {loss} after {:?}, {next} after {}",
            Moment::now().since(begun),
            held.token()
        );
        assert!(matches!(loss, Loss::Stolen { .. }), "{loss:?}");
        tokio::time::sleep(TTL).await;
        assert!(unrivalled.is_held(), "nobody took it, and it is lost: {:?}", unrivalled.loss());

        let (_, token) = server::win(&**backend, request(&late, "a", TTL)).await;
        step("0");
        tokio::time::sleep(TTL + TTL / 2).await;
        match backend.acquire(request(&late, "b", TTL)).await.expect("answered") {
            Acquired::Lost(Some(record)) => println!("-60 s: it is held for {:?}", record.expiry),
            other => panic!("{other:?}"),
        }
        step("62");
        let (_, next) = server::win(&**backend, request(&late, "b", TTL)).await;
        assert!(next > token);
    });
}

/// A clock that is as many seconds off as the file `clock` says.
const CLOCK: &str = r#"
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec real;
    char text[32] = {0};
    (void)zone;
    syscall(SYS_clock_gettime, CLOCK_REALTIME, &real);
    int file = open("clock", O_RDONLY);
    if (file >= 0) {
        if (read(file, text, sizeof text - 1) < 0) text[0] = 0;
        close(file);
    }
    now->tv_sec = real.tv_sec + atol(text);
    now->tv_usec = real.tv_nsec / 1000;
    return 0;
}
"#;
