//! Many leases, one renewal: a session stands for a whole process, and attached leases live and die
//! with it. Pure.
//!
//! The session is an ordinary lease, kept by a [`Keeper`]. An attached record names the tenure of
//! the session that it belongs to and is never renewed, so ten thousand of them cost one write per
//! renewal interval. What a renewal of the session does *not* show is whether an attached record is
//! still there: an operator may have deleted it, and another may hold it. So a sweep reads all of
//! them, in batches, several times per proof interval; one that was not seen for a proof interval
//! is lost, just like one that was seen to be another's.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::contend::{Contender, Outcome, Win};
use super::{Deadlines, Event, Keeper, Random, Wish, why_refused};
use crate::backend::{Answer, Request};
use crate::clock::Moment;
use crate::record::{Nonce, Owner, Record, SessionRef, Token};
use crate::settings::Rule;
use crate::{LeaseName, Loss, Settings};

/// A session and what is attached to it.
pub struct Session {
    settings: Settings,
    owner: Owner,
    name: LeaseName,
    random: Random,
    keeper: Keeper,
    attached: BTreeMap<AttachId, Attached>,
    next_id: u64,
    /// When to call which attached lease that is contended for or given back.
    timers: BTreeSet<(Moment, AttachId)>,
    /// When which held one is lost unless it is proved again.
    proofs: BTreeSet<(Moment, AttachId)>,
    flights: usize,
    sweep: Sweep,
    ending: bool,
    events: VecDeque<SessionEvent>,
}

/// One attached lease of a session.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct AttachId(u64);

/// What a session tells its driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionEvent {
    /// Of the session itself.
    Session(Event),
    /// Of an attached lease.
    Attached(AttachId, Event),
}

/// The number of a request of a session.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum SessionFlight {
    /// Of the session itself.
    Session(u64),
    /// Of an attached lease.
    Attached(AttachId, u64),
    /// Of the sweep that proves the attached records.
    Sweep(u64),
}

struct Attached {
    contender: Contender,
    phase: Phase,
    in_flight: bool,
    /// Its entry in the timers.
    timer: Moment,
}

enum Phase {
    Contending,
    Held {
        token: Token,
        claim: Nonce,
        proved: Moment,
    },
    /// Lost; the guarded work is ending. The claim to release then, if the session does not end it.
    Stopping(Option<Nonce>),
    Ending,
}

struct Sweep {
    /// Who comes next; the first id that was not read in this sweep.
    cursor: Option<AttachId>,
    next_at: Moment,
    flight: Option<(u64, Moment, Vec<AttachId>)>,
    number: u64,
    failures: u32,
}

impl Session {
    /// Begins to contend for the session's own lease.
    pub fn new(wish: Wish, settings: Settings, seed: u64, now: Moment) -> Self {
        let mut random = Random::new(seed);
        Self {
            owner: wish.owner.clone(),
            name: wish.name.clone(),
            keeper: Keeper::new(wish, settings.clone(), random.next(), now),
            settings,
            random,
            attached: BTreeMap::new(),
            next_id: 0,
            timers: BTreeSet::new(),
            proofs: BTreeSet::new(),
            flights: 0,
            sweep: Sweep {
                cursor: None,
                next_at: Moment::NEVER,
                flight: None,
                number: 0,
                failures: 0,
            },
            ending: false,
            events: VecDeque::new(),
        }
    }

    /// Begins to contend for an attached lease; `None` while the session itself is not held.
    pub fn attach(
        &mut self,
        now: Moment,
        name: LeaseName,
        note: Option<Vec<u8>>,
    ) -> Option<AttachId> {
        let term = self.keeper.token().filter(|_| !self.ending)?.term;
        let session = Some(SessionRef { name: self.name.clone(), term });
        let wish = Wish { session, note, ..Wish::new(name, self.owner.clone()) };
        let id = AttachId(self.next_id);
        self.next_id += 1;
        let contender = Contender::new(wish, self.settings.clone(), self.random.next(), now);
        let attached =
            Attached { contender, phase: Phase::Contending, in_flight: false, timer: now };
        self.attached.insert(id, attached);
        self.timers.insert((now, id));
        Some(id)
    }

