//! The tests of the Consul store, for each version of Consul that a test file names.
#![allow(clippy::disallowed_methods)] // Real servers, real time.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use tenure_lease::backend::{Boxed, Release, Renew};
use tenure_lease::{LeaseName, Loss, Moment, Nonce, Settings, Store, Token};
use tenure_stores::consul::ConsulStore;
use tenure_testkit::conformance::{self, Factory};

use crate::server::proxy::{Cut, Proxy, cut_replies};
use crate::server::{self, Private, Server, Turn, fresh, request, win};
use crate::silence::{self, SilentProxy};
use crate::{PORTS, SERVER, port};

/// The shortest that Consul takes.
const TTL: Duration = Duration::from_secs(10);
const PREFIX: &str = "tests/leases";

#[derive(Clone)]
struct Consul(Server);

impl Consul {
    fn store(&self) -> Store {
        Self::at(&self.0.address)
    }

    fn at(address: &str) -> Store {
        let url = format!("consul://{address}/{PREFIX}");
        Store::new(ConsulStore::new(&url).expect("the URL is one"))
    }

    /// Runs Consul's own tool.
    async fn tool(&self, arguments: &[&str]) -> Vec<u8> {
        let program = program();
        let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let address = format!("http://{}", self.0.address);
        server::run(&program, arguments, vec![("CONSUL_HTTP_ADDR", address)]).await
    }
}

fn find() -> Option<(Server, Turn)> {
    Server::named(SERVER, "consul").map(|server| (server, Turn::beside()))
}

fn find_alone() -> Option<(Server, Turn)> {
    Server::named(SERVER, "consul").map(|server| (server, Turn::alone()))
}

/// Consul itself, which is its own tool as well.
fn program() -> String {
    let variable = format!("TENURE_TEST_{}_BIN", SERVER.to_uppercase());
    std::env::var(&variable).unwrap_or_else(|_| panic!("scripts/servers sets {variable}"))
}

fn key(name: &LeaseName) -> String {
    format!("{PREFIX}/{name}")
}

impl Factory for Consul {
    fn open(&self) -> Boxed<'_, Store> {
        Box::pin(async { self.store() })
    }

    fn ttl(&self) -> Duration {
        TTL
    }

    fn delete<'a>(&'a self, name: &'a LeaseName) -> Option<Boxed<'a, ()>> {
        Some(Box::pin(async move { drop(self.tool(&["kv", "delete", &key(name)]).await) }))
    }

    fn seize<'a>(&'a self, name: &'a LeaseName, identity: &'a str) -> Option<Boxed<'a, ()>> {
        Some(Box::pin(async move { drop(self.tool(&["kv", "put", &key(name), identity]).await) }))
    }

    fn write_newer<'a>(&'a self, name: &'a LeaseName) -> Option<Boxed<'a, ()>> {
        let newer = "{\"format\":2,\"term\":\"of another kind\"}";
        Some(Box::pin(async move { drop(self.tool(&["kv", "put", &key(name), newer]).await) }))
    }

    fn open_unreachable(&self) -> Option<Boxed<'_, Store>> {
        // Port 1 answers nobody here.
        let store = ConsulStore::new("consul://127.0.0.1:1/leases").expect("the URL is one");
        Some(Box::pin(async { Store::new(store) }))
    }

    fn restart(&self) -> Option<Boxed<'_, ()>> {
        Some(Box::pin(self.0.control("restart")))
    }
}

#[test]
fn conformance() {
    let Some((server, _turn)) = find_alone() else { return };
    conformance::test(Consul(server));
}

#[test]
fn race() {
    let Some((server, _turn)) = find_alone() else { return };
    let consul = Consul(server);
    conformance::block_on(server::race(|| consul.store(), TTL, TTL));
}

#[test]
fn hand_over() {
    let Some((server, _turn)) = find() else { return };
    let consul = Consul(server);
    conformance::block_on(server::hand_over(|| consul.store(), Settings::new(TTL)));
}

