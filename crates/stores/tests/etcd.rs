//! etcd, against a real cluster of three: see scripts/servers.
#![cfg(feature = "etcd")]
#![allow(clippy::disallowed_methods)] // Real servers, real time.

mod etcd_support;
mod port;
mod server;

use std::process::{Command, Stdio};
use std::time::Duration;

use tenure_lease::backend::{Acquire, Acquired, Boxed};
use tenure_lease::record::{Expiry, SessionRef};
use tenure_lease::{LeaseName, Loss, Moment, Settings, Store, Token};
use tenure_testkit::conformance::{self, Factory};
use tokio::time::sleep;

use etcd_support::{ctl, program, run, store};
use server::proxy::{Cut, Proxy};
use server::{Server, fresh, request, win};

const TTL: Duration = Duration::from_secs(3);
const PREFIX: &str = "/tests/leases";

#[derive(Clone)]
struct Etcd(Server);

impl Etcd {
    fn store(&self) -> Store {
        store(&format!("etcd://{}{PREFIX}", self.0.address))
    }

    fn ctl(&self, arguments: &[&str]) -> String {
        ctl(&self.0.address, arguments)
    }

    /// The member that leads: its address, and its name in scripts/servers.
    fn leader(&self) -> (String, String) {
        for (index, address) in self.0.address.split(',').enumerate() {
            // Columns: endpoint, id, version, …; the fields of the first are the same in JSON.
            let status = ctl(address, &["endpoint", "status", "--write-out", "fields"]);
            let field = |name: &str| {
                let line = status.lines().find(|line| line.starts_with(&format!("\"{name}\"")));
                line.and_then(|line| line.split_once(" : ")).map(|(_, value)| value.to_owned())
            };
            if field("Leader").is_some() && field("Leader") == field("MemberID") {
                return (address.to_owned(), format!("etcd-{}", index + 1));
            }
        }
        panic!("the cluster has no leader");
    }
}

fn key(name: &LeaseName) -> String {
    format!("{PREFIX}/{name}")
}

fn kept(name: &LeaseName) -> String {
    format!("{PREFIX}/{name}/.kept")
}

impl Factory for Etcd {
    fn open(&self) -> Boxed<'_, Store> {
        Box::pin(async { self.store() })
    }

    /// Long enough for the dozens of steps that some checks take within it on a busy machine.
    fn ttl(&self) -> Duration {
        Duration::from_secs(10)
    }

    /// Both keys, in one transaction of etcdctl.
    fn delete<'a>(&'a self, name: &'a LeaseName) -> Option<Boxed<'a, ()>> {
        let text = format!("\ndel {}\ndel {}\n\n\n", key(name), kept(name));
        let address = self.0.address.clone();
        Some(Box::pin(async move {
            let deleted = tokio::task::spawn_blocking(move || {
                let mut child = Command::new(program("etcdctl"))
                    .args(["--endpoints", &address, "txn"])
                    .stdin(Stdio::piped())
                    .stdout(Stdio::null())
                    .spawn()
                    .expect("etcdctl");
                let mut stdin = child.stdin.take().expect("it is piped");
                std::io::Write::write_all(&mut stdin, text.as_bytes()).expect("it reads");
                drop(stdin);
                assert!(child.wait().expect("it ended").success());
            });
            deleted.await.expect("deleted");
        }))
    }

    fn seize<'a>(&'a self, name: &'a LeaseName, identity: &'a str) -> Option<Boxed<'a, ()>> {
        Some(Box::pin(async move { drop(self.ctl(&["put", &key(name), identity])) }))
    }

    fn write_newer<'a>(&'a self, name: &'a LeaseName) -> Option<Boxed<'a, ()>> {
        let newer = "{\"format\":2,\"term\":\"of another kind\"}";
        Some(Box::pin(async move { drop(self.ctl(&["put", &kept(name), newer])) }))
    }

    fn open_unreachable(&self) -> Option<Boxed<'_, Store>> {
        // Ports 1 and 2 answer nobody here.
        Some(Box::pin(async { store("etcd://127.0.0.1:1,127.0.0.1:2") }))
    }

    fn restart(&self) -> Option<Boxed<'_, ()>> {
        Some(Box::pin(self.0.control("restart")))
    }
}

