//! Sessions: many leases that live and die with one renewed record.
//!
//! # The protocol
//!
//! A process holds a *session*, a lease that stands for the process itself, and *attaches* other
//! leases to it: an attached record names the session and the term that the session had. Only the
//! session is renewed. Its holder counts a deadline from the clock that it read before it sent the
//! last renewal that was confirmed, and stops at the deadline whatever its leases guard. A
//! contender watches the session's record. If that has not changed for a whole time to live by the
//! contender's own clock, the contender takes *the session's record* over first, with a higher
//! term, so that the old holder's next renewal is refused. Only then are the attached leases free:
//! a lease is free when its session's record says released, or carries a higher term than the lease
//! names.
//!
//! A request can be applied while its reply is lost. The process then reads the record back. A
//! claim has a random id, a renewal a random nonce, and it is by them that the process tells what
//! it wrote itself from what a former self, or a clone of it, wrote.
//!
//! # The abstraction
//!
//! Time passes in ticks, for all clocks that run. A contender waits `TTL` = 4 ticks; a holder stops
//! `DEADLINE` = 3 ticks after it sent what was confirmed; stopping takes no time of its own, its
//! budget being part of the deadline. The difference, one tick, is the margin: an overlap counts as
//! a violation only if no clock stood still for longer than that. (With 3 and 2 ticks there would
//! be fewer states, but a renewal that the store sees after the contender's wait would always be
//! heard past its deadline, and taking the session over first would look superfluous.) A request
//! stays under way for any number of ticks; the store applies each request in one step.
//!
//! One session is under scrutiny. Its process, the *holder*, may suffer every fault that the
//! [`Scenario`] allows; the *contender* never does, and its own session never ends. The contender
//! has known all records from the start. (One that never saw a record takes it at once after an
//! operator deleted it, and no rule can prevent the overlap.)
//!
//! Renewal numbers are counted only where clones are possible. Elsewhere nobody else could have
//! written a renewal of the same claim and term, and counting them would only multiply the states.
//!
//! # What is not modelled
//!
//! - Clock rates that differ: the margin is spent on pauses alone.
//! - Requests that outlive their sender's interest in them: an unanswered renewal ends at the
//!   deadline, and any request when its process crashes. A claim is given up only once the store
//!   has decided on it.
//! - The watchdog, and a stop that overruns its budget: a holder past its deadline does nothing.
//! - Proofs of attached leases between renewals: records are re-read when a renewal is confirmed,
//!   so that a proof is never older than a renewal, and waiting for one time to live is enough.
//! - Stores that expire records themselves, watches (anybody may look at any time), and notes.
//! - Terms above [`Scenario::term_max`], more than three new claims, more than four renewals where
//!   they are counted.
//!
//! # What must be
//!
//! [`Violation`] lists what must never happen. For liveness, every state can go on, without another
//! fault, to one in which each lease is active in exactly one place.

mod contender;
mod holder;
mod state;
mod store;

use std::fmt;
use std::ops::Range;

use crate::engine::{Model, Steps};

pub use self::state::State;
use self::state::{CLAIM_END, HolderId, LEASES_MAX, MARGIN, Tenure};

/// The sessions model, with the rules that its processes follow and the faults that they meet.
#[derive(Clone, Copy, Debug)]
pub struct Sessions {
    /// What the processes and the store do to stay safe.
    pub rules: Rules,
    /// What may go wrong, and how far to look.
    pub scenario: Scenario,
}

