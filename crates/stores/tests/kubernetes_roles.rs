//! The permissions in deploy/kubernetes are enough, and without any one of them something breaks.
//!
//! `scripts/servers run --only kube -- cargo test -p tenure-stores --features kubernetes` starts the
//! server; without it this test says so and passes.
#![cfg(feature = "kubernetes-unversioned")]
#![allow(clippy::disallowed_methods)] // Real servers, in real time.

mod kubernetes_support;
mod server;

use std::collections::BTreeSet;
use std::time::Duration;

use tenure_lease::Store;
use tenure_testkit::conformance::{Factory as _, block_on};
use tokio::time::{sleep, timeout};

use kubernetes_support::{Cluster, NAMESPACE};

const MANIFESTS: [(&str, &str); 3] = [
    ("cluster.yaml", include_str!("../../../deploy/kubernetes/cluster.yaml")),
    ("lease-role.yaml", include_str!("../../../deploy/kubernetes/lease-role.yaml")),
    ("run.yaml", include_str!("../../../deploy/kubernetes/run.yaml")),
];

/// What each verb is for.
#[derive(Clone, Copy, Debug)]
enum Deed {
    /// get
    LookAtALease,
    /// create
    TakeALeaseThatWasNeverTaken,
    /// update
    TakeALeaseThatWasGivenBack,
    /// watch
    HearThatALeaseIsGivenBack,
}

const DEEDS: [(&str, Deed); 4] = [
    ("get", Deed::LookAtALease),
    ("create", Deed::TakeALeaseThatWasNeverTaken),
    ("update", Deed::TakeALeaseThatWasGivenBack),
    ("watch", Deed::HearThatALeaseIsGivenBack),
];

#[test]
fn no_manifest_asks_for_more_or_less_than_is_needed() {
    let needed: BTreeSet<&str> = DEEDS.iter().map(|(verb, _)| *verb).collect();
    for (file, text) in MANIFESTS {
        let lists = text.lines().filter_map(|line| line.trim().strip_prefix("verbs: ["));
        let verbs: BTreeSet<&str> =
            lists.flat_map(|list| list.trim_end_matches(']').split(',').map(str::trim)).collect();
        assert_eq!(verbs, needed, "{file}");
        let resources = text.lines().filter(|line| line.trim().starts_with("resources: ["));
        assert!(resources.clone().count() > 0, "{file}");
        assert!(resources.clone().all(|line| line.trim() == "resources: [leases]"), "{file}");
    }
}

#[test]
fn without_any_one_verb_something_breaks() {
    let Some((cluster, _turn)) = Cluster::find("without_any_one_verb_something_breaks") else {
        return;
    };
    block_on(async {
        let all: Vec<&str> = DEEDS.iter().map(|(verb, _)| *verb).collect();
        let whole = account(&cluster, "roles-all", &all).await;
        for (verb, deed) in DEEDS {
            let done = deed.is_done(&cluster, &whole).await;
            assert!(done, "with all verbs it cannot {deed:?}");
            let others: Vec<&str> = all.iter().copied().filter(|other| *other != verb).collect();
            let less = account(&cluster, &format!("roles-no-{verb}"), &others).await;
            let done = deed.is_done(&cluster, &less).await;
            assert!(!done, "without {verb} it still can {deed:?}: nobody needs {verb}");
            println!("without {verb} it cannot {deed:?}");
        }
    });
}

/// A store as a service account that may do this to leases, and nothing else.
async fn account(cluster: &Cluster, name: &str, verbs: &[&str]) -> Store {
    let text = format!(
        "{{apiVersion: v1, kind: ServiceAccount, metadata: {{name: {name}}}}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {{name: {name}}}
rules: [{{apiGroups: [coordination.k8s.io], resources: [leases], verbs: [{}]}}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {{name: {name}}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: {name}}}
subjects: [{{kind: ServiceAccount, name: {name}, namespace: {NAMESPACE}}}]
",
        verbs.join(", ")
    );
    cluster.operate(&["apply", "--server-side", "--validate=strict", "-f", "-"], &text).await;
    // The server hears of its own new rules a moment later.
    for verb in verbs {
        let review = format!(
            "apiVersion: authorization.k8s.io/v1
kind: SubjectAccessReview
spec:
  user: system:serviceaccount:{NAMESPACE}:{name}
  resourceAttributes: {{namespace: {NAMESPACE}, verb: {verb}, group: coordination.k8s.io, resource: leases}}
"
        );
        let ask = ["create", "-f", "-", "-o", "jsonpath={.status.allowed}"];
        let heard = async {
            while cluster.operate(&ask, &review).await != "true" {
                sleep(Duration::from_millis(100)).await;
            }
        };
        timeout(Duration::from_secs(10), heard).await.expect("the server hears of the rules");
    }
    let token = cluster.operate(&["create", "token", name], "").await;
    let user = cluster.token();
    cluster.with_config(|config| config.replace(&user, token.trim())).await
}

impl Deed {
    async fn is_done(self, cluster: &Cluster, store: &Store) -> bool {
        let (operator, name) = (cluster.store().await, cluster.fresh_name("role"));
        let name = name.as_str();
        let held = operator.lease(name).ttl(LONG);
        match self {
            Self::LookAtALease => store.inspect(name).await.is_ok(),
            Self::TakeALeaseThatWasNeverTaken => takes(store, name).await,
            Self::TakeALeaseThatWasGivenBack => {
                held.acquire().await.unwrap().release().await;
                takes(store, name).await
            }
            Self::HearThatALeaseIsGivenBack => {
                let tenure = held.acquire().await.unwrap();
                let release = async {
                    sleep(Duration::from_secs(1)).await;
                    tenure.release().await;
                };
                tokio::join!(takes(store, name), release).0
            }
        }
    }
}

/// Whether the lease is had soon: long before somebody who waits for it would look again by itself.
async fn takes(store: &Store, name: &str) -> bool {
    match timeout(SOON, store.lease(name).ttl(LONG).acquire()).await {
        Ok(Ok(tenure)) => {
            tenure.release().await;
            true
        }
        Ok(Err(_)) | Err(_) => false,
    }
}

const LONG: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_secs(5);