#[test]
fn conformance() {
    let Some((server, _turn)) = Server::find_alone("etcd") else { return };
    conformance::test(Etcd(server));
}

#[test]
fn race() {
    let Some((server, _turn)) = Server::find_alone("etcd") else { return };
    let etcd = Etcd(server);
    conformance::block_on(server::race(|| etcd.store(), TTL, TTL * 2));
}

#[test]
fn restart() {
    let Some((server, _turn)) = Server::find_alone("etcd") else { return };
    let (store, ttl) = (Etcd(server.clone()).store(), Duration::from_secs(10));
    conformance::block_on(server::survives_restart(&server, &store, ttl));
}

/// etcd's leases begin anew when a leader is elected, so what a dead holder has left is free a ttl
/// after that; hence the short one.
#[test]
fn outage() {
    let Some((server, _turn)) = Server::find_alone("etcd") else { return };
    let etcd = Etcd(server.clone());
    conformance::block_on(async {
        for (begin, end) in [("pause", "resume"), ("kill", "restart")] {
            let settings = Settings::new(TTL);
            server::survives_outage(&server, || etcd.store(), settings, begin, end).await;
        }
    });
}

/// The leader dies: the others elect one, and the tenure goes on; so do acquisitions. The same with
/// one that merely hangs, which no connection tells.
#[test]
fn leader_lost() {
    let Some((server, _turn)) = Server::find_alone("etcd") else { return };
    let etcd = Etcd(server);
    let script = std::env::var("TENURE_TEST_SERVERS_SCRIPT").expect("scripts/servers sets it");
    conformance::block_on(async {
        for (begin, end) in [("kill", "restart"), ("pause", "resume")] {
            let (address, member) = etcd.leader();
            let others: Vec<_> = etcd.0.address.split(',').filter(|a| **a != address).collect();
            // Prefers the leader if it can: it is the only one, or one of three.
            let url = format!("etcd://{address},{}{PREFIX}", others.join(","));
            let stores: Vec<_> = (0..4).map(|_| store(&url)).collect();
            let settings = Settings::new(Duration::from_secs(12));
            let mut tenures = Vec::new();
            for store in &stores {
                let lease = store.lease(fresh("leader").as_str()).settings(settings.clone());
                tenures.push(lease.acquire().await.expect("acquired"));
            }
            run(&script, &[begin, &member]);
            let begun = Moment::now();
            let lease = stores[0].lease(fresh("after").as_str()).settings(settings.clone());
            let next = lease.acquire().await.expect("acquired");
            println!("{begin} {member}: won another after {:?}", Moment::now().since(begun));
            // Without a renewal since they would be lost by then.
            sleep(settings.ttl).await;
            for tenure in &tenures {
                assert!(tenure.is_held(), "{begin}: {:?}", tenure.loss());
            }
            assert!(next.is_held());
            run(&script, &[end, &member]);
            for tenure in tenures {
                tenure.release().await;
            }
        }
    });
}

