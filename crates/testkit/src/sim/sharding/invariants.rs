//! What must hold, whatever happens. One file each.

mod current_is_not_refused;
mod in_order;
mod no_acknowledged_write_lost;
mod no_old_token_obeyed;
mod one_coordinator;
mod one_place;

use tenure_cluster::Node;
use tenure_lease::{Moment, Token};
use tenure_sharding::wire::Answer;
use tenure_sharding::{Setup, Shard};

use super::Tally;
use super::data::{Done, Op};
use crate::sim::cluster::Violation;

pub(super) use one_place::Active;

/// All of them, fed with everything that happens.
pub(super) struct Invariants {
    setup: Setup,
    current_is_not_refused: current_is_not_refused::Memory,
    in_order: in_order::Memory,
    no_old_token_obeyed: no_old_token_obeyed::Memory,
    one_place: one_place::Memory,
    pub(super) tally: Tally,
    pub(super) violations: Vec<Violation>,
}

impl Invariants {
    pub(super) fn new(setup: Setup) -> Self {
        Self {
            setup,
            current_is_not_refused: Default::default(),
            in_order: Default::default(),
            no_old_token_obeyed: Default::default(),
            one_place: Default::default(),
            tally: Tally::default(),
            violations: Vec::new(),
        }
    }

    /// A region was greeted.
    pub(super) fn greeted(&mut self, shell: u64, term: u64) {
        self.no_old_token_obeyed.greeted(shell, term);
    }

    /// A region says that allocations are over.
    pub(super) fn confirmed(&mut self, shell: u64, answer: &Answer) {
        self.no_old_token_obeyed.confirmed(shell, answer);
    }

    /// A shard becomes active.
    pub(super) fn started(&mut self, at: Moment, shard: Shard, active: Active) {
        self.tally.started += 1;
        let others = self.one_place.others(shard, &active);
        self.tally.active_twice += u64::from(others.fresh);
        self.tally.active_stale += u64::from(others.stale && !others.fresh);
        let old = self.no_old_token_obeyed.started(shard, &active);
        self.current_is_not_refused.started(shard, active.token);
        let twice = self.one_place.started(shard, active);
        self.report(at, "no old token is obeyed", old);
        self.report_twice(at, twice);
    }

    /// A process has shown that its session lives.
    pub(super) fn renewed(&mut self, at: Moment, shell: u64) {
        let twice = self.one_place.renewed(shell);
        self.report_twice(at, twice);
    }

    /// A process stands still.
    pub(super) fn impaired(&mut self, shell: u64) {
        self.one_place.impaired(shell);
    }

    fn report_twice(&mut self, at: Moment, twice: Option<String>) {
        if self.setup == Setup::Sessions {
            self.report(at, "a shard is active in one place", twice);
        }
    }

    /// A shard is not active any more.
    pub(super) fn stopped(&mut self, shard: Shard, shell: u64) {
        self.one_place.stopped(shard, shell);
    }

    /// A process is gone, with all that it did.
    pub(super) fn gone(&mut self, shell: u64) {
        self.one_place.gone(shell);
    }

    /// A process sends a message.
    pub(super) fn sent(&mut self, shell: u64, message: u64) {
        self.in_order.sent(shell, message);
    }

    /// It has reached its shard.
    pub(super) fn arrived(&mut self, at: Moment, shard: Shard, token: Token, message: u64) {
        let found = self.in_order.arrived(shard, token, message);
        // Without a lease, tokens of two coordinators do not compare.
        if self.setup != Setup::Gossip {
            self.report(at, "messages of one sender stay in order", found);
        }
    }

    /// The database has done something.
    pub(super) fn done(&mut self, at: Moment, op: &Op, done: &Done) {
        no_acknowledged_write_lost::count(&mut self.tally, op, done);
        if self.setup != Setup::Gossip {
            let lost = no_acknowledged_write_lost::check(op, done);
            self.report(at, "no acknowledged write is lost", lost);
            let refused = self.current_is_not_refused.check(op, done);
            self.report(at, "whoever is current is not refused", refused);
        }
    }

    /// These coordinators are active, and had not stood still.
    pub(super) fn coordinate(&mut self, at: Moment, active: &[&Node]) {
        if self.setup != Setup::Gossip {
            self.report(at, "one coordinator is active", one_coordinator::check(active));
        }
    }

    pub(super) fn report(&mut self, at: Moment, invariant: &'static str, what: Option<String>) {
        if let Some(what) = what
            && self.violations.len() < MOST
        {
            self.violations.push(Violation { at, invariant, what });
        }
    }

    /// Where each shard is active.
    pub(super) fn active(&self, shard: Shard) -> impl Iterator<Item = (u64, Token)> {
        self.one_place.active(shard)
    }
}

/// One is enough to fail; a few help to understand.
const MOST: usize = 20;
