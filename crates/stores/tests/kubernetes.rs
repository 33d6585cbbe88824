//! The Kubernetes store against a real API server.
//!
//! `scripts/servers run --only kube -- cargo test -p tenure-stores --features kubernetes` starts
//! one; without it these tests say so and pass.
#![cfg(feature = "kubernetes-unversioned")]
#![allow(clippy::disallowed_methods)] // Real servers, in real time.

mod kubernetes_support;
mod server;
mod silence;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::timeout;

use tenure_lease::backend::{Acquire, Acquired, StoreErrorKind};
use tenure_lease::record::Version;
use tenure_lease::{
    LeaseError, LeaseName, Loss, Moment, Nonce, Owner, Record, Settings, Store, Tenure,
};
use tenure_testkit::conformance::{self, Factory as _, block_on};

use kubernetes_support::Cluster;
use silence::SilentProxy;

#[test]
fn kubernetes_conforms() {
    let Some((cluster, _turn)) = Cluster::find_alone("kubernetes_conforms") else { return };
    conformance::test(cluster);
}

#[test]
fn lost_replies() {
    let Some((cluster, _turn)) = Cluster::find("lost_replies") else { return };
    block_on(async {
        let (direct, settings) = (cluster.store().await, Settings::new(TTL));
        let through = |address| cluster.at(address);
        // Read and write; write; write.
        server::proxy::cut_replies(&cluster.address(), &direct, &settings, [2, 1, 1], through)
            .await;
    });
}

#[test]
fn cost_of_attached() {
    let Some((cluster, _turn)) = Cluster::find_alone("cost_of_attached") else { return };
    block_on(async {
        let settings = Settings::new(Duration::from_secs(20));
        let through = |address| cluster.at(address);
        // A sweep is a streaming list, on a connection of its own: up to three messages of it.
        server::cost_of_attached(&cluster.address(), &settings, 1, through).await;
        // Whoever reads many is told of all that there are.
        cluster.operate(&["delete", "leases", "--all", "--wait=false"], "").await;
    });
}

/// Eight clients meet at fifty names, in each state that a free lease can be in.
#[test]
fn of_eight_contenders_one_wins() {
    let Some((cluster, _turn)) = Cluster::find_alone("of_eight_contenders_one_wins") else {
        return;
    };
    block_on(async {
        let mut clients = Vec::new();
        for _ in 0..8 {
            clients.push(cluster.store().await);
        }
        let mut races: Vec<(LeaseName, Option<Version>, &str)> = Vec::new();
        for number in 0..50 {
            let name = cluster.fresh_name("eight");
            let state = ["absent", "released", "expired"][number % 3];
            let mut version = None;
            if state != "absent" {
                let lease = clients[0].lease(name.as_str()).ttl(TTL);
                let tenure = lease.acquire().await.unwrap();
                version = record(&clients[0], &name).await.map(|record| record.version);
                tenure.release().await;
                if state == "expired" {
                    // Held by nobody who lives: as if its ttl had been watched already.
                    let held = won(&clients[0], attempt(&name, None)).await;
                    assert!(held.is_some());
                    version = record(&clients[0], &name).await.map(|record| record.version);
                }
            }
            races.push((name, version.filter(|_| state == "expired"), state));
        }
        for (name, takeover, state) in races {
            let start = Arc::new(Barrier::new(clients.len()));
            let mut racing = JoinSet::new();
            for client in &clients {
                let (client, start) = (client.clone(), Arc::clone(&start));
                let request = attempt(&name, takeover.clone());
                racing.spawn(async move {
                    start.wait().await;
                    won(&client, request).await
                });
            }
            let winners: Vec<Nonce> = racing.join_all().await.into_iter().flatten().collect();
            assert_eq!(winners.len(), 1, "{state}: {name}");
            let record = record(&clients[0], &name).await.unwrap();
            assert!(record.is_of(winners[0]), "{state}: {record:?}");
        }
    });
}

