//! What is counted where messages pass, so cheaply that it does not slow them: shards add up after each
//! batch, and [`Control`](super::control::Control) tells the sums now and then.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use super::handle::Shared;

/// Of one kind on this node.
#[derive(Default)]
pub(super) struct Counts {
    entities: AtomicUsize,
    received: AtomicU64,
    /// How many of them the metrics were told of.
    told: AtomicU64,
}

impl Counts {
    pub(super) fn entities(&self) -> usize {
        self.entities.load(Relaxed)
    }

    /// How many messages have come.
    pub(super) fn received(&self) -> u64 {
        self.received.load(Relaxed)
    }

    /// How many messages came since this was last asked.
    pub(super) fn news(&self) -> u64 {
        let received = self.received();
        received - self.told.swap(received, Relaxed)
    }
}

/// What one shard has added to the sums; its entities count until it is dropped.
pub(super) struct Tally<M> {
    shared: Arc<Shared<M>>,
    entities: usize,
}

impl<M> Tally<M> {
    pub(super) fn new(shared: Arc<Shared<M>>) -> Self {
        Self { shared, entities: 0 }
    }

    pub(super) fn received(&self, count: usize) {
        self.shared.counts.received.fetch_add(count as u64, Relaxed);
    }

    pub(super) fn entities(&mut self, count: usize) {
        let before = std::mem::replace(&mut self.entities, count);
        if count != before {
            // It wraps: this may take away.
            self.shared.counts.entities.fetch_add(count.wrapping_sub(before), Relaxed);
        }
    }
}

impl<M> Drop for Tally<M> {
    fn drop(&mut self) {
        self.entities(0);
    }
}