/// Whatever an operator does to a held record by etcdctl, its holder learns within one renewal
/// interval, and terms rise on.
#[test]
fn operator() {
    let Some((server, _turn)) = Server::find("etcd") else { return };
    let etcd = Etcd(server);
    conformance::block_on(async {
        let (store, settings) = (etcd.store(), Settings::new(Duration::from_secs(8)));
        let name = fresh("operated");
        let (live, kept, mut last) = (key(&name), kept(&name), Token::default());
        for edit in
            ["deleted", "all deleted", "overwritten", "rewritten", "kept deleted", "revoked"]
        {
            let lease = store.lease(name.as_str()).settings(settings.clone()).note(b"n".to_vec());
            let waited = Moment::now();
            let tenure = lease.acquire().await.expect("acquired");
            let waited = Moment::now().since(waited);
            assert!(tenure.token() > last, "token {} after {last}", tenure.token());
            last = tenure.token();
            let value = etcd.ctl(&["get", "--print-value-only", &live]);
            match edit {
                "deleted" => drop(etcd.ctl(&["del", &live])),
                "all deleted" => etcd.delete(&name).expect("it can").await,
                "overwritten" => drop(etcd.ctl(&["put", &live, "mine now"])),
                // The same value: but it hangs on no lease now.
                "rewritten" => drop(etcd.ctl(&["put", &live, value.trim()])),
                "kept deleted" => drop(etcd.ctl(&["del", &kept])),
                _ => {
                    let found = etcd.ctl(&["get", "--write-out", "fields", &live]);
                    let lease = found.lines().find_map(|line| line.strip_prefix("\"Lease\" : "));
                    let lease: i64 = lease.expect("it has one").parse().expect("a number");
                    drop(etcd.ctl(&["lease", "revoke", &format!("{lease:x}")]));
                }
            }
            let begun = Moment::now();
            let loss = tokio::time::timeout(settings.ttl, tenure.lost()).await.expect("lost");
            let took = Moment::now().since(begun);
            println!("{edit}: {loss} after {took:?} (acquired after {waited:?})");
            assert!(took <= settings.renew_interval + settings.operation_timeout, "{took:?}");
            match edit {
                "deleted" | "all deleted" | "revoked" => assert_eq!(loss, Loss::Deleted),
                "overwritten" => assert!(
                    matches!(&loss, Loss::Stolen { by: Some(by) } if by.name == "mine now"),
                    "{loss:?}"
                ),
                _ => assert!(matches!(&loss, Loss::Stolen { by: Some(_) }), "{loss:?}"),
            }
            tenure.release().await;
        }
        let tenure = store.lease(name.as_str()).settings(settings).acquire().await.expect("won");
        assert!(tenure.token() > last);
    });
}

/// A key that was deleted behind its holder's back is nobody's while the holder may believe, and
/// one that was detached from its lease is free only after it has stood still for its ttl.
#[test]
fn behind_the_holders_back() {
    let Some((server, _turn)) = Server::find("etcd") else { return };
    let etcd = Etcd(server);
    conformance::block_on(async {
        let (store, name) = (etcd.store(), fresh("deleted"));
        let backend = store.backend();
        let begun = Moment::now();
        let noted = Acquire { note: Some(b"kept".to_vec()), ..request(&name, "a", TTL) };
        let (_, first) = win(&**backend, noted).await;
        etcd.ctl(&["del", &key(&name)]);
        assert_eq!(backend.read(vec![name.clone()]).await, Ok(vec![None]), "vanished");
        let uncreated = Acquire { create: false, ..request(&name, "b", TTL) };
        assert_eq!(backend.acquire(uncreated).await, Ok(Acquired::Lost(None)));
        let lease = store.lease(name.as_str()).settings(Settings::new(TTL));
        // Once the etcd lease is over, the tenure is, too, and the kept key still tells.
        sleep((begun + TTL * 2).since(Moment::now())).await;
        let record = backend.read(vec![name.clone()]).await.expect("read").remove(0);
        let record = record.expect("the kept key tells of it");
        assert!(record.expiry == Expiry::ByStore(Duration::ZERO) && record.note == b"kept");
        assert_eq!(record.token, first);
        let tenure = lease.acquire().await.expect("free");
        assert!(tenure.token() > first && tenure.note() == b"kept");
        tenure.release().await;

        let name = fresh("detached");
        let (_, first) = win(&**backend, request(&name, "a", TTL)).await;
        let value = etcd.ctl(&["get", "--print-value-only", &key(&name)]);
        etcd.ctl(&["put", &key(&name), value.trim()]);
        let detached = Moment::now();
        let lease = store.lease(name.as_str()).settings(Settings::new(TTL));
        let tenure = lease.acquire().await.expect("free by observation");
        let waited = Moment::now().since(detached);
        assert!(waited >= TTL && waited <= TTL * 2, "taken after {waited:?}");
        assert!(tenure.token() > first);
    });
}

