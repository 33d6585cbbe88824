//! A node that reaches the store and not the cluster, beside three that form one; and nodes that
//! start where everybody was killed.
//!
//! `TENURE_ROUNDS=20` restarts each of the three that often, and kills all of them that often.
#![cfg(all(target_os = "linux", feature = "cluster"))]
#![allow(clippy::disallowed_methods)]

mod common;
mod nodes;

use std::fs;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use common::*;
use nodes::*;
use serde_json::Value;

/// One test at a time: they measure.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

const TTL: Duration = Duration::from_secs(3);
/// Silence is noticed after about 1.3 s.
const QUICK: &str = "[membership]\nheartbeat_interval = \"250ms\"\nacceptable_pause = \"1s\"\n\
                     gossip_interval = \"250ms\"\njoining_patience = \"1s\"";
const GOOD: [usize; 3] = [0, 1, 2];
const OUTSIDER: usize = 3;

/// Three good nodes and one more, which `spoil` makes an outsider, given its file's text.
fn nodes(name: &str, block: u8, discover: bool, spoil: impl Fn(&Nodes, String) -> String) -> Nodes {
    let addresses = loopback(block, 4);
    let discover = match discover {
        true => format!("discover = {addresses:?}\n"),
        false => String::new(),
    };
    let more = format!("formation_ttl = \"3s\"\n{discover}{QUICK}");
    let nodes = Nodes::with_lease(name, addresses, &more);
    let file = nodes.dir.join(&format!("n{OUTSIDER}.toml"));
    let spoilt = spoil(&nodes, fs::read_to_string(&file).unwrap());
    fs::write(file, spoilt).unwrap();
    nodes
}

/// With a certificate of another authority.
fn foreign_certificate(nodes: &Nodes, text: String) -> String {
    let certs = tenure()
        .current_dir(nodes.dir.path())
        .args(["certs", "new", "--cluster", "shop", "--dir", "foreign", "n3"])
        .output()
        .unwrap();
    assert!(certs.status.success(), "{certs:?}");
    text.replace("certs/n3", "foreign/n3")
}

/// The others are told a port at which nobody listens.
fn wrong_port(nodes: &Nodes, text: String) -> String {
    let address = &nodes.addresses[OUTSIDER];
    let wrong = address.replace(":7400", ":7401");
    let text = text.replace(&format!("address = \"{address}\""), &format!("address = \"{wrong}\""));
    format!("{text}\n[transport]\nlisten = \"{address}\"\n")
}

/// The cluster in the formation lease's note.
fn noted_cluster(nodes: &Nodes) -> Option<u64> {
    let shown = tenure()
        .current_dir(nodes.dir.path())
        .args(["lease", "show", "--lease", "file:leases", "--name", "shop.formation", "--json"])
        .output()
        .unwrap();
    let record: Value = serde_json::from_slice(&shown.stdout).ok()?;
    let note: Value = serde_json::from_str(record["note"]["text"].as_str()?).ok()?;
    note["cluster"].as_u64()
}

/// The three restart in turn, each leaving in order: they stay one cluster, the same one, and the
/// outsider stays outside and says why.
fn rolling_restarts(mut nodes: Nodes, words: &[&str]) {
    for index in GOOD {
        nodes.start(index);
    }
    let (id, _) = nodes.formed(3, SOON);
    nodes.start(OUTSIDER);
    // Long enough for it to be waiting for the lease.
    let is_outside = |status: &Status| {
        let why = status.0["not_ready"].as_str().unwrap_or_default();
        status.id().is_none() && words.iter().all(|word| why.contains(word))
    };
    nodes.these(&[OUTSIDER], "an outsider that says why", SOON, is_outside);
    std::thread::sleep(TTL);
    let mut slowest = Duration::ZERO;
    for round in 0..rounds(1) {
        for index in GOOD {
            nodes.process(index).signal(libc::SIGTERM);
            assert_eq!(nodes.end(index, SOON), 0);
            let start = Instant::now();
            nodes.start(index);
            let what = format!("the three to be one cluster after restart {index} of {round}");
            nodes.these(&GOOD, &what, SOON, |status| status.whole(3) == Some(id));
            slowest = slowest.max(start.elapsed());
            assert_eq!(noted_cluster(&nodes), Some(id), "the note is that of the good cluster");
            let outsider = nodes.status(OUTSIDER).expect("it runs");
            assert!(is_outside(&outsider), "{outsider:?}");
        }
    }
    println!("back in at the latest {slowest:?} after its start");
    let warned = until("a warning", SOON, || {
        Some(nodes.logged(OUTSIDER, "it forms nothing")).filter(|warned| *warned > 0)
    });
    assert!(warned <= 3 + rounds(1), "it warned {warned} times");
}

