//! Whole nodes in a simulated world: they form a cluster, and the same seed does the same again.
#![allow(clippy::disallowed_methods)]

use std::time::Duration;

use tenure_cluster::Cluster;
use tenure_testkit::world::{Nodes, check};

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
