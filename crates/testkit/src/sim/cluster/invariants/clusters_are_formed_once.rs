//! A cluster id is given once, and who gives way does so to a higher one.
//!
//! Without it: two clusters think that they are one, or go round in circles.

use std::collections::BTreeSet;

/// The ids that were given.
#[derive(Debug, Default)]
pub(super) struct Memory {
    formed: BTreeSet<u64>,
}

impl Memory {
    pub(super) fn formed(&mut self, cluster: u64) -> Option<String> {
        let new = self.formed.insert(cluster);
        (!new).then(|| format!("the cluster {cluster} was formed twice"))
    }
}

/// The other one may be announced, not formed: its founder died in between.
pub(super) fn gave_way(own: u64, other: u64) -> Option<String> {
    (other <= own).then(|| format!("the cluster {own} gave way to {other}"))
}
