//! Renewals: one tenure, several renewals of which overlap.
//!
//! # The protocol
//!
//! A holder renews its record by writing a fresh nonce into it. A renewal without an answer is
//! *hedged*: the next one is sent while it is still under way. Each renewal names the nonces that
//! the holder *knows*: that of the latest confirmed renewal and those of all later ones. The store
//! applies a renewal only if the record carries one of them, and otherwise refuses it and shows the
//! record. A holder that is shown a nonce of its own goes on; any other refusal ends its tenure.
//! The holder believes that it holds until [`HELD`] ticks after it *sent* the latest confirmed
//! renewal. A contender takes the record over once it has not changed for [`TTL`] ticks.
//!
//! # The abstraction
//!
//! The store handles requests in any order, late or never, whether their sender still waits or not.
//! Answers are heard in any order, or lost. A request may be delivered twice: its sender then hears
//! the second answer. A clone of the holder ([`Scenario::clones`]) continues from the state that the
//! holder had, and hears no answers to what the holder had sent. All clocks run at the same rate.
//!
//! # What is not modelled
//!
//! - The acquisition and the release: the tenure begins confirmed, and ends silently.
//! - How the contender observes the record: it acts as early as it possibly could.
//! - When a holder renews: it may at any time. More than [`RENEWALS_MAX`] renewals in all. States
//!   with so many count as good.
//!
//! # What must be
//!
//! [`Violation`] lists what must never happen. For liveness, from every state in which a holder
//! believes that it holds, its latest renewal can be confirmed, without another fault and before
//! another tick passes.

use std::fmt;

use crate::engine::{Model, Steps};

/// How many ticks after a renewal was sent its tenure counts as lost.
pub const HELD: u8 = 3;
/// How many ticks a record has not changed when a contender may take it over.
pub const TTL: u8 = 4;
/// How many renewals are sent in all.
pub const RENEWALS_MAX: usize = 4;

/// The renewals model, with the rules that holder and store follow and the faults that they meet.
#[derive(Clone, Copy, Debug)]
pub struct Renewals {
    /// What the holder and the store do.
    pub rules: Rules,
    /// What may go wrong.
    pub scenario: Scenario,
}

/// The rules of the protocol. Each closes a hole that is open without it.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// A renewal names the nonces of earlier ones that have no answer. Otherwise the first one, once
    /// it is applied, makes the store refuse the second.
    pub knows_unanswered: bool,
    /// The deadline counts from the send of the renewal that was confirmed. Otherwise a later one,
    /// which may never reach the store, prolongs the tenure.
    pub deadline_of_confirmed: bool,
    /// A refusal that shows another nonce of this holder does not end its tenure. Otherwise two
    /// renewals that overtake each other end it.
    pub own_nonce_is_no_loss: bool,
    /// A nonce is remembered until all renewals before it have an answer. Otherwise a late refusal
    /// shows a nonce that its holder has forgotten.
    pub remembers_until_answered: bool,
    /// The store applies a renewal only if the record carries a nonce that the renewal names.
    /// Otherwise a clone goes unnoticed.
    pub store_compares_nonces: bool,
}

impl Rules {
    /// The protocol as it is.
    pub const ALL: Self = Self {
        knows_unanswered: true,
        deadline_of_confirmed: true,
        own_nonce_is_no_loss: true,
        remembers_until_answered: true,
        store_compares_nonces: true,
    };
}

/// How often each fault may happen. Answers may be lost without a limit.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// How many of the [`RENEWALS_MAX`] renewals may be sent.
    pub renewals: u8,
    /// The machine of the holder is cloned: 0 or 1.
    pub clones: u8,
    /// An operator deletes the record.
    pub deletions: u8,
    /// A request is delivered twice.
    pub duplicates: u8,
}

impl Scenario {
    /// Four renewals, of which answers may be lost and requests be late.
    pub const HEDGED: Self = Self { renewals: 4, clones: 0, deletions: 0, duplicates: 0 };
}

/// What must never happen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Violation {
    /// A holder believes that it holds, and the contender has taken the record over.
    TwoHolders,
    /// A refusal that shows one of the holder's own nonces has ended its tenure.
    LostToItself,
    /// The holder and its clone were both confirmed after they became two.
    BothConfirmed,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TwoHolders => "the contender holds while the holder believes that it does",
            Self::LostToItself => "a holder lost its tenure to its own renewal",
            Self::BothConfirmed => "a holder and its clone were both confirmed",
        })
    }
}

