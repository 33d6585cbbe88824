//! What guards a kind is changed between two deployments: it is served again, or the nodes say what to
//! do. Real nodes.
#![allow(clippy::disallowed_methods, reason = "real nodes take real time")]

mod kit;

use std::time::{Duration, Instant};

use kit::{Message, SHARDS, World, settings, soon};
use tenure_cluster::Cluster;
use tenure_sharding::{Setup, Sharding, Shardings as _};
use tokio::time::{sleep, timeout};

const SETUPS: [Setup; 3] = [Setup::Gossip, Setup::Lease, Setup::Sessions];

/// A node, and what it has of the kind.
struct Node {
    cluster: Cluster,
    carts: Sharding<Message>,
}

impl World {
    /// One more node; numbers of nodes are never used again.
    async fn add(&mut self, setup: Setup, number: usize) -> Node {
        let cluster = self.join().await;
        let place = self.clusters.len() - 1;
        let builder = cluster.sharding("cart").settings(settings());
        let builder = match setup {
            Setup::Gossip => builder,
            Setup::Lease => builder.lease(self.lease()),
            Setup::Sessions => builder.lease(self.lease()).session(&self.session(number)),
        };
        let carts = self.host(builder, place);
        Node { cluster, carts }
    }

    async fn remove(&mut self, node: &Node) {
        soon(node.cluster.leave()).await;
        self.clusters.retain(|it| it.me() != node.cluster.me());
    }
}

fn hosted(nodes: &[Node]) -> usize {
    nodes.iter().map(|it| it.carts.status().hosted.len()).sum()
}

async fn served(what: &str, nodes: &[Node]) -> f64 {
    let begun = Instant::now();
    let all = async {
        while hosted(nodes) < SHARDS as usize {
            sleep(Duration::from_millis(5)).await;
        }
        for id in 0..20 {
            let entity = nodes[0].carts.entity(&id.to_string());
            entity.ask(kit::Where).within(PATIENCE).await.unwrap();
        }
    };
    let waited = timeout(PATIENCE, all).await;
    let lines: Vec<_> = nodes.iter().map(|it| it.carts.status().to_string()).collect();
    waited.unwrap_or_else(|_| panic!("{what}: {lines:#?}"));
    begun.elapsed().as_secs_f64()
}

/// All nodes are stopped; then the others start.
async fn all_at_once(from: Setup, to: Setup) -> f64 {
    let mut world = World::new(0).await;
    let mut old = Vec::new();
    for number in 0..2 {
        old.push(world.add(from, number).await);
    }
    served("before", &old).await;
    for node in &old {
        world.remove(node).await;
    }
    let mut new = Vec::new();
    for number in 2..4 {
        new.push(world.add(to, number).await);
    }
    let time = served(&format!("{from:?} to {to:?}"), &new).await;
    world.end().await;
    time
}

/// A new node comes, then an old one goes, the youngest first.
async fn rolling(from: Setup, to: Setup) -> f64 {
    let mut world = World::new(0).await;
    let (mut old, mut new) = (Vec::new(), Vec::new());
    for number in 0..2 {
        old.push(world.add(from, number).await);
    }
    served("before", &old).await;
    for number in 2..4 {
        new.push(world.add(to, number).await);
        sleep(kit::TTL / 2).await;
        let node = old.pop().unwrap();
        world.remove(&node).await;
        drop(node);
    }
    let time = served(&format!("{from:?} to {to:?}, rolling"), &new).await;
    world.end().await;
    time
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kind_is_served_again_after_every_change_of_what_guards_it() {
    let (mut rows, mut failed) = (tokio::task::JoinSet::new(), Vec::new());
    for from in SETUPS {
        for to in SETUPS.into_iter().filter(|to| *to != from) {
            rows.spawn(async move { (from, to, "all at once", all_at_once(from, to).await) });
            rows.spawn(async move { (from, to, "rolling", rolling(from, to).await) });
        }
    }
    while let Some(row) = rows.join_next().await {
        match row {
            Ok((from, to, how, time)) => println!("{from:?} to {to:?}, {how}: {time:.1} s"),
            Err(error) => failed.push(error.to_string()),
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

/// One node has no session: it is told what to do, gets nothing while another coordinates that has one, and
/// holds nobody up, whether it is the oldest or the youngest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_node_without_a_session_holds_nobody_up() {
    for forgetful in 0..3 {
        let mut world = World::new(0).await;
        let mut nodes = Vec::new();
        for number in 0..3 {
            let setup = if number == forgetful { Setup::Lease } else { Setup::Sessions };
            nodes.push(world.add(setup, number).await);
        }
        served(&format!("forgotten on {forgetful}"), &nodes).await;
        let why = || nodes[forgetful].carts.status().why_not.unwrap_or_default();
        kit::until("it to say so", || why().contains("add .session(…) here")).await;
        if forgetful > 0 {
            kit::until("it to host nothing", || hosted(&nodes[forgetful..=forgetful]) == 0).await;
        }
        world.end().await;
    }
}

/// One node has no lease: it stands back, also when it is the oldest of all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_node_without_a_lease_stands_back() {
    let mut world = World::new(0).await;
    let first = world.add(Setup::Lease, 0).await;
    let mut nodes = vec![first];
    served("before", &nodes).await;
    let forgetful = world.add(Setup::Gossip, 1).await;
    let why = || forgetful.carts.status().why_not.unwrap_or_default();
    kit::until("it to say so", || why().contains("none here")).await;
    nodes.push(world.add(Setup::Lease, 2).await);
    sleep(kit::TTL).await;
    let first = nodes.remove(0);
    world.remove(&first).await;
    served("beside one without a lease", &nodes).await;
    sleep(kit::TTL * 2).await;
    assert_eq!(forgetful.carts.status().hosted.len(), 0, "{}", forgetful.carts.status());
    served("still", &nodes).await;
    drop(first);
    world.end().await;
}

/// Many ttls, on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(25);
