//! The keepers of a process, and the store that they talk to.

use std::collections::BTreeSet;

use tenure_lease::backend::{Acquired, Answer, Request, StoreError};
use tenure_lease::keeper::{Deadlines, Event, Keeper, Wish};
use tenure_lease::record::SessionRef;
use tenure_lease::{LeaseName, Moment, Nonce, Owner};
use tenure_sharding::Setup;

use super::World;
use super::effects::lease_name;
use super::queue::What;
use super::shell::{Kept, Purpose};

impl World {
    pub(super) fn owner(&self, id: u64) -> Owner {
        let place = self.shells.get(&id).map_or(0, |shell| shell.place);
        Owner { name: format!("n{place}"), incarnation: id }
    }

    pub(super) fn contend(&mut self, id: u64, wish: Wish, purpose: Purpose, local: Moment) {
        let seed = self.random.next();
        let Some(shell) = self.shells.get_mut(&id) else { return };
        let keeper = Keeper::new(wish, self.lease.clone(), seed, local);
        shell.next_keeper += 1;
        shell.keepers.insert(shell.next_keeper, Kept { keeper, purpose });
    }

    /// Contends for the session of a process whose region wants one, and not for that of another.
    pub(super) fn want_session(&mut self, id: u64, local: Moment) {
        if self.settings.setup != Setup::Sessions {
            return;
        }
        let owner = self.owner(id);
        let Some(shell) = self.shells.get_mut(&id) else { return };
        let session = shell.keepers.values().find(|kept| kept.purpose == Purpose::Session);
        let contends = session.map(|kept| kept.keeper.is_contending());
        match (contends, shell.region.wants_session()) {
            (None, true) => {
                let wish = Wish::new(session_name(shell.place), owner);
                self.contend(id, wish, Purpose::Session, local);
            }
            (Some(true), false) => self.give_back(id, &Purpose::Session, local),
            _ => {}
        }
    }

    /// What these keepers guard has ended.
    pub(super) fn give_back(&mut self, id: u64, purpose: &Purpose, local: Moment) {
        let Some(shell) = self.shells.get_mut(&id) else { return };
        for kept in shell.keepers.values_mut().filter(|kept| kept.purpose == *purpose) {
            kept.keeper.ended(local);
            kept.purpose = Purpose::Ending;
        }
    }

    /// Observes the sessions that are to be observed, contends for those that are to be taken over,
    /// and lets go of the rest.
    pub(super) fn look_after_others(&mut self, id: u64, local: Moment) {
        let owner = self.owner(id);
        let Some(shell) = self.shells.get_mut(&id) else { return };
        let mut wanted: BTreeSet<SessionRef> =
            shell.observed.union(&shell.taking_over).cloned().collect();
        for kept in shell.keepers.values_mut() {
            let Purpose::Others(session) = &kept.purpose else { continue };
            if wanted.remove(session) {
                kept.keeper.allow(local, shell.taking_over.contains(session));
            } else {
                kept.keeper.ended(local);
                kept.purpose = Purpose::Ending;
            }
        }
        for session in wanted {
            let wish = Wish::new(session.name.clone(), owner.clone());
            self.contend(id, wish, Purpose::Others(session.clone()), local);
            let Some(shell) = self.shells.get_mut(&id) else { return };
            let allowed = shell.taking_over.contains(&session);
            if let Some(kept) = shell.keepers.get_mut(&shell.next_keeper) {
                kept.keeper.allow(local, allowed);
            }
        }
    }

    /// Lets the keepers of a process do what they can; whether there was anything.
    pub(super) fn keep(&mut self, id: u64, local: Moment) -> bool {
        let mut any = false;
        let keys: Vec<u64> = match self.shells.get(&id) {
            Some(shell) => shell.keepers.keys().copied().collect(),
            None => return false,
        };
        for key in keys {
            loop {
                let fresh = Nonce::from_bits(
                    u128::from(self.random.next()) << 64 | u128::from(self.random.next()),
                );
                let Some(shell) = self.shells.get_mut(&id) else { return any };
                let Some(kept) = shell.keepers.get_mut(&key) else { break };
                if let Some((flight, request)) = kept.keeper.poll(local, fresh) {
                    any = true;
                    self.request(id, key, flight, request);
                    continue;
                }
                let Some(event) = kept.keeper.next_event() else { break };
                any = true;
                self.kept(id, key, event, local);
            }
            any |= self.is_over_by_now(id, key, local);
        }
        any
    }

