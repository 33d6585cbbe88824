//! The singleton's lease: the keeper's requests, the store, and its answers.

use std::time::Duration;

use tenure_lease::backend::{Acquired, Answer, Request, StoreError, StoreErrorKind};
use tenure_lease::keeper::{Event, Keeper, Wish};
use tenure_lease::{Moment, Nonce, Owner};
use tenure_singleton::manager::Stance;

use super::super::Sim;
use super::super::queue::What;
use super::agent::{Agent, Desk};
use super::drive::{Arrival, Step};
use super::invariants::stop_then_release;

impl Desk {
    fn keepers(&mut self) -> impl Iterator<Item = &mut (u64, Keeper)> {
        self.keeper.iter_mut().chain(&mut self.former)
    }

    /// Ends the keeper; what it may have to give back, it gives back in the background.
    fn dismiss(&mut self, local: Moment) -> Option<u64> {
        let (number, mut keeper) = self.keeper.take()?;
        keeper.ended(local);
        self.former.push((number, keeper));
        Some(number)
    }
}

impl Sim {
    pub(super) fn stand(&mut self, agent: &mut Agent, local: Moment, stance: Stance) {
        let held = agent.desk.keeper.as_ref().is_some_and(|(_, keeper)| !keeper.is_contending());
        if held {
            return; // That is not what is meant.
        }
        match stance {
            Stance::Out => drop(agent.desk.dismiss(local)),
            Stance::Observing | Stance::Allowed => {
                if agent.desk.keeper.is_none() {
                    agent.desk.keeper = self.new_keeper(agent, local);
                }
                if let Some((_, keeper)) = &mut agent.desk.keeper {
                    keeper.allow(local, stance == Stance::Allowed);
                }
            }
        }
    }

    fn new_keeper(&mut self, agent: &Agent, local: Moment) -> Option<(u64, Keeper)> {
        let settings = self.settings.singleton.as_ref()?.lease.clone()?;
        let owner = Owner { name: format!("n{}", agent.place), incarnation: agent.id };
        let wish = Wish::new(self.singletons.lease.clone(), owner);
        self.singletons.keepers += 1;
        let keeper = Keeper::new(wish, settings, self.random.next(), local);
        Some((self.singletons.keepers, keeper))
    }

    pub(super) fn release_singleton(&mut self, agent: &mut Agent, local: Moment) {
        let found = stop_then_release::check(agent);
        self.invariants.report(self.now, [(stop_then_release::NAME, found)]);
        let held = agent.desk.keeper.as_ref().is_some_and(|(_, keeper)| keeper.token().is_some());
        if held && agent.failed {
            self.meet("singleton: gave up, another tries");
        }
        let Some(settings) = self.settings.singleton.as_ref().and_then(|it| it.lease.as_ref())
        else {
            return;
        };
        // A store that does not answer must not keep a node from leaving.
        let until = local + settings.operation_timeout;
        match agent.desk.dismiss(local) {
            Some(number) => agent.desk.releasing = Some((number, until)),
            None => agent.manager.released(local),
        }
    }

    /// Sends what keepers want to send, and takes in what happened to them; whether there was anything.
    pub(super) fn tend_singleton_lease(&mut self, agent: &mut Agent, local: Moment) -> bool {
        if let Some((number, until)) = agent.desk.releasing
            && local >= until
        {
            self.meet("singleton: release unanswered");
            self.note(|| format!("{} cannot tell the store {number}", agent.node));
            agent.desk.releasing = None;
            agent.manager.released(local);
            return true;
        }
        let fresh = u128::from(self.random.next()) << 64 | u128::from(self.random.next());
        let fresh = Nonce::from_bits(fresh);
        let mut found = None;
        for (number, keeper) in agent.desk.keepers() {
            if let Some((flight, request)) = keeper.poll(local, fresh) {
                found = Some((*number, Ok((flight, request))));
                break;
            }
            if let Some(event) = keeper.next_event() {
                found = Some((*number, Err(event)));
                break;
            }
        }
        match found {
            None => return false,
            Some((number, Ok((flight, request)))) => {
                self.ask(agent, local, number, flight, request)
            }
            Some((number, Err(event))) => self.singleton_lease_event(agent, local, number, event),
        }
        true
    }

