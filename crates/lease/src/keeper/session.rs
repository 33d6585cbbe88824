//! Many leases, one renewal: a session stands for a whole process, and attached leases live and die
//! with it. Pure.
//!
//! The session is an ordinary lease, kept by a [`Keeper`]. An attached record names the tenure of
//! the session that it belongs to and is never renewed, so ten thousand of them cost one write per
//! renewal interval. What a renewal of the session does *not* show is whether an attached record is
//! still there: an operator may have deleted it, and another may hold it. A [`sweep`] proves it.

mod sweep;
mod waiting;
mod window;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::contend::Contender;
use super::litter::Litter;
use super::pace::Pace;
use super::wish::{Outcome, Win};
use super::{Event, Keeper, Random, Wish};
use crate::backend::{Answer, Request, StoreInfo};
use crate::clock::Moment;
use crate::record::{Nonce, Owner, SessionRef, Token};
use crate::{LeaseName, Loss, Settings};
use sweep::{Sweep, proof_deadlines};
use waiting::{Waiting, Watched};
use window::Window;

/// A session and what is attached to it.
pub struct Session {
    settings: Settings,
    pace: Pace,
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
    window: Window,
    /// Whether one more could be under way when it was last asked what to send.
    has_room: bool,
    waiting: Waiting,
    sweep: Sweep,
    /// Names that were attached until lately, and until when they are looked after: a request that
    /// the network delayed or repeated may attach one again, and nobody would renew or release it.
    suspects: BTreeMap<LeaseName, Moment>,
    /// How many attached leases are lost while their work is still ending.
    stopping: usize,
    ending: bool,
    events: VecDeque<SessionEvent>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").finish_non_exhaustive()
    }
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
    /// Of many attached leases at once, which wait for another session.
    Waiting(u64),
    /// Of the sweep that proves the attached records.
    Sweep(u64),
}

struct Attached {
    contender: Contender,
    phase: Phase,
    in_flight: bool,
    /// Its entry in the timers.
    timer: Moment,
    /// Its entries among those who wait.
    watched: Watched,
}

