//! Nodes in network namespaces: cut, muted, lossy, stopped, killed.
//!
//! What must hold each time without a strategy for downing: who is lost is seen; nobody is put out,
//! and nobody changes identity; and when the trouble is over, all are together again without
//! anybody's help. With one: exactly one side goes on, whole, and the others have ended.
#![cfg(all(target_os = "linux", feature = "cluster"))]
#![allow(clippy::disallowed_methods)]

mod common;
mod net;
mod nodes;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use common::*;
use net::{Net, at};
use nodes::*;
use tenure_cluster::MembershipSettings;
use tenure_cluster::downing::default_stable_after;

/// Some nodes, each in a place of its own. Its fields are dropped in their order.
struct Lab {
    nodes: Nodes,
    net: Net,
}

impl Lab {
    /// With a formation lease in a directory that all share.
    fn with_lease(name: &str) -> Self {
        Self::new(name, 5, Nodes::with_lease)
    }

    /// The same, and a lease that settles who goes on.
    fn with_arbitration(name: &str, count: u8) -> Self {
        Self::new(name, count, |name, addresses, _| {
            Nodes::with_lease(name, addresses, LEASE_MAJORITY)
        })
    }

    /// Without a store: the first of the seeds forms the cluster.
    fn with_seeds(name: &str) -> Self {
        Self::new(name, 5, |name, addresses, _| {
            let seeds = format!("discover = {:?}\nseed_patience = \"2s\"", &addresses[..3]);
            Nodes::new(name, addresses, &seeds)
        })
    }

    fn new(name: &str, count: u8, nodes: impl Fn(&str, Vec<String>, &str) -> Nodes) -> Self {
        let net = Net::new(name, count);
        let addresses = (1..=count).map(at).collect();
        let mut nodes = nodes(&format!("lab-{name}"), addresses, "");
        for index in 0..nodes.len() {
            nodes.inside[index] = net.inside(index + 1);
        }
        nodes.start_all();
        let (_, took) = nodes.formed(nodes.len(), SOON);
        println!("{name}: {count} nodes are one cluster after {took:?}");
        Self { nodes, net }
    }

    /// What must not change, whatever the network does.
    fn identity(&self) -> (Option<u64>, BTreeSet<String>) {
        let status = until("a status", SOON, || self.nodes.status(1));
        (status.id(), status.names())
    }

