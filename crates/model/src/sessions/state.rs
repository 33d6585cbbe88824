//! What the model remembers: the store's records, the processes, the guarded resources.
//!
//! Millions of these are kept, so numbers are `u8` and every counter stops where its value no
//! longer makes a difference.

use super::{Rules, Scenario, Violation};

/// One state of the sessions model.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct State {
    /// The store's record of the session under scrutiny.
    pub(super) session: SessionRecord,
    /// The store's records of the leases.
    pub(super) leases: [LeaseRecord; LEASES_MAX],
    /// What each lease guards.
    pub(super) resources: [Resource; LEASES_MAX],
    /// The session's process, and its clone.
    pub(super) holders: [Holder; 2],
    pub(super) contender: Contender,
    /// The highest term that the session ever had.
    pub(super) session_term_top: u8,
    /// The highest term that each lease ever had.
    pub(super) lease_terms_top: [u8; LEASES_MAX],
    /// The id of the next claim.
    pub(super) claim_next: u8,
    /// The scenario, less the faults that have happened.
    pub(super) left: Scenario,
    /// A violation that a step has seen and that the state alone would not show.
    pub(super) violation: Option<Violation>,
}

impl State {
    /// The session is held, its leases are attached and active, the contender watches.
    pub(super) fn initial(scenario: Scenario) -> Self {
        let mut leases = [LeaseRecord::Absent; LEASES_MAX];
        let mut lease_terms = [0; LEASES_MAX];
        for lease in 0..usize::from(scenario.leases) {
            leases[lease] = LeaseRecord::OfSession { session_term: 1, term: 1 };
            lease_terms[lease] = 1;
        }
        let tenure = Tenure { lease_terms, ..Tenure::new(1, 1) };
        let holder = Holder { tenure: Some(tenure), ..Holder::started() };
        Self {
            session: SessionRecord::Held {
                claim: 1,
                term: 1,
                renewal: 0,
                writer: HolderId::Original,
            },
            leases,
            resources: [Resource { read: 1, fence: 1 }; LEASES_MAX],
            holders: [holder, Holder { process: Process::Off, ..Holder::started() }],
            contender: Contender {
                session_unchanged: Some(0),
                judged_expired: None,
                lease_terms: [0; LEASES_MAX],
                vanished: [None; LEASES_MAX],
            },
            session_term_top: 1,
            lease_terms_top: [1; LEASES_MAX],
            claim_next: 2,
            left: scenario,
            violation: None,
        }
    }

    pub(super) fn holder(&self, id: HolderId) -> &Holder {
        &self.holders[id as usize]
    }

    pub(super) fn holder_mut(&mut self, id: HolderId) -> &mut Holder {
        &mut self.holders[id as usize]
    }

    /// For how long somebody knows that a lease's record is missing, after another look at it.
    pub(super) fn absence(&self, lease: usize, known: Option<u8>) -> Option<u8> {
        match self.leases[lease] {
            LeaseRecord::Absent => known.or(Some(0)),
            _ => None,
        }
    }

    /// Writes the session's record. Whoever watches it finds it changed.
    pub(super) fn write_session(&mut self, record: SessionRecord) {
        self.session = record;
        self.contender.session_unchanged = None;
        for holder in &mut self.holders {
            holder.session_unchanged = None;
        }
    }

    /// The term of a session that is acquired or taken over now.
    pub(super) fn raise_session_term(&mut self, rules: &Rules) -> u8 {
        let recorded = match self.session {
            SessionRecord::Absent if rules.first_term_is_fresh => self.session_term_top,
            SessionRecord::Absent => 0,
            SessionRecord::Held { term, .. } | SessionRecord::Released { term } => term,
        };
        let term = recorded + 1;
        if term <= self.session_term_top {
            self.violation = Some(Violation::TermDidNotRise);
        }
        self.session_term_top = self.session_term_top.max(term);
        term
    }

    /// The term of a lease that is acquired now.
    pub(super) fn raise_lease_term(&mut self, lease: usize, rules: &Rules) -> u8 {
        let top = &mut self.lease_terms_top[lease];
        let recorded = match self.leases[lease] {
            LeaseRecord::Absent if rules.first_term_is_fresh => *top,
            LeaseRecord::Absent => 0,
            LeaseRecord::Released { term }
            | LeaseRecord::OfSession { term, .. }
            | LeaseRecord::OfContender { term } => term,
        };
        let term = recorded + 1;
        if term <= *top {
            self.violation = Some(Violation::TermDidNotRise);
        }
        *top = (*top).max(term);
        term
    }
}

/// The store's record of the session.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum SessionRecord {
    /// Never written, or deleted by an operator.
    Absent,
    Held {
        claim: u8,
        term: u8,
        /// How many renewals there were: counted only where clones are possible.
        renewal: u8,
        /// Who renewed last. With `renewal` it stands for a nonce, which only its writer knows.
        writer: HolderId,
    },
    Released {
        term: u8,
    },
}

impl SessionRecord {
    pub(super) fn is_held(self) -> bool {
        matches!(self, Self::Held { .. })
    }
}

/// The store's record of a lease.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum LeaseRecord {
    /// Never written, or deleted by an operator.
    Absent,
    Released {
        term: u8,
    },
    /// Attached to the session under scrutiny, as it was when it had `session_term`.
    OfSession {
        session_term: u8,
        term: u8,
    },
    /// Attached to the contender's own session, which is always in good health.
    OfContender {
        term: u8,
    },
}

