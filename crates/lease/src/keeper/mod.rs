//! The keeper: one tenure of one lease, from the wish to the end. Pure.
//!
//! It owns no clock, thread, socket or entropy. A driver calls [`Keeper::poll`] with the time and a
//! fresh [`Nonce`]: what comes back is to be sent *now*, so a deadline counted from that call is
//! counted from before the send. The driver brings answers, wake-ups, liveness pongs and the word
//! that the guarded work has ended, and takes [`Event`]s out.
//!
//! **Two deadlines**, both from the send of the last confirmed renewal: at `sent + ttl − margin −
//! stop budget` the lease is lost and the work must stop; at `sent + ttl − margin` it must have
//! stopped, and a watchdog sees to it.
//!
//! **Refused is final, unanswered is not.** A refusal ends the tenure at once, unless it shows one of
//! our own renewals. A renewal without an answer is *hedged*: until the deadline, others follow it
//! while it is still under way.

mod contend;
mod holding;
mod litter;
mod pace;
mod random;
mod renewals;
mod session;
mod sight;
mod wish;

use std::collections::VecDeque;
use std::time::Duration;

pub use random::Random;
pub use session::{AttachId, Session, SessionEvent, SessionFlight};
pub use wish::Wish;

use crate::backend::{Answer, Renewed, Request, StoreError, StoreInfo};
use crate::clock::Moment;
use crate::record::{Holder, Nonce, Record, Token};
use crate::settings::Rule;
use crate::{LeaseName, Loss, Settings};
use contend::Contender;
use holding::{Holding, Tenancy};
use pace::Pace;
use renewals::Refusal;
use wish::{Outcome, Win};

/// One tenure of one lease.
pub struct Keeper {
    settings: Settings,
    pace: Pace,
    random: Random,
    contender: Contender,
    phase: Phase,
    events: VecDeque<Event>,
    /// When the driver last called: a gap says that the whole process stood still.
    called: Moment,
}

impl std::fmt::Debug for Keeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keeper").finish_non_exhaustive()
    }
}

/// What a keeper tells its driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The lease is held; the work may begin.
    Won {
        /// The token of this tenure.
        token: Token,
        /// The claim that the record carries.
        claim: Nonce,
        /// The note as it stands in the record now.
        note: Vec<u8>,
        /// What the record said before, if the store told.
        former: Option<Record>,
        /// Until when it lasts.
        deadlines: Deadlines,
    },
    /// The deadlines moved.
    Renewed(Deadlines),
    /// Ask the guarded side for a sign of life, and bring it by [`Keeper::pong`] or
    /// [`Keeper::silent`].
    Ping,
    /// The note that was asked for under this number is in the record.
    NoteWritten(u64),
    /// The lease is lost; the work must end by [`Deadlines::kill`], then call [`Keeper::ended`].
    Lost(Loss),
    /// The record was not the expected one; nothing is held.
    Unexpected(Option<Record>),
    /// Why the store does not answer a contender; `None`: it answers again.
    Trouble(Option<StoreError>),
    /// Nothing is held and nothing is left to do.
    Done,
}

/// Until when a tenure lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// At this moment the lease is lost.
    pub lost: Moment,
    /// At this moment the work must have ended.
    pub kill: Moment,
}

impl Deadlines {
    fn max(self, other: Self) -> Self {
        Self { lost: self.lost.max(other.lost), kill: self.kill.max(other.kill) }
    }
}

enum Phase {
    Contending,
    Held(Holding),
    /// Lost; the guarded work is ending. The tenure to give back then, unless it is another's.
    Stopping(Option<Tenancy>),
    /// Giving back what may be ours.
    Ending,
    Done,
}

impl Keeper {
    /// Begins to contend. `seed` decides jitter only.
    pub fn new(wish: Wish, settings: Settings, seed: u64, now: Moment) -> Self {
        let mut random = Random::new(seed);
        let contender = Contender::new(wish, settings.clone(), random.next(), now);
        Self {
            settings,
            pace: Pace::POLLED,
            random,
            contender,
            phase: Phase::Contending,
            events: VecDeque::new(),
            called: now,
        }
    }

    /// Keeps the pace that suits this store; without it, that of a server that does not push.
    pub fn at_store(mut self, store: &StoreInfo) -> Self {
        self.pace = Pace::of(store);
        self.contender.keep_pace(self.pace);
        self
    }

    /// How long an answer to a renewal may take before it comes too late to count.
    pub fn renew_timeout(&self) -> Duration {
        self.pace.renew_timeout(&self.settings)
    }

    /// Since when a renewal waits for its answer, if one does.
    pub(super) fn renewing_since(&self) -> Option<Moment> {
        match &self.phase {
            Phase::Held(holding) => holding.renewals.unconfirmed_since(),
            _ => None,
        }
    }

