//! The proof of what is attached.
//!
//! A session's renewal says nothing about the attached records, so they are read: all of them, in
//! batches, several times per proof interval. One that was seen to be ours is proved from when that
//! read was sent; one that was seen to be another's is lost at once, and so is one that was not seen
//! for a proof interval.
//!
//! The sweep also reads *suspects*: names that were attached until lately. A request that the
//! network delayed or repeated may attach one again, and nobody would renew or release it; what is
//! found so is given back.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use super::{AttachId, Litter, Phase, Session, SessionEvent, SessionFlight};
use crate::backend::Request;
use crate::clock::Moment;
use crate::keeper::{Deadlines, Event, why_refused};
use crate::record::{Record, SessionRef};
use crate::settings::Rule;
use crate::{LeaseName, Settings};

/// Where the sweep is.
pub(super) struct Sweep {
    /// What is still to be read in this sweep.
    rest: VecDeque<Swept>,
    /// When the next sweep begins.
    again_at: Moment,
    /// When to send the next batch.
    next_at: Moment,
    flight: Option<(u64, Moment, Vec<Swept>)>,
    number: u64,
    failures: u32,
}

impl Default for Sweep {
    fn default() -> Self {
        Self {
            rest: VecDeque::new(),
            again_at: Moment::NEVER,
            next_at: Moment::NEVER,
            flight: None,
            number: 0,
            failures: 0,
        }
    }
}

impl Sweep {
    /// When there is something to send.
    pub(super) fn due(&self) -> Moment {
        if self.flight.is_some() { Moment::NEVER } else { self.next_at }
    }
}

#[derive(Clone)]
enum Swept {
    Held(AttachId, LeaseName),
    Suspect(LeaseName),
}

impl Swept {
    fn name(&self) -> &LeaseName {
        match self {
            Self::Held(_, name) | Self::Suspect(name) => name,
        }
    }
}

impl Session {
    pub(super) fn poll_sweep(&mut self, now: Moment) -> Option<(SessionFlight, Request)> {
        if self.sweep.flight.is_some() || now < self.sweep.next_at {
            return None;
        }
        if self.sweep.rest.is_empty() {
            self.begin_sweep(now);
        }
        let batch = self.sweep.rest.len().min(BATCH);
        if batch == 0 {
            return None;
        }
        let items: Vec<Swept> = self.sweep.rest.drain(..batch).collect();
        let names = items.iter().map(|item| item.name().clone()).collect();
        self.sweep.number += 1;
        self.sweep.flight = Some((self.sweep.number, now, items));
        Some((SessionFlight::Sweep(self.sweep.number), Request::Read(names)))
    }

    fn begin_sweep(&mut self, now: Moment) {
        self.sweep.again_at = now + self.random.around(self.settings.proof_interval / 4);
        self.sweep.next_at = self.sweep.again_at;
        self.suspects.retain(|_, until| now < *until);
        let held = self.attached.iter().filter_map(|(id, attached)| match attached.phase {
            Phase::Held { .. } => Some(Swept::Held(*id, attached.contender.wish().name.clone())),
            _ => None,
        });
        self.sweep.rest.extend(held);
        let held: BTreeSet<LeaseName> =
            self.sweep.rest.iter().map(|item| item.name().clone()).collect();
        let suspects = self.suspects.keys().filter(|name| !held.contains(*name)).cloned();
        self.sweep.rest.extend(suspects.map(Swept::Suspect));
    }

    pub(super) fn sweep_soon(&mut self, now: Moment) {
        if self.sweep.next_at == Moment::NEVER {
            self.sweep.next_at = now + self.random.around(self.settings.proof_interval / 4);
        }
    }

    /// Takes the records in that a sweep has read; `None`: it was not answered.
    pub(super) fn swept(&mut self, now: Moment, number: u64, records: Option<Vec<Option<Record>>>) {
        let Some((_, sent, items)) =
            self.sweep.flight.take_if(|(expected, _, _)| *expected == number)
        else {
            return;
        };
        let Some(records) = records else {
            self.sweep.failures += 1;
            let most = self.settings.proof_interval / 8;
            self.sweep.next_at = now + self.random.backoff(self.sweep.failures, most);
            for item in items.into_iter().rev() {
                self.sweep.rest.push_front(item);
            }
            return;
        };
        self.sweep.failures = 0;
        self.sweep.next_at = if self.sweep.rest.is_empty() { self.sweep.again_at } else { now };
        for (item, record) in items.into_iter().zip(records) {
            match item {
                Swept::Held(id, _) => {
                    self.prove(sent, id, record);
                    self.index(id);
                }
                Swept::Suspect(name) => self.give_back_orphan(now, name, record),
            }
        }
    }

    /// Releases a record that is attached to this very tenure of the session although nothing here
    /// knows of it.
    fn give_back_orphan(&mut self, now: Moment, name: LeaseName, record: Option<Record>) {
        let Some(term) = self.keeper.token().map(|token| token.term) else { return };
        let session = SessionRef { name: self.name.clone(), term };
        let Some(record) = record.filter(|record| record.session() == Some(&session)) else {
            return;
        };
        let (Some(claim), Some(nonce)) =
            record.holder.as_ref().map_or((None, None), |holder| (holder.claim, holder.nonce))
        else {
            return;
        };
        let known = self.attached.values().any(|attached| {
            attached.contender.tried(claim)
                || matches!(
                    attached.phase,
                    Phase::Held { claim: ours, .. } | Phase::Stopping { claim: ours, .. }
                        if ours == claim
                )
        });
        if !known {
            let mut litter = Litter::default();
            litter.add(now, name.clone(), claim, vec![nonce], self.settings.ttl * 4);
            self.clean_up(now, name, litter);
        }
    }

    fn prove(&mut self, sent: Moment, id: AttachId, record: Option<Record>) {
        let Some(attached) = self.attached.get_mut(&id) else { return };
        let Phase::Held { token, claim, proved } = &mut attached.phase else { return };
        let ours = record.as_ref().is_some_and(|record| {
            record.is_of(*claim)
                && record.token == *token
                && record.session() == attached.contender.wish().session.as_ref()
        });
        if ours || !self.settings.obeys(Rule::ProveAttached) {
            *proved = sent;
            let deadlines = proof_deadlines(&self.settings, sent);
            self.events.push_back(SessionEvent::Attached(id, Event::Renewed(deadlines)));
        } else {
            let loss = why_refused(record);
            attached.phase = Phase::Stopping { claim: *claim, release: false };
            self.stopping += 1;
            self.events.push_back(SessionEvent::Attached(id, Event::Lost(loss)));
        }
    }

    /// Looks after a name for a while: see [`Session::suspects`].
    pub(super) fn suspect(&mut self, now: Moment, name: LeaseName) {
        if self.suspects.len() < SUSPECTS_MAX {
            self.suspects.insert(name, now + self.settings.ttl * 4);
            self.sweep_soon(now);
        }
    }
}

pub(super) fn proof_deadlines(settings: &Settings, proved: Moment) -> Deadlines {
    let kill = proved + settings.proof_interval;
    let budget =
        if settings.obeys(Rule::StopBudget) { settings.stop_budget } else { Duration::ZERO };
    Deadlines { lost: kill - budget, kill }
}

/// How many records one request reads at most.
pub(super) const BATCH: usize = 1_000;
/// How many names that were released lately are looked after at most.
const SUSPECTS_MAX: usize = 10_000;