/// What a lease guards, with a fence that refuses writes of lower terms.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Resource {
    /// The highest term that has read it.
    pub(super) read: u8,
    /// The lowest term whose writes are accepted.
    pub(super) fence: u8,
}

/// The process whose session is under scrutiny, or its clone: a second copy of the same memory,
/// as after a virtual machine was restored twice.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub(super) enum HolderId {
    Original,
    Clone,
}

impl HolderId {
    pub(super) const BOTH: [Self; 2] = [Self::Original, Self::Clone];
}

impl std::fmt::Display for HolderId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Original => "holder",
            Self::Clone => "clone",
        })
    }
}

/// A process that holds the session, held it, or wants it back.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Holder {
    pub(super) process: Process,
    /// The session as this process believes to hold it.
    pub(super) tenure: Option<Tenure>,
    /// At most one request to the store is under way.
    pub(super) request: Option<Request>,
    /// A claim that this process gave up before it knew its outcome, and still has to release.
    pub(super) abandoned_claim: Option<u8>,
    /// Without a tenure: for how many ticks its own session's record has not changed.
    pub(super) session_unchanged: Option<u8>,
    /// For how many ticks each lease's record has been missing.
    pub(super) vanished: [Option<u8>; LEASES_MAX],
}

impl Holder {
    /// A process that has just started and knows nothing.
    pub(super) fn started() -> Self {
        Self {
            process: Process::Running,
            tenure: None,
            request: None,
            abandoned_claim: None,
            session_unchanged: None,
            vanished: [None; LEASES_MAX],
        }
    }

    /// The tenure, if its deadline has not passed by this process's own clock.
    pub(super) fn live_tenure(&self) -> Option<&Tenure> {
        let alive = self.process != Process::Off;
        self.tenure.as_ref().filter(|tenure| alive && tenure.age < DEADLINE)
    }
}

/// What a process is doing, and its clock with it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub(super) enum Process {
    /// There is no such process.
    Off,
    Running,
    /// Stopped or asleep with its machine. `CLOCK_BOOTTIME` runs on, `CLOCK_MONOTONIC` may not.
    Stopped,
    /// Paused from outside the machine: every clock that it could read stands still.
    Frozen,
}

/// The session as a process believes to hold it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Tenure {
    pub(super) term: u8,
    pub(super) claim: u8,
    /// The record's renewal number as this process knows it.
    pub(super) renewal: u8,
    /// Ticks, by the process's clock, since it sent the last request that was confirmed.
    pub(super) age: u8,
    /// Ticks since then for which the process was frozen.
    pub(super) frozen: u8,
    /// The terms of the leases that it believes to hold; 0 for those that it does not.
    pub(super) lease_terms: [u8; LEASES_MAX],
    /// Whether a renewal was confirmed since there are clones.
    pub(super) renewed_beside_clone: bool,
}

impl Tenure {
    pub(super) fn new(term: u8, claim: u8) -> Self {
        Self {
            term,
            claim,
            renewal: 0,
            age: 0,
            frozen: 0,
            lease_terms: [0; LEASES_MAX],
            renewed_beside_clone: false,
        }
    }
}

/// A request to the store.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Request {
    pub(super) kind: RequestKind,
    /// Ticks, by the process's clock, since it was sent.
    pub(super) age: u8,
    /// Ticks since then for which the process was frozen.
    pub(super) frozen: u8,
    pub(super) answer: Answer,
}

impl Request {
    pub(super) fn new(kind: RequestKind) -> Self {
        Self { kind, age: 0, frozen: 0, answer: Answer::Pending }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum RequestKind {
    /// Acquire the session with a new claim.
    Acquire { claim: u8 },
    /// Renew the tenure that the process believes to hold.
    Renew,
}

impl std::fmt::Display for RequestKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Acquire { .. } => "acquire",
            Self::Renew => "renewal",
        })
    }
}

/// What became of a request. The process learns it when it hears the answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Answer {
    /// Under way: the store has not seen it yet.
    Pending,
    Applied {
        term: u8,
    },
    Refused,
    /// The reply never comes. The process cannot tell which of the two it is.
    Unheard {
        applied: bool,
    },
}

/// The other process. It has a healthy session of its own, which is not modelled.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Contender {
    /// For how many ticks the session's record has been as it was at the last look; `None` if it
    /// changed since.
    pub(super) session_unchanged: Option<u8>,
    /// The term of the session that it has judged expired, though the record may have changed
    /// since. Only where [`Rules::session_is_taken_over_first`] is off does it come to this.
    pub(super) judged_expired: Option<u8>,
    /// The terms of the leases that it holds; 0 for those that it does not.
    pub(super) lease_terms: [u8; LEASES_MAX],
    /// For how many ticks each lease's record has been missing.
    pub(super) vanished: [Option<u8>; LEASES_MAX],
}

/// The time to live of a record: so many ticks without a change, and a contender may take it over.
pub(super) const TTL: u8 = 4;
/// So many ticks after a confirmed request was sent, its sender has stopped what it guards.
pub(super) const DEADLINE: u8 = 3;
/// The pause of a process's clock that the promise of no overlap allows for.
pub(super) const MARGIN: u8 = TTL - DEADLINE;
/// How many leases the state has room for.
pub(super) const LEASES_MAX: usize = 2;
/// Claims from this one on are not explored.
pub(super) const CLAIM_END: u8 = 5;
/// Renewals are counted up to this one where clones are possible; then the session runs out.
pub(super) const RENEWAL_MAX: u8 = 4;
