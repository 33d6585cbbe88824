//! Of those who believe the same, and count each other in, one asks for the lease.
//!
//! Without it: the nodes of a side are each other's rivals, and wait for one another.

use std::collections::HashMap;

use tenure_cluster::view::{Digest, Verdict};
use tenure_cluster::{Node, View};

/// Who has asked for what, by what it believed.
#[derive(Debug, Default)]
pub(super) struct Memory(HashMap<Digest, Vec<(Node, Verdict)>>);

impl Memory {
    pub(super) fn check(&mut self, node: &Node, view: &View, verdict: &Verdict) -> Option<String> {
        let asked = self.0.entry(view.digest()).or_default();
        let both = |theirs: &Verdict, member: &Node| {
            theirs.survivors.contains(member) && verdict.survivors.contains(member)
        };
        let is_rival = |(other, theirs): &&(Node, Verdict)| {
            other != node && view.members().any(|(member, _)| both(theirs, member))
        };
        let rival = asked.iter().find(is_rival).map(|(other, _)| other);
        let found = rival.map(|other| format!("{other} and {node} ask, and believe the same"));
        asked.push((node.clone(), verdict.clone()));
        found
    }
}
