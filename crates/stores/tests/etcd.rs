//! etcd, against a real cluster of three: see scripts/servers.
#![cfg(feature = "etcd")]
#![allow(clippy::disallowed_methods)] // Real servers, real time.

mod etcd_support;
mod port;
mod server;

use std::time::Duration;

use tenure_lease::backend::Acquire;
use tenure_lease::record::{Expiry, SessionRef};
use tenure_lease::{Moment, Settings, Store};
use tenure_testkit::conformance::block_on;
use tenure_testkit::cost::Cost;
use tokio::time::sleep;

use etcd_support::{Etcd, NEWEST, PREFIX, checks, live, run, store};
use server::proxy::{Cut, Proxy};
use server::{fresh, request, win};

const TTL: Duration = Duration::from_secs(3);

/// The member that leads: its address, and its name in scripts/servers.
fn leader(etcd: &Etcd) -> (String, String) {
    for (index, address) in etcd.server.address.split(',').enumerate() {
        // Columns: endpoint, id, version, …; the fields of the first are the same in JSON.
        let status = NEWEST.ctl(address, &["endpoint", "status", "--write-out", "fields"]);
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

#[test]
fn conformance() {
    checks::conformance(NEWEST);
}

#[test]
fn operator() {
    checks::operator(NEWEST);
}

#[test]
fn revoked_etcd_leases() {
    checks::revoked_etcd_leases(NEWEST);
}

#[test]
fn behind_the_holders_back() {
    checks::behind_the_holders_back(NEWEST);
}

#[test]
fn crash() {
    checks::crash(NEWEST);
}

#[test]
fn reads_propose_nothing() {
    checks::reads_propose_nothing(NEWEST);
}

#[test]
fn many_watches() {
    checks::many_watches(NEWEST);
}

#[test]
fn silent_connections() {
    checks::silent_connections(NEWEST);
}

#[test]
fn list() {
    checks::list(NEWEST);
}

#[test]
fn race() {
    let Some((etcd, _turn)) = NEWEST.find_alone() else { return };
    block_on(server::race(|| etcd.store(), TTL, TTL * 2));
}

#[test]
fn restart() {
    let Some((etcd, _turn)) = NEWEST.find_alone() else { return };
    let (store, ttl) = (etcd.store(), Duration::from_secs(10));
    block_on(server::survives_restart(&etcd.server, &store, ttl));
}

#[test]
fn outage() {
    let Some((etcd, _turn)) = NEWEST.find_alone() else { return };
    block_on(async {
        for (begin, end) in [("pause", "resume"), ("kill", "restart")] {
            let settings = Settings::new(TTL);
            server::survives_outage(&etcd.server, || etcd.store(), settings, begin, end).await;
        }
    });
}

/// The leader dies: the others elect one, and the tenure goes on; so do acquisitions. The same with
/// one that merely hangs, which no connection tells.
#[test]
fn leader_lost() {
    let Some((etcd, _turn)) = NEWEST.find_alone() else { return };
    let script = std::env::var("TENURE_TEST_SERVERS_SCRIPT").expect("scripts/servers sets it");
    block_on(async {
        for (begin, end) in [("kill", "restart"), ("pause", "resume")] {
            let (address, member) = leader(&etcd);
            let others: Vec<_> =
                etcd.server.address.split(',').filter(|a| **a != address).collect();
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

/// A key that another elector keeps on an etcd lease is its own for as long as that lives, although
/// it is never written again.
#[test]
fn a_foreign_key_on_a_lease_is_left_alone() {
    let Some((etcd, _turn)) = NEWEST.find() else { return };
    block_on(async {
        let (store, name) = (etcd.store(), fresh("foreign"));
        let granted = etcd.ctl(&["lease", "grant", "4"]);
        let lease = granted.split(' ').nth(1).expect("an id").to_owned();
        etcd.ctl(&["put", &live(&name), "another elector", "--lease", &lease]);
        let mut alive = std::process::Command::new(NEWEST.program("etcdctl"))
            .args(["--endpoints", &etcd.server.address, "lease", "keep-alive", &lease])
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
    let Some((etcd, _turn)) = NEWEST.find_alone() else { return };
    block_on(async {
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
    let Some((etcd, _turn)) = NEWEST.find() else { return };
    block_on(async {
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
        // Far below a poll, also when a store watches now and then only.
        assert!(takes[29] < settings.renew_interval / 5, "{takes:?}");
    });
}

/// A proxy cuts the connection after the request was done and before its answer is back: on
/// acquisition, renewal and release. Nobody deposes itself, and nobody leaves an orphan.
#[test]
fn lost_replies() {
    let Some((etcd, _turn)) = NEWEST.find() else { return };
    block_on(async {
        let member = etcd.server.address.split(',').next().expect("a member").to_owned();
        let proxy = Proxy::new(&member).await;
        let store = store(&format!("etcd://{}{PREFIX}", proxy.address));
        let (name, settings) = (fresh("cut"), Settings::new(Duration::from_secs(6)));
        let lease = store.lease(name.as_str()).settings(settings.clone());
        proxy.cut(Cut::Text("/live"));
        let begun = Moment::now();
        let tenure = lease.acquire().await.expect("acquired");
        assert!(proxy.is_done() && Moment::now().since(begun) < settings.ttl);
        for renewal in 1..=3 {
            proxy.cut(Cut::Text("/live"));
            let cut = async {
                while !proxy.is_done() {
                    sleep(Duration::from_millis(20)).await;
                }
            };
            let cut = tokio::time::timeout(settings.ttl, cut).await;
            assert!(cut.is_ok(), "renewal {renewal} was not cut");
            sleep(settings.renew_interval / 2).await;
            assert!(tenure.is_held(), "renewal {renewal}: {:?}", tenure.loss());
        }
        let record = etcd.store().inspect(name.as_str()).await.expect("read").expect("there");
        assert!(record.is_of(tenure.claim()) && record.token == tenure.token());
        proxy.cut(Cut::Text("released"));
        tenure.release().await;
        assert!(proxy.is_done());
        let record = etcd.store().inspect(name.as_str()).await.expect("read").expect("there");
        assert!(record.holder.is_none(), "{record:?}");
    });
}

/// A thousand attached leases cost one request per renewal of their session, and one per hundred of
/// them at each sweep, as etcd itself counts.
#[test]
fn cost_of_attached() {
    let Some((etcd, _turn)) = NEWEST.find_alone() else { return };
    block_on(async {
        let store = store(&format!("etcd://{}{PREFIX}", etcd.member()));
        let settings = Settings::new(Duration::from_secs(8));
        let requests = || etcd.counter("grpc_server_handled_total") as u64;
        let cost = Cost::of(&store, &settings, 1_000, requests).await;
        cost.check(&settings);
        cost.check_metered(1);
    });
}

/// A watch wakes when it is established, when its member went and it is established elsewhere, and
/// at every change, so that contenders know when a renewal was.
#[test]
fn watch() {
    let Some((etcd, _turn)) = NEWEST.find_alone() else { return };
    block_on(async {
        let (store, name) = (etcd.store(), fresh("watched"));
        let settings = Settings::new(Duration::from_secs(20));
        let settings = Settings { renew_interval: Duration::from_millis(300), ..settings };
        let lease = store.lease(name.as_str()).settings(settings);
        let tenure = lease.acquire().await.expect("acquired");
        let mut watch = etcd.store().backend().watch(&name).expect("etcd pushes");
        watch.changed().await;
        for _ in 0..3 {
            let renewed = tokio::time::timeout(Duration::from_secs(2), watch.changed()).await;
            assert!(renewed.is_ok(), "a renewal did not wake it");
        }
        etcd.server.control("restart").await;
        let again = tokio::time::timeout(Duration::from_secs(10), watch.changed()).await;
        assert!(again.is_ok(), "it does not come back");
        tenure.release().await;
        let freed = async {
            while store.inspect(name.as_str()).await.expect("read").expect("there").holder.is_some()
            {
                watch.changed().await;
            }
        };
        let freed = tokio::time::timeout(Duration::from_secs(10), freed).await;
        assert!(freed.is_ok(), "the release did not wake it");
    });
}
