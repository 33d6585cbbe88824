//! What runs, and what it does.

use std::time::Duration;

use tenure_lease::{Moment, Token};
use tenure_singleton::manager::StopReason;

use super::super::Sim;
use super::super::queue::What;
use super::agent::{Agent, Instance};
use super::drive::{Arrival, Step};
use super::invariants::{no_stale_effect, one_at_a_time};

impl Sim {
    pub(super) fn start_instance(&mut self, agent: &mut Agent, token: Token) {
        let Some(settings) = &self.settings.singleton else { return };
        let (starts, lease) = (settings.takes.0, settings.lease.clone());
        let others: Vec<(u64, u64)> = self.singletons.observer.active().collect();
        let impaired = |process: u64, own: &Agent| {
            let agent = match process == own.id {
                true => Some(own),
                false => self.singletons.agents.get(&process),
            };
            let lease = lease.as_ref();
            agent.is_some_and(|it| lease.is_some_and(|lease| it.pauses.beyond(self.now, lease)))
        };
        let excused = impaired(agent.id, agent);
        let overlapped: Vec<u64> =
            others.iter().map(|(process, _)| *process).filter(|p| !impaired(*p, agent)).collect();
        if overlapped.len() < others.len() || excused && !others.is_empty() {
            self.meet("singleton: overlap of one that stood still");
        }
        let downed = !overlapped.is_empty() && self.downed_wrongly();
        if downed {
            self.meet("singleton: overlap of one that was declared down");
        }
        let found = match excused || downed {
            true => None,
            false => one_at_a_time::check(agent, token, &overlapped),
        };
        self.invariants.report(self.now, [(one_at_a_time::NAME, found)]);
        let again = self.singletons.observer.highest() == Some(token);
        self.meet(match again {
            true => "singleton: started again under the same token",
            false => "singleton: started",
        });
        let cluster = |process: u64| {
            let processes = self.places.iter().flat_map(|place| &place.processes);
            processes.into_iter().find(|it| it.id == process).and_then(|it| it.cluster)
        };
        let other = others.iter().any(|(process, _)| cluster(*process) != cluster(agent.id));
        self.singletons.observer.seen.in_other_cluster += u64::from(other);
        let run = self.singletons.observer.started(self.now, agent.id, token);
        agent.failed = false;
        agent.instance = Some(Instance { run, token, stopping: false, drop_at: Moment::NEVER });
        self.record_effect(agent.id, run, token); // Raises the fence.
        self.next_singleton_effect(agent.id, run);
        if let Some(lives) = self.fate(agent.place, starts) {
            self.instance_ends_in(agent.id, run, lives);
        }
    }

    /// When an instance fails by itself, if it does.
    fn fate(&mut self, place: usize, starts: Duration) -> Option<Duration> {
        if !self.singletons.failing {
            return None;
        }
        let now = self.now;
        let sick = self.places[place].sick_until;
        if sick <= now && self.random.percent(8) {
            self.places[place].sick_until = now + self.random.up_to(Duration::from_secs(30));
        }
        if self.places[place].sick_until > now {
            self.meet("singleton: does not start");
            return Some(self.random.up_to(starts));
        }
        self.random.percent(15).then(|| {
            self.meet("singleton: died");
            self.random.up_to(Duration::from_secs(20))
        })
    }

    /// True time, since a process's clock is off by no more than matters here.
    fn instance_ends_in(&mut self, process: u64, run: u64, takes: Duration) {
        let arrival = Arrival::InstanceEnds(run);
        self.queue.push(self.now + takes, What::Singleton(Step::Arrive { process, arrival }));
    }

    pub(super) fn stop_instance(&mut self, agent: &mut Agent, local: Moment, reason: &StopReason) {
        let Some(settings) = &self.settings.singleton else { return };
        let Some(instance) = &mut agent.instance else { return };
        let deadline = match reason {
            StopReason::LeaseLost(_) => agent.desk.kill,
            _ => local + settings.manager.stop_within,
        };
        instance.drop_at = instance.drop_at.min(deadline);
        if std::mem::replace(&mut instance.stopping, true) {
            return;
        }
        let (run, most) = (instance.run, settings.takes.1);
        let takes = if self.random.percent(50) { most } else { self.random.up_to(most) };
        self.instance_ends_in(agent.id, run, takes);
    }

    pub(super) fn instance_ended(&mut self, agent: &mut Agent, local: Moment) {
        let Some(instance) = agent.instance.take() else { return };
        self.note(|| format!("{} singleton: has ended", agent.node));
        self.singletons.observer.ended(self.now, instance.run);
        agent.failed = !instance.stopping;
        agent.manager.ended(local);
    }

    /// What runs touches what it guards.
    pub(super) fn singleton_effect(&mut self, process: u64, run: u64) {
        let agent = self.singletons.agents.get(&process);
        let instance = agent.and_then(|agent| agent.instance.as_ref());
        if let Some(token) = instance.filter(|it| it.run == run).map(|it| it.token) {
            self.record_effect(process, run, token);
        }
    }

    fn record_effect(&mut self, process: u64, run: u64, token: Token) {
        let fenced = self.settings.singleton.as_ref().is_some_and(|it| it.lease.is_some());
        let (accepted, newer) = self.singletons.observer.effect(run, token, fenced);
        if !accepted {
            self.meet("singleton: stale effect refused");
        }
        if fenced {
            let found = no_stale_effect::check(process, token, newer.filter(|_| accepted));
            self.invariants.report(self.now, [(no_stale_effect::NAME, found)]);
        }
    }

    pub(super) fn next_singleton_effect(&mut self, process: u64, run: u64) {
        if self.singletons.observer.is_active(run) {
            let at = self.now + self.random.up_to(EFFECTS);
            self.queue.push(at, What::Singleton(Step::Effect { process, run }));
        }
    }

    /// Without a lease: whether somebody who still runs was declared down; then two are to be expected.
    fn downed_wrongly(&self) -> bool {
        let guarded = self.settings.singleton.as_ref().is_some_and(|it| it.lease.is_some());
        let downed = |agent: &super::Agent| self.truth.of(&agent.node).downed;
        !guarded && self.singletons.agents.values().any(downed)
    }
}

/// How often something is done, at least.
const EFFECTS: Duration = Duration::from_secs(2);
