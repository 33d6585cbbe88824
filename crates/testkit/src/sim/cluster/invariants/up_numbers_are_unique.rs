//! No two members of a cluster ever have the same up-number.
//!
//! Without it: two nodes are both the oldest.

use std::collections::BTreeMap;

use tenure_cluster::Node;

use super::super::truth::Truth;
use super::Looked;

/// Who has which number in which cluster, for ever.
#[derive(Debug, Default)]
pub(super) struct Memory {
    owners: BTreeMap<(u64, u64), Node>,
}

impl Memory {
    pub(super) fn check(&mut self, truth: &Truth, looked: &[Looked<'_>]) -> Option<String> {
        if truth.clones {
            return None;
        }
        for one in looked {
            for (node, member) in one.view.members() {
                let number = (one.view.cluster(), member.up_number);
                if number.1 == 0 {
                    continue;
                }
                let owner = self.owners.entry(number).or_insert_with(|| node.clone());
                if owner != node {
                    return Some(format!("{node} and {owner} both have the up-number {number:?}"));
                }
            }
        }
        None
    }
}