    /// What to send now, if anything; as [`Keeper::poll`].
    pub fn poll(&mut self, now: Moment, fresh: Nonce) -> Option<(SessionFlight, Request)> {
        self.tick(now);
        if let Some((flight, request)) = self.keeper.poll(now, fresh) {
            return Some((SessionFlight::Session(flight), request));
        }
        self.take_keeper_events(now);
        self.poll_sweep(now).or_else(|| self.poll_attached(now, fresh))
    }

    fn poll_attached(&mut self, now: Moment, fresh: Nonce) -> Option<(SessionFlight, Request)> {
        while self.flights < FLIGHTS_MAX {
            let (_, id) = *self.timers.first().filter(|(at, _)| *at <= now)?;
            let attached = self.attached.get_mut(&id)?;
            let sent = match attached.phase {
                Phase::Contending => attached.contender.poll(now, fresh),
                Phase::Ending => attached.contender.poll_litter(now),
                Phase::Held { .. } | Phase::Stopping(_) => None,
            };
            attached.in_flight = sent.is_some();
            self.flights += usize::from(sent.is_some());
            self.finish(id);
            self.index(id);
            if let Some((flight, request)) = sent {
                return Some((SessionFlight::Attached(id, flight), request));
            }
        }
        None
    }

    fn poll_sweep(&mut self, now: Moment) -> Option<(SessionFlight, Request)> {
        if self.sweep.flight.is_some() || now < self.sweep.next_at {
            return None;
        }
        let from = self.sweep.cursor.unwrap_or(AttachId(0));
        let ids: Vec<AttachId> = self
            .attached
            .range(from..)
            .filter(|(_, attached)| matches!(attached.phase, Phase::Held { .. }))
            .map(|(id, _)| *id)
            .take(BATCH)
            .collect();
        if ids.is_empty() {
            self.sweep.cursor = None;
            self.sweep.next_at = now + self.random.around(self.settings.proof_interval / 4);
            return None;
        }
        let names = ids.iter().map(|id| self.attached[id].contender.wish().name.clone()).collect();
        self.sweep.number += 1;
        self.sweep.flight = Some((self.sweep.number, now, ids));
        Some((SessionFlight::Sweep(self.sweep.number), Request::Read(names)))
    }

    /// The answer to a request; as [`Keeper::answer`].
    pub fn answer(&mut self, now: Moment, flight: SessionFlight, answer: Answer) {
        self.tick(now);
        match flight {
            SessionFlight::Session(flight) => self.keeper.answer(now, flight, answer),
            SessionFlight::Attached(id, flight) => self.attached_answer(now, id, flight, answer),
            SessionFlight::Sweep(number) => {
                if let Answer::Read(records) = answer {
                    self.swept(now, number, records.ok());
                }
            }
        }
        self.take_keeper_events(now);
    }

    fn attached_answer(&mut self, now: Moment, id: AttachId, flight: u64, answer: Answer) {
        let Some(attached) = self.attached.get_mut(&id) else { return };
        self.flights -= usize::from(std::mem::take(&mut attached.in_flight));
        match attached.contender.answer(now, flight, answer) {
            Some(Outcome::Won(win)) => self.attached_won(now, id, win),
            Some(Outcome::Unexpected(_)) => unreachable!("attached leases expect no record"),
            None => {}
        }
        self.finish(id);
        self.index(id);
    }

    fn attached_won(&mut self, now: Moment, id: AttachId, win: Win) {
        let Win { claim, token, sent, note, former } = win;
        let Some(attached) = self.attached.get_mut(&id) else { return };
        attached.phase = Phase::Held { token, claim, proved: sent };
        let deadlines = proof_deadlines(&self.settings, sent);
        self.events
            .push_back(SessionEvent::Attached(id, Event::Won { token, claim, note, former }));
        self.events.push_back(SessionEvent::Attached(id, Event::Renewed(deadlines)));
        if self.sweep.next_at == Moment::NEVER {
            self.sweep.next_at = now + self.random.around(self.settings.proof_interval / 4);
        }
    }

