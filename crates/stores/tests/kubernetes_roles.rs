//! The permissions in deploy/kubernetes are enough, and without any one of them something breaks.
//!
//! `scripts/servers run --only kube -- cargo test -p tenure-stores --features kubernetes` starts the
//! server; without it this test says so and passes.
#![cfg(feature = "kubernetes-unversioned")]
#![allow(clippy::disallowed_methods)] // Real servers, in real time.

mod kubernetes_support;
mod server;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tenure_lease::Store;
use tenure_lease::backend::StoreErrorKind;
use tenure_testkit::conformance::{Factory as _, block_on};
use tokio::task::JoinSet;
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
        let cluster = Arc::new(cluster);
        let without = |verb: &str| DEEDS.iter().map(|it| it.0).filter(|it| *it != verb).collect();
        let mut accounts: Vec<(String, Vec<&str>)> = vec![("roles-all".into(), without(""))];
        accounts.extend(DEEDS.map(|(verb, _)| (format!("roles-no-{verb}"), without(verb))));
        allow(&cluster, &accounts).await;
        let mut tried = JoinSet::new();
        for (verb, deed) in DEEDS {
            let cluster = cluster.clone();
            tried.spawn(async move {
                let whole = account(&cluster, "roles-all").await;
                let less = account(&cluster, &format!("roles-no-{verb}")).await;
                let (done, without) =
                    tokio::join!(deed.is_done(&cluster, &whole), deed.is_done(&cluster, &less));
                assert!(done, "with all verbs it cannot {deed:?}");
                assert!(!without, "without {verb} it still can {deed:?}: nobody needs {verb}");
                println!("without {verb} it cannot {deed:?}");
            });
        }
        tried.join_all().await;
    });
}

/// Names are listed by the verbs of the manifests, or by `list`; without either, the refusal says
/// what to add.
#[test]
fn names_are_listed_by_watch_or_list() {
    let Some((cluster, _turn)) = Cluster::find("names_are_listed_by_watch_or_list") else {
        return;
    };
    block_on(async {
        let accounts = [
            ("list-by-watch".to_owned(), vec!["get", "create", "update", "watch"]),
            ("list-by-list".to_owned(), vec!["get", "create", "update", "list"]),
            ("list-by-none".to_owned(), vec!["get", "create", "update"]),
        ];
        allow(&cluster, &accounts).await;
        let name = cluster.fresh_name("listed");
        let tenure = cluster.store().await.lease(name.as_str()).ttl(LONG).acquire().await.unwrap();
        for (account_name, _) in &accounts {
            let store = account(&cluster, account_name).await;
            let listed = store.backend().list().expect("it can").await;
            if account_name == "list-by-none" {
                let error = listed.expect_err("it may not");
                assert_eq!(error.kind(), StoreErrorKind::Denied, "{error}");
                assert!(error.to_string().contains("add the verb \"list\""), "{error}");
                println!("{error}");
            } else {
                assert!(listed.unwrap().contains(&name), "{account_name}");
            }
        }
        tenure.release().await;
    });
}

/// Makes service accounts that may do this to leases, and nothing else.
async fn allow(cluster: &Cluster, accounts: &[(String, Vec<&str>)]) {
    let (mut rules, mut reviews, mut count) = (String::new(), String::new(), 0);
    for (name, verbs) in accounts {
        let list = verbs.join(", ");
        rules += &format!(
            "---
{{apiVersion: v1, kind: ServiceAccount, metadata: {{name: {name}}}}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {{name: {name}}}
rules: [{{apiGroups: [coordination.k8s.io], resources: [leases], verbs: [{list}]}}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {{name: {name}}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: {name}}}
subjects: [{{kind: ServiceAccount, name: {name}, namespace: {NAMESPACE}}}]
"
        );
        for verb in verbs {
            count += 1;
            reviews += &format!(
                "---
apiVersion: authorization.k8s.io/v1
kind: SubjectAccessReview
spec:
  user: system:serviceaccount:{NAMESPACE}:{name}
  resourceAttributes:
    {{namespace: {NAMESPACE}, verb: {verb}, group: coordination.k8s.io, resource: leases}}
"
            );
        }
    }
    cluster.operate(&["apply", "--server-side", "--validate=strict", "-f", "-"], &rules).await;
    // The server hears of its own new rules a moment later.
    let ask = ["create", "-f", "-", "-o", "jsonpath={.status.allowed} "];
    let heard = async {
        while cluster.operate(&ask, &reviews).await.matches("true").count() < count {
            sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(Duration::from_secs(30), heard).await.expect("the server hears of the rules");
}

/// A store as this service account.
async fn account(cluster: &Cluster, name: &str) -> Store {
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

const LONG: Duration = Duration::from_secs(120);
const SOON: Duration = Duration::from_secs(12);
