//! What happened, as an omniscient observer saw it, and what must hold for it.
//!
//! One file per invariant. Every checker reads the whole history and returns each violation.

mod activity;
mod effects;
mod terms;

use std::fmt;

use tenure_lease::{LeaseName, Moment, Token};

/// A history: events in the order of one observer's clock.
#[derive(Clone, Debug, Default)]
pub struct History {
    events: Vec<(Moment, Event)>,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The store gave the lease to somebody, whether they heard it or not.
    Granted {
        /// Which lease.
        lease: LeaseName,
        /// Under which token.
        token: Token,
    },
    /// The guarded work of a tenure began.
    Started {
        /// Of which lease.
        lease: LeaseName,
        /// Under which token.
        token: Token,
        /// In which process.
        process: u32,
    },
    /// It ended.
    Ended {
        /// Of which lease.
        lease: LeaseName,
        /// Under which token.
        token: Token,
        /// In which process.
        process: u32,
    },
    /// A process stood still, or its clock ran wrong, beyond the margin: until its next start, its
    /// activity may overlap another's, and only the fence protects.
    Impaired {
        /// Which process.
        process: u32,
    },
    /// A tenure read or wrote a fenced resource and was accepted.
    Effect {
        /// Which resource.
        resource: LeaseName,
        /// Under which token.
        token: Token,
    },
}

/// Something that must not have happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which invariant.
    pub invariant: &'static str,
    /// When it was broken.
    pub at: Moment,
    /// What happened.
    pub story: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {:?}: {}", self.invariant, self.at, self.story)
    }
}

impl History {
    /// Adds what happens now; `at` never goes back.
    pub fn push(&mut self, at: Moment, event: Event) {
        assert!(self.events.last().is_none_or(|(last, _)| *last <= at), "the observer's clock");
        self.events.push((at, event));
    }

    /// All events.
    pub fn events(&self) -> &[(Moment, Event)] {
        &self.events
    }

    /// Everything that must not have happened.
    pub fn violations(&self) -> Vec<Violation> {
        let mut found = activity::check(self);
        found.extend(terms::check(self));
        found.extend(effects::check(self));
        found
    }

    /// How many tenures began.
    pub fn tenures(&self) -> usize {
        self.events.iter().filter(|(_, event)| matches!(event, Event::Started { .. })).count()
    }
}