    fn singleton_lease_event(
        &mut self,
        agent: &mut Agent,
        local: Moment,
        number: u64,
        event: Event,
    ) {
        let node = agent.node.clone();
        match event {
            Event::Won { token, deadlines, .. } => {
                self.note(|| format!("{node} holds the singleton's lease, {token}"));
                agent.desk.kill = deadlines.kill;
                agent.manager.won(local, token);
            }
            Event::Renewed(deadlines) => agent.desk.kill = deadlines.kill,
            Event::Ping => {
                if let Some((_, keeper)) = agent.desk.keepers().find(|(own, _)| *own == number) {
                    keeper.pong(local);
                }
            }
            Event::Lost(loss) => {
                self.note(|| format!("{node} has lost the singleton's lease: {loss}"));
                agent.manager.lost(local, loss);
            }
            Event::Done => {
                agent.desk.former.retain(|(own, _)| *own != number);
                if agent.desk.releasing.take_if(|(own, _)| *own == number).is_some() {
                    agent.manager.released(local);
                }
            }
            Event::NoteWritten(_) | Event::Unexpected(_) | Event::Trouble(_) => {}
        }
    }

    fn ask(
        &mut self,
        agent: &mut Agent,
        local: Moment,
        keeper: u64,
        flight: u64,
        request: Request,
    ) {
        let Some(settings) = self.settings.singleton.as_ref().and_then(|it| it.lease.as_ref())
        else {
            return;
        };
        let (ttl, timeout) = (settings.ttl, settings.operation_timeout);
        let process = agent.id;
        let answer = request.unanswered(StoreError::unavailable("no answer"));
        let arrival = Arrival::Answer { keeper, flight, answer };
        let at = agent.clock.when(self.now, local + timeout);
        self.queue.push(at, What::Singleton(Step::Arrive { process, arrival }));
        if !self.places[agent.place].store {
            self.meet("singleton: store out of reach");
            return;
        }
        let chance = if self.singletons.failing { self.random.within(0..100) } else { 100 };
        if chance == 99 {
            self.meet("singleton: the store refuses");
            let denied = StoreError::new(StoreErrorKind::Denied, "no permission");
            let answer = request.unanswered(denied);
            let arrival = Arrival::Answer { keeper, flight, answer };
            return self.queue.push(self.now, What::Singleton(Step::Arrive { process, arrival }));
        }
        let (takes, lost) = match chance {
            0..3 => return,
            3..7 => (self.random.up_to(timeout), true),
            // Arrives at any time, perhaps long after anybody waits for it.
            7..10 => {
                self.meet("singleton: the store's answer is late");
                (self.random.up_to(ttl * 3), false)
            }
            10..20 => (self.random.up_to(timeout), false),
            _ => (self.random.up_to(self.arbitration.delay / 8 + QUICK), false),
        };
        let step = Step::Apply { process, keeper, flight, request, lost };
        self.queue.push(self.now + takes, What::Singleton(step));
    }

    /// A request reaches the store.
    pub(super) fn singleton_store(
        &mut self,
        process: u64,
        keeper: u64,
        flight: u64,
        request: Request,
        lost: bool,
    ) {
        let answer = self.singletons.records.apply(self.now, request);
        let won = matches!(answer, Answer::Acquire(Ok(Acquired::Won { .. })));
        let changed = won || matches!(answer, Answer::Release(Ok(_)));
        let agent = self.singletons.agents.get(&process);
        let reaches = agent.is_some_and(|agent| self.places[agent.place].store);
        if lost || !reaches {
            self.meet("singleton: the store's answer is lost");
        } else {
            let at = self.now + self.random.up_to(self.arbitration.delay / 8 + QUICK);
            let arrival = Arrival::Answer { keeper, flight, answer };
            self.queue.push(at, What::Singleton(Step::Arrive { process, arrival }));
        }
        if changed {
            self.push_change();
        }
    }

    /// The store pushes a change to whoever waits; pushes get lost.
    fn push_change(&mut self) {
        let waits = |agent: &&Agent| {
            self.places[agent.place].store
                && agent.desk.keeper.as_ref().is_some_and(|(_, keeper)| keeper.is_contending())
        };
        let waiting: Vec<u64> =
            self.singletons.agents.values().filter(waits).map(|agent| agent.id).collect();
        for process in waiting {
            if self.random.percent(70) {
                let at = self.now + self.random.up_to(QUICK);
                let arrival = Arrival::Changed;
                self.queue.push(at, What::Singleton(Step::Arrive { process, arrival }));
            }
        }
    }

    pub(super) fn singleton_answered(
        &mut self,
        agent: &mut Agent,
        local: Moment,
        keeper: u64,
        flight: u64,
        answer: Answer,
    ) {
        let own = agent.desk.keepers().find(|(number, _)| *number == keeper);
        if let Some((_, found)) = own {
            found.answer(local, flight, answer);
        }
        if let Some((number, current)) = &agent.desk.keeper
            && *number == keeper
            && current.is_contending()
        {
            match current.trouble().map(StoreError::kind) {
                Some(StoreErrorKind::Denied) => {
                    agent.desk.dismiss(local);
                    agent.manager.refused(local);
                }
                trouble => agent.manager.store(local, trouble.is_none()),
            }
        }
    }
}

/// How long a store takes on a good day, each way.
const QUICK: Duration = Duration::from_millis(5);
