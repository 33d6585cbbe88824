use std::collections::{BTreeMap, BTreeSet};

use tenure_cluster::{Address, Node};

/// What really became of every incarnation, as an omniscient observer knows.
#[derive(Debug, Default)]
pub(super) struct Truth {
    facts: BTreeMap<Node, Facts>,
    generations: BTreeMap<Address, usize>,
    by_number: BTreeMap<(u64, u64), Node>,
    /// Which processes know that a node is up.
    knowers: BTreeMap<Node, BTreeSet<u64>>,
    /// Whether a node ran twice while it led, or was about to form a cluster. Two leaders that are
    /// one node decide twice, and neither can know.
    pub(super) twins_decided: bool,
}

/// What is true about one incarnation.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    /// Its process is gone.
    pub(super) dead: bool,
    /// It was told to leave, by whoever.
    pub(super) leaving: bool,
    /// An operator declared it down.
    pub(super) downed: bool,
    /// It was resumed twice, so one of the two must go.
    pub(super) cloned: bool,
    /// How many processes ran at its address before it.
    pub(super) generation: usize,
    /// It became a full member of this cluster, with this number.
    pub(super) up: Option<(u64, u64)>,
}

impl Facts {
    /// One that was only joining has no say and hosts nothing; it may be given up.
    pub(super) fn is_full_member(&self, cluster: u64) -> bool {
        self.up.is_some_and(|(up_in, _)| up_in == cluster)
    }
}

impl Truth {
    pub(super) fn born(&mut self, node: &Node) {
        let generation = self.generations.entry(node.address.clone()).or_default();
        self.facts.insert(node.clone(), Facts { generation: *generation, ..Facts::default() });
        *generation += 1;
    }

    /// Every incarnation that there ever was.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.facts.keys()
    }

    pub(super) fn of(&self, node: &Node) -> Facts {
        self.facts.get(node).cloned().unwrap_or_default()
    }

    pub(super) fn generation(&self, node: &Node) -> usize {
        self.facts.get(node).map_or(0, |facts| facts.generation)
    }

    pub(super) fn change(&mut self, node: &Node, change: impl FnOnce(&mut Facts)) {
        change(self.facts.entry(node.clone()).or_default());
    }

    /// Who has this number in this cluster.
    pub(super) fn with_up_number(&self, up: (u64, u64)) -> Option<&Node> {
        self.by_number.get(&up)
    }

    /// A process knows that a node is up.
    pub(super) fn is_up(&mut self, node: &Node, up: (u64, u64), knower: u64) {
        self.knowers.entry(node.clone()).or_default().insert(knower);
        if self.of(node).up.is_none() {
            self.change(node, |facts| facts.up = Some(up));
            self.by_number.insert(up, node.clone());
        }
    }

    /// A process is gone, or has no say any more. What nobody else knew has not happened.
    pub(super) fn forgets(&mut self, process: u64) {
        let mut undone = Vec::new();
        for (node, knowers) in &mut self.knowers {
            if knowers.remove(&process) && knowers.is_empty() {
                undone.push(node.clone());
            }
        }
        for node in undone {
            if let Some(up) = self.facts.get_mut(&node).and_then(|facts| facts.up.take()) {
                self.by_number.remove(&up);
            }
        }
    }
}
