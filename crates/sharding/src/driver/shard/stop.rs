//! How a shard stops: those of its entities that are at something finish it, then all stop, then it is
//! written down who is no more. All of that by a deadline.

use std::collections::hash_map::IntoIter;

use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::super::crew::{Common, Ended, StopOrder};
use super::super::due::Due;
use super::super::memory::Memory;
use super::super::routes::Item;
use super::super::run::{Cell, Run, discard};
use super::{ShardState, Slot};
use crate::entity::HostedShard;
use crate::id::EntityId;
use crate::{Entity, telemetry};

pub(super) struct Stopping<E: Entity> {
    order: StopOrder,
    /// What it has not looked at.
    pub(super) rest: Vec<Item<E::Message>>,
    /// Those that are to stop, once those that were at something have finished it.
    stopping: Option<IntoIter<EntityId, Slot<E>>>,
    /// Its time is over.
    expired: bool,
    /// How many were not in time.
    late: usize,
}

impl<E: Entity> Stopping<E> {
    /// Entities that were not told to stop yet.
    pub(super) fn untold(&mut self) -> impl Iterator<Item = Box<Cell<E>>> {
        self.stopping.take().into_iter().flatten().filter_map(|(_, slot)| slot.idle)
    }
}

impl<E: Entity> ShardState<E> {
    /// Stops all entities, by the deadline. How the shard ended, if it has.
    pub(in super::super) fn stop(
        &mut self,
        order: StopOrder,
        items: Vec<Item<E::Message>>,
        common: &mut Common<E>,
    ) -> Option<Ended<E::Message>> {
        if !order.reason.is_graceful() {
            self.running.values().for_each(AbortHandle::abort);
        }
        self.later(order.deadline, Due::Stop, common);
        let mut rest = std::mem::take(&mut self.kept);
        rest.extend(items);
        self.stopping = Some(Stopping { order, rest, stopping: None, expired: false, late: 0 });
        if let Some(memory) = &mut self.memory {
            memory.stop();
        }
        self.advance(common)
    }

    /// It stops, and has less time for that now.
    pub(in super::super) fn hurry(
        &mut self,
        order: StopOrder,
        common: &mut Common<E>,
    ) -> Option<Ended<E::Message>> {
        let stopping = self.stopping.as_mut()?;
        if !order.reason.is_graceful() {
            self.running.values().for_each(AbortHandle::abort);
        }
        stopping.order.deadline = stopping.order.deadline.min(order.deadline);
        stopping.order.reason = order.reason;
        let deadline = stopping.order.deadline;
        self.later(deadline, Due::Stop, common);
        self.advance(common)
    }

    /// The time to stop is over, or some are still to be told to.
    pub(super) fn stop_due(
        &mut self,
        now: Instant,
        common: &mut Common<E>,
    ) -> Option<Ended<E::Message>> {
        let stopping = self.stopping.as_mut()?;
        if now >= stopping.order.deadline && !stopping.expired {
            stopping.expired = true;
            stopping.late += self.running.len();
            self.running.values().for_each(AbortHandle::abort);
        }
        self.advance(common)
    }

    /// Goes on with stopping, as far as it can. How the shard ended, if it has.
    pub(super) fn advance(&mut self, common: &mut Common<E>) -> Option<Ended<E::Message>> {
        let stopping = self.stopping.as_mut()?;
        if stopping.stopping.is_none() {
            if !self.running.is_empty() {
                return None;
            }
            self.begin_to_stop(common);
        }
        if !self.stop_entities(common) || !self.running.is_empty() {
            return None;
        }
        let Stopping { order, expired, .. } = self.stopping.as_ref()?;
        let may_write = order.reason.is_graceful() && !expired;
        if may_write && self.memory.as_ref().is_some_and(Memory::removes) {
            return None; // The next host must not find those who are no more.
        }
        let Stopping { rest, late, .. } = self.stopping.take()?;
        common.live -= self.live;
        if late > 0 {
            let kind = &common.shared.kind;
            telemetry::failed(kind);
            tracing::error!(%kind, shard = %self.hosted.shard, late, "entities did not stop in time, and were dropped");
        }
        let HostedShard { shard, token, .. } = *self.hosted;
        Some(Ended { shard, token, leftovers: rest })
    }

    /// All are at nothing. What waits for them goes where the shard goes.
    fn begin_to_stop(&mut self, common: &mut Common<E>) {
        let passivated = |(id, slot): (&EntityId, &Slot<E>)| {
            let wants = slot.idle.as_ref().is_some_and(|cell| cell.hosted.is_passivated());
            (wants && !slot.has_mail()).then(|| id.clone())
        };
        let gone: Vec<EntityId> = match &self.memory {
            Some(_) => self.entities.iter().filter_map(passivated).collect(),
            None => Vec::new(),
        };
        if let Some(memory) = &mut self.memory {
            let place = (self.hosted.shard, self.hosted.token);
            for id in gone {
                memory.note(id.as_str(), false, &common.shared.kind, place, &mut common.chores);
            }
        }
        let Some(stopping) = &mut self.stopping else { return };
        let mut leftovers = Vec::new();
        for slot in self.entities.values_mut() {
            leftovers.extend(slot.mailbox.take().into_iter().flat_map(|mailbox| *mailbox));
        }
        leftovers.append(&mut stopping.rest);
        stopping.rest = leftovers;
        stopping.stopping = Some(std::mem::take(&mut self.entities).into_iter());
    }

    /// Tells entities to stop until others must have their turn; whether all were told.
    fn stop_entities(&mut self, common: &mut Common<E>) -> bool {
        loop {
            let Some(stopping) = &mut self.stopping else { return true };
            let (reason, expired) = (&stopping.order.reason, stopping.expired);
            let Some(left) = &mut stopping.stopping else { return true };
            // Nothing of it may go on, now that others may host it.
            if expired && !reason.is_graceful() {
                for cell in left.filter_map(|(_, slot)| slot.idle) {
                    stopping.late += 1;
                    discard(cell);
                }
                return true;
            }
            if left.len() > 0 && common.turn.is_over() {
                self.later(Instant::now(), Due::Stop, common);
                return false;
            }
            let Some((id, slot)) = left.next() else { return true };
            let Some(cell) = slot.idle else { continue };
            if let Err(run) = Run::stop(id.clone(), cell, reason.clone()).try_end() {
                self.spawn(run, common);
                if expired && let Some(stopping) = &mut self.stopping {
                    stopping.late += 1;
                    self.running.get(&id).inspect(|running| running.abort());
                }
            }
        }
    }
}
