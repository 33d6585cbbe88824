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
use crate::backend::{Request, StoreError};
use crate::clock::Moment;
use crate::keeper::{Deadlines, Event, why_refused};
use crate::record::{Record, SessionRef};
use crate::settings::Rule;
use crate::{LeaseName, Settings};

/// Where the sweep is.
pub(super) struct Sweep {
    /// What is still to be read in this sweep, a batch for each request.
    batches: VecDeque<Vec<Swept>>,
    reading: Option<Reading>,
    /// When the next sweep begins.
    again_at: Moment,
    /// When to send the next request.
    next_at: Moment,
    number: u64,
    /// How long the last answer took.
    usual: Option<Duration>,
}

/// The batch that is being read. While there is no answer, it is asked for again and again.
struct Reading {
    batch: Vec<Swept>,
    /// The numbers of the requests under way, and when each was sent.
    requests: VecDeque<(u64, Moment)>,
}

impl Default for Sweep {
    fn default() -> Self {
        Self {
            batches: VecDeque::new(),
            reading: None,
            again_at: Moment::NEVER,
            next_at: Moment::NEVER,
            number: 0,
            usual: None,
        }
    }
}

impl Sweep {
    /// When there is something to send.
    pub(super) fn due(&self) -> Moment {
        self.next_at
    }

    /// The batch is done with: the next one follows at once, the next sweep when it is time.
    fn go_on(&mut self, now: Moment) {
        self.next_at = if self.batches.is_empty() { self.again_at } else { now };
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
        if now < self.sweep.next_at {
            return None;
        }
        if self.sweep.reading.is_none() {
            if self.sweep.batches.is_empty() {
                self.begin_sweep(now);
            }
            let batch = self.sweep.batches.pop_front()?;
            self.sweep.reading = Some(Reading { batch, requests: VecDeque::new() });
        }
        let reading = self.sweep.reading.as_mut()?;
        if reading.requests.len() == READS_MAX {
            reading.requests.pop_front();
        }
        self.sweep.number += 1;
        reading.requests.push_back((self.sweep.number, now));
        let names = reading.batch.iter().map(|item| item.name().clone()).collect();
        let most = self.pace.read_again_pause(&self.settings, self.sweep.usual);
        self.sweep.next_at = now + self.random.around(most).min(most);
        Some((SessionFlight::Sweep(self.sweep.number), Request::Read(names)))
    }

    fn begin_sweep(&mut self, now: Moment) {
        self.suspects.retain(|_, until| now < *until);
        let held = self.attached.iter().filter_map(|(id, attached)| match attached.phase {
            Phase::Held { .. } => Some(Swept::Held(*id, attached.contender.wish().name.clone())),
            _ => None,
        });
        let mut items: Vec<Swept> = held.collect();
        let held: BTreeSet<LeaseName> = items.iter().map(|item| item.name().clone()).collect();
        let suspects = self.suspects.keys().filter(|name| !held.contains(*name)).cloned();
        items.extend(suspects.map(Swept::Suspect));
        self.sweep.again_at = if items.is_empty() { Moment::NEVER } else { self.sweep_at(now) };
        self.sweep.next_at = self.sweep.again_at;
        self.sweep.batches = items.chunks(self.pace.batch()).map(<[Swept]>::to_vec).collect();
    }

    pub(super) fn sweep_soon(&mut self, now: Moment) {
        if self.sweep.next_at == Moment::NEVER {
            self.sweep.next_at = self.sweep_at(now);
        }
    }

    /// When the sweep after one that begins now begins. An outage of half a ttl that begins just
    /// before it, and one more request, must fit into what is left of the proof interval.
    fn sweep_at(&mut self, now: Moment) -> Moment {
        now + self.random.around(self.settings.proof_interval / 5)
    }

    /// Takes the records in that a sweep has read.
    pub(super) fn swept(
        &mut self,
        now: Moment,
        number: u64,
        records: Result<Vec<Option<Record>>, StoreError>,
    ) {
        let Some(reading) = &mut self.sweep.reading else { return };
        let Some(index) = reading.requests.iter().position(|(sent, _)| *sent == number) else {
            return;
        };
        let Some((_, sent)) = reading.requests.remove(index) else { return };
        if records.is_ok() {
            self.sweep.usual = Some(now.since(sent));
        }
        let records = match records {
            Ok(records) => records,
            Err(error) if !error.is_about_a_record() => return,
            Err(_) => return self.split_batch(now),
        };
        let Some(Reading { batch, .. }) = self.sweep.reading.take() else { return };
        self.sweep.go_on(now);
        for (item, record) in batch.into_iter().zip(records) {
            match item {
                Swept::Held(id, _) => {
                    self.prove(sent, id, record);
                    self.index(id);
                }
                Swept::Suspect(name) => self.give_back_orphan(now, name, record),
            }
        }
    }

    /// A record in the batch cannot be read, and the store does not say which: reads its halves. A
    /// batch of one is left alone until the next sweep, so that its lease is lost and no other.
    fn split_batch(&mut self, now: Moment) {
        let Some(Reading { mut batch, .. }) = self.sweep.reading.take() else { return };
        if batch.len() > 1 {
            let second = batch.split_off(batch.len() / 2);
            self.sweep.batches.push_front(second);
            self.sweep.batches.push_front(batch);
        }
        self.sweep.go_on(now);
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

/// How many requests for one batch may be under way.
const READS_MAX: usize = 8;
/// How many names that were released lately are looked after at most.
const SUSPECTS_MAX: usize = 10_000;
