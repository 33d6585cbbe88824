use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Change, Member, Status, View, digest};
use crate::Node;

/// What the resolver wrote down when a side won the lease: who goes on.
///
/// Everybody else is down. Verdicts are numbered; a higher generation overrules a lower one, and
/// generation 0 means that there was none. The lease's record outlives the cluster, so a verdict
/// says which cluster it is about: one that was formed later has nothing to do with it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Which cluster it is about.
    pub cluster: u64,
    /// Which one it is.
    #[serde(deserialize_with = "super::wire::number")]
    pub generation: u64,
    /// Who goes on.
    pub survivors: Arc<BTreeSet<Node>>,
}

impl View {
    /// Takes in a verdict that is newer than the one it knows: whoever is not among its survivors
    /// is down.
    pub(crate) fn adopt(&mut self, verdict: &Verdict) -> Vec<Change> {
        assert!(verdict.generation > self.verdict.generation, "an older verdict decides nothing");
        self.skip_up_numbers();
        let losers: Vec<(Node, Member)> = self
            .members
            .iter()
            .filter(|(node, member)| {
                member.status < Status::Down && !verdict.survivors.contains(*node)
            })
            .map(|(node, member)| (node.clone(), member.clone()))
            .collect();
        let mut changes = Vec::new();
        for (node, member) in losers {
            let before = Some(member.status);
            self.set_member(&node, Member { status: Status::Down, ..member });
            changes.push(Change { node, before, after: Some(Status::Down) });
        }
        self.set_verdict(verdict.clone());
        changes
    }

    /// A side will ask the lease for this generation.
    pub(crate) fn announce(&mut self, generation: u64) {
        if generation > self.asked {
            self.digest.remove(digest::of_asked(self.asked));
            self.asked = generation;
            self.digest.add(digest::of_asked(self.asked));
        }
    }

    /// A verdict travels whole: replaces an older one.
    pub(super) fn set_verdict(&mut self, verdict: Verdict) {
        if verdict.generation > self.verdict.generation {
            self.digest.remove(digest::of_verdict(&self.verdict));
            self.verdict = verdict;
            self.digest.add(digest::of_verdict(&self.verdict));
            // Nobody will ask for a generation that was decided.
            self.announce(self.verdict.generation);
        }
    }
}
