//! What a node really emits, in a process of its own: its recorder is the process's.
#![allow(clippy::disallowed_methods, reason = "real nodes take real time")]

mod kit;

use std::collections::{BTreeMap, BTreeSet};

use kit::{READ, get, manage, nodes, until};
use tenure_manage::Recorder;
use tenure_singleton::Singletons as _;

#[tokio::test]
async fn what_is_emitted_has_the_labels_that_are_described() {
    let recorder = Recorder::install().unwrap();
    let (store, clusters) = nodes(2).await;
    let cron = clusters[0].singleton("cron").lease(store.lease("shop.cron")).run(async |hosted| {
        hosted.stopping().await;
        Ok(())
    });
    let cron = cron.unwrap();
    until("it runs", || cron.host().borrow().is_some()).await;
    let running = manage(&clusters[0]).metrics(recorder).start().await.unwrap();
    let text = get(&running, "/metrics", READ).await.body;
    for line in [
        "tenure_cluster_members{status=\"up\"} 2",
        "tenure_cluster_member 1",
        "tenure_cluster_converged 1",
        "tenure_singleton_hosting{singleton=\"cron\"} 1",
        "tenure_lease_held{lease=\"shop.cron\"} 1",
        "# TYPE tenure_store_request_seconds histogram",
    ] {
        assert!(text.lines().any(|it| it == line), "{line} in {text}");
    }
    let described = tenure_lease::telemetry::METRICS
        .iter()
        .chain(tenure_cluster::telemetry::all())
        .chain(tenure_singleton::telemetry::METRICS);
    let described: BTreeMap<_, _> =
        described.map(|it| (it.name, BTreeSet::from_iter(it.labels.iter().copied()))).collect();
    let mut seen = BTreeSet::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap();
        let base = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|end| name.strip_suffix(end).filter(|base| described.contains_key(base)));
        let name = base.unwrap_or(name);
        if name == "tenure_metrics_refused_total" {
            continue;
        }
        let labels = line.split_once('{').map_or("", |(_, rest)| rest.split('}').next().unwrap());
        let labels: BTreeSet<&str> = labels
            .split(',')
            .filter_map(|label| label.split_once('='))
            .map(|(label, _)| label)
            .filter(|label| *label != "le")
            .collect();
        assert_eq!(described.get(name), Some(&labels), "{line}");
        seen.insert(name.to_owned());
    }
    assert!(seen.len() > 15, "{seen:?}");
}