/// Whatever an operator does to the Lease, its holder learns of it with the next renewal, and terms
/// go on rising.
#[test]
fn an_operator_deposes_a_holder() {
    let Some((cluster, _turn)) = Cluster::find("an_operator_deposes_a_holder") else { return };
    block_on(async {
        let store = cluster.store().await;
        for act in ["delete", "rename", "blank", "strip", "takeover"] {
            let name = cluster.fresh_name(act);
            let name = name.as_str();
            let tenure = acquire(&store, name, "a").await;
            let patch = |text: &'static str| {
                let cluster = &cluster;
                async move {
                    cluster
                        .operate(&["patch", "lease", name, "--type=merge", "-p", text], "")
                        .await;
                }
            };
            match act {
                "delete" => drop(cluster.operate(&["delete", "lease", name], "").await),
                "rename" => patch(r#"{"spec":{"holderIdentity":"operator"}}"#).await,
                "blank" => patch(r#"{"spec":{"holderIdentity":""}}"#).await,
                "strip" => {
                    cluster.operate(&["annotate", "lease", name, "tenure.dev/record-"], "").await;
                }
                _ => cluster.take_over(name, "operator", 2).await,
            }
            let begun = Moment::now();
            let loss = timeout(TTL, tenure.lost()).await.expect("it learns of it");
            let took = Moment::now().since(begun);
            // A third of the ttl with a fifth of jitter, and the renewal itself.
            let limit = TTL * 2 / 5 + Settings::new(TTL).operation_timeout;
            assert!(took < limit, "{act}: {took:?}");
            println!("{act}: {loss} after {took:?}");
            match (act, &loss) {
                ("delete", Loss::Deleted) => {}
                ("rename" | "takeover", Loss::Stolen { by: Some(by) }) => {
                    assert_eq!(by.name, "operator", "{act}");
                }
                ("blank", Loss::Stolen { by: None }) | ("strip", Loss::Stolen { .. }) => {}
                _ => panic!("{act}: {loss:?}"),
            }
            let token = tenure.token();
            tenure.release().await;
            let next = acquire(&store, name, "b").await;
            assert!(next.token() > token, "{act}: {} after {token}", next.token());
            next.release().await;
        }
    });
}

/// Whoever touches only what is not the lease's own disturbs nobody.
#[test]
fn a_label_deposes_nobody() {
    let Some((cluster, _turn)) = Cluster::find("a_label_deposes_nobody") else { return };
    block_on(async {
        let store = cluster.store().await;
        let name = cluster.fresh_name("label");
        let tenure = acquire(&store, name.as_str(), "a").await;
        for round in 0..6 {
            let label = format!("round={round}");
            cluster.operate(&["label", "lease", name.as_str(), "--overwrite", &label], "").await;
            tokio::time::sleep(TTL / 6).await;
        }
        assert!(tenure.is_held());
        let labels = ["get", "lease", name.as_str(), "-o", "jsonpath={.metadata.labels.round}"];
        assert_eq!(cluster.operate(&labels, "").await, "5", "a renewal has undone it");
    });
}

/// Who watches a dead holder's Lease is not set back by what others write on it.
#[test]
fn labels_do_not_delay_a_takeover() {
    let Some((cluster, _turn)) = Cluster::find("labels_do_not_delay_a_takeover") else { return };
    block_on(async {
        let store = cluster.store().await;
        let name = cluster.fresh_name("labelled");
        // Nobody renews it.
        let request = Acquire { ttl: TTL, ..attempt(&name, None) };
        won(&store, request).await.expect("nobody else wants it");
        let labelling = cluster.write_labels(name.as_str(), Duration::from_secs(1)).await;
        let begun = Moment::now();
        let tenure = timeout(TTL * 3, acquire(&store, name.as_str(), "b")).await;
        let took = Moment::now().since(begun);
        let labels = labelling.end();
        tenure.expect("taken over").release().await;
        println!("taken over after {took:?} and {labels} labels");
        assert!(labels >= 4, "{labels} labels");
        assert!(took >= TTL && took < TTL + Duration::from_secs(2), "after {took:?}");
    });
}

/// A renewal that meets a label writer is repeated or left open, and never refused.
#[test]
fn labels_refuse_no_renewal() {
    let Some((cluster, _turn)) = Cluster::find("labels_refuse_no_renewal") else { return };
    block_on(async {
        let store = cluster.store().await;
        let name = cluster.fresh_name("restless");
        let tenure = store.lease(name.as_str()).ttl(Duration::from_secs(60)).acquire().await;
        let tenure = tenure.unwrap();
        let labelling = cluster.write_labels(name.as_str(), Duration::ZERO).await;
        let mut written = 0;
        for round in 0..50_u8 {
            written += u32::from(tenure.write_note(vec![round]).await.is_ok());
        }
        let labels = labelling.end();
        println!("{written} of 50 notes written beside {labels} labels");
        assert!(tenure.is_held() && written > 0 && labels >= 50, "{written}, {labels}");
        tenure.release().await;
    });
}

#[test]
fn renewals_at_once() {
    let Some((cluster, _turn)) = Cluster::find("renewals_at_once") else { return };
    block_on(async {
        let name = cluster.fresh_name("at-once");
        silence::renewals_at_once(&cluster.store().await, attempt(&name, None)).await;
    });
}

#[test]
fn silent_connections_cost_one_time_out() {
    let Some((cluster, _turn)) = Cluster::find("silent_connections_cost_one_time_out") else {
        return;
    };
    block_on(async {
        let proxy = SilentProxy::new(&cluster.address()).await;
        let store = cluster.at(proxy.address.clone()).await;
        let request = attempt(&cluster.fresh_name("silent"), None);
        silence::costs_one_connection(&proxy, &store, request).await;
    });
}

/// A credential plugin that takes longer than any request is given runs on, once, and whoever asks
/// when it has ended is served; also when its token grows old.
#[test]
fn a_slow_credential_plugin_is_waited_for() {
    let Some((cluster, _turn)) = Cluster::find("a_slow_credential_plugin_is_waited_for") else {
        return;
    };
    block_on(async {
        // Two seconds later the token is to be renewed, a minute before its end.
        let plugin = cluster.plugin(Duration::from_millis(1500), 62);
        let store = plugin.store(&cluster).await;
        let (begun, mut failures) = (Moment::now(), 0);
        let served = async {
            while timeout(PATIENCE, store.inspect("plugin")).await.is_err() {
                failures += 1;
            }
        };
        timeout(Duration::from_secs(10), served).await.expect("the plugin's result is used");
        println!("served after {:?} and {failures} time-outs", Moment::now().since(begun));
        assert!(failures > 0 && plugin.runs() == 1, "run {} times", plugin.runs());

        tokio::time::sleep(Duration::from_secs(3)).await;
        let begun = Moment::now();
        let served = async { while timeout(PATIENCE, store.inspect("plugin")).await.is_err() {} };
        timeout(Duration::from_secs(10), served).await.expect("a new token is had");
        println!("served after {:?}, {} runs", Moment::now().since(begun), plugin.runs());
        // While the new token is made, requests with the old one have `kube` run the plugin, too.
        assert!(plugin.runs() <= 8, "run {} times", plugin.runs());
    });
}

/// What Tenure wrote is listed, and nothing else.
#[test]
fn names_are_listed() {
    let Some((cluster, _turn)) = Cluster::find("names_are_listed") else { return };
    block_on(async {
        let store = cluster.store().await;
        let [held, released, foreign] =
            ["list-held", "list-released", "list-foreign"].map(|stem| cluster.fresh_name(stem));
        won(&store, attempt(&held, None)).await.expect("nobody else wants it");
        acquire(&store, released.as_str(), "a").await.release().await;
        let lease = format!(
            r#"{{"apiVersion":"coordination.k8s.io/v1","kind":"Lease",
                "metadata":{{"name":"{foreign}"}},"spec":{{"holderIdentity":"elector_1"}}}}"#
        );
        cluster.operate(&["create", "-f", "-"], &lease).await;
        let names = store.backend().list().expect("it can").await.unwrap();
        assert!(names.is_sorted());
        assert!(names.contains(&held) && names.contains(&released) && !names.contains(&foreign));
    });
}

