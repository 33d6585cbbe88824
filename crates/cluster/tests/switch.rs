//! The switch of demonstrations: a cut is silent, nobody new comes through it, and it heals.
#![cfg(target_os = "linux")]
#![allow(clippy::disallowed_methods, reason = "these tests run in real time, over real sockets")]

mod kit;
mod nodes;

use std::time::{Duration, Instant};

use kit::{Kit, quick, receive};
use tenure_cluster::transport::{Down, Event, Lane, Switch, TransportSettings};
use tenure_cluster::{Cluster, Node};
use tenure_lease::{MemoryStore, Store};
use tokio::time::timeout;

#[tokio::test]
async fn a_cut_is_silent_and_lets_nobody_through() {
    let mut kit = Kit::new();
    let switches = [Switch::default(), Switch::default()];
    let with = |switch: &Switch| TransportSettings { switch: Some(switch.clone()), ..quick() };
    let mut one = kit.node_with("one", with(&switches[0]));
    let mut two = kit.node_with("two", with(&switches[1]));
    let lane = one.transport.data(&two.node);
    lane.send_with(|out| out.push(1)).await.unwrap();
    let mut frames = two.data().await;
    assert_eq!(receive(&mut frames).await.len(), 1);
    assert!(one.transport.control(&two.node.address, None, vec![1]));
    assert_eq!(two.control_frame().await, [1]);

    switches[0].cut([two.node.address.clone()]);
    switches[1].cut([one.node.address.clone()]);
    let cut = Instant::now();
    lane.send_with(|out| out.push(2)).await.unwrap();
    assert!(one.transport.control(&two.node.address, None, vec![2]));
    let mut ended = [false, false];
    while ended.contains(&false) {
        let (lane, why) = one
            .told(|event| match event {
                Event::Down { link, why, .. } => Some((link.lane, why)),
                _ => None,
            })
            .await;
        assert!(matches!(&why, Down::Cut(_)), "{why:?}");
        ended[usize::from(lane == Lane::Data)] = true;
    }
    let noticed = cut.elapsed();
    assert!(noticed > Duration::from_secs(1), "a cut that is told is none: {noticed:?}");
    assert!(noticed < Duration::from_secs(5), "silence_max is 2 s: {noticed:?}");

    // Nor does anything new come through, from either end, or from one that was not told.
    lane.send_with(|out| out.push(3)).await.unwrap();
    assert!(two.transport.control(&one.node.address, None, vec![3]));
    assert!(timeout(Duration::from_secs(3), frames.recv()).await.is_err());
    switches[1].cut([]);
    assert!(two.transport.control(&one.node.address, None, vec![4]));
    let up = one.told(|event| matches!(event, Event::Up(_)).then_some(()));
    assert!(timeout(Duration::from_secs(3), up).await.is_err());

    switches[0].cut([]);
    let healed = Instant::now();
    assert_eq!(receive(&mut frames).await.next().unwrap()[..], [3]);
    assert!(healed.elapsed() < Duration::from_secs(3), "{:?}", healed.elapsed());
    assert!(two.transport.control(&one.node.address, None, vec![5]));
    while one.control_frame().await != [5] {}
}

#[tokio::test]
async fn a_short_cut_loses_nothing() {
    let mut kit = Kit::new();
    let switch = Switch::default();
    let settings = TransportSettings { switch: Some(switch.clone()), ..quick() };
    let (one, mut two) = (kit.node_with("one", settings), kit.node("two"));
    let lane = one.transport.data(&two.node);
    lane.send_with(|out| out.push(0)).await.unwrap();
    let mut frames = two.data().await;
    assert_eq!(receive(&mut frames).await.len(), 1);

    switch.cut([two.node.address.clone()]);
    tokio::time::sleep(Duration::from_millis(300)).await;
    lane.send_with(|out| out.push(1)).await.unwrap();
    switch.cut([]);
    assert_eq!(receive(&mut frames).await.next().unwrap()[..], [1]);
}

/// Cut in two and healed, the nodes are the same ones as before.
#[tokio::test]
async fn a_cluster_is_cut_and_heals() {
    let store = Store::new(MemoryStore::default());
    let (mut settings, mut switches) = (Vec::new(), Vec::new());
    for address in nodes::addresses(3) {
        let mut node = nodes::plain(&address, &store);
        let switch = Switch::default();
        node.transport.switch = Some(switch.clone());
        node.transport.silence_max = Duration::from_secs(1);
        node.membership.heartbeat_interval = Duration::from_millis(100);
        node.membership.acceptable_pause = Duration::from_secs(2);
        settings.push(node);
        switches.push((address, switch));
    }
    let clusters = nodes::join_all(settings).await;
    nodes::agree(&clusters, 3).await;
    let before: Vec<Node> = clusters.iter().map(Cluster::me).collect();

    let lone = switches[0].0.clone();
    switches[0].1.cut([switches[1].0.clone(), switches[2].0.clone()]);
    switches[1].1.cut([lone.clone()]);
    switches[2].1.cut([lone]);
    let misses = |cluster: usize, node: usize| {
        let view = clusters[cluster].view();
        view.observations().any(|seen| seen == (&before[cluster], &before[node]))
    };
    nodes::eventually(|| misses(1, 0) && misses(2, 0) && misses(0, 1) && misses(0, 2)).await;
    assert!(!misses(1, 2) && !misses(2, 1), "these two see each other");

    for (_, switch) in &switches {
        switch.cut([]);
    }
    nodes::eventually(|| clusters.iter().all(|c| c.view().observations().next().is_none())).await;
    nodes::agree(&clusters, 3).await;
    assert_eq!(clusters.iter().map(Cluster::me).collect::<Vec<_>>(), before);
}
