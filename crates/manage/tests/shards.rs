//! Entities on two nodes, as operators see them: where they are, how many, and by bounded labels. In a
//! process of its own, since its recorder is the process's.
#![allow(clippy::disallowed_methods, reason = "real nodes take real time")]

mod kit;

use std::time::Duration;

use kit::{READ, WRITE, eventually, manage, nodes, post, until};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tenure_cluster::Cluster;
use tenure_cluster::messaging::{Ask, Received};
use tenure_manage::Recorder;
use tenure_sharding::{BoxError, Entity, Hosted, Sharding, Shardings as _};

#[derive(Serialize, Deserialize)]
struct Touch;

impl Ask for Touch {
    type Reply = ();
}

struct Cart;

impl Entity for Cart {
    type Message = Touch;

    async fn receive(&mut self, received: Received<Touch>, _: &Hosted) -> Result<(), BoxError> {
        Ok(received.reply.answer::<Touch>(()).await?)
    }
}

async fn touch(carts: &Sharding<Touch>, ids: std::ops::Range<usize>) {
    for id in ids {
        let cart = carts.entity(&format!("cart-{id}"));
        cart.ask(Touch).within(Duration::from_secs(30)).await.unwrap();
    }
}

/// The value of a metric that has only the label `kind`; `None` if it is not told.
fn value(recorder: &Recorder, name: &str) -> Option<f64> {
    let start = format!("{name}{{kind=\"cart\"}} ");
    recorder.render().lines().find_map(|line| line.strip_prefix(&start)?.parse().ok())
}

/// How many series there are that have to do with sharding or messages.
fn series(recorder: &Recorder) -> usize {
    let text = recorder.render();
    let ours = ["tenure_sharding_", "tenure_messages_", "tenure_transport_"];
    text.lines().filter(|line| ours.iter().any(|it| line.starts_with(it))).count()
}

fn sorted(clusters: &[Cluster]) -> Vec<Cluster> {
    let mut clusters = clusters.to_vec();
    clusters.sort_by_key(Cluster::me);
    clusters
}

#[tokio::test]
async fn entities_are_seen_and_counted_and_never_named() {
    let recorder = Recorder::install().unwrap();
    let (_, clusters) = nodes(2).await;
    let start = |index: usize| clusters[index].sharding("cart").shards(8).start(|_| Cart).unwrap();
    let carts = [start(0), start(1)];
    let running = [
        manage(&clusters[0]).sharding(&carts[0]).metrics(recorder.clone()).start().await.unwrap(),
        manage(&clusters[1]).sharding(&carts[1]).start().await.unwrap(),
    ];
    touch(&carts[0], 0..20).await;
    let whole = |shown: &serde_json::Value| {
        let kind = &shown["kinds"][0];
        let places = kind["map"].as_array().unwrap();
        kind["nodes"].as_array().unwrap().len() == 2
            && [0, 1].iter().all(|at| places.iter().filter(|it| **it == *at).count() == 4)
    };
    for running in &running {
        let shown = eventually("four shards on each", running, "/api/shards", whole).await;
        let kind = &shown["kinds"][0];
        assert_eq!((&kind["kind"], &kind["count"]), (&"cart".into(), &8.into()), "{shown}");
        assert_eq!(kind["coordinator"], clusters[0].me().to_string(), "{shown}");
        assert_eq!(kind["hosted"], 4, "{shown}");
        let (_, term) = carts[0].status().coordinator.unwrap();
        assert_eq!(kind["term"], term.to_string(), "{shown}");
    }
    // Moved shards forget their entities until they are touched.
    touch(&carts[0], 0..20).await;
    let sum: u64 = {
        let entities = |it: &Sharding<Touch>| it.status().entities as u64;
        carts.iter().map(entities).sum()
    };
    assert_eq!(sum, 20);
    // Either node says what both have.
    for running in &running {
        let shown = eventually("all entities", running, "/api/regions", |shown| {
            let regions = shown["kinds"][0]["regions"].as_array().unwrap();
            regions.iter().map(|it| it["entities"].as_u64().unwrap()).sum::<u64>() == 20
        })
        .await;
        let kind = &shown["kinds"][0];
        assert_eq!(kind["kind"], "cart", "{shown}");
        for (region, cluster) in kind["regions"].as_array().unwrap().iter().zip(&sorted(&clusters))
        {
            let carts = &carts[clusters.iter().position(|it| it.me() == cluster.me()).unwrap()];
            let hosted = carts.status().hosted;
            let hosted: Vec<_> = hosted
                .iter()
                .map(|(shard, token)| json!({"shard": shard.0, "token": token.to_string()}))
                .collect();
            assert_eq!(region["node"], cluster.me().to_string(), "{shown}");
            assert_eq!(region["shards"], json!(hosted), "{shown}");
            assert_eq!(
                (&region["waiting"], &region["error"]),
                (&0.into(), &json!(null)),
                "{shown}"
            );
        }
    }

    // Both nodes tell one recorder here, each of its own: the gauge is of whichever spoke last.
    until("entities are told", || value(&recorder, "tenure_sharding_entities") > Some(0.0)).await;
    until("all are counted", || value(&recorder, "tenure_sharding_received_total") >= Some(40.0))
        .await;
    let before = series(&recorder);
    touch(&carts[0], 20..2000).await;
    until("more are counted", || {
        value(&recorder, "tenure_sharding_received_total") >= Some(2020.0)
    })
    .await;
    let after = series(&recorder);
    println!("{before} series with 20 entities, {after} with 2000");
    assert_eq!(before, after, "{}", recorder.render());
    assert!(!recorder.render().contains("cart-"), "an entity is named");

    let body = "{\"kind\":\"cart\"}";
    let done = post(&running[0], "/api/rebalance", WRITE, body).await;
    assert_eq!(done.status, 202, "{done:?}");
    let refused = post(&running[1], "/api/rebalance", WRITE, body).await;
    assert_eq!(refused.status, 409, "{refused:?}");
    assert!(refused.error().contains(&clusters[0].me().to_string()), "{refused:?}");
    let unknown = post(&running[0], "/api/rebalance", WRITE, "{\"kind\":\"boat\"}").await;
    assert_eq!(unknown.status, 404, "{unknown:?}");
    assert_eq!(post(&running[0], "/api/rebalance", READ, body).await.status, 403);
}