#[test]
fn restart() {
    let Some((server, _turn)) = find_alone() else { return };
    let store = Consul(server.clone()).store();
    conformance::block_on(server::survives_restart(&server, &store, TTL));
}

#[test]
fn outage() {
    let Some((server, _turn)) = find_alone() else { return };
    let consul = Consul(server.clone());
    conformance::block_on(async {
        for (begin, end) in [("pause", "resume"), ("kill", "restart")] {
            let settings = Settings::new(TTL);
            server::survives_outage(&server, || consul.store(), settings, begin, end).await;
        }
    });
}

#[test]
fn lost_replies() {
    let Some((server, _turn)) = find() else { return };
    conformance::block_on(async {
        let through = async |address: String| Consul::at(&address);
        let (direct, settings) = (Consul::at(&server.address), Settings::new(TTL));
        // Read, create a session, write; read, write and renew the session; read, write.
        cut_replies(&server.address, &direct, &settings, [3, 3, 2], through).await;
    });
}

#[test]
fn cost_of_attached() {
    let Some((server, _turn)) = find_alone() else { return };
    conformance::block_on(async {
        let through = async |address: String| Consul::at(&address);
        server::cost_of_attached(&server.address, &Settings::new(TTL), 3, through).await;
    });
}

/// Consul refuses an address that has 200 connections, and keeps that of a waiter who has gone until
/// the wait is over. However many wait, give up and wait again: a client stays far below.
#[test]
fn connections_are_few() {
    let Some((server, _turn)) = find_alone() else { return };
    conformance::block_on(async {
        let proxy = Proxy::new(&server.address).await;
        let (holder, store) = (Consul::at(&server.address), Consul::at(&proxy.address));
        let settings = Settings::new(TTL * 2);
        let names: Vec<LeaseName> = (0..900).map(|_| fresh("crowd")).collect();
        for some in names.chunks(50) {
            let win = |name: &LeaseName| {
                let (store, request) = (holder.clone(), request(name, "holder", TTL * 20));
                async move { win(&**store.backend(), request).await }
            };
            some.iter().map(win).collect::<JoinSet<_>>().join_all().await;
        }
        for some in names.chunks(300) {
            let mut waiting = JoinSet::new();
            for name in some {
                let lease = store.lease(name.as_str()).settings(settings.clone());
                waiting.spawn(async move { lease.acquire().await.expect("acquired") });
            }
            // Until all have looked, and those who have no query of their own joined the shared one.
            let asked = proxy.requests();
            let looked = async {
                while proxy.requests() <= asked + 300 {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            };
            tokio::time::timeout(settings.ttl, looked).await.expect("they look");
            tokio::time::sleep(Duration::from_secs(1)).await;
            // One that waits at the query which many share is woken by it.
            let name = some.last().expect("there are many");
            let record = holder.inspect(name.as_str()).await.expect("read").expect("it is there");
            let claim = record.holder.and_then(|holder| holder.claim).expect("it is held");
            let release = Release { name: name.clone(), claim, known: vec![claim] };
            holder.backend().release(release).await.expect("released");
            let freed = Moment::now();
            let next = waiting.join_next().await.expect("they wait").expect("it ran");
            let took = Moment::now().since(freed);
            println!("{took:?} with {} waiting, {} connections", some.len(), proxy.open_max());
            assert!(next.name() == name && took < settings.renew_interval / 2, "{took:?}");
            waiting.abort_all();
        }
        assert!(proxy.open_max() <= 64, "{} connections", proxy.open_max());
    });
}

/// A proxy that has lost its backend answers 404, too. That is no word about the record: neither is
/// it absent, nor has its holder lost it.
#[test]
fn a_404_of_a_proxy_is_no_absence() {
    let Some((server, _turn)) = find() else { return };
    conformance::block_on(async {
        let (direct, name) = (Consul(server).store(), fresh("proxied"));
        assert_eq!(direct.inspect(name.as_str()).await.expect("Consul's own 404"), None);
        let (claim, token) = win(&**direct.backend(), request(&name, "a", TTL)).await;
        for (headers, body) in
            [("", "404 page not found\n"), ("", ""), ("X-Consul-Index: 7\r\n", "not found")]
        {
            let store = Consul::at(&answers_404(headers, body).await);
            let error = store.inspect(name.as_str()).await.expect_err("nobody knows");
            assert!(error.to_string().contains("does not speak like Consul"), "{error}");
            let many = (0..100).map(|_| fresh("proxied")).collect();
            store.backend().read(many).await.expect_err("nobody knows");
            store.backend().list().expect("it can").await.expect_err("nobody knows");
            let (nonce, known) = (Nonce::random(), vec![claim]);
            let (name, ttl) = (name.clone(), TTL);
            let fresh_connection = false;
            let renew =
                Renew { name, claim, token, known, nonce, ttl, note: None, fresh_connection };
            let renewed = store.backend().renew(renew).await;
            println!("{}", renewed.expect_err("it may still be held"));
        }
    });
}

/// A server that answers everything so; its address.
async fn answers_404(headers: &'static str, body: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("it is bound").to_string();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut request = vec![0; 1 << 16];
                let length = body.len();
                let answer = format!(
                    "HTTP/1.1 404 Not Found\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
                );
                while let Ok(1..) = socket.read(&mut request).await {
                    if socket.write_all(answer.as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

/// Many records are read by transactions, those that are not there included; never by all keys that
/// begin alike.
#[test]
fn many_records_are_read_at_once() {
    let Some((server, _turn)) = find_alone() else { return };
    conformance::block_on(async {
        let proxy = Proxy::new(&server.address).await;
        let store = Consul::at(&proxy.address);
        let names: Vec<LeaseName> = (0..200).map(|_| fresh("batch")).collect();
        let mut claims = Vec::new();
        for some in names.chunks(25) {
            // Every fifth is not there.
            let there = some.iter().enumerate().filter(|(index, _)| index % 5 > 0);
            let winning = there.map(|(_, name)| {
                let (store, request) = (store.clone(), request(name, "holder", TTL * 20));
                async move { win(&**store.backend(), request).await.0 }
            });
            claims.extend(winning.collect::<JoinSet<_>>().join_all().await);
        }
        proxy.cut(Cut::Text("recurse"));
        let (asked, begun) = (proxy.requests(), Moment::now());
        let records = store.backend().read(names.clone()).await.expect("an answer");
        let (requests, took) = (proxy.requests() - asked, Moment::now().since(begun));
        println!("200 records in {took:?}, by {requests} requests");
        assert!(!proxy.is_done(), "more was read than was asked for");
        assert!(requests <= 8, "{requests} requests");
        for (index, record) in records.iter().enumerate() {
            assert_eq!(record.is_some(), index % 5 > 0, "{index}: {record:?}");
            let is_ours = |claim: &Nonce| record.as_ref().unwrap().is_of(*claim);
            assert!(record.is_none() || claims.iter().any(is_ours), "{record:?}");
        }
        let listed = store.backend().list().expect("it can").await.expect("an answer");
        assert!(listed.is_sorted());
        for (name, record) in names.iter().zip(&records) {
            assert_eq!(listed.contains(name), record.is_some(), "{name}");
        }
    });
}

#[test]
fn renewals_at_once() {
    let Some((server, _turn)) = find() else { return };
    let request = request(&fresh("at-once"), "a", TTL);
    conformance::block_on(silence::renewals_at_once(&Consul(server).store(), request));
}

#[test]
fn silent_connections_cost_one_time_out() {
    let Some((server, _turn)) = find() else { return };
    conformance::block_on(async {
        let proxy = SilentProxy::new(&server.address).await;
        let store = Consul::at(&proxy.address);
        let request = request(&fresh("silent"), "a", TTL);
        silence::costs_one_connection(&proxy, &store, request).await;
    });
}

/// Whatever an operator does to a held record by Consul's own tool, its holder learns within one
/// renewal interval, and terms rise on.
#[test]
fn operator() {
    let Some((server, _turn)) = find() else { return };
    let consul = Consul(server);
    conformance::block_on(async {
        let (store, settings) = (consul.store(), Settings::new(TTL));
        let name = fresh("operated");
        let (key, mut last) = (key(&name), Token::default());
        let edits: [&str; 5] = ["deleted", "overwritten", "edited", "unlocked", "restored"];
        for edit in edits {
            let lease = store.lease(name.as_str()).settings(settings.clone());
            let waited = Moment::now();
            let tenure = lease.acquire().await.expect("acquired");
            let waited = Moment::now().since(waited);
            assert!(tenure.token() > last, "token {} after {last}", tenure.token());
            last = tenure.token();
            let held = consul.tool(&["kv", "get", "-detailed", &key]).await;
            let held = String::from_utf8_lossy(&held).into_owned();
            let value = consul.tool(&["kv", "get", &key]).await;
            let value = String::from_utf8(value).expect("the note is empty");
            match edit {
                "deleted" => drop(consul.tool(&["kv", "delete", &key]).await),
                "overwritten" => drop(consul.tool(&["kv", "put", &key, "mine now"]).await),
                // The record as it is, with another note.
                "edited" => {
                    drop(consul.tool(&["kv", "put", &key, &format!("{value}a note")]).await);
                }
                "unlocked" => {
                    let session = held.lines().find_map(|line| line.strip_prefix("Session"));
                    let session = session.expect("it is locked").trim().to_owned();
                    let path = format!("/v1/session/destroy/{session}");
                    let url = format!("http://{}{path}", consul.0.address);
                    let put = ["-sfX", "PUT", &url].map(str::to_owned).to_vec();
                    drop(server::run("curl", put, vec![]).await);
                }
                // Deleted and put back as it was.
                _ => {
                    drop(consul.tool(&["kv", "delete", &key]).await);
                    drop(consul.tool(&["kv", "put", &key, &value]).await);
                }
            }
            let limit = settings.renew_interval.mul_f64(1.2) + settings.operation_timeout;
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
                ("edited", Loss::Stolen { by: Some(_) }) => {}
                ("unlocked" | "restored", Loss::Stolen { by: None }) => {}
                _ => panic!("{edit}: the reason is {loss:?}"),
            }
            tenure.release().await;
        }
    });
}

/// A lease that `consul lock` holds is left to it, and taken when it lets go.
#[test]
fn foreign_lock() {
    let Some((server, _turn)) = find() else { return };
    let consul = Consul(server);
    conformance::block_on(async {
        let (store, name) = (consul.store(), fresh("foreign"));
        let session = format!("http://{}/v1/session/create", consul.0.address);
        let body = "{\"TTL\":\"10s\",\"LockDelay\":\"1s\",\"Name\":\"foreign\",\"NodeChecks\":[]}";
        let put = ["-sfX", "PUT", "-d", body, &session].map(str::to_owned).to_vec();
        let session = String::from_utf8(server::run("curl", put, vec![]).await).unwrap();
        let session = session.split('"').nth(3).expect("an id").to_owned();
        let url = format!("http://{}/v1/kv/{}?acquire={session}", consul.0.address, key(&name));
        let put = ["-sfX", "PUT", "-d", "another elector", &url].map(str::to_owned).to_vec();
        assert_eq!(server::run("curl", put, vec![]).await.trim_ascii(), b"true");
        let record = store.inspect(name.as_str()).await.unwrap().expect("it is there");
        assert_eq!(record.owner().expect("it is held").name, "another elector");
        let begun = Moment::now();
        let lease = store.lease(name.as_str()).settings(Settings::new(TTL));
        let tenure = lease.acquire().await.expect("acquired");
        let took = Moment::now().since(begun);
        println!("{took:?} until Consul had ended a foreign session of {TTL:?}");
        assert!(took >= TTL && took <= TTL * 3, "{took:?}");
        assert!(tenure.token() > record.token);
    });
}

/// With TLS and access control: a token that may write keys and sessions is enough; a wrong one is
/// named as the trouble, and not shown.
#[test]
fn tls_and_tokens() {
    let Some((_, _turn)) = find() else { return };
    conformance::block_on(async {
        let directory = Private::folder().await;
        let [https, http, server, lan, wan] = [(); 5].map(|()| port::free_port());
        let config = format!(
            "ports {{ https = {https} http = {http} server = {server} serf_lan = {lan} \
               serf_wan = {wan} dns = -1 grpc = -1 {PORTS} }}\n\
             cert_file = \"cert.pem\"\nkey_file = \"key.pem\"\n\
             acl {{ enabled = true default_policy = \"deny\"\n\
               tokens {{ master = \"{ROOT}\" agent = \"{ROOT}\" }} }}\n"
        );
        std::fs::write(directory.join("test.hcl"), config).expect("written");
        let program = program();
        let arguments = ["agent", "-dev", "-bind=127.0.0.1", "-config-file=test.hcl"];
        let _consul = Private::start(&program, &arguments, &directory, &[]);
        let url = |token: &str| {
            let ca = directory.join("cert.pem");
            format!("consul://127.0.0.1:{https}/leases?ca={}&token={token}", ca.display())
        };
        let open = |token: &str| Store::new(ConsulStore::new(&url(token)).expect("a URL"));
        let root = open(ROOT);
        let ready = async {
            while let Err(error) = root.preflight("ready").await {
                println!("not ready: {error}");
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), ready).await.expect("it comes up");

        let rules = "key_prefix \"leases/\" { policy = \"write\" }\n\
                     session_prefix \"\" { policy = \"write\" }";
        let tool = async |arguments: &[&str]| {
            let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
            let address = format!("http://127.0.0.1:{http}");
            let environment =
                vec![("CONSUL_HTTP_ADDR", address), ("CONSUL_HTTP_TOKEN", ROOT.to_owned())];
            server::run(&program, arguments, environment).await
        };
        tool(&["acl", "policy", "create", "-name", "leases", "-rules", rules]).await;
        let made = tool(&["acl", "token", "create", "-policy-name", "leases"]).await;
        let made = String::from_utf8(made).expect("text");
        let token = made.lines().find_map(|line| line.strip_prefix("SecretID:"));
        let token = token.expect("a secret").trim().to_owned();
        let store = open(&token);
        store.preflight("nightly").await.expect("it may do all that it needs");
        let tenure = store.lease("nightly").acquire().await.expect("acquired");
        tenure.release().await;

        let wrong = "0b0b0b0b-0000-4000-8000-0123456789ab";
        for refused in [open(wrong), open("")] {
            let name = LeaseName::new("nightly").expect("a name");
            let attempt = server::request(&name, "a", TTL);
            let error = refused.backend().acquire(attempt).await.expect_err("it may not");
            println!("{error}");
            assert!(!error.to_string().contains(wrong), "{error}");
        }
        let error = open(wrong).inspect("nightly").await.expect_err("it may not");
        assert!(error.to_string().contains("token"), "{error}");
        // Whom it does not know it does not speak to.
        let plain = format!("consul://127.0.0.1:{https}/leases?tls=true&token={token}");
        let plain = Store::new(ConsulStore::new(&plain).expect("a URL"));
        let error = plain.inspect("nightly").await.expect_err("an unknown authority").to_string();
        println!("{error}");
        assert!(error.contains("certificate") && !error.contains(&token), "{error}");
    });
}

const ROOT: &str = "b1gs33cr-3t00-4000-8000-0123456789ab";
