//! The contending side: from wanting a lease to holding it.
//!
//! A contender never believes anybody's wall clock. It acts on what the store says about a record,
//! and on how long, by its own clock, the record has stood unchanged since it first saw it. Three
//! things make it harder than it sounds:
//!
//! * **Ambiguity.** An attempt whose answer never came may have won. Its claim is remembered as a
//!   *stray*; if the record turns out to be a stray's, the tenure is adopted with its deadline
//!   counted from the original send, or given back if that is too late.
//! * **Vanishing.** A record that was known and is gone says nothing about its holder, who may not
//!   have noticed. It is waited out like one that stands still.
//! * **Sessions.** An attached record does not change; its session's does. Who judges a session
//!   dead first takes over the session's own record, so that its holder's next renewal is refused
//!   for all of its leases at once, and only then touches the attached record.
//!
//! **Herds.** A release or an expiry wakes everybody who waits. A contender therefore looks when it
//! is woken, and takes what it finds free after a short random pause; a push meanwhile says that
//! another was faster, and it looks again instead. The pause grows with every race that it loses, so
//! that of many contenders only a few ask at once.
//!
//! Who is *not allowed* only looks, so that its clock on the record runs already when it is: what
//! has stood still by then is taken at once. What an earlier attempt of its own turns out to have
//! won is given back.

mod schedule;
mod session;

use std::time::Duration;

use super::litter::Litter;
use super::pace::Pace;
use super::sight::Sight;
use super::wish::{Outcome, Win, Wish};
use super::{Event, Random};
use crate::backend::{Acquire, Acquired, Answer, Released, Request, StoreError};
use crate::clock::Moment;
use crate::record::{Nonce, Record, Token};
use crate::settings::Rule;
use crate::{LeaseName, Settings};
use session::SessionSight;

pub(super) struct Contender {
    wish: Wish,
    settings: Settings,
    pace: Pace,
    random: Random,
    /// Whether it may take the lease; otherwise it only looks.
    allowed: bool,
    sight: Sight,
    /// The session of the record in sight, while that is attached to one.
    session: Option<SessionSight>,
    strays: Vec<Stray>,
    /// Claims to give back: to be released until the store has answered.
    litter: Litter,
    next_at: Moment,
    /// How often the answer was the same although something was due.
    vain: u32,
    /// What was learned while a request was under way, whose answer may be older.
    news: Option<News>,
    /// What was learned since the last answer: it decides the next step.
    known_since: Option<News>,
    /// The last answer was to an attempt, not to a look.
    attempted: bool,
    /// How many attempts lost what had looked free.
    races_lost: u32,
    /// How long answered requests took lately; `None` before the first answer.
    usual_latency: Option<Duration>,
    failures: u32,
    /// The record cannot be read, or its neighbours in a batch cannot: it is read by itself.
    reads_alone: bool,
    flight: Option<Flight>,
    flights: u64,
    /// The last answer that was none, for people.
    trouble: Option<StoreError>,
    lost_once: bool,
    /// Contends no more: what comes in late is given back.
    over: bool,
}

/// What a contender learns about its lease from elsewhere.
#[derive(Clone, Copy, PartialEq, Eq)]
enum News {
    /// The record may have changed: to be looked at.
    MayHaveChanged,
    /// The lease may be free, or may be taken from now on: to be attempted.
    MayBeFree,
}

struct Stray {
    claim: Nonce,
    sent: Moment,
}

struct Flight {
    id: u64,
    sent: Moment,
    kind: FlightKind,
}

enum FlightKind {
    Acquire {
        claim: Nonce,
    },
    /// Reads the lease and the session that stands in the way.
    Look,
    TakeSession {
        claim: Nonce,
    },
    Release {
        claim: Nonce,
    },
}

impl Contender {
    pub(super) fn new(mut wish: Wish, settings: Settings, seed: u64, now: Moment) -> Self {
        let sight = wish.seen.take().map_or(Sight::Nothing, |(record, since)| {
            let mut sight = Sight::Nothing;
            sight.see(since, Some(record), false, &settings, |record| record.ttl);
            sight
        });
        Self {
            wish,
            settings,
            pace: Pace::POLLED,
            random: Random::new(seed),
            allowed: true,
            sight,
            session: None,
            strays: Vec::new(),
            litter: Litter::default(),
            next_at: now,
            vain: 0,
            news: None,
            known_since: None,
            attempted: false,
            races_lost: 0,
            usual_latency: None,
            failures: 0,
            reads_alone: false,
            flight: None,
            flights: 0,
            trouble: None,
            lost_once: false,
            over: false,
        }
    }