    /// Takes the records in that a sweep has read; `None`: it was not answered.
    fn swept(&mut self, now: Moment, number: u64, records: Option<Vec<Option<Record>>>) {
        let Some((_, sent, ids)) =
            self.sweep.flight.take_if(|(expected, _, _)| *expected == number)
        else {
            return;
        };
        let Some(records) = records else {
            self.sweep.failures += 1;
            let most = self.settings.proof_interval / 8;
            self.sweep.next_at = now + self.random.backoff(self.sweep.failures, most);
            return;
        };
        self.sweep.failures = 0;
        self.sweep.cursor = ids.last().map(|id| AttachId(id.0 + 1));
        self.sweep.next_at = now;
        for (id, record) in ids.into_iter().zip(records) {
            self.prove(sent, id, record);
            self.index(id);
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
            attached.phase = Phase::Stopping(None);
            self.events.push_back(SessionEvent::Attached(id, Event::Lost(loss)));
        }
    }

    /// Loses an attached lease that was not proved in time.
    fn expire(&mut self, id: AttachId) {
        let Some(attached) = self.attached.get_mut(&id) else { return };
        let Phase::Held { claim, .. } = attached.phase else { return };
        attached.phase = Phase::Stopping(Some(claim));
        self.events.push_back(SessionEvent::Attached(id, Event::Lost(Loss::Expired)));
        self.index(id);
    }

    /// The store says that one of these records may have changed.
    pub fn woken(&mut self, now: Moment, name: &LeaseName) {
        self.tick(now);
        self.keeper.woken(now);
        let ids: Vec<AttachId> = self
            .attached
            .iter_mut()
            .filter(|(_, attached)| {
                matches!(attached.phase, Phase::Contending) && attached.contender.watches(name)
            })
            .map(|(id, attached)| {
                attached.contender.woken(now);
                *id
            })
            .collect();
        for id in ids {
            self.index(id);
        }
    }

    /// The process gave a sign of life.
    pub fn pong(&mut self, now: Moment) {
        self.tick(now);
        self.keeper.pong(now);
    }

    /// What an attached lease guards has ended, or it is not wanted any more.
    pub fn detach(&mut self, now: Moment, id: AttachId) {
        self.tick(now);
        let Some(attached) = self.attached.get_mut(&id) else { return };
        attached.contender.abandon(now);
        let claim = match std::mem::replace(&mut attached.phase, Phase::Ending) {
            Phase::Held { claim, .. } => Some(claim),
            Phase::Stopping(claim) => claim,
            Phase::Contending | Phase::Ending => None,
        };
        if let Some(claim) = claim {
            let name = attached.contender.wish().name.clone();
            attached.contender.litter(now, name, claim, vec![claim]);
        }
        self.finish(id);
        self.index(id);
    }

    /// Ends the session: whatever is attached loses its lease; when all of that has ended, the
    /// session is given back, and with it everything that was attached.
    pub fn ended(&mut self, now: Moment) {
        self.tick(now);
        self.lose_all(now, &Loss::Released);
        self.ending = true;
        self.end_if_idle(now);
    }

    fn end_if_idle(&mut self, now: Moment) {
        let busy = |attached: &Attached| matches!(attached.phase, Phase::Stopping(_));
        if self.ending && !self.attached.values().any(busy) {
            self.keeper.ended(now);
        }
    }