/// One state of the renewals model.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct State {
    record: Record,
    /// How many ticks ago the record last changed, [`TTL`] at most.
    record_age: u8,
    /// The holder, and its clone.
    holders: [Holder; 2],
    /// By number; the nonce of the first is 1, since 0 is that of the acquisition.
    renewals: [Renewal; RENEWALS_MAX],
    /// How many of them were sent.
    sent: u8,
    /// How many were sent when the clone was made.
    sent_before_clone: Option<u8>,
    deletions_left: u8,
    duplicates_left: u8,
    violation: Option<Violation>,
}

/// The record as the store keeps it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Record {
    /// It is the tenure's, and carries this nonce.
    Carries(u8),
    TakenOver,
    Deleted,
}

/// One process that believes, or has believed, that it holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Holder {
    believes: bool,
    /// The nonce of the latest confirmed renewal.
    confirmed: u8,
    /// How many ticks ago that was sent.
    confirmed_age: u8,
    remembered: Nonces,
    /// The nonces of renewals whose answer may still be heard.
    under_way: Nonces,
    /// Whether a renewal was confirmed that was sent after the clone was made.
    confirmed_since_clone: bool,
}

/// One renewal, from its send to its last effect.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Renewal {
    /// Which of [`State::holders`] has sent it.
    sender: u8,
    /// How many ticks ago it was sent, [`TTL`] at most; 0 once nobody waits for its answer.
    age: u8,
    request: Request,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Request {
    /// On its way to the store, with the nonces that it knows.
    Pending(Nonces),
    Answered(Answer),
    /// It was answered, or will never have an effect; or it was not sent yet.
    Over,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Answer {
    Yes,
    /// With the record that stood in the way.
    Refused(Record),
}

impl Model for Renewals {
    type State = State;
    type Violation = Violation;

    fn initial(&self) -> Vec<State> {
        assert!(
            usize::from(self.scenario.renewals) <= RENEWALS_MAX,
            "there is no room for so many renewals"
        );
        let holder = Holder {
            believes: true,
            confirmed: 0,
            confirmed_age: 0,
            remembered: Nonces::NONE.with(0),
            under_way: Nonces::NONE,
            confirmed_since_clone: false,
        };
        vec![State {
            record: Record::Carries(0),
            record_age: 0,
            holders: [holder, NOBODY],
            renewals: [UNSENT; RENEWALS_MAX],
            sent: 0,
            sent_before_clone: None,
            deletions_left: self.scenario.deletions,
            duplicates_left: self.scenario.duplicates,
            violation: None,
        }]
    }

    fn steps(&self, state: &State, steps: &mut Steps<'_, State>) {
        for who in 0..state.holders.len() {
            self.send(state, who, steps);
        }
        for nonce in 1..=state.sent {
            self.handle(state, nonce, steps);
            self.hear(state, nonce, steps);
            self.lose_answer(state, nonce, steps);
            self.deliver_twice(state, nonce, steps);
        }
        self.clone_holder(state, steps);
        self.delete(state, steps);
        self.take_over(state, steps);
        // A fault to the engine: the way back to a good state must not need it.
        let mut next = *state;
        next.tick();
        self.settle(&mut next);
        steps.fault(next, format_args!("a tick passes"));
    }

    fn violation(&self, state: &State) -> Option<Violation> {
        state.violation
    }

    fn good(&self, state: &State) -> bool {
        let is_confirmed = |holder: &Holder| {
            !holder.believes || Some(holder.confirmed) == holder.remembered.highest()
        };
        state.sent == self.scenario.renewals || state.holders.iter().all(is_confirmed)
    }

    fn describe(&self, state: &State) -> String {
        let mut text = format!("{:?} for {} ticks", state.record, state.record_age);
        for (name, holder) in NAMES.iter().zip(&state.holders).filter(|(_, it)| it.believes) {
            let Holder { confirmed, confirmed_age, .. } = holder;
            text += &format!("; the {name} believes by {confirmed} of {confirmed_age} ticks ago");
        }
        text
    }
}

impl Renewals {
    fn send(&self, state: &State, who: usize, steps: &mut Steps<'_, State>) {
        if !state.holders[who].believes || state.sent == self.scenario.renewals {
            return;
        }
        let mut next = *state;
        next.sent += 1;
        let nonce = next.sent;
        let holder = &mut next.holders[who];
        if !self.rules.knows_unanswered {
            holder.remembered = holder.remembered.up_to(holder.confirmed);
        }
        let known = holder.remembered.from(holder.confirmed);
        holder.remembered = holder.remembered.with(nonce);
        holder.under_way = holder.under_way.with(nonce);
        *next.renewal(nonce) =
            Renewal { sender: who as u8, age: 0, request: Request::Pending(known) };
        let name = NAMES[who];
        steps.step(next, format_args!("the {name} sends {nonce}, which knows {known}"));
    }

    /// The store handles a renewal.
    fn handle(&self, state: &State, nonce: u8, steps: &mut Steps<'_, State>) {
        let mut next = *state;
        let Request::Pending(known) = next.renewal(nonce).request else { return };
        let answer = match state.record {
            Record::Carries(carried)
                if known.contains(carried) || !self.rules.store_compares_nonces =>
            {
                next.record = Record::Carries(nonce);
                next.record_age = 0;
                Answer::Yes
            }
            record => Answer::Refused(record),
        };
        next.renewal(nonce).request = Request::Answered(answer);
        self.settle(&mut next);
        steps.step(next, format_args!("the store handles {nonce}: {answer:?}"));
    }

    fn hear(&self, state: &State, nonce: u8, steps: &mut Steps<'_, State>) {
        let mut next = *state;
        let Renewal { sender, age, request } = *next.renewal(nonce);
        let Request::Answered(answer) = request else { return };
        let is_of_sender = |shown| state.is_of(shown, sender);
        let holder = &mut next.holders[usize::from(sender)];
        match answer {
            Answer::Yes => self.confirm(holder, nonce, age, state),
            Answer::Refused(Record::Carries(shown)) if shown == nonce => {
                self.confirm(holder, nonce, age, state);
            }
            Answer::Refused(Record::Carries(shown))
                if holder.remembered.contains(shown) && self.rules.own_nonce_is_no_loss =>
            {
                self.forget_answered(holder, nonce);
            }
            Answer::Refused(record) => {
                if matches!(record, Record::Carries(shown) if is_of_sender(shown)) {
                    next.violation = Some(Violation::LostToItself);
                }
                holder.end();
            }
        }
        if next.holders.iter().all(|holder| holder.confirmed_since_clone) {
            next.violation = Some(Violation::BothConfirmed);
        }
        self.settle(&mut next);
        steps.step(next, format_args!("the {} hears of {nonce}", NAMES[usize::from(sender)]));
    }

    fn confirm(&self, holder: &mut Holder, nonce: u8, age: u8, state: &State) {
        let counted_from = if self.rules.deadline_of_confirmed {
            age
        } else {
            let last = holder.under_way.highest().unwrap_or(nonce);
            state.renewals[usize::from(last) - 1].age
        };
        if nonce > holder.confirmed {
            holder.confirmed = nonce;
            holder.confirmed_age = holder.confirmed_age.min(counted_from);
        }
        if state.sent_before_clone.is_some_and(|sent| nonce > sent) {
            holder.confirmed_since_clone = true;
        }
        self.forget_answered(holder, nonce);
    }

    /// No answer to this renewal will be heard any more. Forgets the nonces before the confirmed
    /// one, up to the first that is under way.
    fn forget_answered(&self, holder: &mut Holder, nonce: u8) {
        holder.under_way = holder.under_way.without(nonce);
        let oldest = holder.under_way.lowest().filter(|_| self.rules.remembers_until_answered);
        let first = oldest.map_or(holder.confirmed, |oldest| oldest.min(holder.confirmed));
        holder.remembered = holder.remembered.from(first);
    }

    fn lose_answer(&self, state: &State, nonce: u8, steps: &mut Steps<'_, State>) {
        let mut next = *state;
        let sender = next.renewal(nonce).sender;
        let holder = &mut next.holders[usize::from(sender)];
        if holder.under_way.contains(nonce) {
            self.forget_answered(holder, nonce);
            self.settle(&mut next);
            steps.fault(next, format_args!("{nonce} gets no answer"));
        }
    }

    /// The second delivery finds the nonce of the first, or a later one, and neither is known to it.
    fn deliver_twice(&self, state: &State, nonce: u8, steps: &mut Steps<'_, State>) {
        let mut next = *state;
        let is_applied = next.renewal(nonce).request == Request::Answered(Answer::Yes);
        if is_applied && state.duplicates_left > 0 {
            next.duplicates_left -= 1;
            next.renewal(nonce).request = Request::Answered(Answer::Refused(state.record));
            steps.fault(next, format_args!("{nonce} is delivered twice: {:?}", state.record));
        }
    }

    fn clone_holder(&self, state: &State, steps: &mut Steps<'_, State>) {
        let is_possible = self.scenario.clones > 0 && state.sent_before_clone.is_none();
        if !is_possible || !state.holders[0].believes {
            return;
        }
        let mut next = *state;
        let clone = &mut next.holders[1];
        *clone = Holder { under_way: Nonces::NONE, ..state.holders[0] };
        clone.remembered = clone.remembered.from(clone.confirmed);
        next.sent_before_clone = Some(state.sent);
        steps.fault(next, format_args!("the holder is cloned"));
    }

    fn delete(&self, state: &State, steps: &mut Steps<'_, State>) {
        if state.deletions_left > 0 && matches!(state.record, Record::Carries(_)) {
            let mut next = *state;
            next.deletions_left -= 1;
            next.record = Record::Deleted;
            next.record_age = 0;
            self.settle(&mut next);
            steps.fault(next, format_args!("an operator deletes the record"));
        }
    }

    fn take_over(&self, state: &State, steps: &mut Steps<'_, State>) {
        if state.record_age < TTL || state.record == Record::TakenOver {
            return;
        }
        let mut next = *state;
        next.record = Record::TakenOver;
        next.record_age = 0;
        if state.holders.iter().any(|holder| holder.believes) {
            next.violation = Some(Violation::TwoHolders);
        }
        self.settle(&mut next);
        steps.step(next, format_args!("the contender takes the record over"));
    }

    /// Drops what has no effect any more, so that fewer states differ.
    fn settle(&self, state: &mut State) {
        // The nonces that the record carries or may still get from requests on their way.
        let mut possible = match state.record {
            Record::Carries(nonce) => Nonces::NONE.with(nonce),
            Record::TakenOver | Record::Deleted => Nonces::NONE,
        };
        for nonce in 1..=state.sent {
            let sender = usize::from(state.renewal(nonce).sender);
            let is_heard = state.holders[sender].under_way.contains(nonce);
            let renewal = state.renewal(nonce);
            if let Request::Pending(known) = renewal.request {
                let is_futile = known.is_disjoint(possible) && self.rules.store_compares_nonces;
                if is_futile && !is_heard {
                    renewal.request = Request::Over;
                } else if !is_futile {
                    possible = possible.with(nonce);
                }
            }
            if !is_heard {
                renewal.age = 0;
                if matches!(renewal.request, Request::Answered(_)) {
                    renewal.request = Request::Over;
                }
            }
        }
    }
}

impl State {
    fn renewal(&mut self, nonce: u8) -> &mut Renewal {
        &mut self.renewals[usize::from(nonce) - 1]
    }

    /// Whether a nonce was written by this holder, or by the one that it is a clone of before it was.
    fn is_of(&self, nonce: u8, who: u8) -> bool {
        let is_shared = self.sent_before_clone.is_none_or(|sent| nonce <= sent);
        is_shared || self.renewals[usize::from(nonce) - 1].sender == who
    }

    fn tick(&mut self) {
        self.record_age = (self.record_age + 1).min(TTL);
        for renewal in &mut self.renewals[..usize::from(self.sent)] {
            renewal.age = (renewal.age + 1).min(TTL);
        }
        for holder in self.holders.iter_mut().filter(|holder| holder.believes) {
            holder.confirmed_age += 1;
            if holder.confirmed_age >= HELD {
                holder.end();
            }
        }
    }
}

impl Holder {
    fn end(&mut self) {
        *self = Self { confirmed_since_clone: self.confirmed_since_clone, ..NOBODY };
    }
}

/// A set of nonces.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Nonces(u8);

impl Nonces {
    const NONE: Self = Self(0);

    fn with(self, nonce: u8) -> Self {
        Self(self.0 | 1 << nonce)
    }

    fn without(self, nonce: u8) -> Self {
        Self(self.0 & !(1 << nonce))
    }

    fn contains(self, nonce: u8) -> bool {
        self.0 & 1 << nonce != 0
    }

    fn is_disjoint(self, other: Self) -> bool {
        self.0 & other.0 == 0
    }

    /// Those from this one on.
    fn from(self, nonce: u8) -> Self {
        Self(self.0 >> nonce << nonce)
    }

    /// Those up to this one.
    fn up_to(self, nonce: u8) -> Self {
        Self(self.0 & ((2 << nonce) - 1))
    }

    fn lowest(self) -> Option<u8> {
        (self.0 != 0).then(|| self.0.trailing_zeros() as u8)
    }

    fn highest(self) -> Option<u8> {
        (self.0 != 0).then(|| 7 - self.0.leading_zeros() as u8)
    }
}

impl fmt::Display for Nonces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries((0..8).filter(|nonce| self.contains(*nonce))).finish()
    }
}

const NAMES: [&str; 2] = ["holder", "clone"];

/// One that holds nothing.
const NOBODY: Holder = Holder {
    believes: false,
    confirmed: 0,
    confirmed_age: 0,
    remembered: Nonces::NONE,
    under_way: Nonces::NONE,
    confirmed_since_clone: false,
};

const UNSENT: Renewal = Renewal { sender: 0, age: 0, request: Request::Over };