    /// What to send now, if anything. `fresh` must have been drawn for this very call. Call again
    /// until it returns `None`.
    pub fn poll(&mut self, now: Moment, fresh: Nonce) -> Option<(u64, Request)> {
        self.tick(now);
        match &mut self.phase {
            Phase::Contending => self.contender.poll(now, fresh),
            Phase::Ending => {
                let sent = self.contender.poll_litter(now);
                if sent.is_none() && self.contender.is_clean() {
                    self.phase = Phase::Done;
                    self.events.push_back(Event::Done);
                }
                sent
            }
            Phase::Held(holding) => {
                let name = &self.contender.wish().name;
                let (settings, random) = (&self.settings, &mut self.random);
                // A session that was taken over on the way may still have to be given back.
                holding
                    .poll(now, fresh, name, settings, self.pace, random)
                    .or_else(|| self.contender.poll_litter(now))
            }
            Phase::Stopping(_) | Phase::Done => None,
        }
    }

    /// The answer to a request that [`Keeper::poll`] gave out under this number. Answers to
    /// requests that no longer matter are ignored.
    pub fn answer(&mut self, now: Moment, flight: u64, answer: Answer) {
        self.tick(now);
        match &mut self.phase {
            Phase::Held(_) => match answer {
                Answer::Renew(answer) => self.renewed(now, flight, answer),
                answer => {
                    let outcome = self.contender.answer(now, flight, answer);
                    assert!(outcome.is_none(), "what is held is not won again");
                }
            },
            // The tenure that it would have prolonged is over.
            _ if matches!(answer, Answer::Renew(_)) => {}
            Phase::Contending => {
                let (outcome, trouble) = self.contender.answer_told(now, flight, answer);
                self.events.extend(trouble);
                match outcome {
                    Some(Outcome::Won(win)) => self.won(now, win),
                    Some(Outcome::Unexpected(record)) => {
                        self.events.push_back(Event::Unexpected(record));
                        self.end(now);
                    }
                    None => {}
                }
            }
            Phase::Ending => {
                let outcome = self.contender.answer(now, flight, answer);
                assert!(outcome.is_none(), "a contender that gave up wins nothing");
            }
            // What was being given back while it was held.
            Phase::Stopping(_) => {
                let outcome = self.contender.answer(now, flight, answer);
                assert!(outcome.is_none(), "what is lost is not won again");
            }
            Phase::Done => {}
        }
    }

    fn won(&mut self, now: Moment, win: Win) {
        let Win { claim, token, sent, note, former } = win;
        let holding = Holding::new(token, claim, sent, now, &self.settings, &mut self.random);
        let deadlines = holding.deadlines;
        self.phase = Phase::Held(holding);
        self.events.push_back(Event::Won { token, claim, note, former, deadlines });
    }

    fn renewed(&mut self, now: Moment, flight: u64, answer: Result<Renewed, StoreError>) {
        let Phase::Held(holding) = &mut self.phase else { return };
        let Some(nonce) = holding.renewals.under_way(flight) else { return };
        let record = match answer {
            Ok(Renewed::Yes) => return self.confirm(now, nonce),
            // It may stand in the record all the same.
            Err(_) => return holding.fail(now, nonce, &self.settings, self.pace, &mut self.random),
            Ok(Renewed::Refused(record)) => record,
        };
        match holding.renewals.judge(nonce, holding.token, record.as_ref()) {
            Refusal::Applied => self.confirm(now, nonce),
            Refusal::Overtaken if self.settings.obeys(Rule::OwnRenewalIsNoThief) => {
                holding.renewals.fail(nonce);
            }
            Refusal::Overtaken | Refusal::Final => self.lose(why_refused(record), false),
        }
    }

    fn confirm(&mut self, now: Moment, nonce: Nonce) {
        let Phase::Held(holding) = &mut self.phase else { return };
        let Some(note) = holding.confirm(now, nonce, &self.settings, &mut self.random) else {
            return;
        };
        self.events.push_back(Event::Renewed(holding.deadlines));
        self.events.extend(note.map(Event::NoteWritten));
        // A slow yes may be no use any more.
        self.tick(now);
    }

    /// The guarded side gave a sign of life.
    pub fn pong(&mut self, now: Moment) {
        self.tick(now);
        if let Phase::Held(holding) = &mut self.phase {
            holding.pong();
        }
    }

    /// The guarded side gave no sign of life, now: it is asked again until the deadline.
    pub fn silent(&mut self, now: Moment) {
        self.tick(now);
        if let Phase::Held(holding) = &mut self.phase {
            holding.silent_until(now + self.random.around(self.settings.renew_interval / 8));
        }
    }

    /// Whether it may take the lease; at first it may. While it may not, it only looks, and what an
    /// attempt under way has won is given back; once it may, what has stood still for long enough
    /// is taken at once. What is held stays held.
    pub fn allow(&mut self, now: Moment, yes: bool) {
        self.tick(now);
        self.contender.allow(now, yes);
    }

    /// What was won is not wanted now, and no work has begun: gives it back, and contends on.
    pub fn decline(&mut self, now: Moment) {
        let tenancy = match std::mem::replace(&mut self.phase, Phase::Contending) {
            Phase::Held(holding) => Some(holding.ended()),
            Phase::Stopping(tenancy) => tenancy,
            same @ (Phase::Contending | Phase::Ending | Phase::Done) => {
                self.phase = same;
                return;
            }
        };
        self.contender.resume(now);
        if let Some(Tenancy { claim, known }) = tenancy {
            let name = self.contender.wish().name.clone();
            self.contender.litter(now, name, claim, known);
        }
    }