    /// Whether another's session turned out to be over, or was taken over.
    fn is_over_by_now(&mut self, id: u64, key: u64, local: Moment) -> bool {
        let Some(shell) = self.shells.get_mut(&id) else { return false };
        let Some(kept) = shell.keepers.get_mut(&key) else { return false };
        let Purpose::Others(session) = &kept.purpose else { return false };
        if kept.keeper.sees().is_none_or(|token| token.term <= session.term) {
            return false;
        }
        let session = session.clone();
        kept.keeper.ended(local);
        kept.purpose = Purpose::Ending;
        shell.coordinator.session_over(&session, local);
        true
    }

    fn kept(&mut self, id: u64, key: u64, event: Event, local: Moment) {
        let Some(shell) = self.shells.get_mut(&id) else { return };
        let Some(kept) = shell.keepers.get_mut(&key) else { return };
        let node = shell.node.clone();
        // What was sent before it stood still proves nothing.
        let held_for = self.lease.held_for();
        let is_proof = |deadlines: Deadlines, resumed_at| deadlines.lost - held_for > resumed_at;
        match (&kept.purpose, event) {
            (_, Event::Ping) => kept.keeper.pong(local),
            (_, Event::Done) => {
                shell.keepers.remove(&key);
            }
            (Purpose::Lease, Event::Won { token, note, deadlines, .. }) => {
                shell.lease_impaired &= !is_proof(deadlines, shell.resumed_at);
                shell.coordinator.won(token.term, &note, deadlines.lost, local);
                self.note(|| format!("{node} coordinates with term {}", token.term));
            }
            (Purpose::Lease, Event::Renewed(deadlines)) => {
                shell.lease_impaired &= !is_proof(deadlines, shell.resumed_at);
                shell.coordinator.renewed(deadlines.lost, local);
            }
            (Purpose::Lease, Event::NoteWritten(number)) => {
                shell.coordinator.note_written(number, local);
            }
            (Purpose::Lease, Event::Lost(loss)) => {
                kept.keeper.ended(local);
                kept.purpose = Purpose::Ending;
                shell.coordinator.lost(local);
                self.note(|| format!("{node} has lost the coordinator's lease: {loss}"));
                self.meet("coordinator's lease lost");
            }
            (Purpose::Session, Event::Won { .. }) if !shell.region.wants_session() => {
                self.give_back(id, &Purpose::Session, local);
            }
            (Purpose::Session, Event::Won { token, deadlines, .. }) => {
                let proof = is_proof(deadlines, shell.resumed_at);
                let session = SessionRef { name: session_name(shell.place), term: token.term };
                shell.region.session_won(session, deadlines.lost, local);
                self.note(|| format!("{node} has its session, with term {}", token.term));
                if proof {
                    self.invariants.renewed(self.sim.now(), id);
                }
            }
            (Purpose::Session, Event::Renewed(deadlines)) => {
                let proof = is_proof(deadlines, shell.resumed_at);
                shell.region.session_renewed(deadlines.lost, local);
                if proof {
                    self.invariants.renewed(self.sim.now(), id);
                }
            }
            (Purpose::Session, Event::Lost(loss)) => {
                let shards = shell.entities.len();
                shell.region.session_lost(local);
                self.note(|| format!("{node} has lost its session: {loss}"));
                self.meet(match shards {
                    0 => "session lost",
                    _ => "session lost with shards",
                });
            }
            (Purpose::Others(session), Event::Won { .. }) => {
                let session = session.clone();
                self.note(|| format!("{node} has taken over {} {}", session.name, session.term));
                self.meet("session taken over");
            }
            _ => {}
        }
    }

