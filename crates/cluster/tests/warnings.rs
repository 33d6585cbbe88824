//! What nobody would notice before a split is said by the nodes themselves.
#![cfg(target_os = "linux")]
#![allow(clippy::disallowed_methods, reason = "real nodes take real time")]

mod nodes;

use std::sync::mpsc;
use std::time::Duration;

use nodes::{addresses, agree, eventually, join_all, plain, soon};
use tenure_cluster::downing::{KeepMajority, LeaseMajority, Strategy};
use tenure_cluster::transport::Switch;
use tenure_cluster::{Cluster, Settings};
use tenure_lease::{MemoryStore, Store};
use tokio::time::sleep;

fn says(cluster: &Cluster, words: &[&str]) -> bool {
    let is_it = |warning: &String| words.iter().all(|word| warning.contains(word));
    cluster.warnings().iter().any(is_it)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_that_downing_counts_and_nobody_has_is_warned_of() {
    let node = |role: &str, address, store: &Store| {
        let counts = KeepMajority { role: Some(role.into()) };
        plain(address, store).role("worker").downing(Strategy::KeepMajority(counts))
    };
    let (misspelt, right) = (addresses(2), addresses(2));
    let store = Store::new(MemoryStore::default());
    let settings = misspelt.iter().map(|address| node("wroker", address, &store)).collect();
    let warned = join_all(settings).await;
    let store = Store::new(MemoryStore::default());
    let settings = right.iter().map(|address| node("worker", address, &store)).collect();
    let fine = join_all(settings).await;
    eventually(|| warned.iter().all(|it| says(it, &["\"wroker\"", "downing.role"]))).await;
    assert!(fine.iter().all(|cluster| cluster.warnings().is_empty()));
}

/// A node that is cut off quickly from the others by its switch, and from the store not at all.
fn switched(settings: Settings, switch: &Switch) -> Settings {
    let mut settings = settings.downing(Strategy::LeaseMajority(LeaseMajority::default()));
    settings.transport.switch = Some(switch.clone());
    settings.transport.silence_max = Duration::from_secs(1);
    settings.membership.heartbeat_interval = Duration::from_millis(100);
    settings.membership.acceptable_pause = Duration::from_secs(1);
    settings.resolver.stable_after = Some(Duration::from_millis(500));
    settings
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_verdict_of_a_newer_version_is_left_alone_and_nothing_is_decided() {
    let store = Store::new(MemoryStore::default());
    let arbitration = || store.lease("shop.arbitration").ttl(Duration::from_secs(3));
    let newer = b"{\"format\":2,\"cluster\":1,\"generation\":9}\n".to_vec();
    arbitration().note(newer.clone()).acquire().await.unwrap().release().await;
    let written = store.inspect("shop.arbitration").await.unwrap().unwrap();
    let (addresses, switches) = (addresses(2), [Switch::default(), Switch::default()]);
    let settings = addresses.iter().zip(&switches).map(|(address, switch)| {
        switched(plain(address, &store), switch).arbitration(arbitration())
    });
    let clusters = join_all(settings.collect()).await;
    agree(&clusters, 2).await;
    for (place, switch) in switches.iter().enumerate() {
        switch.cut([addresses[1 - place].clone()]);
    }
    eventually(|| clusters.iter().all(|it| says(it, &["arbitration lease", "format 2"]))).await;
    // As long as it takes to settle such a split otherwise, and again.
    sleep(Duration::from_secs(5)).await;
    assert!(!clusters.iter().any(Cluster::is_over), "somebody has decided without knowing");
    let now = store.inspect("shop.arbitration").await.unwrap().unwrap();
    assert_eq!((now.token, now.note), (written.token, written.note));

    // An operator who knows that no newer version runs any more.
    arbitration().note(Vec::new()).acquire().await.unwrap().release().await;
    eventually(|| clusters.iter().filter(|cluster| cluster.is_over()).count() == 1).await;
    eventually(|| clusters.iter().filter(|it| !it.is_over()).all(|it| it.warnings().is_empty()))
        .await;
}

/// The runtime that a node's messages are read on stands still, and with it its data lane. Its
/// heartbeats go on, so that it counts as reachable.
#[test]
fn a_data_lane_on_which_nothing_gets_through_is_warned_of() {
    let addresses = addresses(2);
    let store = Store::new(MemoryStore::default());
    let settings = |place: usize| {
        let mut settings = plain(&addresses[place], &store);
        settings.transport.silence_max = Duration::from_secs(1);
        settings
    };
    let runtime = |name: &str| {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name(name)
            .enable_all()
            .build()
            .unwrap()
    };
    let (healthy, stuck) = (runtime("healthy"), runtime("stuck"));
    let one = healthy.block_on(soon(Cluster::join(settings(0)))).unwrap();
    let two = stuck.block_on(soon(Cluster::join(settings(1)))).unwrap();
    healthy.block_on(agree(&[one.clone(), two.clone()], 2));
    let (go_on, wait) = mpsc::channel::<()>();
    let blocked = stuck.spawn(async move { wait.recv() });
    let receiver = two.me();
    healthy.block_on(async {
        one.to::<u64>(&receiver, "counter").tell(1).await.unwrap();
        let address = receiver.address.as_str();
        eventually(|| says(&one, &["data lane", address])).await;
        assert!(one.view().observations().next().is_none(), "it counts as reachable");
        go_on.send(()).unwrap();
        eventually(|| one.warnings().is_empty()).await;
    });
    let _ = stuck.block_on(blocked).unwrap();
}