    /// Asks the store at this pace.
    pub(super) fn keep_pace(&mut self, pace: Pace) {
        self.pace = pace;
    }

    /// What to send now, if anything. `fresh` was drawn for this call.
    pub(super) fn poll(&mut self, now: Moment, fresh: Nonce) -> Option<(u64, Request)> {
        if let Some(sent) = self.poll_litter(now) {
            return Some(sent);
        }
        if self.flight.is_some() || now < self.next_at {
            return None;
        }
        let (kind, request) =
            self.step_before(now, fresh).unwrap_or_else(|| self.attempt(now, fresh));
        Some(self.send(now, kind, request))
    }

    /// If the next step is a look, and if that is due `soon`: takes it now, since an early look
    /// does no harm. Returns the name of the session that is to be read as well.
    pub(super) fn poll_look(
        &mut self,
        now: Moment,
        soon: Moment,
        fresh: Nonce,
    ) -> Option<(u64, Option<LeaseName>)> {
        // After a failure, or a second look in vain, it has to wait.
        let by = if self.failures == 0 && self.vain < 2 { soon } else { now };
        let is_alone = self.reads_alone || self.flight.is_some();
        if is_alone || by < self.next_at || self.litter_at() <= now {
            return None;
        }
        let (kind @ FlightKind::Look, request) = self.step_before(now, fresh)? else {
            return None;
        };
        let (flight, _) = self.send(now, kind, request);
        Some((flight, self.session_to_look_at().cloned()))
    }

    /// Only gives back what was left over; contends no more.
    pub(super) fn poll_litter(&mut self, now: Moment) -> Option<(u64, Request)> {
        if self.flight.is_some() {
            return None;
        }
        let release = self.litter.due(now)?;
        let kind = FlightKind::Release { claim: release.claim };
        Some(self.send(now, kind, Request::Release(release)))
    }

    fn send(&mut self, now: Moment, kind: FlightKind, request: Request) -> (u64, Request) {
        self.flights += 1;
        self.flight = Some(Flight { id: self.flights, sent: now, kind });
        (self.flights, request)
    }

    /// What comes before an attempt: a look, unless what was seen last is free by now.
    fn step_before(&self, now: Moment, claim: Nonce) -> Option<(FlightKind, Request)> {
        if !self.allowed || self.known_since == Some(News::MayHaveChanged) {
            return Some(self.look());
        }
        self.session_step(now, claim).or_else(|| {
            let attempts = self.known_since == Some(News::MayBeFree)
                || self.sight.due(now, &self.settings) <= now
                || self.session_is_over(now);
            (!attempts).then(|| self.look())
        })
    }

    /// Reads the lease itself, too, while a session stands in the way: it may change hands
    /// meanwhile.
    fn look(&self) -> (FlightKind, Request) {
        let names = std::iter::once(&self.wish.name).chain(self.session_to_look_at());
        (FlightKind::Look, Request::Read(names.cloned().collect()))
    }

    fn attempt(&self, now: Moment, claim: Nonce) -> (FlightKind, Request) {
        let create = matches!(self.sight, Sight::Nothing) || self.sight.waited_out(now).is_some();
        let free = match self.sight.record().filter(|record| record.session().is_some()) {
            Some(attached) => Some(attached).filter(|_| self.session_is_over(now)),
            None => self.sight.watched_out(now, &self.settings),
        };
        let takeover = free.map(|record| record.version.clone());
        let request = Acquire {
            name: self.wish.name.clone(),
            claim,
            owner: self.wish.owner.clone(),
            ttl: self.settings.ttl,
            session: self.wish.session.clone(),
            note: self.wish.note.clone(),
            create,
            takeover,
            expected: self.wish.expected,
            above: self.wish.above,
            unattended: false,
        };
        (FlightKind::Acquire { claim }, Request::Acquire(request))
    }

    /// As [`Contender::answer`]; also what there is to tell about the store.
    pub(super) fn answer_told(
        &mut self,
        now: Moment,
        id: u64,
        answer: Answer,
    ) -> (Option<Outcome>, Option<Event>) {
        let before = self.trouble.clone();
        let outcome = self.answer(now, id, answer);
        let told = (self.trouble != before).then(|| Event::Trouble(self.trouble.clone()));
        (outcome, told)
    }

