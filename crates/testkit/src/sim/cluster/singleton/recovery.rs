//! When nothing is wrong any more, the singleton is back soon, and stays.

use std::time::Duration;

use super::super::Sim;
use super::agent::Agent;
use super::invariants::{found_by_all, kept_is_sent, slot_is_filled};

impl Sim {
    /// Whether one node hosts the singleton, and every proxy knows which.
    pub fn singleton_is_found(&self) -> bool {
        found_by_all::check(&self.singletons).is_none()
    }

    /// From now on no instance fails, and the store answers whoever reaches it.
    pub fn singleton_stops_failing(&mut self) {
        self.singletons.failing = false;
    }

    /// The node that hosts the singleton.
    pub fn singleton_host(&self) -> Option<usize> {
        let mut agents = self.singletons.agents.values();
        agents.find(|agent| agent.serves()).map(|agent| agent.place)
    }

    /// Which nodes host the singleton under which token; who does not know; or why nobody does.
    pub(in super::super) fn show_singleton(&self) -> String {
        let agents = || self.singletons.agents.values();
        let mut lines: Vec<String> = agents()
            .filter_map(|agent| {
                let instance = agent.instance.as_ref()?;
                let stops = if instance.stopping { ", stops" } else { "" };
                Some(format!("{}, token {}{stops}", self.name(&agent.node), instance.token))
            })
            .collect();
        if lines.is_empty() {
            let why = |agent: &Agent| {
                format!("not {}: {}", self.name(&agent.node), agent.manager.why_not())
            };
            lines = agents().map(why).collect();
        }
        lines.join("\n")
    }

    /// All is well but for the singleton, perhaps: it must be found soon, and again when whoever is
    /// better placed has had time to take it back. Then nothing that was kept is left.
    pub(in super::super) fn singleton_recovers(&mut self) -> Option<Duration> {
        let found = self.run_until(SOON, Self::singleton_is_found);
        if found.is_some() {
            self.run_for(SETTLES);
            self.run_until(SOON, Self::singleton_is_found);
        }
        let missing = found_by_all::check(&self.singletons);
        let missing = missing.map(|why| format!("not after {SOON:?}: {why}"));
        let now = self.now;
        self.invariants.report(now, [(found_by_all::NAME, missing)]);
        let left = self.singletons.agents.keys();
        let left = left.filter_map(|id| self.singletons.invariants.kept_is_sent.left(*id)).next();
        self.invariants.report(now, [(kept_is_sent::NAME, left)]);
        found
    }

    /// Cuts the host from the store and from nothing else: another must host it within a ttl and a
    /// little. Then it comes back.
    pub(in super::super) fn singleton_host_loses_store(&mut self) -> Option<Duration> {
        let settings = self.settings.singleton.as_ref()?;
        let ttl = settings.lease.as_ref()?.ttl;
        // Whoever has to observe sees a renewal when it looks next.
        let within = if settings.store_expires { ttl } else { ttl * 3 / 2 } + A_LITTLE;
        let host = self.singleton_host().filter(|_| self.running().count() > 1)?;
        self.meet("singleton: host cut from the store only");
        self.note(|| format!("n{host} does not reach the store"));
        self.reach_store(host, false);
        let elsewhere = |sim: &Self| sim.singleton_host().is_some_and(|it| it != host);
        let filled = self.run_until(within, elsewhere);
        let now = self.now;
        self.invariants
            .report(now, [(slot_is_filled::NAME, slot_is_filled::check(filled, within))]);
        self.reach_store(host, true);
        self.singleton_recovers();
        filled
    }
}

/// Within this time the singleton is found, also if every node has to wait before it tries again.
const SOON: Duration = Duration::from_secs(90);
/// After this time it is where it belongs.
const SETTLES: Duration = Duration::from_secs(20);
const A_LITTLE: Duration = Duration::from_secs(2);
