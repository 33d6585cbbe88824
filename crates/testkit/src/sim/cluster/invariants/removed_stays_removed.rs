//! An incarnation that a node has seen removed never comes back to it.
//!
//! Without it: a removed member is resurrected by old news, and what it hosted with it.
//!
//! One exception: a process that was let in, never heard of it, and was given up, asks again when it
//! can. If that is after it was forgotten, it comes in. It has not been a member in any sense.

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
            Event::Joined(node) if removed.contains(node) && asks_again(told, node) => {
                for removed in self.removed.values_mut() {
                    removed.remove(node);
                }
                None
            }
            Event::Joined(node) | Event::Up(node) if removed.contains(node) => {
                Some(format!("{} told {:?} after it was removed", told.who, told.event))
            }
            _ => None,
        }
    }
}

/// It runs, was never a full member, and is in no cluster as far as it knows.
fn asks_again(told: &Told<'_>, node: &Node) -> bool {
    let facts = told.truth.of(node);
    !facts.dead && facts.up.is_none() && (told.others)(node).is_none()
}
