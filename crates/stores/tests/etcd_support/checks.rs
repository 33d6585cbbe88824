//! What is checked on every release of etcd.
#![allow(clippy::disallowed_methods)] // Real servers, real time.

use std::time::Duration;

use tenure_lease::backend::{Acquire, Acquired, Renew, Renewed, StoreErrorKind};
use tenure_lease::record::Expiry;
use tenure_lease::{LeaseError, LeaseName, Loss, Moment, Nonce, Settings, Store, Token};
use tenure_testkit::conformance::{self, Factory as _, block_on};
use tokio::time::{sleep, timeout};

use super::{PREFIX, Release, Scratch, Solo, kept, live, store};
use crate::server::proxy::Proxy;
use crate::server::{fresh, request, win};

const TTL: Duration = Duration::from_secs(3);

pub(crate) fn conformance(release: Release) {
    let Some((etcd, _turn)) = release.find_alone() else { return };
    conformance::test(etcd);
}

/// Whatever an operator does to a held record by etcdctl, its holder learns within one renewal
/// interval, and terms rise on.
pub(crate) fn operator(release: Release) {
    let Some((etcd, _turn)) = release.find() else { return };
    block_on(async {
        let (store, settings) = (etcd.store(), Settings::new(Duration::from_secs(6)));
        let (name, mut last) = (fresh("operated"), Token::default());
        for edit in ["deleted", "all deleted", "overwritten", "kept deleted"] {
            let lease = store.lease(name.as_str()).settings(settings.clone()).note(b"n".to_vec());
            let waited = Moment::now();
            let tenure = lease.acquire().await.expect("acquired");
            let waited = Moment::now().since(waited);
            assert!(tenure.token() > last, "token {} after {last}", tenure.token());
            last = tenure.token();
            match edit {
                "deleted" => drop(etcd.ctl(&["del", &live(&name)])),
                "all deleted" => etcd.delete(&name).expect("it can").await,
                "overwritten" => drop(etcd.ctl(&["put", &live(&name), "mine now"])),
                _ => drop(etcd.ctl(&["del", &kept(&name)])),
            }
            let begun = Moment::now();
            let loss = timeout(settings.ttl, tenure.lost()).await.expect("lost");
            let took = Moment::now().since(begun);
            println!("{edit}: {loss} after {took:?} (acquired after {waited:?})");
            assert!(took <= settings.renew_interval + settings.operation_timeout, "{took:?}");
            match edit {
                "deleted" | "all deleted" => assert_eq!(loss, Loss::Deleted),
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

/// Nobody takes a lease from a living holder when etcd, or an operator, revokes every etcd lease
/// that there is: releases before 3.4.30 and 3.5.13 do so by themselves after a leader was stuck.
pub(crate) fn revoked_etcd_leases(release: Release) {
    let Some((etcd, _turn)) = release.find_alone() else { return };
    block_on(async {
        let (name, settings) = (fresh("revoked"), Settings::new(Duration::from_secs(6)));
        let (first, second) = (etcd.store(), etcd.store());
        let holder = first.lease(name.as_str()).settings(settings.clone());
        let holder = holder.acquire().await.expect("acquired");
        let next = second.lease(name.as_str()).settings(settings.clone());
        let next = tokio::spawn(async move { next.acquire().await.expect("acquired") });
        sleep(settings.ttl / 4).await;
        let leases = etcd.ctl(&["lease", "list"]);
        let ids = leases.lines().filter(|line| line.len() == 16);
        for id in ids.filter(|id| id.bytes().all(|byte| byte.is_ascii_hexdigit())) {
            println!("revoking {id}");
            drop(etcd.ctl(&["lease", "revoke", id]));
        }
        let begun = Moment::now();
        while Moment::now().since(begun) < settings.ttl * 2 {
            assert!(!(next.is_finished() && holder.is_held()), "two holders");
            sleep(Duration::from_millis(10)).await;
        }
        assert!(holder.is_held(), "{:?}", holder.loss());
        holder.release().await;
        drop(next.await.expect("it ran"));
    });
}

/// A live key that was deleted behind its holder's back is nobody's while the holder may believe,
/// also for who comes only then.
pub(crate) fn behind_the_holders_back(release: Release) {
    let Some((etcd, _turn)) = release.find() else { return };
    block_on(async {
        let (store, name) = (etcd.store(), fresh("deleted"));
        let backend = store.backend();
        let noted = Acquire { note: Some(b"kept".to_vec()), ..request(&name, "a", TTL) };
        let (_, first) = win(&**backend, noted).await;
        etcd.ctl(&["del", &live(&name)]);
        let deleted = Moment::now();
        let record = backend.read(vec![name.clone()]).await.expect("read").remove(0);
        let record = record.expect("the kept key tells of it");
        assert!(record.holder.is_some() && record.expiry == Expiry::ByObservation, "{record:?}");
        assert_eq!((record.token, &*record.note), (first, &b"kept"[..]));
        let lost = backend.acquire(request(&name, "b", TTL)).await;
        assert!(matches!(lost, Ok(Acquired::Lost(Some(_)))), "{lost:?}");
        let lease = store.lease(name.as_str()).settings(Settings::new(TTL));
        let tenure = lease.acquire().await.expect("free by observation");
        let waited = Moment::now().since(deleted);
        assert!(waited >= TTL && waited <= TTL * 2, "taken after {waited:?}");
        assert!(tenure.token() > first && tenure.note() == b"kept");
    });
}

/// A holder that dies is succeeded a ttl after its last renewal, by one who watched it.
pub(crate) fn crash(release: Release) {
    let Some((etcd, _turn)) = release.find() else { return };
    block_on(async {
        let (name, settings) = (fresh("crash"), Settings::new(TTL));
        let (dying, waiting) = (etcd.store(), etcd.store());
        let (claim, token) = win(&**dying.backend(), request(&name, "a", TTL)).await;
        let next = waiting.lease(name.as_str()).settings(settings);
        let next = tokio::spawn(async move { next.acquire().await.expect("acquired") });
        // Between two polls of the contender.
        sleep(Duration::from_millis(300)).await;
        renew(&dying, Renew { ttl: TTL, ..renewal(&name, claim, token, vec![claim]) }).await;
        let renewed = Moment::now();
        drop(next.await.expect("it ran"));
        let took = Moment::now().since(renewed);
        println!("{took:?} after the last renewal, ttl {TTL:?}");
        assert!(took >= TTL && took <= TTL + Duration::from_secs(1), "{took:?}");
    });
}

/// Reads are answered without a proposal: they write nothing to etcd's log.
pub(crate) fn reads_propose_nothing(release: Release) {
    let Some((etcd, _turn)) = release.find_alone() else { return };
    block_on(async {
        let (store, name) = (etcd.store(), fresh("read"));
        win(&**store.backend(), request(&name, "a", Duration::from_secs(60))).await;
        let names: Vec<_> = (0..5).map(|_| fresh("read")).chain([name.clone()]).collect();
        let proposals = || etcd.counter("etcd_server_proposals_committed_total");
        let before = proposals();
        for _ in 0..200 {
            let record = store.inspect(name.as_str()).await.expect("read");
            assert!(record.is_some());
        }
        for _ in 0..50 {
            let records = store.backend().read(names.clone()).await.expect("read");
            assert!(records[5].is_some() && records[..5].iter().all(Option::is_none));
            let lost = store.backend().acquire(request(&name, "b", TTL)).await;
            assert!(matches!(lost, Ok(Acquired::Lost(Some(_)))), "{lost:?}");
        }
        let proposed = proposals() - before;
        println!("300 reads, {proposed} proposals");
        // etcd itself may propose something meanwhile.
        assert!(proposed < 10.0, "{proposed} proposals");
    });
}

/// Hundreds of watches share one connection.
pub(crate) fn many_watches(release: Release) {
    let Some((etcd, _turn)) = release.find_alone() else { return };
    block_on(async {
        let proxy = Proxy::new(etcd.member()).await;
        let store = store(&format!("etcd://{}{PREFIX}", proxy.address));
        let names: Vec<_> = (0..600).map(|_| fresh("watched")).collect();
        let mut watches: Vec<_> =
            names.iter().map(|name| store.backend().watch(name).expect("etcd pushes")).collect();
        let begun = Moment::now();
        for watch in &mut watches {
            timeout(Duration::from_secs(30), watch.changed()).await.expect("established");
        }
        println!(
            "600 watches in {:?}, {} connections",
            Moment::now().since(begun),
            proxy.open_max()
        );
        for place in [0, 299, 599] {
            win(&**store.backend(), request(&names[place], "a", TTL)).await;
            let woken = timeout(Duration::from_secs(5), watches[place].changed()).await;
            assert!(woken.is_ok(), "watch {place} was not woken");
        }
        let idle = timeout(Duration::from_millis(100), watches[1].changed()).await;
        assert!(idle.is_err(), "another lease's change woke it");
        assert!(proxy.open_max() <= 3, "{} connections", proxy.open_max());
    });
}

/// Connections that fall silent cost one hedge, however many leases share them; those that the
/// hedges open are few, and all later requests use them.
pub(crate) fn silent_connections(release: Release) {
    let Some((etcd, _turn)) = release.find_alone() else { return };
    block_on(async {
        let proxy = Proxy::new(etcd.member()).await;
        let store = store(&format!("etcd://{}{PREFIX}", proxy.address));
        let mut tenures = Vec::new();
        for _ in 0..30 {
            let name = fresh("silent");
            let request = request(&name, "a", Duration::from_secs(60));
            let (claim, token) = win(&**store.backend(), request).await;
            renew(&store, renewal(&name, claim, token, vec![claim])).await;
            let known = store.inspect(name.as_str()).await.expect("read").expect("there");
            let nonce = known.holder.expect("held").nonce.expect("ours");
            tenures.push((name, claim, token, nonce));
        }
        proxy.silence();
        let (before, begun) = (proxy.accepted(), Moment::now());
        let mut hanging = tokio::task::JoinSet::new();
        let mut first_nonces = Vec::new();
        for (name, claim, token, nonce) in &tenures {
            let store = store.clone();
            let request = renewal(name, *claim, *token, vec![*nonce]);
            first_nonces.push(request.nonce);
            hanging.spawn(async move { store.backend().renew(request).await });
        }
        sleep(Duration::from_millis(200)).await;
        let mut hedges = tokio::task::JoinSet::new();
        for ((name, claim, token, nonce), first) in tenures.into_iter().zip(first_nonces) {
            let store = store.clone();
            let hedge = renewal(&name, claim, token, vec![nonce, first]);
            let hedge = Renew { fresh_connection: true, ..hedge };
            hedges.spawn(async move {
                let nonce = hedge.nonce;
                renew(&store, hedge).await;
                // Without a hedge, on the connection that is known to work.
                renew(&store, renewal(&name, claim, token, vec![nonce])).await;
            });
        }
        timeout(Duration::from_secs(5), hedges.join_all()).await.expect("no hedge hangs");
        let (took, opened) = (Moment::now().since(begun), proxy.accepted() - before);
        println!("30 tenures renewed over {opened} new connections in {took:?}");
        assert!(opened <= 2, "{opened} connections");
        assert_eq!(hanging.len(), 30, "the first requests are left alone");
    });
}

fn renewal(name: &LeaseName, claim: Nonce, token: Token, known: Vec<Nonce>) -> Renew {
    Renew {
        name: name.clone(),
        claim,
        token,
        known,
        nonce: Nonce::random(),
        ttl: Duration::from_secs(60),
        note: None,
        fresh_connection: false,
    }
}

async fn renew(store: &Store, request: Renew) {
    assert_eq!(store.backend().renew(request).await, Ok(Renewed::Yes));
}

/// The names of all leases, and of nothing else.
pub(crate) fn list(release: Release) {
    let Some((etcd, _turn)) = release.find() else { return };
    block_on(async {
        let prefix = format!("/tests/{}", fresh("list"));
        let store = store(&format!("etcd://{}{prefix}", etcd.server.address));
        let list = async || store.backend().list().expect("etcd can").await.expect("listed");
        assert!(list().await.is_empty());
        for name in ["a", "a-b", "b"] {
            let name = LeaseName::new(name).expect("a name");
            win(&**store.backend(), request(&name, "a", TTL)).await;
        }
        etcd.ctl(&["put", &format!("{prefix}/c"), "not a lease"]);
        etcd.ctl(&["put", &format!("{prefix}0/d/live"), "of another prefix"]);
        let names: Vec<_> = list().await.iter().map(ToString::to_string).collect();
        assert_eq!(names, ["a", "a-b", "b"]);
    });
}

/// etcd on which this user may read and write under /leases and nowhere else.
fn with_passwords(etcd: &Solo) {
    for arguments in [
        &["user", "add", "root:root-password"][..],
        &["user", "grant-role", "root", "root"],
        &["role", "add", "leases"],
        &["role", "grant-permission", "leases", "readwrite", "--prefix=true", "/leases/"],
        &["user", "add", "tenure:s3cret"],
        &["user", "grant-role", "tenure", "leases"],
        &["auth", "enable"],
    ] {
        etcd.ctl(arguments);
    }
}

/// A user with permission on the prefix and nothing else holds a lease, also when etcd forgets its
/// log-in; without a user, with a wrong password or elsewhere it is denied; no error tells the
/// password.
pub(crate) fn passwords(release: Release) {
    if !release.is_installed() {
        return;
    }
    let scratch = Scratch::new();
    let data = scratch.0.join("data");
    let options = ["--auth-token-ttl", "2"];
    let mut etcd = Solo::start(release, &data, &[], &options);
    with_passwords(&etcd);
    block_on(async {
        let address = etcd.address.clone();
        let settings = Settings::new(Duration::from_secs(9));
        let ours = store(&format!("etcd://tenure:s3cret@{address}/leases"));
        ours.preflight("nightly").await.expect("it has all permissions that it needs");
        let lease = ours.lease("nightly").settings(settings.clone());
        let tenure = lease.acquire().await.expect("acquired");
        // Longer than a token lasts that is not used.
        sleep(Duration::from_secs(5)).await;
        assert!(tenure.is_held(), "{:?}", tenure.loss());
        etcd.restart(&data, &options);
        sleep(settings.ttl).await;
        assert!(tenure.is_held(), "{:?}", tenure.loss());
        tenure.release().await;
        for url in [
            format!("etcd://{address}/leases"),
            format!("etcd://tenure:s3cret-not@{address}/leases"),
            format!("etcd://tenure:s3cret@{address}/elsewhere"),
        ] {
            match store(&url).lease("nightly").settings(settings.clone()).try_acquire().await {
                Err(LeaseError::Store(error)) => {
                    assert_eq!(error.kind(), StoreErrorKind::Denied, "{error}");
                    assert!(!error.to_string().contains("s3cret"), "{error}");
                    println!("{error}");
                }
                other => panic!("{other:?}"),
            }
        }
    });
}

/// A watch that etcd refuses is not established, and is as soon as etcd permits it.
pub(crate) fn a_refused_watch(release: Release) {
    if !release.is_installed() {
        return;
    }
    let scratch = Scratch::new();
    let etcd = Solo::start(release, &scratch.0.join("data"), &[], &[]);
    with_passwords(&etcd);
    block_on(async {
        let (address, name) = (&etcd.address, fresh("refused"));
        let permitted = store(&format!("etcd://tenure:s3cret@{address}/leases"));
        let mut watch = permitted.backend().watch(&name).expect("etcd pushes");
        timeout(Duration::from_secs(5), watch.changed()).await.expect("established");
        let refused = store(&format!("etcd://tenure:s3cret@{address}/elsewhere"));
        let mut watch = refused.backend().watch(&name).expect("etcd pushes");
        let established = timeout(Duration::from_secs(2), watch.changed()).await;
        assert!(established.is_err(), "a watch that was refused says that it is established");
        let grant = ["role", "grant-permission", "leases", "readwrite", "--prefix=true"];
        let root = ["--user", "root:root-password"];
        etcd.ctl(&[&root[..], &grant[..], &["/elsewhere/"][..]].concat());
        timeout(Duration::from_secs(15), watch.changed()).await.expect("established in the end");
        win(&**refused.backend(), request(&name, "a", TTL)).await;
        timeout(Duration::from_secs(5), watch.changed()).await.expect("woken");
    });
}
