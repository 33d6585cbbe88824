//! The worst moment for a coordinator to die: a stop is confirmed, the shard is given to another
//! region, and nobody else ever hears from either of the two.
//!
//! Whether the Allocate still reaches its region, which is cut off then, is left to chance. If it
//! does, a shard is active that only the roster hints at.

use tenure_cluster::Node;
use tenure_sharding::Message;

use super::World;
use super::queue::What;

/// A trap for a coordinator.
#[derive(Debug, Default)]
pub(super) struct Trap {
    is_set: bool,
    /// The coordinator that has just heard of a stop.
    hears: Option<u64>,
    /// Where it sent an Allocate since.
    target: Option<Node>,
    /// Who was caught, and not yet asked for.
    caught: Option<usize>,
}

impl World {
    /// Lets the next coordinator die that gives away a shard whose stop was confirmed.
    pub fn set_trap(&mut self) {
        self.trap.is_set = true;
    }

    pub(super) fn clear_trap(&mut self) {
        self.trap = Trap::default();
    }

    /// Where a coordinator was caught since the last call.
    pub fn take_caught(&mut self) -> Option<usize> {
        self.trap.caught.take()
    }

    /// Something is about to reach a process.
    pub(super) fn watch_trap(&mut self, id: u64, what: &What) {
        let is_stop = matches!(what, What::Message { message: Message::Stopped(_), .. });
        self.trap.hears = (self.trap.is_set && is_stop).then_some(id);
        self.trap.target = None;
    }

    /// A process sends something; whether that gets lost.
    pub(super) fn is_trapped(&mut self, id: u64, to: &Node, message: &Message) -> bool {
        let is_it = self.trap.hears == Some(id) && matches!(message, Message::Allocate(_));
        let is_other = self.shells.get(&id).is_some_and(|shell| shell.node != *to);
        if !is_it || !is_other {
            return false;
        }
        self.trap.target = Some(to.clone());
        self.random.percent(50)
    }

    /// The process has done what there was to do.
    pub(super) fn spring_trap(&mut self) {
        let (Some(id), Some(target)) = (self.trap.hears.take(), self.trap.target.take()) else {
            return;
        };
        let place = self.shells.get(&id).map(|shell| shell.place);
        let (Some(place), Some(target)) = (place, self.sim.place_of(&target)) else { return };
        self.trap = Trap { caught: Some(place), ..Trap::default() };
        self.meet("coordinator dies between a stop and an allocation");
        let others: Vec<usize> = (0..self.sim.places()).filter(|it| *it != target).collect();
        self.sim.partition(&[target], &others);
        self.crash(place);
    }
}