/// A key that another elector keeps on an etcd lease is its own for as long as that lives, although
/// it is never written again.
#[test]
fn a_foreign_key_on_a_lease_is_left_alone() {
    let Some((server, _turn)) = Server::find("etcd") else { return };
    let etcd = Etcd(server);
    conformance::block_on(async {
        let (store, name) = (etcd.store(), fresh("foreign"));
        let granted = etcd.ctl(&["lease", "grant", "4"]);
        let lease = granted.split(' ').nth(1).expect("an id").to_owned();
        etcd.ctl(&["put", &key(&name), "another elector", "--lease", &lease]);
        let mut alive = std::process::Command::new(program("etcdctl"))
            .args(["--endpoints", &etcd.0.address, "lease", "keep-alive", &lease])
            .stdout(std::process::Stdio::null())
            .spawn()
            .expect("etcdctl runs");
        let record = store.inspect(name.as_str()).await.expect("read").expect("it is there");
        assert_eq!(record.owner().expect("it is held").name, "another elector");
        assert!(matches!(record.expiry, Expiry::ByStore(left) if !left.is_zero()), "{record:?}");
        let waiting = store.lease(name.as_str()).settings(Settings::new(TTL));
        let waiting = tokio::spawn(async move { waiting.acquire().await.expect("acquired") });
        // Longer than anybody would watch a record that stands still.
        sleep((record.ttl + TTL) * 2).await;
        assert!(!waiting.is_finished(), "taken from a living holder");
        alive.kill().expect("it runs");
        alive.wait().expect("it ended");
        let gone = Moment::now();
        let tenure = tokio::time::timeout(record.ttl * 3, waiting).await.expect("in time");
        println!("{:?} after the foreign elector's end", Moment::now().since(gone));
        assert!(tenure.expect("it ran").token() > record.token);
    });
}

/// A thousand names are one request; attached records come back as they are.
#[test]
fn a_thousand_attached() {
    let Some((server, _turn)) = Server::find_alone("etcd") else { return };
    let etcd = Etcd(server);
    conformance::block_on(async {
        let store = etcd.store();
        let backend = store.backend();
        let names: Vec<_> = (0..1000).map(|_| fresh("attached")).collect();
        let session = SessionRef { name: fresh("session"), term: 7 };
        for names in names.chunks(50) {
            let mut winning = tokio::task::JoinSet::new();
            for name in names {
                let session = Some(session.clone());
                let request = Acquire { session, ..request(name, "a", TTL) };
                let store = store.clone();
                winning.spawn(async move { win(&**store.backend(), request).await });
            }
            winning.join_all().await;
        }
        let begun = Moment::now();
        let records = backend.read(names).await.expect("read");
        println!("1,000 records in {:?}", Moment::now().since(begun));
        let attached = |record: &tenure_lease::Record| {
            record.session() == Some(&session) && record.expiry == Expiry::ByObservation
        };
        assert!(records.iter().all(|record| record.as_ref().is_some_and(attached)));
    });
}

/// From a release to the next tenure, beside what a renewal takes.
#[test]
fn hand_over() {
    let Some((server, _turn)) = Server::find("etcd") else { return };
    let etcd = Etcd(server);
    conformance::block_on(async {
        let (name, settings) = (fresh("hand-over"), Settings::new(Duration::from_secs(30)));
        let (first, second) = (etcd.store(), etcd.store());
        let lease = |store: &Store| store.lease(name.as_str()).settings(settings.clone());
        let (mut takes, mut writes) = (Vec::new(), Vec::new());
        let mut tenure = lease(&first).acquire().await.expect("acquired");
        for round in 0..30 {
            let waiting = lease(if round % 2 == 0 { &second } else { &first });
            let waiting = tokio::spawn(async move { waiting.acquire().await });
            sleep(Duration::from_millis(150)).await;
            let begun = Moment::now();
            tenure.write_note(Vec::new()).await.expect("written");
            writes.push(Moment::now().since(begun));
            let begun = Moment::now();
            let (next, ()) = tokio::join!(waiting, tenure.release());
            takes.push(Moment::now().since(begun));
            tenure = next.expect("it ran").expect("acquired");
        }
        takes.sort();
        writes.sort();
        println!(
            "hand-over {:?} (slowest {:?}), a renewal {:?} (medians)",
            takes[15], takes[29], writes[15]
        );
        // Far below a poll.
        assert!(takes[29] < settings.renew_interval / 2, "{takes:?}");
    });
}