#[test]
fn a_foreign_certificate_forms_nothing() {
    let _turn = alone();
    let nodes = nodes("foreign", 100, false, foreign_certificate);
    let contact = nodes.addresses[0].clone();
    rolling_restarts(nodes, &["a cluster lives that this node cannot reach", &contact, "TLS"]);
}

#[test]
fn a_foreign_certificate_forms_nothing_where_nodes_are_discovered() {
    let _turn = alone();
    let nodes = nodes("foreign-discover", 105, true, foreign_certificate);
    rolling_restarts(nodes, &["a cluster lives that this node cannot reach", "TLS"]);
}

#[test]
fn an_address_that_nobody_can_dial_forms_nothing() {
    let _turn = alone();
    let nodes = nodes("port", 110, false, wrong_port);
    let wrong = nodes.addresses[OUTSIDER].replace(":7400", ":7401");
    let words = ["a cluster lives that this node cannot reach", &wrong];
    rolling_restarts(nodes, &words);
}

#[test]
fn an_address_that_nobody_can_dial_forms_nothing_where_nodes_are_discovered() {
    let _turn = alone();
    let nodes = nodes("port-discover", 115, true, wrong_port);
    rolling_restarts(nodes, &["a cluster lives that this node cannot reach"]);
}

#[test]
fn another_major_forms_nothing() {
    let _turn = alone();
    let mut nodes = nodes("major", 125, false, |_, text| text);
    nodes.inside[OUTSIDER] = speaks_another_major();
    rolling_restarts(nodes, &["a cluster lives that this node cannot reach", "version"]);
}

#[test]
fn another_major_forms_nothing_where_nodes_are_discovered() {
    let _turn = alone();
    let mut nodes = nodes("major-discover", 130, true, |_, text| text);
    nodes.inside[OUTSIDER] = speaks_another_major();
    rolling_restarts(nodes, &["a cluster lives that this node cannot reach", "version"]);
}

/// What the process is started by, so that it says so.
fn speaks_another_major() -> Vec<String> {
    ["env", "TENURE_PLANTED_MAJOR=2"].map(String::from).to_vec()
}

/// All members are killed with -9, the outsider too; whoever starts then forms a cluster.
#[test]
fn where_everybody_was_killed_a_cluster_forms_within_three_ttls() {
    let _turn = alone();
    let mut nodes = nodes("dead", 120, false, |_, text| text);
    nodes.start_all();
    let (mut id, _) = nodes.formed(4, SOON);
    let mut times = Vec::new();
    for _ in 0..rounds(2) {
        for index in nodes.running() {
            nodes.kill(index);
        }
        let start = Instant::now();
        nodes.start_all();
        let first = until("somebody in a cluster", SOON, || {
            let ids = (0..4).filter_map(|node| nodes.status(node)?.id());
            ids.max().filter(|found| *found > id)
        });
        times.push(start.elapsed());
        let (after, _) = nodes.formed(4, SOON);
        assert_eq!(after, first, "one cluster, not two that met");
        id = after;
    }
    times.sort();
    println!("all killed: the next cluster after {:?} to {:?}", times[0], times[times.len() - 1]);
    assert!(times.iter().all(|took| *took < TTL * 3), "{times:?}");
}
