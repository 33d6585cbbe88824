//! Nodes that join by what they discover, and by nothing else: their store is away.
#![allow(clippy::disallowed_methods, reason = "real nodes take real time")]

mod away;
mod dns;
mod nodes;

use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dns::DnsServer;
use nodes::{addresses, agree, join_all, plain, soon};
use tenure_cluster::{Address, BoxError, Cluster, Discover, Discovery, Settings};
use tenure_lease::{MemoryStore, Store};
use tokio::time::timeout;

/// The first forms the cluster; the others can only join it.
async fn first(address: &Address) -> Cluster {
    let store = Store::new(MemoryStore::default());
    soon(Cluster::join(plain(address, &store))).await.unwrap()
}

/// The others find it in their own way.
fn others(addresses: &[Address], discover: impl Fn(Settings) -> Settings) -> Vec<Settings> {
    addresses.iter().map(|address| discover(plain(address, &away::store()))).collect()
}

/// Joins the others; whatever they look for appears after ten seconds, and not one is in before.
async fn join_late(others: Vec<Settings>, appear: impl FnOnce()) -> Vec<Cluster> {
    let started = Instant::now();
    let mut joining = tokio::spawn(join_all(others));
    let early = timeout(LATE, &mut joining).await;
    assert!(early.is_err(), "it was found before it was there");
    appear();
    let joined = soon(joining).await.unwrap();
    println!("in the cluster {:?} after the start", started.elapsed());
    joined
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_find_a_cluster_by_srv_records_that_appear_ten_seconds_after_the_start() {
    let addresses = addresses(4);
    let server = DnsServer::start().await;
    let mut clusters = vec![first(&addresses[0]).await];
    let written = format!("srv:_cluster._tcp.shop.test@{}", server.address);
    let discovery: Discovery = written.parse().unwrap();
    let others = others(&addresses[1..], |settings| settings.discover(discovery.clone()));
    clusters.extend(join_late(others, || server.publish(&addresses)).await);
    agree(&clusters, 4).await;
}

/// A way of a user's own, which fails at first.
struct Registry(Arc<Mutex<Option<Vec<Address>>>>);

impl Discover for Registry {
    async fn find_nodes(&self) -> Result<Vec<Address>, BoxError> {
        self.0.lock().unwrap().clone().ok_or_else(|| "the registry is away".into())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_find_a_cluster_in_a_way_of_their_own_that_fails_for_ten_seconds() {
    let addresses = addresses(4);
    let registry = Arc::<Mutex<Option<Vec<Address>>>>::default();
    let mut clusters = vec![first(&addresses[0]).await];
    let others = others(&addresses[1..], |it| it.discover_with(Registry(registry.clone())));
    let appear = || *registry.lock().unwrap() = Some(addresses.clone());
    clusters.extend(join_late(others, appear).await);
    agree(&clusters, 4).await;
}

/// The machine's own resolver is asked for `dns:`. So that a name can appear in it, the test runs
/// once more in a mount namespace with a file of its own at /etc/hosts.
#[test]
fn nodes_find_a_cluster_by_a_name_that_appears_ten_seconds_after_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let hosts = directory.path().join("hosts");
    std::fs::write(&hosts, "127.0.0.1 localhost\n").unwrap();
    let test = std::env::current_exe().unwrap();
    let script = format!(
        "mount --bind {} /etc/hosts && exec {} --exact --ignored --nocapture in_a_namespace",
        hosts.display(),
        test.display()
    );
    let shell = ["--mount", "--map-root-user", "sh", "-c", &script];
    let output = Command::new("unshare").args(shell).env("HOSTS", &hosts).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    if said.contains("unshare failed") || said.contains("mount:") {
        println!("skipped, because this machine makes no namespaces: {said}");
        return;
    }
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "only in a namespace with a file of its own at /etc/hosts"]
async fn in_a_namespace() {
    let hosts = std::env::var_os("HOSTS").expect("it is run by the test above");
    let addresses = addresses(4);
    let mut clusters = vec![first(&addresses[0]).await];
    let discovery: Discovery = "dns:shop.tenure.test:7400".parse().unwrap();
    let others = others(&addresses[1..], |settings| settings.discover(discovery.clone()));
    let appear = || {
        let line = |address: &Address| format!("{} shop.tenure.test\n", address.host());
        std::fs::write(hosts, addresses.iter().map(line).collect::<String>()).unwrap();
    };
    clusters.extend(join_late(others, appear).await);
    agree(&clusters, 4).await;
}

/// What is compiled in is known before anything is tried.
#[test]
fn a_way_that_is_not_compiled_in_is_refused_with_the_feature() {
    let store = Store::new(MemoryStore::default());
    let settings = plain(&addresses(1)[0], &store).discover("k8s:default/shop:1".parse().unwrap());
    let checked = settings.check();
    if cfg!(feature = "kubernetes-unversioned") {
        assert!(checked.is_ok(), "{checked:?}");
    } else {
        let why = checked.unwrap_err().to_string();
        assert!(why.contains("the feature kubernetes") && why.contains("k8s:default/shop:1"));
    }
}

const LATE: Duration = Duration::from_secs(10);
