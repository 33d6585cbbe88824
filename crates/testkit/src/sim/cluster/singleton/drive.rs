//! Lets a process do what it can do now: events into its manager, keeper and proxy, effects out.

use std::time::Duration;

use tenure_cluster::{Incarnation, Node};
use tenure_lease::Moment;
use tenure_lease::backend::{Answer, Request};
use tenure_singleton::manager::{Effect, Manager, StopReason};
use tenure_singleton::{Finder, Word};

use super::super::Sim;
use super::super::queue::What;
use super::agent::{Agent, Client, Desk, Membership, Pauses};
use super::invariants::time_passes;
use super::mail::Mail;
use crate::sim::clock::Clock;

/// What is to happen about the singleton.
pub(in super::super) enum Step {
    Wake { process: u64, at: Moment },
    Arrive { process: u64, arrival: Arrival },
    Effect { process: u64, run: u64 },
    Apply { process: u64, keeper: u64, flight: u64, request: Request, lost: bool },
    Mail { from: (u64, Node), place: usize, to: Incarnation, connection: u64, mail: Mail },
}

/// What the world brings to a process.
#[allow(clippy::large_enum_variant)] // Most of them are answers.
pub(in super::super) enum Arrival {
    Answer { keeper: u64, flight: u64, answer: Answer },
    Changed,
    InstanceEnds(u64),
    Mail(Node, u64, Mail),
}

impl Sim {
    /// A process starts.
    pub(in super::super) fn singleton_starts(&mut self, id: u64, place: usize, clock: &Clock) {
        let Some(settings) = &self.settings.singleton else { return };
        let process = self.places[place].processes.iter().find(|process| process.id == id);
        let Some(node) = process.map(|process| process.node.clone()) else { return };
        let mut clock = clock.clone();
        let local = clock.read(self.now);
        let manager = settings.manager.clone();
        let guarded = settings.lease.is_some();
        let agent = Agent {
            id,
            place,
            manager: Manager::new(node.clone(), "cron", guarded, manager.clone(), local),
            node,
            clock,
            pauses: Pauses::default(),
            desk: Desk::default(),
            finder: Finder::new(manager),
            client: Client { next: 0, at: local, retry_at: local, ask_at: local },
            instance: None,
            failed: false,
            shown: None,
            hosting: None,
            membership: Membership::In,
            said: Membership::In,
            over: false,
            inbox: Default::default(),
            wake_at: Moment::NEVER,
        };
        self.singletons.agents.insert(id, agent);
        self.poke(id);
    }

    /// What a process believes may have changed.
    pub(in super::super) fn singleton_sees(&mut self, place: usize, which: usize) {
        if self.settings.singleton.is_none() {
            return;
        }
        let process = &self.places[place].processes[which];
        let (id, digest) = (process.id, process.membership.view().map(|view| view.digest()));
        if self.singletons.agents.get(&id).is_some_and(|agent| agent.shown != digest) {
            self.poke(id);
        }
    }

    /// A process is to hand over; whether there is anything to wait for.
    pub(in super::super) fn singleton_leaves(&mut self, id: u64) -> bool {
        let Some(agent) = self.singletons.agents.get_mut(&id) else { return false };
        agent.membership = Membership::Leaves;
        self.poke(id);
        true
    }

    /// A process is out of the cluster, and is to be started anew or not; whether it has to stop first.
    pub(in super::super) fn singleton_out(&mut self, id: u64, again: bool) -> bool {
        let Some(agent) = self.singletons.agents.get_mut(&id) else { return false };
        if agent.over {
            self.singletons.agents.remove(&id);
            return false;
        }
        agent.membership = Membership::Out { again };
        self.poke(id);
        true
    }

    /// Every process at a place ends without a word.
    pub(in super::super) fn singleton_crashes(&mut self, place: usize) {
        let there = self.singletons.agents.values().filter(|agent| agent.place == place);
        let there: Vec<u64> = there.map(|agent| agent.id).collect();
        for id in there {
            if let Some(agent) = self.singletons.agents.remove(&id)
                && let Some(instance) = agent.instance
            {
                self.meet("singleton: host crashed");
                self.singletons.observer.ended(self.now, instance.run);
            }
        }
    }