/// What client-go writes is understood, and what we write is what it expects.
#[test]
fn foreign_electors_share_the_object() {
    let Some((cluster, _turn)) = Cluster::find("foreign_electors_share_the_object") else { return };
    block_on(async {
        let store = cluster.store().await;
        let name = cluster.fresh_name("shared");
        let name = name.as_str();
        let lease = format!(
            r#"{{"apiVersion":"coordination.k8s.io/v1","kind":"Lease",
                "metadata":{{"name":"{name}"}},"spec":{{"holderIdentity":"elector_1",
                "leaseDurationSeconds":3,"acquireTime":"2020-01-01T00:00:00.000000Z",
                "renewTime":"2020-01-01T00:00:00.000000Z","leaseTransitions":0}}}}"#
        );
        // It holds, by our clock, for its own duration, whatever its times say.
        cluster.operate(&["create", "-f", "-"], &lease).await;
        let begun = Moment::now();
        let tenure = store.lease(name).ttl(TTL).owner("a").note(b"ours".to_vec()).acquire().await;
        let (tenure, waited) = (tenure.unwrap(), Moment::now().since(begun));
        assert!(waited >= Duration::from_secs(3), "taken after {waited:?}");
        assert!(waited < Duration::from_secs(6), "taken only after {waited:?}");
        assert_eq!(cluster.field(name, "leaseTransitions").await, "1");
        assert_eq!(cluster.field(name, "leaseDurationSeconds").await, TTL.as_secs().to_string());
        assert!(cluster.field(name, "holderIdentity").await.starts_with("a#"));
        let listed = cluster.operate(&["get", "lease", name, "--no-headers"], "").await;
        assert!(listed.contains("a#"), "{listed}");
        tenure.release().await;
        assert_eq!(cluster.field(name, "holderIdentity").await, "");
        assert_eq!(cluster.field(name, "leaseDurationSeconds").await, "1");
        assert_eq!(store.inspect(name).await.unwrap().unwrap().note, b"ours");

        // It takes the released one, which makes our note stale, and releases it: free at once.
        cluster.take_over(name, "elector_2", 3600).await;
        let record = store.inspect(name).await.unwrap().unwrap();
        assert_eq!(record.owner().unwrap().name, "elector_2");
        assert!(record.note.is_empty());
        // Electors write a duration of a second then; a longer one would show in how long it takes.
        let release = r#"{"spec":{"holderIdentity":"","leaseDurationSeconds":30}}"#;
        cluster.operate(&["patch", "lease", name, "--type=merge", "-p", release], "").await;
        let begun = Moment::now();
        let tenure = acquire(&store, name, "b").await;
        let waited = Moment::now().since(begun);
        assert!(waited < Duration::from_secs(15), "a released one is had only after {waited:?}");
        tenure.release().await;
    });
}