enum Phase {
    Contending,
    Held {
        token: Token,
        claim: Nonce,
        proved: Moment,
    },
    /// Lost; the guarded work is ending. The claim is released then, unless it is another's already
    /// or ends with the session.
    Stopping {
        claim: Nonce,
        release: bool,
    },
    Ending,
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
            pace: Pace::POLLED,
            random,
            attached: BTreeMap::new(),
            next_id: 0,
            timers: BTreeSet::new(),
            proofs: BTreeSet::new(),
            flights: 0,
            window: Window::default(),
            has_room: true,
            waiting: Waiting::default(),
            sweep: Sweep::default(),
            suspects: BTreeMap::new(),
            stopping: 0,
            ending: false,
            events: VecDeque::new(),
        }
    }

    /// Keeps the pace that suits this store; as [`Keeper::at_store`].
    pub fn at_store(mut self, store: &StoreInfo) -> Self {
        self.pace = Pace::of(store);
        self.keeper = self.keeper.at_store(store);
        self
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
        Some(self.new_attached(now, Wish { session, note, ..Wish::new(name, self.owner.clone()) }))
    }

    fn new_attached(&mut self, now: Moment, wish: Wish) -> AttachId {
        let id = AttachId(self.next_id);
        self.next_id += 1;
        let mut contender = Contender::new(wish, self.settings.clone(), self.random.next(), now);
        contender.keep_pace(self.pace);
        let attached = Attached {
            contender,
            phase: Phase::Contending,
            in_flight: false,
            timer: now,
            watched: Watched::default(),
        };
        self.attached.insert(id, attached);
        self.index(id);
        id
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
        loop {
            let most = self.window.most(now, self.keeper.renewing_since(), &self.settings);
            self.has_room = self.flights < most;
            if !self.has_room {
                return None;
            }
            let (_, id) = *self.timers.first().filter(|(at, _)| *at <= now)?;
            if let Some(sent) = self.poll_waiting(now, fresh, id) {
                return Some(sent);
            }
            let attached = self.attached.get_mut(&id)?;
            let sent = match attached.phase {
                Phase::Contending => attached.contender.poll(now, fresh),
                Phase::Ending => attached.contender.poll_litter(now),
                Phase::Held { .. } | Phase::Stopping { .. } => None,
            };
            attached.in_flight = sent.is_some();
            self.flights += usize::from(sent.is_some());
            self.finish(now, id);
            self.index(id);
            if let Some((flight, request)) = sent {
                return Some((SessionFlight::Attached(id, flight), request));
            }
        }
    }

    /// How long the answer to a request of a sweep counts.
    pub(crate) fn sweep_timeout(&self) -> Duration {
        self.pace.read_timeout(&self.settings)
    }

    /// The answer to a request; as [`Keeper::answer`].
    pub fn answer(&mut self, now: Moment, flight: SessionFlight, answer: Answer) {
        self.tick(now);
        match flight {
            SessionFlight::Session(flight) => {
                let renewing = self.keeper.renewing_since();
                self.keeper.answer(now, flight, answer);
                if let (Some(since), None) = (renewing, self.keeper.renewing_since()) {
                    self.window.renewed(now.since(since), &self.settings);
                }
            }
            SessionFlight::Attached(id, flight) => self.attached_answer(now, id, flight, answer),
            SessionFlight::Waiting(number) => self.waiting_answer(now, number, answer),
            SessionFlight::Sweep(number) => {
                if let Answer::Read(records) = answer {
                    self.swept(now, number, records);
                }
            }
        }
        self.take_keeper_events(now);
    }

    fn attached_answer(&mut self, now: Moment, id: AttachId, flight: u64, answer: Answer) {
        let Some(attached) = self.attached.get_mut(&id) else { return };
        self.flights -= usize::from(std::mem::take(&mut attached.in_flight));
        let knew = attached.contender.over_session().is_some();
        let (outcome, trouble) = attached.contender.answer_told(now, flight, answer);
        if matches!(attached.phase, Phase::Contending) {
            self.events.extend(trouble.map(|event| SessionEvent::Attached(id, event)));
        }
        match outcome {
            Some(Outcome::Won(win)) => self.attached_won(now, id, win),
            Some(Outcome::Unexpected(_)) => unreachable!("attached leases expect no record"),
            None => {
                // Held by this very session: by another guard here, or by nobody who knows.
                let ours =
                    attached.contender.attached_to() == attached.contender.wish().session.as_ref();
                let over = attached.contender.over_session().filter(|_| !knew).cloned();
                if ours && attached.contender.attached_to().is_some() {
                    let name = attached.contender.wish().name.clone();
                    self.suspect(now, name);
                }
                if let Some(over) = over {
                    self.session_ended(now, &over);
                }
            }
        }
        self.finish(now, id);
        self.index(id);
    }

    fn attached_won(&mut self, now: Moment, id: AttachId, win: Win) {
        let Win { claim, token, sent, note, former } = win;
        let Some(attached) = self.attached.get_mut(&id) else { return };
        attached.phase = Phase::Held { token, claim, proved: sent };
        let deadlines = proof_deadlines(&self.settings, sent);
        // A session that was taken over on the way may still have to be given back.
        let (name, litter) =
            (attached.contender.wish().name.clone(), attached.contender.take_litter());
        let event = Event::Won { token, claim, note, former, deadlines };
        self.events.push_back(SessionEvent::Attached(id, event));
        if !litter.is_empty() {
            self.clean_up(now, name, litter);
        }
        self.sweep_soon(now);
    }

    /// Gives back what nobody holds, apart from everything else.
    fn clean_up(&mut self, now: Moment, name: LeaseName, litter: Litter) {
        let id = self.new_attached(now, Wish::new(name, self.owner.clone()));
        if let Some(attached) = self.attached.get_mut(&id) {
            attached.contender.clean_up(now, litter);
            attached.phase = Phase::Ending;
        }
        self.index(id);
    }

    /// The session is of no use any more, and with it all that is attached.
    pub fn give_up_all(&mut self, now: Moment, loss: Loss) {
        self.tick(now);
        self.keeper.give_up(now, loss);
        self.take_keeper_events(now);
    }

    /// Writes a note into the session's own record; as [`Keeper::write_note`].
    pub fn write_note(&mut self, now: Moment, number: u64, note: Vec<u8>) {
        self.tick(now);
        self.keeper.write_note(now, number, note);
        self.take_keeper_events(now);
    }

    /// An attached lease is of no use any more, say because a fence refuses its token.
    pub fn give_up(&mut self, now: Moment, id: AttachId, loss: Loss) {
        self.tick(now);
        self.lose(id, loss);
    }

    /// Loses an attached lease that may still be ours.
    fn lose(&mut self, id: AttachId, loss: Loss) {
        let Some(attached) = self.attached.get_mut(&id) else { return };
        let Phase::Held { claim, .. } = attached.phase else { return };
        attached.phase = Phase::Stopping { claim, release: true };
        self.stopping += 1;
        self.events.push_back(SessionEvent::Attached(id, Event::Lost(loss)));
        self.index(id);
    }

    /// The store says that one of these records may have changed.
    pub fn woken(&mut self, now: Moment, name: &LeaseName) {
        self.tick(now);
        self.keeper.woken(now);
        for id in self.waiting.on(name) {
            if let Some(attached) = self.attached.get_mut(&id) {
                attached.contender.woken(now);
            }
            self.index(id);
        }
    }

    /// The process gave a sign of life.
    pub fn pong(&mut self, now: Moment) {
        self.tick(now);
        self.keeper.pong(now);
    }

    /// The process gave none; as [`Keeper::silent`].
    pub fn silent(&mut self, now: Moment) {
        self.tick(now);
        self.keeper.silent(now);
    }

    /// Whether an attached lease may be taken; as [`Keeper::allow`].
    pub fn allow(&mut self, now: Moment, id: AttachId, yes: bool) {
        self.tick(now);
        if let Some(attached) = self.attached.get_mut(&id) {
            attached.contender.allow(now, yes);
            attached.contender.hurry(now);
        }
        self.index(id);
    }

    /// An attached lease that was won is not wanted now; as [`Keeper::decline`]. `false`: the
    /// session is over, and so is this.
    pub fn decline(&mut self, now: Moment, id: AttachId) -> bool {
        if self.ending || self.keeper.token().is_none() {
            self.detach(now, id);
            return false;
        }
        let Some(attached) = self.attached.get_mut(&id) else { return false };
        let claim = match attached.phase {
            Phase::Held { claim, .. } => Some(claim),
            Phase::Stopping { claim, release } => {
                self.stopping -= 1;
                release.then_some(claim)
            }
            Phase::Contending => return true,
            Phase::Ending => return false,
        };
        attached.phase = Phase::Contending;
        attached.contender.resume(now);
        if let Some(claim) = claim {
            let name = attached.contender.wish().name.clone();
            attached.contender.litter(now, name, claim, vec![claim]);
        }
        self.index(id);
        true
    }

    /// What an attached lease guards has ended, or it is not wanted any more.
    pub fn detach(&mut self, now: Moment, id: AttachId) {
        self.tick(now);
        let Some(attached) = self.attached.get_mut(&id) else { return };
        attached.contender.abandon(now);
        self.stopping -= usize::from(matches!(attached.phase, Phase::Stopping { .. }));
        let claim = match std::mem::replace(&mut attached.phase, Phase::Ending) {
            Phase::Held { claim, .. } | Phase::Stopping { claim, release: true } => Some(claim),
            Phase::Stopping { .. } | Phase::Contending | Phase::Ending => None,
        };
        if let Some(claim) = claim {
            let name = attached.contender.wish().name.clone();
            attached.contender.litter(now, name, claim, vec![claim]);
        }
        self.finish(now, id);
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
        if self.ending && self.stopping == 0 {
            self.keeper.ended(now);
        }
    }

    fn lose_all(&mut self, now: Moment, loss: &Loss) {
        let ids: Vec<AttachId> = self.attached.keys().copied().collect();
        for id in ids {
            let Some(attached) = self.attached.get_mut(&id) else { continue };
            attached.phase = match attached.phase {
                Phase::Held { claim, .. } => {
                    self.stopping += 1;
                    Phase::Stopping { claim, release: false }
                }
                Phase::Contending => {
                    attached.contender.abandon(now);
                    Phase::Ending
                }
                Phase::Stopping { .. } | Phase::Ending => continue,
            };
            self.events.push_back(SessionEvent::Attached(id, Event::Lost(loss.clone())));
            self.finish(now, id);
            self.index(id);
        }
    }

    /// Forgets an attached lease of which nothing is left.
    fn finish(&mut self, now: Moment, id: AttachId) {
        let Some(attached) = self.attached.get(&id) else { return };
        if matches!(attached.phase, Phase::Ending) && attached.contender.is_clean() {
            self.timers.remove(&(attached.timer, id));
            self.proofs.remove(&(attached.timer, id));
            if let Some(mut attached) = self.attached.remove(&id) {
                self.waiting.set(id, &mut attached.watched, None);
                self.suspect(now, attached.contender.wish().name.clone());
            }
            self.events.push_back(SessionEvent::Attached(id, Event::Done));
        }
    }

    /// Puts an attached lease where it belongs: in the timers, among those who wait.
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
            Phase::Stopping { .. } => (Moment::NEVER, &mut self.proofs),
        };
        // Most are free when they are asked for, and never waited for.
        let waits = matches!(attached.phase, Phase::Contending) && attached.contender.lost_once();
        self.waiting.set(id, &mut attached.watched, waits.then_some(&attached.contender));
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
            self.lose(id, Loss::Expired);
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

    /// Whether something happened that was not taken yet.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// When to call again although nothing happens.
    pub fn next_at(&self) -> Moment {
        let sweep = self.sweep.due();
        let attached = match self.timers.first() {
            Some((at, _)) if self.has_room => *at,
            _ => Moment::NEVER,
        };
        let proof = self.proofs.first().map_or(Moment::NEVER, |(at, _)| *at);
        self.keeper.next_at().min(sweep).min(attached).min(proof)
    }

    /// The token of an attached lease that is held, or of the record that its contender has in
    /// sight.
    pub fn sees(&self, id: AttachId) -> Option<Token> {
        let attached = self.attached.get(&id)?;
        match attached.phase {
            Phase::Held { token, .. } => Some(token),
            _ => attached.contender.sees(),
        }
    }

    /// The keeper of the session's own lease.
    pub fn keeper(&self) -> &Keeper {
        &self.keeper
    }

    /// The records whose change may free something that this session waits for.
    pub fn watched(&self) -> Vec<LeaseName> {
        self.keeper.watched().into_iter().chain(self.waiting.names().cloned()).collect()
    }
}
