//! Whole nodes in a simulated world: they form a cluster, and the same seed does the same again.
#![allow(clippy::disallowed_methods)]

use std::time::Duration;

use tenure_cluster::Cluster;
use tenure_singleton::Singletons as _;
use tenure_testkit::world::{Node, Nodes, World, check};

#[test]
fn three_nodes_form_one_cluster() {
    let summary = check(0..20, |world| async move {
        let nodes = Nodes::start(&world, 3, |node| async move {
            Ok(Cluster::join(node.settings("shop")).await?)
        });
        nodes.until_all_started().await;
        world
            .until("each knows all three", || {
                nodes.services().iter().all(|cluster| cluster.view().members().len() == 3)
            })
            .await;
        world.sleep(Duration::from_secs(10)).await;
    });
    println!("{summary:?}");
}

/// What runs on each node of the example in docs/testing.md.
async fn service(node: Node) -> Result<Cluster, Box<dyn std::error::Error + Send + Sync>> {
    let cluster = Cluster::join(node.settings("shop")).await?;
    let lease = node.store().lease("shop.cron").ttl(Duration::from_secs(5));
    let here = node.clone();
    cluster.singleton("cron").lease(lease).run(move |hosted| {
        let here = here.clone();
        async move {
            let _working = here.working("cron"); // Two at a time fail the test.
            hosted.stopping().await;
            Ok(())
        }
    })?;
    Ok(cluster)
}

async fn cron_survives_a_crash(world: World) {
    let nodes = Nodes::start(&world, 3, service);
    nodes.until_all_started().await;
    world.until("cron runs", || world.workers("cron").len() == 1).await;

    let host = world.workers("cron").remove(0);
    let host: usize = host["node-".len()..].parse().unwrap();
    nodes.crash(host).await;
    world.until("cron runs on another node", || world.workers("cron").len() == 1).await;

    nodes.restart(host).await;
    world.sleep(Duration::from_secs(30)).await;
    assert_eq!(world.workers("cron").len(), 1);
}

#[test]
fn a_singleton_moves_when_its_host_crashes() {
    check(0..20, cron_survives_a_crash);
}