/// The rules of the protocol. Each closes a hole that is open without it.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Who judges a session expired takes over the session's record before its leases. Otherwise a
    /// renewal under way keeps the session alive while its leases already belong to another.
    pub session_is_taken_over_first: bool,
    /// A renewal is a compare-and-set of a renewal number. Otherwise two clones can both renew.
    pub renewals_are_numbered: bool,
    /// The renewal number is a nonce, drawn for each attempt. Otherwise a clone that reads back
    /// after a lost reply takes the other's renewal, which has the same count, for its own.
    pub renewals_have_nonces: bool,
    /// A record belongs to the claim whose id it carries, not to a name. Otherwise a process that
    /// reads back takes an older record of its own for a new one, and counts its deadline too late.
    pub claims_have_ids: bool,
    /// The first term of an absent record is above all former ones. Otherwise terms start again
    /// once a record was deleted, and the fences are worth nothing.
    pub first_term_is_fresh: bool,
    /// A record that was known and vanished is waited out like one that stopped changing.
    /// Otherwise a deletion lets the contender in while the holder is still active.
    pub vanished_is_waited_out: bool,
    /// A tenure raises the fence of a resource before it reads it. Otherwise a stale write can
    /// still follow the read.
    pub fence_is_raised_before_read: bool,
    /// Deadlines count from the clock read before the request was sent. Otherwise a late reply
    /// prolongs a tenure beyond what the contender waits.
    pub clock_is_read_before_send: bool,
    /// Deadlines count on a clock that goes on while the machine sleeps. Otherwise a holder wakes
    /// up after its time and believes that none has passed.
    pub boottime: bool,
    /// A renewal counts for an attached lease only if the lease's record was read again. Otherwise
    /// renewals go on for ever after a lease's record was deleted and given to another.
    pub renewals_prove_attached: bool,
}

impl Rules {
    /// The protocol as it is.
    pub const ALL: Self = Self {
        session_is_taken_over_first: true,
        renewals_are_numbered: true,
        renewals_have_nonces: true,
        claims_have_ids: true,
        first_term_is_fresh: true,
        vanished_is_waited_out: true,
        fence_is_raised_before_read: true,
        clock_is_read_before_send: true,
        boottime: true,
        renewals_prove_attached: true,
    };
}

/// How often each fault may happen, and the bounds of the exploration.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Scenario {
    /// The holder is frozen with its clock, or stopped while `CLOCK_BOOTTIME` runs, and resumes.
    pub pauses: u8,
    /// The holder dies and a new process with its session's name starts.
    pub crashes: u8,
    /// A request or its reply is lost.
    pub lost_replies: u8,
    /// An operator deletes the session's record.
    pub session_deletions: u8,
    /// An operator deletes the record of a lease that is attached to the session.
    pub lease_deletions: u8,
    /// The paused holder resumes twice, at most once. Needs a pause.
    pub clones: u8,
    /// Whether there is a contender.
    pub contender: bool,
    /// How many leases are attached: one or two.
    pub leases: u8,
    /// No session or lease gets a term above this one.
    pub term_max: u8,
}

impl Scenario {
    /// One lease, a contender, terms up to three, and no fault but requests that take their time.
    pub const CALM: Self = Self {
        pauses: 0,
        crashes: 0,
        lost_replies: 0,
        session_deletions: 0,
        lease_deletions: 0,
        clones: 0,
        contender: true,
        leases: 1,
        term_max: 3,
    };
}

/// What must never happen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Violation {
    /// Two tenures of a lease are active, though no clock stood still beyond the margin.
    ActivityOverlaps,
    /// A session or a lease got a term that is not above all of its former ones.
    TermDidNotRise,
    /// A resource accepts writes of a term although a higher one has already read it.
    StaleEffectAccepted,
    /// Two clones renewed one tenure.
    BothClonesRenewed,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ActivityOverlaps => "activity overlaps without a pause beyond the margin",
            Self::TermDidNotRise => "a term did not rise",
            Self::StaleEffectAccepted => "a stale effect is accepted",
            Self::BothClonesRenewed => "both clones renewed",
        })
    }
}

impl Model for Sessions {
    type State = State;
    type Violation = Violation;

    fn initial(&self) -> Vec<State> {
        assert!((1..=LEASES_MAX).contains(&usize::from(self.scenario.leases)));
        assert!(self.scenario.clones <= 1, "there is room for one clone");
        vec![State::initial(self.scenario)]
    }

