use std::time::Duration;

use tenure_cluster::Node;
use tenure_cluster::formation::{FormationNote, FormationSight};
use tenure_lease::Moment;
use tenure_lease::record::Version;

/// The formation lease: one record that expires. The keeper that guards real leases has a
/// simulation of its own; here only what formation sees of it matters.
#[derive(Debug)]
pub(super) struct Store {
    ttl: Duration,
    /// How often it was written.
    writes: u64,
    term: u64,
    holder: Option<Node>,
    /// By the store's own clock, which is true time.
    expires_at: Moment,
    note: Option<FormationNote>,
}

impl Store {
    pub(super) fn new(ttl: Duration) -> Self {
        Self { ttl, writes: 0, term: 1000, holder: None, expires_at: Moment::ZERO, note: None }
    }

    /// The new term and the note that stood there, if the lease is free or already this claimant's.
    pub(super) fn acquire(&mut self, who: &Node, now: Moment) -> Option<u64> {
        if self.holder.is_some() && now < self.expires_at {
            return None;
        }
        self.term += 1;
        self.writes += 1;
        self.holder = Some(who.clone());
        self.expires_at = now + self.ttl;
        Some(self.term)
    }

    /// Whether it is still theirs.
    pub(super) fn renew(&mut self, who: &Node, term: u64, now: Moment) -> bool {
        let theirs = self.holder.as_ref() == Some(who) && self.term == term;
        if theirs {
            self.writes += 1;
            self.expires_at = now + self.ttl;
        }
        theirs
    }

    pub(super) fn release(&mut self, who: &Node) {
        if self.holder.as_ref() == Some(who) {
            self.writes += 1;
            self.holder = None;
        }
    }

    pub(super) fn write(
        &mut self,
        who: &Node,
        term: u64,
        note: FormationNote,
        now: Moment,
    ) -> bool {
        let theirs = self.renew(who, term, now);
        if theirs {
            self.note = Some(note);
        }
        theirs
    }

    pub(super) fn note(&self) -> Option<&FormationNote> {
        self.note.as_ref()
    }

    /// What whoever reads the record sees of it.
    pub(super) fn sight(&self) -> FormationSight {
        FormationSight {
            version: Version(self.writes.to_string()),
            term: self.term,
            held: self.holder.is_some(),
            note: Ok(self.note.clone()),
        }
    }
}