    fn lose_all(&mut self, now: Moment, loss: &Loss) {
        let ids: Vec<AttachId> = self.attached.keys().copied().collect();
        for id in ids {
            let Some(attached) = self.attached.get_mut(&id) else { continue };
            attached.phase = match attached.phase {
                Phase::Held { .. } => Phase::Stopping(None),
                Phase::Contending => {
                    attached.contender.abandon(now);
                    Phase::Ending
                }
                Phase::Stopping(_) | Phase::Ending => continue,
            };
            self.events.push_back(SessionEvent::Attached(id, Event::Lost(loss.clone())));
            self.finish(id);
            self.index(id);
        }
    }

    /// Forgets an attached lease of which nothing is left.
    fn finish(&mut self, id: AttachId) {
        let Some(attached) = self.attached.get(&id) else { return };
        if matches!(attached.phase, Phase::Ending) && attached.contender.is_clean() {
            self.timers.remove(&(attached.timer, id));
            self.proofs.remove(&(attached.timer, id));
            self.attached.remove(&id);
            self.events.push_back(SessionEvent::Attached(id, Event::Done));
        }
    }

    /// Puts an attached lease where it belongs in the timers.
    fn index(&mut self, id: AttachId) {
        let Some(attached) = self.attached.get_mut(&id) else { return };
        self.timers.remove(&(attached.timer, id));
        self.proofs.remove(&(attached.timer, id));
        let (at, timers) = match attached.phase {
            Phase::Contending => (attached.contender.next_at(), &mut self.timers),
            Phase::Ending => (attached.contender.litter_at(), &mut self.timers),
            Phase::Held { proved, .. } => {
                (proof_deadlines(&self.settings, proved).lost, &mut self.proofs)
            }
            Phase::Stopping(_) => (Moment::NEVER, &mut self.proofs),
        };
        attached.timer = at;
        if at != Moment::NEVER {
            timers.insert((at, id));
        }
    }

    /// Lets time pass.
    pub fn tick(&mut self, now: Moment) {
        self.keeper.tick(now);
        self.take_keeper_events(now);
        while let Some((_, id)) = self.proofs.first().copied().filter(|(at, _)| *at <= now) {
            self.expire(id);
        }
    }

    fn take_keeper_events(&mut self, now: Moment) {
        while let Some(event) = self.keeper.next_event() {
            if let Event::Lost(loss) = &event {
                self.lose_all(now, &loss.clone());
            }
            self.events.push_back(SessionEvent::Session(event));
        }
        self.end_if_idle(now);
    }

    /// The next thing that happened.
    pub fn next_event(&mut self) -> Option<SessionEvent> {
        self.events.pop_front()
    }

    /// When to call again although nothing happens.
    pub fn next_at(&self) -> Moment {
        let sweep = if self.sweep.flight.is_some() { Moment::NEVER } else { self.sweep.next_at };
        let attached = match self.timers.first() {
            Some((at, _)) if self.flights < FLIGHTS_MAX => *at,
            _ => Moment::NEVER,
        };
        let proof = self.proofs.first().map_or(Moment::NEVER, |(at, _)| *at);
        self.keeper.next_at().min(sweep).min(attached).min(proof)
    }

    /// The keeper of the session's own lease.
    pub fn keeper(&self) -> &Keeper {
        &self.keeper
    }

    /// The records whose change may free something that this session waits for.
    pub fn watched(&self) -> Vec<LeaseName> {
        let contending = |attached: &&Attached| matches!(attached.phase, Phase::Contending);
        let attached = self.attached.values().filter(contending);
        let mut names = self.keeper.watched();
        names.extend(attached.flat_map(|attached| attached.contender.watched()));
        names.sort();
        names.dedup();
        names
    }
}

fn proof_deadlines(settings: &Settings, proved: Moment) -> Deadlines {
    let kill = proved + settings.proof_interval;
    let budget =
        if settings.obeys(Rule::StopBudget) { settings.stop_budget } else { Duration::ZERO };
    Deadlines { lost: kill - budget, kill }
}

/// How many records one sweep request reads at most.
const BATCH: usize = 1_000;
/// How many requests of attached leases may be under way at once.
const FLIGHTS_MAX: usize = 64;