    fn steps(&self, state: &State, steps: &mut Steps<'_, State>) {
        self.time_passes(state, steps);
        self.operator_deletes(state, steps);
        for id in HolderId::BOTH {
            self.holder_steps(state, id, steps);
        }
        if self.scenario.contender {
            self.contender_steps(state, steps);
        }
    }

    fn violation(&self, state: &State) -> Option<Violation> {
        if state.violation.is_some() {
            return state.violation;
        }
        let [original, clone] = state.holders.each_ref().map(|holder| holder.live_tenure());
        if let (Some(one), Some(other)) = (original, clone)
            && one.claim == other.claim
            && one.renewed_beside_clone
            && other.renewed_beside_clone
        {
            return Some(Violation::BothClonesRenewed);
        }
        self.leases().find_map(|lease| self.violation_of_lease(state, lease))
    }

    fn good(&self, state: &State) -> bool {
        let at_bound = state.claim_next >= CLAIM_END
            || self.session_terms_used_up(state)
            || self.leases().any(|lease| self.lease_terms_used_up(state, lease));
        at_bound || self.leases().all(|lease| state.active_terms(lease).count() == 1)
    }

    fn describe(&self, state: &State) -> String {
        let mut text = format!("session {:?}", state.session);
        for lease in self.leases() {
            text += &format!("; lease {lease} {:?}", state.leases[lease]);
            text += &format!(", contender's term {}", state.contender.lease_terms[lease]);
            text += &format!(", {:?}", state.resources[lease]);
        }
        for id in HolderId::BOTH {
            text += &format!("; {id} {:?}", state.holder(id).process);
            if let Some(tenure) = state.holder(id).tenure {
                text += &format!(" {tenure:?}");
            }
        }
        text
    }
}

impl Sessions {
    fn violation_of_lease(&self, state: &State, lease: usize) -> Option<Violation> {
        let resource = state.resources[lease];
        if state.active_terms(lease).any(|term| resource.fence <= term && term < resource.read) {
            return Some(Violation::StaleEffectAccepted);
        }
        // Clones of one tenure are bound to overlap until one of them renews: that is no fault of
        // the protocol, and the fence cannot tell them apart either.
        let within_margin = |tenure: &&Tenure| tenure.frozen <= MARGIN;
        let [original, clone] = state
            .holders
            .each_ref()
            .map(|holder| holder.live_tenure().filter(|tenure| tenure.lease_terms[lease] != 0));
        let [original, clone] = [original.filter(within_margin), clone.filter(within_margin)];
        let holders_overlap = matches!((original, clone), (Some(a), Some(b)) if a.claim != b.claim);
        let contender_active = state.contender.lease_terms[lease] != 0;
        let contender_overlaps = contender_active && original.or(clone).is_some();
        (holders_overlap || contender_overlaps).then_some(Violation::ActivityOverlaps)
    }

    fn leases(&self) -> Range<usize> {
        0..usize::from(self.scenario.leases)
    }

    fn session_terms_used_up(&self, state: &State) -> bool {
        state.session_term_top >= self.scenario.term_max
    }

    fn lease_terms_used_up(&self, state: &State, lease: usize) -> bool {
        state.lease_terms_top[lease] >= self.scenario.term_max
    }

    /// By how much a renewal raises the renewal number: not at all where clones are impossible.
    fn renewal_step(&self) -> u8 {
        u8::from(self.scenario.clones > 0)
    }
}

impl State {
    /// The terms with which somebody believes to hold `lease`.
    fn active_terms(&self, lease: usize) -> impl Iterator<Item = u8> {
        let holders = self.holders.iter().filter_map(|holder| holder.live_tenure());
        let terms = holders.map(move |tenure| tenure.lease_terms[lease]);
        terms.chain([self.contender.lease_terms[lease]]).filter(|term| *term != 0)
    }
}
