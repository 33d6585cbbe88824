//! An incarnation that a node has seen removed never comes back to it.
//!
//! Without it: a removed member is resurrected by old news, and what it hosted with it.

use std::collections::{BTreeMap, BTreeSet};

use tenure_cluster::{Event, Node};

use super::Told;

#[derive(Debug, Default)]
pub(super) struct Memory {
    removed: BTreeMap<u64, BTreeSet<Node>>,
}

impl Memory {
    pub(super) fn check(&mut self, told: &Told<'_>) -> Option<String> {
        let removed = self.removed.entry(told.process).or_default();
        match told.event {
            Event::Removed(node) => {
                removed.insert(node.clone());
                None
            }
            Event::Joined(node) | Event::Up(node) if removed.contains(node) => {
                Some(format!("{} told {:?} after it was removed", told.who, told.event))
            }
            _ => None,
        }
    }
}
