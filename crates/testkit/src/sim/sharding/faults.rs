//! What can go wrong, one method each; besides what the cluster beneath has.

use std::collections::BTreeSet;
use std::time::Duration;

use super::World;
use super::world::STORE;

impl World {
    /// Ends the processes of a node, without a word.
    pub fn crash(&mut self, place: usize) {
        self.sim.crash(place);
        let gone: Vec<u64> = self
            .shells
            .iter()
            .filter(|(_, shell)| shell.place == place)
            .map(|(id, _)| *id)
            .collect();
        for id in gone {
            self.shells.remove(&id);
            self.invariants.gone(id);
        }
    }

    /// Ends a node's processes, if any, and starts a new one at the same address.
    pub fn restart(&mut self, place: usize) {
        self.crash(place);
        self.start(place);
    }

    /// A node's processes stand still; their clocks run on, unless they are to stand still too.
    pub fn pause(&mut self, place: usize, clock_too: bool) {
        let now = self.sim.now();
        self.sim.pause(place, clock_too);
        for (id, shell) in self.shells.iter_mut().filter(|(_, shell)| shell.place == place) {
            shell.paused = true;
            shell.lease_impaired = true;
            shell.clock.freeze(now, clock_too);
            self.invariants.impaired(*id);
        }
    }

    /// They go on, with what has arrived meanwhile.
    pub fn resume(&mut self, place: usize) {
        let now = self.sim.now();
        let paused: Vec<u64> = self
            .shells
            .iter_mut()
            .filter(|(_, shell)| shell.place == place && shell.paused)
            .map(|(id, shell)| {
                shell.paused = false;
                shell.wake_at = tenure_lease::Moment::NEVER;
                shell.clock.freeze(now, false);
                shell.resumed_at = shell.clock.read(now);
                *id
            })
            .collect();
        // Sometimes what has arrived is looked at before timers fire: no core may rely on them.
        let timers_first = self.random.percent(50);
        for id in paused {
            if timers_first {
                self.attend(id);
            }
            let inbox = self.shells.get_mut(&id).map(|shell| std::mem::take(&mut shell.inbox));
            for what in inbox.into_iter().flatten() {
                self.arrive(id, what);
            }
            self.attend(id);
        }
        self.sim.resume(place);
        self.sync(place);
    }

    /// A node leaves.
    pub fn leave(&mut self, place: usize) {
        self.sim.leave(place);
        self.sync(place);
    }

    /// An operator at the coordinator's node declares another node down, which does not hear of
    /// it: it is cut off from everybody but the store.
    pub fn remove(&mut self, by: usize, place: usize) {
        let others: Vec<usize> = (0..self.sim.places()).filter(|it| *it != place).collect();
        self.sim.partition(&[place], &others);
        self.sim.down(by, place);
        self.sync(by);
    }

    /// A shard of this node ends by itself, if it has any; whether it has.
    pub fn end_shard(&mut self, place: usize) -> bool {
        let now = self.sim.now();
        let Some(id) = self.sim.process_at(place).map(|process| process.id) else { return false };
        let Some(shell) = self.shells.get_mut(&id).filter(|shell| !shell.paused) else {
            return false;
        };
        let active: Vec<_> =
            shell.entities.iter().map(|(it, entity)| (*it, entity.token)).collect();
        if active.is_empty() {
            return false;
        }
        let local = shell.clock.read(now);
        let (shard, token) = *self.random.pick(&active);
        self.shard_stopped(id, shard, token, local);
        self.attend(id);
        true
    }

    /// How long the store takes for a request, at most, each way.
    pub fn slow_store(&mut self, delay: Duration) {
        self.store_delay = delay.max(STORE);
        self.sim.slow_store(delay);
    }

    /// How many of a hundred requests to the store go wrong.
    pub fn trouble_store(&mut self, percent: u64) {
        self.store_trouble = percent;
    }

    /// Mends everything, except that who stands still goes on doing so.
    pub fn heal(&mut self) {
        self.sim.heal();
        self.slow_store(Duration::ZERO);
        self.trouble_store(0);
        self.clear_trap();
    }

    /// An operator declares those down whose processes are gone, at every node.
    pub fn down_the_dead(&mut self) {
        let running: Vec<usize> = self.sim.running().collect();
        for by in &running {
            for place in 0..self.sim.places() {
                self.sim.down_dead(*by, place);
            }
        }
        for place in running {
            self.sync(place);
        }
    }

    /// An operator at this node declares everybody down whom it calls unreachable.
    pub fn down_unreachable(&mut self, by: usize) {
        self.sim.down_unreachable(by);
        self.sync(by);
    }

    /// Where two sides of a split have survived, an operator restarts whoever is not on the largest,
    /// or on the first of those that are equal: neither of them knows of the other any more.
    pub fn restart_smaller_sides(&mut self) {
        let running: Vec<usize> = self.sim.running().collect();
        let size = |place: &usize| self.sim.view(*place).map_or(0, |it| it.members().len());
        // Of equal ones `max_by_key` takes the last.
        let Some(largest) = running.iter().rev().max_by_key(|place| size(place)) else { return };
        let Some(view) = self.sim.view(*largest) else { return };
        let is_elsewhere = |place: &usize| {
            let process = self.sim.process_at(*place);
            self.sim.view(*place).is_some()
                && process.is_some_and(|process| view.member(process.node).is_none())
        };
        let elsewhere: Vec<usize> = running.iter().copied().filter(is_elsewhere).collect();
        for place in elsewhere {
            self.meet("two sides survived");
            self.restart(place);
        }
    }

    /// The places whose coordinators believe that they are active.
    pub fn coordinators(&mut self) -> BTreeSet<usize> {
        let now = self.sim.now();
        self.shells
            .values_mut()
            .filter_map(|shell| {
                let local = shell.clock.read(now);
                shell.coordinator.is_active(local).then_some(shell.place)
            })
            .collect()
    }

    /// Whether some coordinator waits for shards to stop or to start.
    pub fn has_hand_offs(&self) -> bool {
        self.shells.values().any(|shell| {
            let homes = shell.coordinator.homes().count();
            shell.coordinator.is_recovered() && homes < self.settings.shards as usize
        })
    }
}
