//! Members that do not host a kind: shards are served all the same, whatever guards them and
//! whichever of the nodes it is. Real nodes.
#![allow(clippy::disallowed_methods, reason = "real nodes take real time")]

mod kit;

use std::time::Instant;

use kit::{Message, SHARDS, Where, World, soon, until};
use tenure_cluster::messaging::Receiver;
use tenure_sharding::{Builder, Setup, Sharding};

/// What one of three members is.
#[derive(Clone, Copy, Debug)]
enum Other {
    /// It opened a proxy.
    Proxy,
    /// It has never heard of the kind.
    Without,
    /// Its program takes what is said about the kind, and never says anything.
    Mute,
}

fn guarded(world: &World, setup: Setup, builder: Builder, place: usize) -> Builder {
    match setup {
        Setup::Gossip => builder,
        Setup::Lease => builder.lease(world.lease()),
        Setup::Sessions => builder.lease(world.lease()).session(&world.session(place)),
    }
}

/// Three members, of which the one at `place` (0 is the oldest) does not host. How long it took until all
/// shards were served, and, after the older of the hosts has left in order, until they were again.
async fn serve(setup: Setup, other: Other, place: usize) -> (f64, f64) {
    let world = World::new(3).await;
    let deaf = || world.clusters[place].receiver::<u8>("tenure/board/sharding/cart").unwrap();
    let _deaf: Option<Receiver<u8>> = matches!(other, Other::Mute).then(deaf);
    let mut handles: Vec<Sharding<Message>> = Vec::new();
    if matches!(other, Other::Proxy) {
        handles.push(world.carts(place).proxy().unwrap());
    }
    let places: Vec<usize> = (0..3).filter(|it| *it != place).collect();
    let hosts: Vec<_> = places
        .iter()
        .map(|it| world.host(guarded(&world, setup, world.carts(*it), *it), *it))
        .collect();
    handles.extend(hosts.iter().cloned());
    let what = format!("{setup:?}, {other:?} at {place}");
    let begun = Instant::now();
    let count = |hosts: &[Sharding<Message>]| {
        hosts.iter().map(|it| it.status().hosted.len()).sum::<usize>()
    };
    let all = SHARDS as usize;
    until_served(&what, &hosts, || count(&hosts) == all).await;
    for handle in &handles {
        for id in 0..20 {
            let entity = handle.entity(&id.to_string());
            soon(entity.ask(Where).within(kit::LONG)).await.unwrap();
        }
    }
    let first = begun.elapsed().as_secs_f64();
    soon(world.clusters[places[0]].leave()).await;
    let begun = Instant::now();
    until_served(&what, &hosts, || count(&hosts[1..]) == all).await;
    let second = begun.elapsed().as_secs_f64();
    world.end().await;
    (first, second)
}

async fn until_served(what: &str, hosts: &[Sharding<Message>], served: impl Fn() -> bool) {
    let waited = tokio::time::timeout(PATIENCE, until(what, served)).await;
    let lines: Vec<_> = hosts.iter().map(|it| it.status().to_string()).collect();
    waited.unwrap_or_else(|_| panic!("{what}: {lines:#?}"));
}

async fn table(setup: Setup) {
    let (mut rows, mut failed) = (tokio::task::JoinSet::new(), Vec::new());
    for other in [Other::Proxy, Other::Without, Other::Mute] {
        for place in 0..3 {
            rows.spawn(async move { (other, place, serve(setup, other, place).await) });
        }
    }
    while let Some(row) = rows.join_next().await {
        match row {
            Ok((other, place, (first, second))) => println!(
                "{setup:?}, {other:?} at {place}: served after {first:.1} s, after a leave {second:.1} s"
            ),
            Err(error) => failed.push(error.to_string()),
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gossip_serves_beside_members_that_do_not_host() {
    table(Setup::Gossip).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_serves_beside_members_that_do_not_host() {
    table(Setup::Lease).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_serve_beside_members_that_do_not_host() {
    table(Setup::Sessions).await;
}

/// Many ttls, on a machine that is busy.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(20);
