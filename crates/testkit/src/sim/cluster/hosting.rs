//! What a simulation needs to know that runs something on top of the cluster.

use std::time::Duration;

use tenure_cluster::{Membership, Node};
use tenure_lease::Moment;

use super::Sim;
use crate::sim::clock::Clock;

/// A process, as seen from what runs in it.
pub(in crate::sim) struct Running<'a> {
    pub(in crate::sim) id: u64,
    pub(in crate::sim) node: &'a Node,
    pub(in crate::sim) membership: &'a Membership,
    pub(in crate::sim) clock: &'a Clock,
    pub(in crate::sim) handing_over: bool,
}

impl Sim {
    /// When the next thing happens.
    pub(in crate::sim) fn next_at(&self) -> Option<Moment> {
        self.queue.next_at()
    }

    pub(in crate::sim) fn now(&self) -> Moment {
        self.now
    }

    /// Nothing happens until then.
    pub(in crate::sim) fn advance_to(&mut self, now: Moment) {
        self.now = self.now.max(now);
    }

    pub(in crate::sim) fn process_at(&self, place: usize) -> Option<Running<'_>> {
        let process = self.places[place].processes.first()?;
        Some(Running {
            id: process.id,
            node: &process.node,
            membership: &process.membership,
            clock: &process.clock,
            handing_over: process.handing_over,
        })
    }

    /// What a process hosted is somebody else's now.
    pub(in crate::sim) fn handed_over(&mut self, place: usize, id: u64) {
        let now = self.now;
        let processes = &mut self.places[place].processes;
        let Some(which) = processes.iter().position(|process| process.id == id) else { return };
        let process = &mut processes[which];
        let local = process.clock.read(now);
        process.handing_over = false;
        process.membership.handed_over(local);
        self.settle(place, which);
    }

    /// Processes whose membership has ended since the last call.
    pub(in crate::sim) fn take_ended(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.ended)
    }

    pub(in crate::sim) fn reaches_store(&self, place: usize) -> bool {
        self.places[place].store
    }

    /// How long each copy of a datagram takes.
    pub(in crate::sim) fn journeys(&mut self, from: usize, to: usize) -> [Option<Duration>; 2] {
        self.network.journeys(from, to, &mut self.random)
    }

    /// How long something takes that is sent again until it arrives, unless the link is cut.
    pub(in crate::sim) fn reliable_journey(&mut self, from: usize, to: usize) -> Option<Duration> {
        self.network.reliable_journey(from, to, &mut self.random)
    }

    pub(in crate::sim) fn places(&self) -> usize {
        self.places.len()
    }

    pub(in crate::sim) fn place_of(&self, node: &Node) -> Option<usize> {
        self.by_address.get(&node.address).copied()
    }
}
