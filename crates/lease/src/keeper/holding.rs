//! What is held, and its next renewal.

use std::time::Duration;

use super::pace::Pace;
use super::renewals::{Confirmed, Renewals};
use super::{Deadlines, Random};
use crate::backend::{Renew, Request};
use crate::clock::Moment;
use crate::record::{Nonce, Token};
use crate::settings::Rule;
use crate::{LeaseName, Settings};

/// What identifies a tenure to the store.
pub(super) struct Tenancy {
    pub(super) claim: Nonce,
    pub(super) known: Vec<Nonce>,
}

pub(super) struct Holding {
    pub(super) token: Token,
    pub(super) renewals: Renewals,
    pub(super) deadlines: Deadlines,
    /// When to renew next: after an interval, or, while the last renewal is unconfirmed, when it is
    /// to be hedged.
    renew_at: Moment,
    step: Step,
    /// A note to be written with the next renewal, until one with it was confirmed.
    note: Option<(u64, Vec<u8>)>,
}

/// What comes before a renewal is sent.
enum Step {
    Resting,
    /// The guarded side was asked for a sign of life.
    Asked,
    /// It gave none; when to ask again.
    Silent(Moment),
    /// It gave one: a renewal may be sent.
    Ready,
}

impl Holding {
    /// What was just won by an acquisition that was sent at this moment.
    pub(super) fn new(
        token: Token,
        claim: Nonce,
        sent: Moment,
        now: Moment,
        settings: &Settings,
        random: &mut Random,
    ) -> Self {
        Self {
            token,
            renewals: Renewals::new(claim, sent),
            deadlines: deadlines(settings, sent),
            renew_at: (sent + interval(settings, random)).max(now),
            step: Step::Resting,
            note: None,
        }
    }

    /// What is left to be given back. Each unanswered renewal may stand in the record.
    pub(super) fn ended(self) -> Tenancy {
        Tenancy { claim: self.renewals.claim(), known: self.renewals.known() }
    }

    /// When to ask the guarded side, if that is the next step.
    pub(super) fn ask_at(&self) -> Option<Moment> {
        match self.step {
            Step::Resting => Some(self.renew_at),
            Step::Silent(again_at) => Some(again_at),
            Step::Asked | Step::Ready => None,
        }
    }

    /// The guarded side is being asked for a sign of life; each renewal needs its own.
    pub(super) fn ask(&mut self) {
        self.step = Step::Asked;
    }

    /// It gave one.
    pub(super) fn pong(&mut self) {
        if matches!(self.step, Step::Asked) {
            self.step = Step::Ready;
        }
    }

    /// It gave none, and is asked again at this moment.
    pub(super) fn silent_until(&mut self, again_at: Moment) {
        if matches!(self.step, Step::Asked) {
            self.step = Step::Silent(again_at);
        }
    }

    /// Whether the guarded side keeps the next renewal from being sent, and none is under way.
    pub(super) fn is_unresponsive(&self) -> bool {
        matches!(self.step, Step::Asked | Step::Silent(_)) && self.renewals.unconfirmed() == 0
    }

    /// Writes a note with the next renewal, which is due now unless one is under way.
    pub(super) fn write_note(&mut self, now: Moment, number: u64, note: Vec<u8>) {
        self.note = Some((number, note));
        if self.renewals.unconfirmed() == 0 {
            self.renew_at = now;
        }
    }

    pub(super) fn poll(
        &mut self,
        now: Moment,
        nonce: Nonce,
        name: &LeaseName,
        settings: &Settings,
        pace: Pace,
        random: &mut Random,
    ) -> Option<(u64, Request)> {
        if !matches!(self.step, Step::Ready) {
            return None;
        }
        let unconfirmed = self.renewals.unconfirmed();
        if !settings.obeys(Rule::KnowUnanswered) {
            self.renewals.forget_unconfirmed();
        }
        let known = self.renewals.known();
        let number = self.note.as_ref().map(|(number, _)| *number);
        self.renewals.send(now, nonce, number);
        self.step = Step::Resting;
        let pause = pace.hedge_pause(settings, unconfirmed, self.renewals.usual_latency());
        self.renew_at = now + random.around(pause).min(pause);
        let request = Renew {
            name: name.clone(),
            claim: self.renewals.claim(),
            token: self.token,
            known,
            nonce,
            ttl: settings.ttl,
            note: self.note.as_ref().map(|(_, note)| note.clone()),
            fresh_connection: unconfirmed > 0,
        };
        Some((Renewals::flight(nonce), Request::Renew(request)))
    }

    /// A renewal has no answer, and will have none. Where renewals are not hedged, the next one
    /// follows soon.
    pub(super) fn fail(
        &mut self,
        now: Moment,
        nonce: Nonce,
        settings: &Settings,
        pace: Pace,
        random: &mut Random,
    ) {
        let unconfirmed = u32::try_from(self.renewals.unconfirmed()).unwrap_or(u32::MAX);
        self.renewals.fail(nonce);
        if !pace.hedges() && matches!(self.step, Step::Resting) {
            self.renew_at = now + random.backoff(unconfirmed, settings.hedge_interval());
        }
    }

    /// The store has confirmed a renewal. Returns the number of the note that now stands in the
    /// record; `None` outside: a later renewal was confirmed before, so nothing changes.
    pub(super) fn confirm(
        &mut self,
        now: Moment,
        nonce: Nonce,
        settings: &Settings,
        random: &mut Random,
    ) -> Option<Option<u64>> {
        let last_sent = self.renewals.last_sent();
        let Confirmed { sent, note } = self.renewals.confirm(now, nonce)?;
        let counted_from = if !settings.obeys(Rule::DeadlineFromSend) {
            now
        } else if !settings.obeys(Rule::DeadlineOfConfirmed) {
            last_sent
        } else {
            sent
        };
        self.deadlines = self.deadlines.max(deadlines(settings, counted_from));
        self.renew_at = (sent + interval(settings, random)).max(now);
        self.step = Step::Resting;
        if let Some(written) = note {
            self.note.take_if(|(waiting, _)| *waiting <= written);
        }
        if self.note.is_some() {
            self.renew_at = now;
        }
        Some(note)
    }
}

fn deadlines(settings: &Settings, sent: Moment) -> Deadlines {
    Deadlines { lost: sent + settings.held_for(), kill: sent + settings.kill_after() }
}

/// At most the renew interval, so that its jitter never eats into what an outage may take.
fn interval(settings: &Settings, random: &mut Random) -> Duration {
    random.around(settings.renew_interval).min(settings.renew_interval)
}