/// A proxy cuts the connection after the request was done and before its answer is back: on
/// acquisition, renewal and release. Nobody deposes itself, and nobody leaves an orphan.
#[test]
fn lost_replies() {
    let Some((server, _turn)) = Server::find("etcd") else { return };
    let etcd = Etcd(server);
    conformance::block_on(async {
        let member = etcd.0.address.split(',').next().expect("a member").to_owned();
        let proxy = Proxy::new(&member).await;
        let store = store(&format!("etcd://{}{PREFIX}", proxy.address));
        let (name, settings) = (fresh("cut"), Settings::new(Duration::from_secs(6)));
        let lease = store.lease(name.as_str()).settings(settings.clone());
        proxy.cut(Cut::Text("request_put"));
        let begun = Moment::now();
        let tenure = lease.acquire().await.expect("acquired");
        assert!(proxy.is_done() && Moment::now().since(begun) < settings.ttl);
        for what in ["request_put", "keepalive", "request_put"] {
            proxy.cut(Cut::Text(what));
            let cut = async {
                while !proxy.is_done() {
                    sleep(Duration::from_millis(20)).await;
                }
            };
            let cut = tokio::time::timeout(settings.ttl, cut).await;
            assert!(cut.is_ok(), "{what} was not cut");
            sleep(settings.renew_interval / 2).await;
            assert!(tenure.is_held(), "{what}: {:?}", tenure.loss());
        }
        let record = etcd.store().inspect(name.as_str()).await.expect("read").expect("there");
        assert!(record.is_of(tenure.claim()) && record.token == tenure.token());
        proxy.cut(Cut::Text("request_delete_range"));
        tenure.release().await;
        assert!(proxy.is_done());
        let record = etcd.store().inspect(name.as_str()).await.expect("read").expect("there");
        assert!(record.holder.is_none(), "{record:?}");
    });
}

#[test]
fn cost_of_attached() {
    let Some((server, _turn)) = Server::find_alone("etcd") else { return };
    conformance::block_on(async {
        let member = server.address.split(',').next().expect("a member").to_owned();
        let through = async |address: String| store(&format!("etcd://{address}{PREFIX}"));
        let settings = Settings::new(Duration::from_secs(8));
        server::cost_of_attached(&member, &settings, 2, through).await;
    });
}

/// A watch wakes when it stands, when its member went and it stands elsewhere, and when the lease
/// may be free; renewals do not wake it.
#[test]
fn watch() {
    let Some((server, _turn)) = Server::find_alone("etcd") else { return };
    let etcd = Etcd(server.clone());
    conformance::block_on(async {
        let (store, name) = (etcd.store(), fresh("watched"));
        let settings = Settings::new(Duration::from_secs(20));
        let settings = Settings { renew_interval: Duration::from_millis(300), ..settings };
        let lease = store.lease(name.as_str()).settings(settings);
        let tenure = lease.acquire().await.expect("acquired");
        let mut watch = etcd.store().backend().watch(&name).expect("etcd pushes");
        watch.changed().await;
        let idle = tokio::time::timeout(Duration::from_secs(2), watch.changed()).await;
        assert!(idle.is_err(), "a renewal woke it");
        server.control("restart").await;
        let again = tokio::time::timeout(Duration::from_secs(10), watch.changed()).await;
        assert!(again.is_ok(), "it does not come back");
        let _ = tokio::time::timeout(Duration::from_secs(2), watch.changed()).await;
        tenure.release().await;
        let freed = tokio::time::timeout(Duration::from_secs(10), watch.changed()).await;
        assert!(freed.is_ok(), "the release did not wake it");
    });
}
