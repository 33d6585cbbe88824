//! The failure detector removes nobody: a full member goes down only because its process ended, it
//! left, or an operator said so.
//!
//! Without it: one stalled switch, and half of the cluster has thrown out the other half.

use tenure_cluster::{Ending, Event, Node};

use super::super::truth::Facts;
use super::Told;

pub(super) fn told(told: &Told<'_>) -> Option<String> {
    let (Event::Downed(node) | Event::Removed(node)) = told.event else { return None };
    if told.truth.twins_decided {
        return None;
    }
    let facts = told.truth.of(node);
    (facts.is_full_member(told.view.cluster()) && !has_cause(&facts))
        .then(|| format!("{} told {:?} without a cause", told.who, told.event))
}

/// Also the victim notices.
pub(super) fn ended(node: &Node, cluster: u64, ending: &Ending, facts: &Facts) -> Option<String> {
    let out = matches!(ending, Ending::Downed | Ending::Removed);
    (out && facts.is_full_member(cluster) && !has_cause(facts))
        .then(|| format!("{node} ended: {ending}"))
}

fn has_cause(facts: &Facts) -> bool {
    facts.dead || facts.leaving || facts.downed || facts.cloned
}