    /// Looks at the record of the coordinator's lease now and then: who is on the roster, and
    /// whether the store answers.
    pub(super) fn look_at_lease(&mut self, id: u64, local: Moment) {
        let Some(shell) = self.shells.get_mut(&id) else { return };
        if shell.ended || local < shell.look_at {
            return;
        }
        if self.settings.setup == Setup::Gossip {
            shell.look_at = Moment::NEVER;
            return;
        }
        shell.look_at = local + self.lease.operation_timeout;
        let silent = local.since(shell.answered_at) > self.lease.operation_timeout * 2;
        shell.coordinator.able(!silent, local);
        self.request(id, LOOK, 0, Request::Read(vec![lease_name()]));
    }

    fn request(&mut self, id: u64, keeper: u64, flight: u64, request: Request) {
        let now = self.sim.now();
        let timeout = self.lease.operation_timeout;
        let Some(shell) = self.shells.get_mut(&id) else { return };
        let local = shell.clock.read(now);
        let timeout_at = shell.clock.when(now, local + timeout);
        let place = shell.place;
        let answer = request.unanswered(StoreError::unavailable("no answer"));
        self.queue.push(timeout_at, What::Answer { shell: id, keeper, flight, answer });
        if !self.sim.reaches_store(place) {
            return;
        }
        let mut answered = true;
        let mut takes = self.random.up_to(self.store_delay);
        if self.store_trouble > 0 && self.random.within(0..100) < self.store_trouble {
            match self.random.within(0..4) {
                0 => return,
                1 => answered = false,
                2 => takes = self.random.up_to(self.lease.ttl * 2),
                _ => {
                    let request = request.clone();
                    let again = self.random.up_to(self.lease.ttl);
                    let what = What::Apply { shell: id, keeper, flight, request, answered: false };
                    self.queue.push(now + again, what);
                }
            }
        }
        self.queue.push(now + takes, What::Apply { shell: id, keeper, flight, request, answered });
    }

    /// A request reaches the store.
    pub(super) fn apply(
        &mut self,
        id: u64,
        keeper: u64,
        flight: u64,
        request: Request,
        answered: bool,
    ) {
        let now = self.sim.now();
        let answer = self.records.apply(now, request);
        let changed =
            matches!(answer, Answer::Acquire(Ok(Acquired::Won { .. })) | Answer::Release(Ok(_)));
        let place = self.shells.get(&id).map(|shell| shell.place);
        if answered && place.is_some_and(|place| self.sim.reaches_store(place)) {
            let at = now + self.random.up_to(self.store_delay);
            self.queue.push(at, What::Answer { shell: id, keeper, flight, answer });
        }
        if changed {
            self.push_changes();
        }
    }

    /// The store tells whoever waits for a lease that something has changed; not always.
    fn push_changes(&mut self) {
        let now = self.sim.now();
        let ids: Vec<u64> = self.shells.keys().copied().collect();
        for id in ids {
            let Some(shell) = self.shells.get_mut(&id) else { continue };
            let reaches = self.sim.reaches_store(shell.place);
            if shell.paused || !reaches || self.random.percent(30) {
                continue;
            }
            let local = shell.clock.read(now);
            let mut any = false;
            for kept in shell.keepers.values_mut() {
                if kept.keeper.is_contending() {
                    kept.keeper.woken(local);
                    any = true;
                }
            }
            if any {
                self.set_timer(id);
            }
        }
    }

    pub(super) fn answered(
        &mut self,
        id: u64,
        keeper: u64,
        flight: u64,
        answer: Answer,
        local: Moment,
    ) {
        let Some(shell) = self.shells.get_mut(&id) else { return };
        let is_answer = match &answer {
            Answer::Acquire(result) => result.is_ok(),
            Answer::Renew(result) => result.is_ok(),
            Answer::Release(result) => result.is_ok(),
            Answer::Read(result) => result.is_ok(),
        };
        if is_answer {
            shell.answered_at = local;
            shell.coordinator.able(true, local);
        }
        if keeper == LOOK {
            if let Answer::Read(Ok(records)) = answer {
                for record in records.into_iter().flatten() {
                    shell.coordinator.note_seen(&record.note, local);
                }
            }
        } else if let Some(kept) = shell.keepers.get_mut(&keeper) {
            kept.keeper.answer(local, flight, answer);
        }
    }
}

pub(super) fn session_name(place: usize) -> LeaseName {
    format!("node-{place}").parse().expect("a name")
}

/// The number of what is no keeper: a look at a record.
const LOOK: u64 = 0;