/// A restart within the ttl is not noticed by those who hold.
#[test]
fn a_restart_keeps_the_tenure() {
    let Some((cluster, _turn)) = Cluster::find_alone("a_restart_keeps_the_tenure") else { return };
    block_on(async {
        let begun = Moment::now();
        cluster.servers(&["restart", "kube"]).await;
        let ttl = (Moment::now().since(begun) * 4).max(TTL).as_secs();
        let ttl = Duration::from_secs(ttl);
        let store = cluster.store().await;
        let name = cluster.fresh_name("restart");
        let tenure = store.lease(name.as_str()).ttl(ttl).acquire().await.unwrap();
        cluster.servers(&["restart", "kube"]).await;
        // Without a renewal after the restart it would be lost by then.
        let lost = timeout(ttl, tenure.lost()).await;
        assert!(lost.is_err(), "it was lost: {lost:?}");
        assert!(tenure.is_held());
        let begun = Moment::now();
        tenure.release().await;
        println!("released in {:?}", Moment::now().since(begun));
    });
}

/// A server that is silent for two ttls: the holder stops before anybody else can start, and soon
/// after its return there is exactly one again.
#[test]
fn an_outage_ends_the_tenure_in_time() {
    let Some((cluster, _turn)) = Cluster::find_alone("an_outage_ends_the_tenure_in_time") else {
        return;
    };
    block_on(async {
        for (down, up) in [("pause", "resume"), ("kill", "restart")] {
            let name = cluster.fresh_name(down);
            let (first, second) = (cluster.store().await, cluster.store().await);
            let tenure = acquire(&first, name.as_str(), "a").await;
            let rival = second.lease(name.as_str()).ttl(TTL).owner("b");
            let waiting = tokio::spawn(async move { (rival.acquire().await, Moment::now()) });
            tokio::time::sleep(TTL / 2).await;
            let cut = Moment::now();
            cluster.servers(&[down, "kube"]).await;
            let loss = timeout(TTL, tenure.lost()).await.expect("it stops before the ttl is over");
            println!("{down}: {loss} after {:?}", Moment::now().since(cut));
            assert!(matches!(loss, Loss::Expired | Loss::Paused), "{down}: {loss:?}");
            tokio::time::sleep((TTL * 2).saturating_sub(Moment::now().since(cut))).await;
            assert!(!waiting.is_finished(), "{down}: won without a store");
            let token = tenure.token();
            // The loser contends again, as `run` would.
            let again = first.lease(name.as_str()).ttl(TTL).owner("a");
            drop(tenure);
            let again = tokio::spawn(async move { (again.acquire().await, Moment::now()) });
            cluster.servers(&[up, "kube"]).await;
            let returned = Moment::now();
            let (next, won_at) = tokio::select! {
                won = waiting => won.unwrap(),
                won = again => won.unwrap(),
            };
            let next = next.unwrap();
            let took = won_at.since(returned);
            println!("{down}: {} is next, {took:?} after the return", next.owner());
            assert!(took <= Duration::from_secs(5), "{down}: only {took:?} after the return");
            assert!(next.token() > token, "{down}: {} after {token}", next.token());
            let record = record(&first, &name).await.unwrap();
            assert!(record.is_of(next.claim()), "{down}: {record:?}");
            next.release().await;
        }
    });
}

