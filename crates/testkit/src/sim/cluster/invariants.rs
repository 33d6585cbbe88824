//! What must hold, whatever happens. One file each.

mod clusters_are_formed_once;
mod equal_digests_say_the_same;
mod no_cluster_beside_a_guarded;
mod nobody_moves_during_a_split;
mod nobody_out_without_cause;
mod one_of_a_side_asks;
mod one_side_survives;
mod removed_stays_removed;
mod status_only_rises;
mod up_is_known_to_all;
mod up_numbers_are_unique;

use std::fmt;

use tenure_cluster::view::Verdict;
use tenure_cluster::{Ending, Event, Node, View};
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

/// All of them, fed with everything that a node tells its users, and with a look at everybody now
/// and then.
#[derive(Debug, Default)]
pub(super) struct Invariants {
    clusters_are_formed_once: clusters_are_formed_once::Memory,
    nobody_moves_during_a_split: nobody_moves_during_a_split::Memory,
    one_of_a_side_asks: one_of_a_side_asks::Memory,
    removed_stays_removed: removed_stays_removed::Memory,
    status_only_rises: status_only_rises::Memory,
    pub(super) violations: Vec<Violation>,
}

/// What a process told, and what is true at that moment.
pub(super) struct Told<'a> {
    /// A number of the process: two processes are one node while it runs twice.
    pub(super) process: u64,
    pub(super) who: &'a Node,
    pub(super) event: &'a Event,
    pub(super) view: &'a View,
    pub(super) truth: &'a Truth,
    /// What the other processes believe that run and are in a cluster.
    pub(super) others: &'a dyn Fn(&Node) -> Option<&'a View>,
}

/// What a process believes at some moment.
pub(super) struct Looked<'a> {
    pub(super) process: u64,
    pub(super) who: &'a Node,
    pub(super) view: &'a View,
    /// There is a verdict to come before anything changes.
    pub(super) owes_verdict: bool,
}

impl Invariants {
    /// A process told something.
    pub(super) fn told(&mut self, at: Moment, told: &Told<'_>) {
        let found = [
            (OUT, nobody_out_without_cause::told(told)),
            ("who is up is known to all", up_is_known_to_all::check(told)),
            ("removed stays removed", self.removed_stays_removed.check(told)),
            ("nobody moves during a split", self.nobody_moves_during_a_split.check(told)),
        ];
        self.report(at, found);
    }

    /// A process ended.
    pub(super) fn ended(
        &mut self,
        at: Moment,
        node: &Node,
        own: Option<u64>,
        ending: &Ending,
        truth: &Truth,
    ) {
        let facts = &truth.of(node);
        let way = match (ending, own) {
            (Ending::OtherCluster(other), Some(own)) => {
                clusters_are_formed_once::gave_way(own, *other)
            }
            _ => None,
        };
        let out = own.and_then(|own| nobody_out_without_cause::ended(node, own, ending, facts));
        self.report(at, [(FORMED, way), (OUT, out.filter(|_| !truth.twins_decided))]);
    }

    /// A process formed a cluster.
    pub(super) fn formed(
        &mut self,
        at: Moment,
        cluster: u64,
        truth: &Truth,
        guards: &[(Node, u64, Moment)],
    ) {
        let found = self.clusters_are_formed_once.formed(cluster);
        let beside = no_cluster_beside_a_guarded::check(at, cluster, guards);
        let found = [(FORMED, found), ("no cluster beside a guarded one", beside)];
        self.report(at, found.into_iter().filter(|_| !truth.twins_decided));
    }

    /// A process asks for the resolver's lease.
    pub(super) fn asks(&mut self, at: Moment, node: &Node, view: &View, verdict: &Verdict) {
        let found = self.one_of_a_side_asks.check(node, view, verdict);
        self.report(at, [("one of a side asks", found)]);
    }

    /// What everybody believes at this moment.
    pub(super) fn look(&mut self, at: Moment, truth: &Truth, looked: &[Looked<'_>]) {
        let found = [
            ("a status only rises", self.status_only_rises.check(looked)),
            ("equal digests say the same", equal_digests_say_the_same::check(truth, looked)),
            ("up-numbers are unique", up_numbers_are_unique::check(truth, looked)),
            ("one side survives", one_side_survives::check(truth, looked)),
        ];
        self.report(at, found);
    }

    /// Something else that must hold does not.
    pub(super) fn report(
        &mut self,
        at: Moment,
        found: impl IntoIterator<Item = (&'static str, Option<String>)>,
    ) {
        for (invariant, what) in found {
            if let Some(what) = what
                && self.violations.len() < MOST
            {
                self.violations.push(Violation { at, invariant, what });
            }
        }
    }
}

const OUT: &str = "nobody is out without a cause";
const FORMED: &str = "clusters are formed once";
/// One is enough to fail; a few help to understand.
const MOST: usize = 20;