    /// The store says that the record may have changed.
    pub fn woken(&mut self, now: Moment) {
        self.tick(now);
        if matches!(self.phase, Phase::Contending) {
            self.contender.woken(now);
        }
    }

    /// Somebody knows better than the store that the lease is free now.
    pub fn hurry(&mut self, now: Moment) {
        self.tick(now);
        if matches!(self.phase, Phase::Contending) {
            self.contender.hurry(now);
        }
    }

    /// Writes a note with a renewal, as soon as possible; [`Event::NoteWritten`] with this number
    /// says when it stands. A later note replaces an earlier one that is still waiting.
    pub fn write_note(&mut self, now: Moment, number: u64, note: Vec<u8>) {
        self.tick(now);
        if let Phase::Held(holding) = &mut self.phase {
            holding.write_note(now, number, note);
            self.tick(now);
        }
    }

    /// A fence refused our token although we hold the lease, or the like: the tenure is over.
    pub fn give_up(&mut self, now: Moment, loss: Loss) {
        self.tick(now);
        if matches!(self.phase, Phase::Held(_)) {
            self.lose(loss, true);
        }
    }

    /// Contends no more; or the guarded work has ended: gives the lease back.
    pub fn ended(&mut self, now: Moment) {
        self.tick(now);
        self.end(now);
    }

    fn end(&mut self, now: Moment) {
        let tenancy = match std::mem::replace(&mut self.phase, Phase::Ending) {
            Phase::Contending => None,
            Phase::Held(holding) => Some(holding.ended()),
            Phase::Stopping(tenancy) => tenancy,
            same @ (Phase::Ending | Phase::Done) => {
                self.phase = same;
                return;
            }
        };
        self.contender.abandon(now);
        if let Some(Tenancy { claim, known }) = tenancy {
            let name = self.contender.wish().name.clone();
            self.contender.litter(now, name, claim, known);
        }
    }

    fn lose(&mut self, loss: Loss, maybe_ours: bool) {
        let Phase::Held(holding) = std::mem::replace(&mut self.phase, Phase::Stopping(None)) else {
            unreachable!("only what is held can be lost");
        };
        self.phase = Phase::Stopping(maybe_ours.then_some(holding.ended()));
        self.events.push_back(Event::Lost(loss));
    }

    /// Lets time pass.
    pub fn tick(&mut self, now: Moment) {
        let stood_still = now.since(self.called) > self.settings.margin;
        self.called = self.called.max(now);
        let Phase::Held(holding) = &mut self.phase else { return };
        if now >= holding.deadlines.lost {
            let loss = if stood_still {
                Loss::Paused
            } else if holding.is_unresponsive() {
                Loss::Unresponsive
            } else {
                Loss::Expired
            };
            self.lose(loss, true);
        } else if holding.ask_at().is_some_and(|at| now >= at) {
            holding.ask();
            self.events.push_back(Event::Ping);
        }
    }

    /// The next thing that happened.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When to call again although nothing happens.
    pub fn next_at(&self) -> Moment {
        match &self.phase {
            Phase::Contending => self.contender.next_at(),
            Phase::Held(holding) => {
                let lost = holding.deadlines.lost;
                let due = holding.ask_at().map_or(lost, |at| at.min(lost));
                // Often enough to tell a pause from a slow store.
                due.min(self.called + self.settings.margin / 2).min(self.contender.litter_at())
            }
            Phase::Ending => self.contender.litter_at(),
            Phase::Stopping(_) | Phase::Done => Moment::NEVER,
        }
    }

    /// The deadlines, while it is held.
    pub fn deadlines(&self) -> Option<Deadlines> {
        match &self.phase {
            Phase::Held(holding) => Some(holding.deadlines),
            _ => None,
        }
    }

    /// The token, while it is held.
    pub fn token(&self) -> Option<Token> {
        match &self.phase {
            Phase::Held(holding) => Some(holding.token),
            _ => None,
        }
    }

    /// Whether it is still trying to win.
    pub fn is_contending(&self) -> bool {
        matches!(self.phase, Phase::Contending)
    }

    /// The records whose change may free the lease.
    pub fn watched(&self) -> Vec<LeaseName> {
        if self.is_contending() { self.contender.watched() } else { Vec::new() }
    }

    /// The token of the tenure that is held, or of the record that a contender has in sight.
    pub fn sees(&self) -> Option<Token> {
        self.token().or_else(|| self.contender.sees())
    }

    /// Whether a contender was told definitely that another holds the lease.
    pub fn lost_once(&self) -> bool {
        self.contender.lost_once()
    }

    /// Why the store has not answered a contender lately.
    pub fn trouble(&self) -> Option<&StoreError> {
        self.contender.trouble()
    }
}

fn why_refused(record: Option<Record>) -> Loss {
    match record {
        None => Loss::Deleted,
        Some(record) => Loss::Stolen { by: record.holder.map(|Holder { owner, .. }| owner) },
    }
}

#[cfg(test)]
mod tests;