    /// Takes the store's answer to flight `id` in.
    pub(super) fn answer(&mut self, now: Moment, id: u64, answer: Answer) -> Option<Outcome> {
        let flight = self.flight.take_if(|flight| flight.id == id)?;
        if answer.error().is_none() {
            self.failures = 0;
            self.reads_alone = false;
            self.trouble = None;
            let latency = now.since(flight.sent);
            self.usual_latency = Some((self.usual_latency.unwrap_or(latency) * 7 + latency) / 8);
        }
        if self.over {
            self.late(now, flight.kind, answer);
            return None;
        }
        match (flight.kind, answer) {
            (
                FlightKind::Acquire { claim },
                Answer::Acquire(Ok(Acquired::Won { token, former })),
            ) => self.won(now, claim, token, flight.sent, former),
            (FlightKind::Acquire { claim }, Answer::Acquire(Ok(Acquired::Lost(record)))) => {
                // A layer below may have sent it twice: then this is the answer to the second.
                if record.as_ref().is_some_and(|record| record.is_of(claim)) {
                    self.strays.push(Stray { claim, sent: flight.sent });
                }
                if self.sight.is_due(flight.sent, &self.settings) {
                    self.races_lost = self.races_lost.saturating_add(1);
                }
                self.attempted = true;
                self.lost(now, record)
            }
            (FlightKind::Acquire { claim }, Answer::Acquire(Err(error))) => {
                if self.strays.len() == STRAYS_MAX {
                    self.strays.remove(0);
                }
                self.strays.push(Stray { claim, sent: flight.sent });
                self.failed(now, error);
                None
            }
            (FlightKind::Look, Answer::Read(Ok(records))) => {
                self.attempted = false;
                let mut records = records.into_iter();
                let before = self.attached_to().cloned();
                let outcome = self.lost(now, records.next().flatten());
                // The answer speaks of the session that the record was attached to before, if of
                // any.
                if let Some(session) = records.next()
                    && self.attached_to() == before.as_ref()
                {
                    self.session_read(now, session);
                }
                outcome
            }
            (FlightKind::TakeSession { claim }, Answer::Acquire(Ok(Acquired::Won { .. }))) => {
                self.session_taken(now, claim);
                None
            }
            (FlightKind::TakeSession { .. }, Answer::Acquire(Ok(Acquired::Lost(record)))) => {
                self.attempted = true;
                self.session_read(now, record);
                None
            }
            (FlightKind::TakeSession { claim }, Answer::Acquire(Err(error))) => {
                // It may have been taken. Releasing what may be ours frees it either way.
                self.give_back_session(now, claim);
                self.failed(now, error);
                None
            }
            (FlightKind::Look, Answer::Read(Err(error))) => {
                self.failed(now, error);
                None
            }
            (FlightKind::Release { claim }, Answer::Release(result)) => {
                self.given_back(now, claim, result);
                None
            }
            // A driver that answers with another kind than it was asked for.
            (_, _) => unreachable!("the answer does not fit the request"),
        }
    }

    fn won(
        &mut self,
        now: Moment,
        claim: Nonce,
        token: Token,
        sent: Moment,
        former: Option<Record>,
    ) -> Option<Outcome> {
        let sent = if self.settings.obeys(Rule::DeadlineFromSend) { sent } else { now };
        // Not wanted any more, or the answer took longer than the lease lasts.
        if !self.allowed || now >= sent + self.settings.held_for() {
            self.give_back(now, claim);
            self.next_at = now;
            return None;
        }
        let note = match (&self.wish.note, &former) {
            (Some(note), _) => note.clone(),
            (None, Some(former)) => former.note.clone(),
            (None, None) => Vec::new(),
        };
        Some(Outcome::Won(Win { claim, token, sent, note, former }))
    }

    fn lost(&mut self, now: Moment, record: Option<Record>) -> Option<Outcome> {
        self.lost_once = true;
        if let Some(outcome) = record.as_ref().and_then(|record| self.stray(now, record)) {
            return outcome;
        }
        if self.wish.expected.is_some_and(|expected| !expected.matches(record.as_ref())) {
            return Some(Outcome::Unexpected(record));
        }
        self.sight.see(now, record, self.attempted, &self.settings, |record| {
            // A holder's proof interval is at most its ttl.
            record.ttl.saturating_mul(if record.session().is_some() { 2 } else { 1 })
        });
        self.follow_session();
        self.schedule(now);
        None
    }

