//! The failure detector removes nobody: a full member goes down only because its process ended, it
//! left, or an operator said so.
//!
//! Without it: one stalled switch, and half of the cluster has thrown out the other half.

use tenure_cluster::Event;

use super::Told;

pub(super) fn check(told: &Told<'_>) -> Option<String> {
    let (Event::Downed(node) | Event::Removed(node)) = told.event else { return None };
    let facts = told.truth.of(node);
    let cause = facts.dead || facts.leaving || facts.downed || facts.cloned;
    // One that was only joining has no say and hosts nothing; it may be given up.
    let counts = facts.up.is_some();
    (counts && !cause).then(|| format!("{} told {:?} without a cause", told.who, told.event))
}
