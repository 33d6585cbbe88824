//! Clusters of real `tenure node` processes, which start together, are killed, and leave.
#![cfg(all(target_os = "linux", feature = "cluster"))]
#![allow(clippy::disallowed_methods)]

mod common;
mod nodes;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use common::*;
use nodes::*;
use tenure_cluster::MembershipSettings;
use tenure_cluster::downing::default_stable_after;

/// One test at a time: they measure, and twenty processes keep a machine busy.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn five_nodes_form_one_cluster_within_three_seconds() {
    let _turn = alone();
    let mut times = Vec::new();
    for round in 0..rounds(3) {
        let mut nodes = Nodes::with_lease(&format!("five-{round}"), loopback(10, 5), "");
        let start = Instant::now();
        nodes.start_all();
        nodes.formed(5, SOON);
        times.push(start.elapsed());
    }
    times.sort();
    println!("five nodes, from the first start until all agree: {times:?}");
    // What else the machine does can only add to it.
    assert!(times[0] < Duration::from_secs(3), "{times:?}");
}

#[test]
fn twenty_nodes_that_start_at_once_form_one_cluster() {
    let _turn = alone();
    let mut times = Vec::new();
    for round in 0..rounds(1) {
        let mut nodes = Nodes::with_lease(&format!("twenty-{round}"), loopback(20, 20), "");
        let start = Instant::now();
        nodes.start_all();
        nodes.formed(20, Duration::from_secs(60));
        times.push(start.elapsed());
        for node in 0..20 {
            assert_eq!(
                nodes.logged(node, "out of the cluster"),
                0,
                "one cluster, not two that met"
            );
        }
    }
    times.sort();
    println!("twenty nodes, from the first start until all agree: {times:?}");
}

#[test]
fn a_cluster_that_was_killed_comes_back() {
    let _turn = alone();
    let ttl = Duration::from_secs(8);
    let mut nodes = Nodes::with_lease("killed", loopback(50, 5), "formation_ttl = \"8s\"");
    nodes.start_all();
    let (before, _) = nodes.formed(5, SOON);
    for index in 0..5 {
        nodes.kill(index);
    }
    let start = Instant::now();
    nodes.start_all();
    let (after, _) = nodes.formed(5, ttl * 4);
    let took = start.elapsed();
    println!("all killed and started again: back after {took:?}, with a formation ttl of {ttl:?}");
    assert!(took < ttl * 2, "they waited for more than what was left of one ttl: {took:?}");
    assert!(after > before, "{after} {before}");
}

#[test]
fn a_signal_makes_a_node_leave_in_order() {
    let _turn = alone();
    let mut nodes = Nodes::with_lease("leave", loopback(60, 5), "");
    nodes.start_all();
    let (id, _) = nodes.formed(5, SOON);
    // The leader first: the formation lease goes on with somebody else.
    for (left, signal) in [(4, libc::SIGTERM), (3, libc::SIGINT)] {
        let index = 4 - left;
        let start = Instant::now();
        nodes.process(index).signal(signal);
        assert_eq!(nodes.end(index, SOON), 0);
        let took = start.elapsed();
        assert_eq!(nodes.formed(left, SOON).0, id);
        println!("left in {took:?}; gone for the others after {:?}", start.elapsed());
        assert!(!nodes.socket(index).exists(), "the socket goes with the node");
    }
    for node in 2..5 {
        assert_eq!(nodes.logged(node, "is unreachable"), 0, "nobody was missed");
    }
    // And all that are left, at once.
    for index in 2..5 {
        nodes.process(index).signal(libc::SIGTERM);
    }
    let start = Instant::now();
    for index in 2..5 {
        assert_eq!(nodes.end(index, SOON), 0);
    }
    println!("three left at once in {:?}", start.elapsed());
}

#[test]
fn a_node_that_was_killed_is_in_again_at_its_address() {
    let _turn = alone();
    let mut nodes = Nodes::with_lease("again", loopback(70, 5), "");
    nodes.start_all();
    let (id, _) = nodes.formed(5, SOON);
    let names = nodes.status(1).unwrap().names();
    // The leader, and somebody else; at once, and after it was missed.
    for (index, missed) in [(0, false), (3, false), (3, true)] {
        nodes.kill(index);
        if missed {
            let took = nodes.all("one to be missed", SOON, |status| status.lost().len() == 1);
            println!("missed after {took:?}");
        }
        let start = Instant::now();
        nodes.start(index);
        assert_eq!(nodes.formed(5, SOON).0, id);
        println!("node {index}, missed before: {missed}, is in again after {:?}", start.elapsed());
    }
    let now = nodes.status(1).unwrap().names();
    assert_eq!(now.intersection(&names).count(), 3, "two have a new incarnation: {now:?}");
}

#[test]
fn with_a_strategy_a_dead_node_is_removed_without_an_operator() {
    let _turn = alone();
    let usual = MembershipSettings::default();
    // Noticed, stable for a while; then the store is asked, and everybody told.
    let within = usual.detection() + default_stable_after(3) + SOON;
    for (mode, block) in [("ties", 90), ("always", 93)] {
        let downing = format!("{LEASE_MAJORITY}\nmode = \"{mode}\"");
        let mut nodes = Nodes::with_lease(&format!("dead-{mode}"), loopback(block, 3), &downing);
        nodes.start_all();
        let (id, _) = nodes.formed(3, SOON);
        // The leader, which also keeps the formation lease.
        let dead = nodes.status(0).unwrap().node().to_owned();
        let start = Instant::now();
        nodes.kill(0);
        let (after, _) = nodes.formed(2, within);
        let took = start.elapsed();
        println!("{mode}: kill -9 of one of three: removed by the others after {took:?}");
        assert_eq!(after, id);
        assert!(!nodes.status(1).unwrap().names().contains(&dead));
        nodes.start(0);
        assert_eq!(nodes.formed(3, SOON).0, id, "and it may come back");
    }
}

#[test]
fn a_node_whose_others_are_dead_leaves_too() {
    let _turn = alone();
    let mut nodes =
        Nodes::with_lease("last", loopback(80, 2), "[membership]\nleave_timeout = \"2s\"");
    nodes.start_all();
    nodes.formed(2, SOON);
    nodes.kill(0);
    let start = Instant::now();
    nodes.process(1).signal(libc::SIGTERM);
    assert_eq!(nodes.end(1, SOON), 0);
    println!("left the dead in {:?}, with a leave_timeout of 2s", start.elapsed());
}

#[test]
fn a_second_signal_ends_a_node_at_once() {
    let _turn = alone();
    let mut nodes = Nodes::with_lease("twice", loopback(85, 2), "");
    nodes.start_all();
    nodes.formed(2, SOON);
    nodes.kill(0);
    nodes.process(1).signal(libc::SIGTERM);
    until("it to leave", SOON, || {
        (nodes.logged(1, "leaving; again to end at once") > 0).then_some(())
    });
    // What comes right behind the first one is taken for the same one.
    std::thread::sleep(Duration::from_millis(300));
    nodes.process(1).signal(libc::SIGTERM);
    assert_eq!(nodes.end(1, Duration::from_secs(5)), 143);
    // And the next one is not kept out by what it left behind.
    nodes.start_all();
    nodes.formed(2, Duration::from_secs(30));
}
