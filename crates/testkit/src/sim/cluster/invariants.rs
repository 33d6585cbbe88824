//! What must hold, whatever happens. One file each.

mod nobody_out_without_cause;
mod removed_stays_removed;
mod up_is_known_to_all;

use std::fmt;

use tenure_cluster::{Event, Node, View};
use tenure_lease::Moment;

use super::truth::Truth;

/// Something that must not happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// When, in true time.
    pub at: Moment,
    /// Which invariant.
    pub invariant: &'static str,
    /// What happened.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}: {}", self.at, self.invariant, self.what)
    }
}

/// All of them, fed with everything that a node tells its users.
#[derive(Debug, Default)]
pub(super) struct Invariants {
    removed_stays_removed: removed_stays_removed::Memory,
    pub(super) violations: Vec<Violation>,
}

/// What a node told, and what is true at that moment.
pub(super) struct Told<'a> {
    pub(super) who: &'a Node,
    pub(super) event: &'a Event,
    pub(super) view: &'a View,
    pub(super) truth: &'a Truth,
    /// What the other processes believe that run and are in a cluster.
    pub(super) others: &'a dyn Fn(&Node) -> Option<&'a View>,
}

impl Invariants {
    pub(super) fn check(&mut self, at: Moment, told: &Told<'_>) {
        let found = [
            ("nobody is out without a cause", nobody_out_without_cause::check(told)),
            ("who is up is known to all", up_is_known_to_all::check(told)),
            ("removed stays removed", self.removed_stays_removed.check(told)),
        ];
        for (invariant, what) in found {
            if let Some(what) = what
                && self.violations.len() < MOST
            {
                self.violations.push(Violation { at, invariant, what });
            }
        }
    }
}

/// One is enough to fail; a few help to understand.
const MOST: usize = 20;
