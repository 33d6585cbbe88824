//! What is held, and its next renewal.

use super::{Deadlines, Random};
use crate::backend::{Renew, Request};
use crate::clock::Moment;
use crate::record::{Nonce, Token};
use crate::{LeaseName, Settings};

/// What identifies a tenure to the store.
pub(super) struct Tenancy {
    pub(super) claim: Nonce,
    pub(super) known: Vec<Nonce>,
}

pub(super) struct Holding {
    pub(super) token: Token,
    pub(super) tenancy: Tenancy,
    pub(super) deadlines: Deadlines,
    /// When to renew next, if nothing is under way.
    pub(super) renew_at: Moment,
    pub(super) step: Step,
    pub(super) failures: u32,
    /// A note to be written with the next renewal, until one with it was confirmed.
    pub(super) note: Option<(u64, Vec<u8>)>,
}

pub(super) enum Step {
    Resting,
    /// The guarded side was asked for a sign of life.
    Asked,
    /// It gave none; when to ask again.
    Silent(Moment),
    /// It gave one: a renewal may be sent.
    Ready,
    Sent {
        flight: u64,
        sent: Moment,
        nonce: Nonce,
        note: Option<u64>,
    },
}

impl Holding {
    /// What is left to be given back; a renewal under way may stand in the record.
    pub(super) fn ended(self) -> Tenancy {
        let mut tenancy = self.tenancy;
        if let Step::Sent { nonce, .. } = self.step {
            tenancy.known.push(nonce);
        }
        tenancy
    }

    /// When to ask the guarded side, if that is the next step.
    pub(super) fn ask_at(&self) -> Option<Moment> {
        match self.step {
            Step::Resting => Some(self.renew_at),
            Step::Silent(again_at) => Some(again_at),
            Step::Asked | Step::Ready | Step::Sent { .. } => None,
        }
    }

    pub(super) fn poll(
        &mut self,
        now: Moment,
        nonce: Nonce,
        name: &LeaseName,
        settings: &Settings,
    ) -> Option<(u64, Request)> {
        if !matches!(self.step, Step::Ready) || self.tenancy.known.len() >= KNOWN_MAX {
            return None;
        }
        let flight = nonce.bits() as u64;
        let number = self.note.as_ref().map(|(number, _)| *number);
        self.step = Step::Sent { flight, sent: now, nonce, note: number };
        let request = Renew {
            name: name.clone(),
            claim: self.tenancy.claim,
            token: self.token,
            known: self.tenancy.known.clone(),
            nonce,
            ttl: settings.ttl,
            note: self.note.as_ref().map(|(_, note)| note.clone()),
            fresh_connection: false,
        };
        Some((flight, Request::Renew(request)))
    }
}

pub(super) fn deadlines(settings: &Settings, sent: Moment) -> Deadlines {
    Deadlines { lost: sent + settings.held_for(), kill: sent + settings.kill_after() }
}

pub(super) fn renew_at(settings: &Settings, random: &mut Random, sent: Moment) -> Moment {
    sent + random.around(settings.renew_interval).min(settings.renew_interval)
}

/// More unanswered renewals than this fit in no ttl; the next one waits for the deadline.
const KNOWN_MAX: usize = 32;