    /// Watches for a while that everybody still believes in everybody.
    fn nobody_changes_for(&self, watched: &[usize], time: Duration) {
        let (id, names) = self.identity();
        let start = Instant::now();
        while start.elapsed() < time {
            for index in watched {
                let Some(status) = self.nodes.status(*index) else { continue };
                assert_eq!((status.id(), status.names()), (id, names.clone()), "{status:?}");
                assert!(status.members().iter().all(|member| member["status"] == "up"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Watches for a while that these go on as they are.
    fn nobody_else_ends(&self, nodes: &[usize]) {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(2) {
            for node in nodes {
                let status = self.nodes.status(*node).expect("it goes on");
                assert!(status.whole(nodes.len()).is_some(), "{status:?}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// After the trouble: together again, and the same as before.
    fn together_again(&self, before: &(Option<u64>, BTreeSet<String>)) -> Duration {
        let (id, took) = self.nodes.formed(5, HEALED);
        assert_eq!((Some(id), &self.identity().1), (before.0, &before.1));
        took
    }
}

fn places(places: &[u8]) -> BTreeSet<String> {
    places.iter().copied().map(at).collect()
}

fn split_and_heal(name: &str, lab: &Lab) {
    let before = lab.identity();
    lab.net.cut("1,2", "3,4,5");
    let start = Instant::now();
    lab.nodes.these(&[0, 1], "the smaller side to miss the other", DETECTED, |status| {
        status.lost() == places(&[3, 4, 5])
    });
    lab.nodes.these(&[2, 3, 4], "the larger side to miss the other", DETECTED, |status| {
        status.lost() == places(&[1, 2])
    });
    println!("{name}: both sides miss each other after {:?}", start.elapsed());
    lab.nobody_changes_for(&[0, 1, 2, 3, 4], Duration::from_secs(4));
    lab.net.heal();
    println!("{name}: together again after {:?}", lab.together_again(&before));
}

#[test]
#[ignore = "needs root and nft: scripts/lab test"]
fn a_cut_heals() {
    split_and_heal("cut 2|3", &Lab::with_lease("cut"));
}

#[test]
#[ignore = "needs root and nft: scripts/lab test"]
fn a_cut_heals_without_a_store() {
    split_and_heal("cut 2|3, seeds", &Lab::with_seeds("seeds"));
}

#[test]
#[ignore = "needs root and nft: scripts/lab test"]
fn a_node_that_nobody_hears_is_missed_and_comes_back() {
    let lab = Lab::with_lease("mute");
    let before = lab.identity();
    lab.net.tell("mute", &["1", "2,3,4,5"]);
    let took = lab.nodes.these(&[1, 2, 3, 4], "the muted one to be missed", DETECTED, |status| {
        status.lost() == places(&[1])
    });
    println!("one way: missed after {took:?}");
    lab.nobody_changes_for(&[0, 1, 2, 3, 4], Duration::from_secs(3));
    lab.net.heal();
    println!("one way: together again after {:?}", lab.together_again(&before));
}

#[test]
#[ignore = "needs root and nft: scripts/lab test"]
fn one_cut_link_is_seen_as_what_it_is() {
    let lab = Lab::with_lease("link");
    let before = lab.identity();
    lab.net.cut("2", "4");
    let both = BTreeSet::from([(at(2), at(4)), (at(4), at(2))]);
    let took = lab
        .nodes
        .all("everybody to know of the link", DETECTED, |status| status.unreachable() == both);
    println!("one link: everybody knows after {took:?}");
    lab.nobody_changes_for(&[0, 1, 2, 3, 4], Duration::from_secs(3));
    lab.nodes.all("nothing else", HEALED, |status| status.unreachable() == both);
    lab.net.heal();
    println!("one link: together again after {:?}", lab.together_again(&before));
}

#[test]
#[ignore = "needs root and nft: scripts/lab test"]
fn a_network_that_loses_a_third_puts_nobody_out() {
    let lab = Lab::with_lease("loss");
    let before = lab.identity();
    lab.net.tell("loss", &["30"]);
    lab.nobody_changes_for(&[0, 1, 2, 3, 4], Duration::from_secs(15));
    let lost: usize = lab.net.tell("lost", &[]).trim().parse().unwrap();
    assert!(lost > 50, "only {lost} packets were lost");
    let missed: usize = (0..5).map(|node| lab.nodes.logged(node, "is unreachable")).sum();
    lab.net.heal();
    let took = lab.together_again(&before);
    println!("30 % loss for 15 s: {lost} packets, missed {missed} times, whole after {took:?}");
}

#[test]
#[ignore = "needs root and nft: scripts/lab test"]
fn a_node_that_was_stopped_goes_on() {
    let mut lab = Lab::with_lease("stop");
    let before = lab.identity();
    // The leader, which also keeps the formation lease.
    lab.nodes.process(0).signal(libc::SIGSTOP);
    let stopped = Instant::now();
    let took = lab.nodes.these(&[1, 2, 3, 4], "the stopped one to be missed", DETECTED, |status| {
        status.lost() == places(&[1])
    });
    println!("SIGSTOP: missed after {took:?}");
    lab.nobody_changes_for(
        &[1, 2, 3, 4],
        Duration::from_secs(10).saturating_sub(stopped.elapsed()),
    );
    lab.nodes.process(0).signal(libc::SIGCONT);
    println!("SIGSTOP for 10 s: together again after {:?}", lab.together_again(&before));
}

#[test]
#[ignore = "needs root and nft: scripts/lab test"]
fn a_node_that_was_killed_joins_again() {
    let mut lab = Lab::with_lease("kill");
    let (id, before) = lab.identity();
    lab.nodes.kill(3);
    let took = lab
        .nodes
        .all("the dead one to be missed", DETECTED, |status| status.lost() == places(&[4]));
    println!("kill -9: missed after {took:?}");
    lab.nodes.start(3);
    let (again, took) = lab.nodes.formed(5, HEALED);
    println!("kill -9 and restart: together again after {took:?}");
    assert_eq!(Some(again), id);
    let now = lab.identity().1;
    assert_eq!(now.intersection(&before).count(), 4, "one has a new incarnation: {now:?}");
}

/// A node whose port is blocked, both ways, and that reaches the store.
#[test]
#[ignore = "needs root and nft: scripts/lab test"]
fn a_node_behind_a_blocked_port_forms_nothing() {
    let mut lab = Lab::new("port", 4, Nodes::with_lease);
    let (id, _) = lab.identity();
    lab.nodes.process(3).signal(libc::SIGTERM);
    assert_eq!(lab.nodes.end(3, SOON), 0);
    lab.nodes.formed(3, SOON);
    lab.net.cut("1,2,3", "4");
    lab.nodes.start(3);
    let words = "a cluster lives that this node cannot reach";
    let is_outside = |status: &Status| {
        let why = status.0["not_ready"].as_str().unwrap_or_default();
        status.id().is_none() && why.contains(words)
    };
    lab.nodes.these(&[3], "an outsider that says why", SOON, is_outside);
    for _ in 0..rounds(1) {
        for node in 0..3 {
            lab.nodes.process(node).signal(libc::SIGTERM);
            assert_eq!(lab.nodes.end(node, SOON), 0);
            lab.nodes.start(node);
            lab.nodes.these(&[0, 1, 2], "the others to be one cluster", SOON, |status| {
                status.whole(3).is_some() && status.id() == id
            });
            assert!(is_outside(&lab.nodes.status(3).expect("it runs")));
        }
    }
    // The port is opened: it joins.
    lab.net.heal();
    assert_eq!(Some(lab.nodes.formed(4, HEALED).0), id);
}

#[test]
#[ignore = "needs root and nft: scripts/lab test"]
fn of_two_halves_the_lease_leaves_one() {
    let usual = MembershipSettings::default();
    let settled_within = usual.detection() + default_stable_after(4) + ACQUIRE_TIMEOUT + BUSY;
    for round in 0..rounds(1) {
        let mut lab = Lab::with_arbitration("tie", 4);
        let before = lab.identity();
        lab.net.cut("1,2", "3,4");
        let start = Instant::now();
        let sides = [[0, 1], [2, 3]];
        let goes_on = |side: &[usize; 2]| {
            side.iter()
                .all(|node| lab.nodes.status(*node).is_some_and(|it| it.whole(2) == before.0))
        };
        let winner = until("one side to go on", settled_within, || sides.iter().position(goes_on));
        let won = start.elapsed();
        // Both, as they were: nobody of the winners has a new incarnation.
        let kept = lab.nodes.status(sides[winner][0]).unwrap().names();
        assert!(kept.is_subset(&before.1), "{kept:?} of {before:?}");
        for node in sides[1 - winner] {
            let left = settled_within.saturating_sub(start.elapsed());
            assert_eq!(lab.nodes.end(node, left.max(Duration::from_millis(1))), DOWN);
        }
        let settled = start.elapsed();
        lab.nobody_else_ends(&sides[winner]);
        lab.net.heal();
        for node in sides[1 - winner] {
            lab.nodes.start(node);
        }
        let (after, whole) = lab.nodes.formed(4, HEALED);
        assert_eq!(Some(after), before.0);
        let names: Vec<usize> = sides[winner].iter().map(|node| node + 1).collect();
        println!(
            "2|2, round {round}: {names:?} won after {won:?}, the others have ended after \
             {settled:?}, one cluster of four {whole:?} after the heal"
        );
    }
}

/// As `tenure node` ends when it was declared down.
const DOWN: i32 = 79;
/// What a busy machine may add.
const BUSY: Duration = Duration::from_secs(10);
/// Its default.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);
/// By default 4.6 s after the last sign of life; the rest is for a busy machine.
const DETECTED: Duration = Duration::from_secs(20);
/// A link is tried again every second, a handshake and some gossip follow.
const HEALED: Duration = Duration::from_secs(20);
