//! Nodes of this version of the protocol and of the next, which is planted, in one cluster; and a defect that must
//! not go unnoticed there.
#![cfg(all(target_os = "linux", feature = "cluster"))]
#![allow(clippy::disallowed_methods)]

mod common;
mod nodes;

use std::collections::BTreeMap;
use std::time::Duration;

use common::*;
use nodes::*;

const OLD: usize = 1;

/// Three nodes, of which all but one are started with these variables.
fn nodes(name: &str, block: u8, planted: &[&str]) -> Nodes {
    let mut nodes = Nodes::with_lease(name, loopback(block, 3), "version = \"2.3.1\"");
    for (index, inside) in nodes.inside.iter_mut().enumerate() {
        if index != OLD {
            inside.push("env".to_owned());
            inside.extend(planted.iter().map(ToString::to_string));
        }
    }
    nodes
}

/// All see what each of the others runs, also where a node that does not know it passes it on.
#[test]
fn this_version_and_the_next_are_one_cluster() {
    let mut nodes = nodes("versions", 140, &["TENURE_PLANTED_NEXT=1"]);
    // The one in the middle lets the last one in.
    for index in [0, OLD, 2] {
        nodes.start(index);
        nodes.formed(nodes.running().len(), SOON);
    }
    for asked in 0..3 {
        let status = nodes.status(asked).expect("it runs");
        let text =
            |member: &serde_json::Value, field: &str| member[field].as_str().unwrap().to_owned();
        let protocols: BTreeMap<String, String> = status
            .members()
            .iter()
            .inspect(|member| assert_eq!(member["version"], "2.3.1"))
            .map(|member| (text(member, "node"), text(member, "protocol")))
            .collect();
        let expected = ["1.1", "1.0", "1.1"];
        for (address, protocol) in nodes.addresses.iter().zip(expected) {
            let (_, found) = protocols.iter().find(|(node, _)| node.starts_with(address)).unwrap();
            assert_eq!(found, protocol, "of {address}, as node {asked} sees it");
        }
    }
    // What nobody of this version knows is skipped, and said.
    let skipped = || Some(nodes.logged(OLD, "skipped a control message")).filter(|it| *it > 0);
    until("the old node to say what it skips", SOON, skipped);
}

/// A version that needs what only it writes would be alone.
#[test]
fn a_field_that_is_read_at_the_wrong_version_is_found() {
    let mut nodes = nodes("needs", 143, &["TENURE_PLANTED_NEXT=needs"]);
    nodes.start_all();
    std::thread::sleep(LONG_ENOUGH);
    let whole = (0..3).filter_map(|node| nodes.status(node)?.whole(3)).count();
    assert!(whole < 3, "it goes unnoticed");
}

/// Three nodes that are well are one cluster within a second or two.
const LONG_ENOUGH: Duration = Duration::from_secs(10);