/// More waiters than have a watch of their own are woken as well.
#[test]
fn many_waiters_share_a_watch() {
    let Some((cluster, _turn)) = Cluster::find_alone("many_waiters_share_a_watch") else { return };
    block_on(async {
        let (holder, waiter) = (cluster.store().await, cluster.store().await);
        let mut waiting = JoinSet::new();
        let mut tenures = Vec::new();
        for _ in 0..40 {
            let name = cluster.fresh_name("many");
            let ttl = Duration::from_secs(60);
            tenures.push(holder.lease(name.as_str()).ttl(ttl).acquire().await.unwrap());
            let lease = waiter.lease(name.as_str()).ttl(ttl);
            waiting.spawn(async move {
                let tenure = lease.acquire().await.unwrap();
                (tenure, Moment::now())
            });
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
        let freed = Moment::now();
        for tenure in tenures {
            tokio::spawn(tenure.release());
        }
        // A poll would come only after a third of the ttl.
        let won = timeout(Duration::from_secs(8), waiting.join_all()).await.expect("all woken");
        let mut times: Vec<_> = won.iter().map(|(_, at)| at.since(freed)).collect();
        times.sort();
        println!("40 leases changed hands within {:?}", times[times.len() - 1]);
    });
}

/// A thousand records are one request, and the answer is as fresh as a read of each.
#[test]
fn a_thousand_records_are_read_at_once() {
    let Some((cluster, _turn)) = Cluster::find_alone("a_thousand_records_are_read_at_once") else {
        return;
    };
    block_on(async {
        let store = cluster.store().await;
        let names: Vec<LeaseName> = (0..1000).map(|_| cluster.fresh_name("batch")).collect();
        let mut creating = JoinSet::new();
        for chunk in names.chunks(100) {
            let (store, chunk) = (store.clone(), chunk.to_vec());
            creating.spawn(async move {
                for name in chunk {
                    won(&store, attempt(&name, None)).await.expect("nobody else wants it");
                }
            });
        }
        creating.join_all().await;
        for _ in 0..3 {
            let last = cluster.fresh_name("batch");
            let claim = won(&store, attempt(&last, None)).await;
            let mut asked = names.clone();
            asked.push(last);
            let begun = Moment::now();
            let records = store.backend().read(asked).await.unwrap();
            println!("1001 records in {:?}", Moment::now().since(begun));
            assert!(records.iter().all(Option::is_some));
            let last = records.last().unwrap().as_ref().unwrap();
            assert!(last.is_of(claim.unwrap()), "the last write is not in it");
        }
    });
}

/// The preflight finds out what is missing, and no error says a secret.
#[test]
fn refusals_say_why_and_nothing_secret() {
    let Some((cluster, _turn)) = Cluster::find("refusals_say_why_and_nothing_secret") else {
        return;
    };
    block_on(async {
        let token = cluster.token();
        let denied = |error: LeaseError, what: &str| {
            let LeaseError::Store(error) = error else { panic!("{what}: {error}") };
            assert_eq!(error.kind(), StoreErrorKind::Denied, "{what}: {error}");
            assert!(!format!("{error} {error:?}").contains(&token), "{what}: {error}");
            println!("{what}: {error}");
        };
        cluster.store().await.preflight("preflight").await.unwrap();
        let elsewhere = cluster.url().replace("tenure-test", "default");
        let elsewhere = tenure_stores::open(&elsewhere).await.unwrap();
        denied(elsewhere.preflight("preflight").await.unwrap_err(), "another namespace");
        let wrong = cluster.with_config(|config| config.replace(&token, "not-the-token")).await;
        denied(wrong.inspect("preflight").await.unwrap_err(), "another token");
        let missing = tenure_stores::open("k8s://x?kubeconfig=/nowhere").await;
        let missing = missing.expect_err("there is no such file").to_string();
        assert!(missing.contains("/nowhere"), "{missing}");
    });
}

async fn acquire(store: &Store, name: &str, owner: &str) -> Tenure {
    store.lease(name).settings(Settings::new(TTL)).owner(owner).acquire().await.unwrap()
}

fn attempt(name: &LeaseName, takeover: Option<Version>) -> Acquire {
    Acquire {
        name: name.clone(),
        claim: Nonce::random(),
        owner: Owner::named("racer"),
        ttl: Duration::from_secs(600),
        session: None,
        note: None,
        create: true,
        takeover,
        expected: None,
        above: 0,
        unattended: false,
    }
}

/// The claim, if it won.
async fn won(store: &Store, request: Acquire) -> Option<Nonce> {
    let claim = request.claim;
    match store.backend().acquire(request).await.unwrap() {
        Acquired::Won { .. } => Some(claim),
        Acquired::Lost(_) => None,
    }
}

async fn record(store: &Store, name: &LeaseName) -> Option<Record> {
    store.inspect(name.as_str()).await.unwrap()
}

const TTL: Duration = Duration::from_secs(5);
/// Less than a slow credential plugin takes.
const PATIENCE: Duration = Duration::from_millis(400);
