//! No two members of a cluster have the same up-number, whoever is asked that has a say.
//!
//! Without it: two nodes are both the oldest.

use std::collections::BTreeMap;

use tenure_cluster::Node;

use super::super::truth::Truth;
use super::Looked;

pub(super) fn check(truth: &Truth, looked: &[Looked<'_>]) -> Option<String> {
    let mut owners: BTreeMap<(u64, u64), &Node> = BTreeMap::new();
    for one in looked.iter().filter(|one| !truth.twins_decided && !truth.of(one.who).downed) {
        for (node, member) in one.view.members() {
            let number = (one.view.cluster(), member.up_number);
            if number.1 > 0 && *owners.entry(number).or_insert(node) != node {
                let owner = owners[&number];
                return Some(format!("{node} and {owner} both have the up-number {number:?}"));
            }
        }
    }
    None
}