    /// Every process at a place stands still.
    pub(in super::super) fn singleton_pauses(&mut self, place: usize, clock_too: bool) {
        let now = self.now;
        for agent in self.singletons.agents.values_mut().filter(|agent| agent.place == place) {
            agent.pauses.begin(now);
            agent.clock.freeze(now, clock_too);
        }
    }

    /// They go on. Whatever was about to be done is done first, before anybody looks at a clock.
    pub(in super::super) fn singleton_resumes(&mut self, place: usize) {
        let Some(settings) = &self.settings.singleton else { return };
        let ttl = settings.lease.as_ref().map_or(Duration::ZERO, |lease| lease.ttl);
        let now = self.now;
        let (mut woken, mut beyond) = (Vec::new(), false);
        for agent in self.singletons.agents.values_mut().filter(|agent| agent.place == place) {
            if agent.pauses.since.is_some() {
                agent.pauses.end(now, ttl);
                let lease = settings.lease.as_ref();
                beyond |= agent.instance.is_some()
                    && lease.is_some_and(|lease| agent.pauses.beyond(now, lease));
                agent.clock.freeze(now, false);
                agent.wake_at = Moment::NEVER;
                woken.push((agent.id, agent.instance.as_ref().map(|it| it.run)));
            }
        }
        if beyond {
            self.meet("singleton: host stood still beyond the margin");
        }
        for (id, run) in woken {
            if let Some(run) = run {
                self.singleton_effect(id, run);
            }
            self.poke(id);
        }
    }

    /// Looks after a process as soon as what happens now has happened.
    fn poke(&mut self, id: u64) {
        let now = self.now;
        if let Some(agent) = self.singletons.agents.get_mut(&id)
            && agent.pauses.since.is_none()
            && agent.wake_at > now
        {
            agent.wake_at = now;
            self.queue.push(now, What::Singleton(Step::Wake { process: id, at: now }));
        }
    }

    pub(in super::super) fn singleton_step(&mut self, step: Step) {
        match step {
            Step::Wake { process, at } => {
                let agent = self.singletons.agents.get_mut(&process);
                if let Some(agent) = agent.filter(|agent| agent.wake_at == at) {
                    agent.wake_at = Moment::NEVER;
                    self.attend(process);
                }
            }
            Step::Arrive { process, arrival } => self.singleton_arrives(process, arrival),
            Step::Effect { process, run } => {
                let paused = |agent: &Agent| agent.pauses.since.is_some();
                if self.singletons.agents.get(&process).is_some_and(|agent| !paused(agent)) {
                    self.singleton_effect(process, run);
                }
                self.next_singleton_effect(process, run);
            }
            Step::Apply { process, keeper, flight, request, lost } => {
                self.singleton_store(process, keeper, flight, request, lost);
            }
            Step::Mail { from, place, to, connection, mail } => {
                self.singleton_mail(from, place, to, connection, mail);
            }
        }
    }

    pub(super) fn singleton_arrives(&mut self, process: u64, arrival: Arrival) {
        if let Some(agent) = self.singletons.agents.get_mut(&process) {
            agent.inbox.push_back(arrival);
            self.attend(process);
        }
    }

    /// Lets a process do whatever it can do now.
    fn attend(&mut self, id: u64) {
        let Some(mut agent) = self.singletons.agents.remove(&id) else { return };
        if agent.pauses.since.is_none() {
            while self.advance(&mut agent) {}
            self.set_singleton_timer(&mut agent);
        }
        let (over, membership, place) = (agent.over, agent.membership, agent.place);
        self.singletons.agents.insert(id, agent);
        if !over {
            return;
        }
        match membership {
            Membership::Out { again } => {
                self.singletons.agents.remove(&id);
                if again {
                    self.restart_soon(place);
                }
            }
            Membership::In => {}
            Membership::Leaves => {
                let processes = &mut self.places[place].processes;
                if let Some(which) = processes.iter().position(|process| process.id == id) {
                    let local = processes[which].clock.read(self.now);
                    processes[which].membership.handed_over(local);
                    self.settle(place, which);
                }
            }
        }
    }