    /// If the record belongs to one of our own attempts whose answer never came: adopts it, or
    /// gives it back. The outer `Some` says that it did.
    fn stray(&mut self, now: Moment, record: &Record) -> Option<Option<Outcome>> {
        let position = if self.settings.obeys(Rule::ReadBackByClaim) {
            self.strays.iter().position(|stray| record.is_of(stray.claim))
        } else {
            self.strays.len().checked_sub(1).filter(|_| record.owner() == Some(&self.wish.owner))
        };
        let stray = self.strays.remove(position?);
        // An attached claim adopted under another tenure of its session would be nobody's.
        let same_session = record.session() == self.wish.session.as_ref();
        if self.allowed && same_session && now < stray.sent + self.settings.held_for() {
            let claim = record.holder.as_ref().and_then(|holder| holder.claim);
            return Some(Some(Outcome::Won(Win {
                claim: claim.unwrap_or(stray.claim),
                token: record.token,
                sent: stray.sent,
                note: record.note.clone(),
                former: None,
            })));
        }
        self.give_back(now, stray.claim);
        self.next_at = now;
        Some(None)
    }

    fn give_back(&mut self, now: Moment, claim: Nonce) {
        self.litter(now, self.wish.name.clone(), claim, vec![claim]);
    }

    /// Gives a claim back: released until the store has answered.
    pub(super) fn litter(&mut self, now: Moment, name: LeaseName, claim: Nonce, known: Vec<Nonce>) {
        self.litter.add(now, name, claim, known, self.settings.ttl * 4);
    }

    fn given_back(&mut self, now: Moment, claim: Nonce, result: Result<Released, StoreError>) {
        match result {
            Ok(_) => self.litter.answered(claim),
            Err(error) => {
                self.failures += 1;
                self.trouble = Some(error);
                let retry_at = now + self.backoff();
                self.litter.retry_at(claim, retry_at);
            }
        }
    }

    fn failed(&mut self, now: Moment, error: StoreError) {
        self.failures += 1;
        self.reads_alone = error.is_about_a_record();
        self.trouble = Some(error);
        self.next_at = now + self.backoff();
    }

    /// Contends no more; what may have been won is given back.
    pub(super) fn abandon(&mut self, now: Moment) {
        self.over = true;
        for stray in std::mem::take(&mut self.strays) {
            self.give_back(now, stray.claim);
        }
    }

    /// An answer that comes after the contender gave up: a claim that it did not lose goes back.
    fn late(&mut self, now: Moment, kind: FlightKind, answer: Answer) {
        let lost = matches!(answer, Answer::Acquire(Ok(Acquired::Lost(_))));
        match (kind, answer) {
            (FlightKind::Acquire { claim }, _) if !lost => self.give_back(now, claim),
            (FlightKind::TakeSession { claim }, _) if !lost => self.give_back_session(now, claim),
            (FlightKind::Release { claim }, Answer::Release(result)) => {
                self.given_back(now, claim, result);
            }
            _ => {}
        }
    }

    /// Hands over what is still to be given back.
    pub(super) fn take_litter(&mut self) -> Litter {
        std::mem::take(&mut self.litter)
    }

    /// Takes over what another had to give back, and does nothing else.
    pub(super) fn clean_up(&mut self, now: Moment, litter: Litter) {
        self.abandon(now);
        self.litter = litter;
    }

    /// Nothing is left to give back.
    pub(super) fn is_clean(&self) -> bool {
        self.flight.is_none() && self.litter.is_empty()
    }

    pub(super) fn next_at(&self) -> Moment {
        if self.flight.is_some() {
            return Moment::NEVER;
        }
        self.litter_at().min(self.next_at)
    }

    pub(super) fn litter_at(&self) -> Moment {
        if self.flight.is_some() {
            return Moment::NEVER;
        }
        self.litter.next_at()
    }

    /// Whether an attempt has been answered with a definite no.
    pub(super) fn lost_once(&self) -> bool {
        self.lost_once
    }

    /// Whether the claim is one of its own attempts that may have won.
    pub(super) fn tried(&self, claim: Nonce) -> bool {
        let under_way = self.flight.as_ref().is_some_and(
            |flight| matches!(flight.kind, FlightKind::Acquire { claim: sent } if sent == claim),
        );
        under_way
            || self.strays.iter().any(|stray| stray.claim == claim)
            || self.litter.contains(claim)
    }

    /// The token of the record in sight.
    pub(super) fn sees(&self) -> Option<Token> {
        self.sight.record().map(|record| record.token)
    }

    pub(super) fn trouble(&self) -> Option<&StoreError> {
        self.trouble.as_ref()
    }

    pub(super) fn wish(&self) -> &Wish {
        &self.wish
    }

    /// The records whose change may free the lease.
    pub(super) fn watched(&self) -> Vec<LeaseName> {
        let session = self.attached_to().map(|session| &session.name);
        std::iter::once(&self.wish.name).chain(session).cloned().collect()
    }
}

const STRAYS_MAX: usize = 8;
