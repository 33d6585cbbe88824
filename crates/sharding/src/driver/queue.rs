//! What waits for a crew: bounded, and in order.
//!
//! The crew takes all that is there at once, so that it and whoever sends seldom meet.

use std::collections::{HashMap, VecDeque};
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, Semaphore, SemaphorePermit};

use super::routes::Item;
use crate::Shard;

pub(super) struct Queue<M> {
    state: Mutex<State<M>>,
    /// Wakes the crew.
    filled: Notify,
    /// Wakes whoever is first in line for room.
    emptied: Notify,
    /// Who waits longest goes first.
    turn: Semaphore,
}

struct State<M> {
    items: Items<M>,
    /// How many of each shard are in it beyond its room.
    beyond: HashMap<Shard, usize>,
    /// The crew sleeps.
    asleep: bool,
    /// How many wait for room; nobody overtakes them.
    waiting: usize,
    closed: bool,
}

pub(super) type Items<M> = VecDeque<(Shard, Item<M>)>;

impl<M> Queue<M> {
    pub(super) fn new() -> Self {
        let (items, beyond) = (VecDeque::new(), HashMap::new());
        Self {
            state: Mutex::new(State { items, beyond, asleep: false, waiting: 0, closed: false }),
            filled: Notify::new(),
            emptied: Notify::new(),
            turn: Semaphore::new(1),
        }
    }

    /// Puts a message in; it comes back if there is no room, or somebody waits for it.
    #[inline]
    pub(super) fn try_put(&self, shard: Shard, item: Item<M>) -> Result<(), Item<M>> {
        let state = self.lock();
        match state.waiting == 0 && state.items.len() < ITEMS && !state.closed {
            true => self.put(state, shard, item),
            false => return Err(item),
        }
        Ok(())
    }

    /// Puts a message in for which nobody may wait here: it has waited longer than everybody in line, or
    /// those behind it are for other shards. So many of each shard may be in it beyond its room; whether
    /// this one is.
    pub(super) fn put_beyond(
        &self,
        shard: Shard,
        item: Item<M>,
        max: usize,
    ) -> Result<bool, Refused<M>> {
        let mut state = self.lock();
        if state.closed {
            return Err(Refused::Closed(item));
        }
        let is_beyond = state.waiting > 0 || state.items.len() >= ITEMS;
        if is_beyond {
            let beyond = state.beyond.entry(shard).or_default();
            if *beyond >= max {
                return Err(Refused::Full(item));
            }
            *beyond += 1;
        }
        self.put(state, shard, item);
        Ok(is_beyond)
    }

    #[inline]
    fn put(&self, mut state: MutexGuard<'_, State<M>>, shard: Shard, item: Item<M>) {
        state.items.push_back((shard, item));
        let asleep = std::mem::take(&mut state.asleep);
        drop(state);
        if asleep {
            self.filled.notify_one();
        }
    }

    /// Waits until it is our turn and there is room, or the crew is gone.
    pub(super) async fn turn(&self) -> Turn<'_, M> {
        self.lock().waiting += 1;
        let place = Place(self);
        // Never closed.
        let turn = self.turn.acquire().await.ok();
        self.room().await;
        Turn { place, _turn: turn }
    }

    /// Waits until there is room, or the crew is gone; without a place in the line.
    pub(super) async fn room(&self) {
        loop {
            let mut emptied = pin!(self.emptied.notified());
            emptied.as_mut().enable(); // Before the look, so that nothing is missed after it.
            if self.has_room_or_closed() {
                return;
            }
            emptied.await;
        }
    }

    pub(super) fn has_room_or_closed(&self) -> bool {
        let state = self.lock();
        state.closed || state.items.len() < ITEMS
    }

    /// Takes all there is, after what was taken before. If there is nothing, the crew may sleep: then
    /// whoever comes next wakes it.
    pub(super) fn take(&self, into: &mut Items<M>, sleeps: bool) -> usize {
        let mut state = self.lock();
        let count = state.items.len();
        if count == 0 {
            state.asleep = sleeps;
            return 0;
        }
        match into.is_empty() {
            true => std::mem::swap(into, &mut state.items),
            false => into.append(&mut state.items),
        }
        state.beyond.clear();
        let was_full = state.waiting > 0 || count >= ITEMS;
        drop(state);
        if was_full {
            self.emptied.notify_waiters();
        }
        count
    }

    /// Waits until there may be something to take.
    pub(super) async fn filled(&self) {
        self.filled.notified().await;
    }

    /// Takes nothing more in.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.emptied.notify_waiters();
    }

    fn lock(&self) -> MutexGuard<'_, State<M>> {
        // What is guarded is never left half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A message that was not put in.
pub(super) enum Refused<M> {
    Full(Item<M>),
    /// The crew is gone.
    Closed(Item<M>),
}

/// A place in the line for room.
struct Place<'a, M>(&'a Queue<M>);

impl<M> Drop for Place<'_, M> {
    fn drop(&mut self) {
        self.0.lock().waiting -= 1;
    }
}

/// The right to put one message in.
pub(super) struct Turn<'a, M> {
    place: Place<'a, M>,
    _turn: Option<SemaphorePermit<'a>>,
}

impl<M> Turn<'_, M> {
    /// It comes back if the crew is gone.
    pub(super) fn put(self, shard: Shard, item: Item<M>) -> Result<(), Item<M>> {
        let queue = self.place.0;
        let state = queue.lock();
        if state.closed {
            return Err(item);
        }
        queue.put(state, shard, item);
        Ok(())
    }
}

/// How many messages wait for a crew before senders do.
const ITEMS: usize = 4096;

#[cfg(test)]
mod tests {
    use tenure_cluster::messaging::Origin;

    use super::*;
    use crate::id::EntityId;

    #[test]
    fn what_a_crew_that_is_gone_is_sent_comes_back() {
        let queue = Queue::<u64>::new();
        let (id, from) = (|| EntityId::new("a"), Origin::default);
        let item = |message| Item { id: id(), from: from(), message, back: None };
        assert!(matches!(queue.put_beyond(Shard(0), item(1), 1), Ok(false)));
        queue.close();
        let refused = queue.put_beyond(Shard(0), item(2), 1);
        assert!(matches!(refused, Err(Refused::Closed(Item { message: 2, .. }))));
        assert_eq!(queue.take(&mut Items::new(), false), 1);
    }
}
