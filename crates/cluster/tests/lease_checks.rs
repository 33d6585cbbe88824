//! Leases that could never be had are found when a node is started, not in its first split.
#![allow(clippy::disallowed_methods, reason = "real nodes take real time")]

mod nodes;

use std::time::Duration;

use nodes::{addresses, plain};
use tenure_cluster::downing::{LeaseMajority, Strategy};
use tenure_cluster::{Cluster, JoinError, Settings};
use tenure_lease::backend::{
    Acquire, Acquired, Backend, Boxed, Release, Released, Renew, Renewed, StoreError, StoreInfo,
};
use tenure_lease::{Lease, LeaseName, MemoryStore, Record, Store};
use tokio::time::timeout;

/// A store that keeps no ttl below ten seconds, as Consul.
struct Slow(MemoryStore);

impl Backend for Slow {
    fn info(&self) -> StoreInfo {
        StoreInfo { ttl_min: Duration::from_secs(10), ..self.0.info() }
    }

    fn acquire(&self, request: Acquire) -> Boxed<'_, Result<Acquired, StoreError>> {
        self.0.acquire(request)
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

fn store() -> Store {
    Store::new(Slow(MemoryStore::default()))
}

fn with(formation: Lease, arbitration: Lease) -> Settings {
    let settings = plain(&addresses(1)[0], &store()).formation(formation);
    settings.downing(Strategy::LeaseMajority(LeaseMajority::default())).arbitration(arbitration)
}

async fn error(settings: Settings) -> String {
    let joined = timeout(Duration::from_secs(5), Cluster::join(settings)).await;
    let error = joined.expect("it is not tried").expect_err("it is refused");
    assert!(matches!(error, JoinError::Settings(_)), "{error:?}");
    error.to_string()
}

fn long(name: &str) -> Lease {
    store().lease(name).ttl(Duration::from_secs(15))
}

#[tokio::test]
async fn a_ttl_that_the_store_does_not_keep_is_refused_at_join() {
    let short = |name| store().lease(name).ttl(Duration::from_secs(5));
    let arbitration = error(with(long("shop.formation"), short("shop.arbitration"))).await;
    for words in ["the arbitration lease shop.arbitration", "from 10s", "not 5s"] {
        assert!(arbitration.contains(words), "{arbitration}");
    }
    let formation = error(with(short("shop.formation"), long("shop.arbitration"))).await;
    for words in ["the formation lease shop.formation", "from 10s", "not 5s"] {
        assert!(formation.contains(words), "{formation}");
    }
}

#[tokio::test]
async fn a_name_that_no_store_takes_is_refused_at_join() {
    let arbitration = error(with(long("shop.formation"), long("shop_arbitration"))).await;
    assert!(arbitration.contains("the arbitration lease"), "{arbitration}");
    assert!(arbitration.contains("shop_arbitration"), "{arbitration}");
    let formation = error(with(long("Shop"), long("shop.arbitration"))).await;
    assert!(formation.contains("the formation lease"), "{formation}");
}

/// The leader holds the one for as long as it leads: nobody could ever win the other.
#[tokio::test]
async fn one_lease_cannot_do_both() {
    let store = store();
    let lease = || store.lease("shop").ttl(Duration::from_secs(15));
    let both = error(with(lease(), lease())).await;
    assert!(both.contains("two leases"), "{both}");
}

/// Ids of clusters are compared by whoever reads a verdict, and only a lease's terms always rise: a
/// clock that was ahead once would make every later cluster end itself in its first split.
#[tokio::test]
async fn arbitration_needs_a_formation_lease() {
    let address = addresses(1).remove(0);
    let mut settings = Settings::new("shop")
        .name("node")
        .address(address.clone())
        .discover(address.to_string().parse().unwrap())
        .downing(Strategy::LeaseMajority(LeaseMajority::default()))
        .arbitration(long("shop.arbitration"));
    settings.plaintext_without_any_protection = true;
    let why = error(settings).await;
    assert!(why.contains("formation"), "{why}");
}