    /// One step; whether there was any.
    fn advance(&mut self, agent: &mut Agent) -> bool {
        let local = agent.clock.read(self.now);
        if self.tend_singleton_lease(agent, local) {
            return true;
        }
        if agent.instance.as_ref().is_some_and(|instance| local >= instance.drop_at) {
            self.meet("singleton: dropped at its deadline");
            self.instance_ended(agent, local);
            return true;
        }
        if let Some(effect) = agent.manager.next_effect() {
            self.carry_out_singleton(agent, local, effect);
            return true;
        }
        // The proxy on the host's own node hears of it like any other.
        if agent.hosting != agent.manager.hosting() {
            agent.hosting = agent.manager.hosting();
            let word = Word::State { hosting: agent.hosting, able: true };
            agent.finder.heard(&agent.node, &word);
            return true;
        }
        if self.show_view(agent, local) || self.tend_client(agent, local) {
            return true;
        }
        match agent.inbox.pop_front() {
            None if agent.manager.next_wake() <= local => {
                agent.manager.tick(local);
                let found = time_passes::check(agent, local);
                let stuck = found.is_some();
                self.invariants.report(self.now, [(time_passes::NAME, found)]);
                return !stuck;
            }
            None => return false,
            Some(Arrival::InstanceEnds(run)) => {
                if agent.instance.as_ref().is_some_and(|instance| instance.run == run) {
                    self.instance_ended(agent, local);
                }
            }
            Some(Arrival::Changed) => {
                if let Some((_, keeper)) = &mut agent.desk.keeper {
                    keeper.woken(local);
                }
            }
            Some(Arrival::Answer { keeper, flight, answer }) => {
                self.singleton_answered(agent, local, keeper, flight, answer);
            }
            Some(Arrival::Mail(from, process, mail)) => {
                self.read_mail(agent, local, &from, process, mail);
            }
        }
        true
    }

    /// Shows the manager and the proxy what this process believes, if that is new.
    fn show_view(&mut self, agent: &mut Agent, local: Moment) -> bool {
        let process = self.places[agent.place].processes.iter().find(|one| one.id == agent.id);
        let view = process.and_then(|process| process.membership.view());
        let digest = view.map(|view| view.digest());
        if let Some(view) = view.filter(|_| agent.shown != digest) {
            agent.shown = digest;
            agent.manager.view(local, view);
            agent.finder.view(view);
            return true;
        }
        if agent.said == agent.membership {
            return false;
        }
        agent.said = agent.membership;
        match agent.membership {
            Membership::In => {}
            Membership::Leaves => agent.manager.leave(local),
            Membership::Out { .. } => agent.manager.out(local),
        }
        true
    }

    fn carry_out_singleton(&mut self, agent: &mut Agent, local: Moment, effect: Effect) {
        let node = agent.node.clone();
        if !matches!(effect, Effect::Tell(..) | Effect::Ask(..)) {
            self.note(|| format!("{node} singleton: {effect:?}"));
        }
        match effect {
            Effect::Stand(stance) => self.stand(agent, local, stance),
            Effect::Look => {
                if let Some((_, keeper)) = &mut agent.desk.keeper {
                    keeper.woken(local);
                }
            }
            Effect::Start(token) => self.start_instance(agent, token),
            Effect::Stop(reason) => {
                self.meet(match &reason {
                    StopReason::LeaseLost(_)
                        if agent.instance.as_ref().is_some_and(|it| it.stopping) =>
                    {
                        "singleton: lease lost while it stops"
                    }
                    StopReason::LeaseLost(_) => "singleton: lease lost",
                    StopReason::HandOver(_) => "singleton: handed over to a better placed node",
                    StopReason::Leaving => "singleton: leaving host stops",
                    _ => "singleton: downed host stops",
                });
                self.stop_instance(agent, local, &reason);
            }
            Effect::Release => self.release_singleton(agent, local),
            // Everybody here has a manager.
            Effect::Tell(to, word) | Effect::Ask(to, word) => {
                self.send_mail(agent, &to, Mail::Word(word));
            }
            Effect::Over => agent.over = true,
        }
    }

    fn set_singleton_timer(&mut self, agent: &mut Agent) {
        let local = agent.next_wake();
        if local == Moment::NEVER {
            return;
        }
        // Whoever wants to be woken in the past is found out, and waits.
        let at = agent.clock.when(self.now, local).max(self.now + INSTANT);
        if at < agent.wake_at {
            agent.wake_at = at;
            self.queue.push(at, What::Singleton(Step::Wake { process: agent.id, at }));
        }
    }
}

/// The shortest time.
const INSTANT: Duration = Duration::from_nanos(1);
