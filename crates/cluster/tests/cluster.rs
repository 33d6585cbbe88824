//! Real nodes on loopback, in one process.
#![allow(clippy::disallowed_methods, reason = "real nodes take real time")]

mod nodes;

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use nodes::{addresses, agree, join_all, plain, soon};
use tenure_cluster::certs::Authority;
use tenure_cluster::downing::{LeaseMajority, Strategy};
use tenure_cluster::{Address, Cluster, Ending, Event, JoinError, Settings};
use tenure_lease::backend::{
    Acquire, Acquired, Backend, Boxed, Release, Released, Renew, Renewed, StoreError,
    StoreErrorKind, StoreInfo,
};
use tenure_lease::{LeaseName, MemoryStore, Record, Store};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_nodes_form_one_cluster_and_leave_it() {
    let store = Store::new(MemoryStore::default());
    let settings = addresses(5).iter().map(|address| plain(address, &store)).collect();
    let mut clusters = join_all(settings).await;
    agree(&clusters, 5).await;
    let gone = clusters.pop().unwrap();
    let node = gone.me();
    let mut events = clusters[0].events();
    gone.before_leaving(|| async { tokio::task::yield_now().await });
    soon(gone.leave()).await;
    assert_eq!(gone.ended().await, Ending::Left);
    soon(async { while events.next().await != Some(Event::Removed(node.clone())) {} }).await;
    agree(&clusters, 4).await;
    for cluster in &clusters {
        soon(cluster.leave()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_let_nodes_in() {
    let directory = std::env::temp_dir().join(format!("tenure-cluster-{}", std::process::id()));
    let authority = Authority::new("shop").unwrap();
    let store = Store::new(MemoryStore::default());
    let settings = addresses(3).into_iter().enumerate().map(|(index, address)| {
        let name = format!("shop-{index}");
        let certs = directory.join(&name);
        authority.issue(&name, &["127.0.0.1"]).unwrap().save(&certs).unwrap();
        let mut settings = plain(&address, &store).name(name).identity(certs);
        settings.plaintext_without_any_protection = false;
        settings
    });
    let clusters = join_all(settings.collect()).await;
    agree(&clusters, 3).await;
    let _ = std::fs::remove_dir_all(directory); // What is left is in the directory for such things.
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_store_the_first_seed_forms_the_cluster() {
    let addresses = addresses(3);
    let settings = addresses.iter().map(|address| {
        let mut settings = Settings::new("shop").name("node").address(address.clone());
        for seed in &addresses {
            settings = settings.discover(seed.to_string().parse().unwrap());
        }
        settings.plaintext_without_any_protection = true;
        settings.seed_patience = Duration::from_millis(500);
        settings
    });
    let clusters = join_all(settings.collect()).await;
    agree(&clusters, 3).await;
    let first = clusters[0].view();
    assert_eq!(first.oldest(None).unwrap().address, addresses[0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_setting_that_must_agree_is_named_with_both_values() {
    let store = Store::new(MemoryStore::default());
    let addresses = addresses(2);
    let mut first = plain(&addresses[0], &store);
    first.must_agree.insert("shards".into(), "64".into());
    let mut second = plain(&addresses[1], &store);
    second.must_agree.insert("shards".into(), "128".into());
    let _cluster = soon(Cluster::join(first)).await.unwrap();
    let error = soon(Cluster::join(second)).await.unwrap_err();
    assert!(matches!(error, JoinError::Ended(Ending::Refused(_))), "{error}");
    for word in ["shards", "64", "128"] {
        assert!(error.to_string().contains(word), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_in_use_is_an_error_and_no_panic() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::new(&taken.local_addr().unwrap().to_string()).unwrap();
    let store = Store::new(MemoryStore::default());
    let error = soon(Cluster::join(plain(&address, &store))).await.unwrap_err();
    assert!(matches!(error, JoinError::Transport(_)), "{error}");
    assert!(error.to_string().contains(address.as_str()), "{error}");
}

/// A store in which this process may read, and nothing else.
struct ReadOnly(MemoryStore);

impl Backend for ReadOnly {
    fn info(&self) -> StoreInfo {
        self.0.info()
    }

    fn acquire(&self, _: Acquire) -> Boxed<'_, Result<Acquired, StoreError>> {
        Box::pin(async { Err(StoreError::new(StoreErrorKind::Denied, "you may not write here")) })
    }

    fn renew(&self, request: Renew) -> Boxed<'_, Result<Renewed, StoreError>> {
        self.0.renew(request)
    }

    fn release(&self, request: Release) -> Boxed<'_, Result<Released, StoreError>> {
        self.0.release(request)
    }

    fn read(&self, names: Vec<LeaseName>) -> Boxed<'_, Result<Vec<Option<Record>>, StoreError>> {
        self.0.read(names)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_is_refused_is_found_out_before_joining() {
    let store = Store::new(MemoryStore::default());
    let read_only = Store::new(ReadOnly(MemoryStore::default()));
    let addresses = addresses(2);
    let first = soon(Cluster::join(plain(&addresses[0], &store))).await.unwrap();
    soon(async {
        while first.ready().is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    let arbitrated = plain(&addresses[1], &store)
        .downing(Strategy::LeaseMajority(LeaseMajority::default()))
        .arbitration(read_only.lease("shop.arbitration"));
    let mut formed = plain(&addresses[1], &read_only);
    formed.discover.push(addresses[0].to_string().parse().unwrap());
    for (settings, name) in [
        (arbitrated, "the arbitration lease shop.arbitration"),
        (formed, "the formation lease shop.formation"),
    ] {
        let error = soon(Cluster::join(settings)).await.unwrap_err();
        assert!(matches!(error, JoinError::Lease(_)), "{error}");
        for words in [name, "you may not write here", "read and write"] {
            assert!(error.to_string().contains(words), "{error}");
        }
    }
    assert_eq!(first.view().members().len(), 1, "nobody saw it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operators_down_ends_a_node_and_a_new_one_joins_at_its_address() {
    let store = Store::new(MemoryStore::default());
    let addresses = addresses(3);
    let settings = addresses.iter().map(|address| plain(address, &store)).collect();
    let mut clusters = join_all(settings).await;
    agree(&clusters, 3).await;
    let gone = clusters.pop().unwrap();
    clusters[0].down(&gone.me()).await;
    assert_eq!(soon(gone.ended()).await, Ending::Downed);
    let again = soon(Cluster::join(plain(&addresses[2], &store))).await.unwrap();
    assert_ne!(again.me(), gone.me());
    clusters.push(again);
    agree(&clusters, 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_the_last_handle_leaves() {
    let store = Store::new(MemoryStore::default());
    let settings = addresses(3).iter().map(|address| plain(address, &store)).collect();
    let mut clusters = join_all(settings).await;
    agree(&clusters, 3).await;
    drop(clusters.pop());
    agree(&clusters, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_seed_that_waits_long_for_the_first_one_still_joins() {
    let addresses = addresses(2);
    let with_seeds = |address: &Address| {
        let mut settings = Settings::new("shop").name("node").address(address.clone());
        for seed in &addresses {
            settings = settings.discover(seed.to_string().parse().unwrap());
        }
        settings.plaintext_without_any_protection = true;
        settings.seed_patience = Duration::from_millis(200);
        settings
    };
    let second = tokio::spawn(Cluster::join(with_seeds(&addresses[1])));
    tokio::time::sleep(Duration::from_secs(1)).await; // Longer than its own patience.
    let first = soon(Cluster::join(with_seeds(&addresses[0]))).await.unwrap();
    let second = soon(second).await.unwrap().unwrap();
    agree(&[first, second], 2).await;
}

/// Nodes call themselves by IP addresses, and are found by a name: also the first seed by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_store_a_host_name_is_enough_to_find_each_other() {
    // Outside of the range that the kernel gives away.
    let port = 10_000 + std::process::id() % 20_000;
    let first: Address = format!("127.0.0.1:{port}").parse().unwrap();
    let by_name = |address: &Address| {
        let seed = format!("localhost:{port}").parse().unwrap();
        let mut settings =
            Settings::new("shop").name("node").address(address.clone()).discover(seed);
        settings.plaintext_without_any_protection = true;
        settings.seed_patience = Duration::from_millis(200);
        settings
    };
    let settings = vec![by_name(&first), by_name(&addresses(1)[0])];
    let clusters = join_all(settings).await;
    agree(&clusters, 2).await;
}

/// What hangs or fails before a node leaves does not keep it in the cluster.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hook_that_never_ends_keeps_no_node_for_longer_than_its_time() {
    let store = Store::new(MemoryStore::default());
    let settings = addresses(3).into_iter().map(|address| {
        let mut settings = plain(&address, &store);
        settings.membership.hand_over_timeout = Duration::from_secs(1);
        settings
    });
    let clusters = join_all(settings.collect()).await;
    agree(&clusters, 3).await;
    clusters[0].before_leaving(std::future::pending);
    let ran = Arc::<AtomicBool>::default();
    let after = ran.clone();
    clusters[1].before_leaving(move || {
        let after = after.clone();
        async move { after.store(true, SeqCst) }
    });
    clusters[1].before_leaving(|| async { panic!("a defect of a user's") });
    for cluster in &clusters[..2] {
        soon(cluster.leave()).await;
        assert_eq!(cluster.ended().await, Ending::Left);
    }
    assert!(ran.load(SeqCst), "what comes after one that panics is done nevertheless");
    agree(&clusters[2..], 1).await;
}
