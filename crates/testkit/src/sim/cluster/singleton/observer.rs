use std::collections::BTreeMap;
use std::time::Duration;

use tenure_lease::{Moment, Token};

/// Sees everything: which instances run, and what they do.
#[derive(Debug, Default)]
pub(super) struct Observer {
    runs: u64,
    /// By their number, which rises: the process, and under which token.
    active: BTreeMap<u64, (u64, Token)>,
    highest: Option<Token>,
    /// The highest token that the fence has seen.
    fence: Token,
    /// The newest instance of which an effect was accepted.
    newest: u64,
    since: Moment,
    pub(super) seen: Seen,
}

/// What was seen, in figures.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    /// How often an instance started while another was active.
    pub(super) overlaps: u64,
    /// How often it did so in another cluster than that one.
    pub(super) in_other_cluster: u64,
    /// For how long there were two or more.
    pub(super) overlap: Duration,
    /// For how long there was none.
    pub(super) empty: Duration,
    /// Effects of an instance that were accepted after those of a newer one.
    pub(super) stale: u64,
}

impl Observer {
    /// Counts what has passed since the last change.
    pub(super) fn pass(&mut self, now: Moment) {
        let passed = now.since(self.since);
        self.since = now;
        match self.active.len() {
            0 => self.seen.empty += passed,
            1 => {}
            _ => self.seen.overlap += passed,
        }
    }

    /// Forgets what was seen so far.
    pub(super) fn begin(&mut self, now: Moment) {
        self.seen = Seen::default();
        self.since = now;
    }

    pub(super) fn started(&mut self, now: Moment, process: u64, token: Token) -> u64 {
        self.pass(now);
        if !self.active.is_empty() {
            self.seen.overlaps += 1;
        }
        self.runs += 1;
        self.active.insert(self.runs, (process, token));
        self.highest = self.highest.max(Some(token));
        self.runs
    }

    pub(super) fn ended(&mut self, now: Moment, run: u64) {
        self.pass(now);
        self.active.remove(&run);
    }

    /// The process and the number of each that is active.
    pub(super) fn active(&self) -> impl Iterator<Item = (u64, u64)> {
        self.active.iter().map(|(run, (process, _))| (*process, *run))
    }

    pub(super) fn is_active(&self, run: u64) -> bool {
        self.active.contains_key(&run)
    }

    /// The highest token that any instance had.
    pub(super) fn highest(&self) -> Option<Token> {
        self.highest
    }

    /// An instance touches what it guards: whether that was accepted, and which newer instance had been
    /// accepted before. Without a lease there is no token that both could be ordered by, and no fence.
    pub(super) fn effect(&mut self, run: u64, token: Token, fenced: bool) -> (bool, Option<u64>) {
        if fenced && token < self.fence {
            return (false, None);
        }
        self.fence = token;
        let newer = Some(self.newest).filter(|newest| *newest > run);
        self.newest = self.newest.max(run);
        self.seen.stale += u64::from(newer.is_some());
        (true, newer)
    }
}
