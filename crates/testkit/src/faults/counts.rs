//! What was asked of a store, how often and when; and waiting until it was.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use tenure_lease::Moment;

/// A kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// [`Backend::acquire`](tenure_lease::backend::Backend::acquire).
    Acquire,
    /// [`Backend::renew`](tenure_lease::backend::Backend::renew).
    Renew,
    /// [`Backend::release`](tenure_lease::backend::Backend::release).
    Release,
    /// [`Backend::read`](tenure_lease::backend::Backend::read).
    Read,
}

impl Operation {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Acquire, Self::Renew, Self::Release, Self::Read];

    pub(super) const fn index(self) -> usize {
        self as usize
    }
}

/// Counts requests by their kind, and wake-ups.
#[derive(Default)]
pub struct Counts {
    totals: Mutex<Totals>,
    changed: Notify,
}

impl std::fmt::Debug for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Counts").finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Totals {
    sent: [u64; 4],
    applied: [u64; 4],
    sent_at: [Option<Moment>; 4],
    records_read: u64,
    wakes: u64,
}

impl Counts {
    /// How many requests of this kind were sent, whatever became of them.
    pub fn sent(&self, operation: Operation) -> u64 {
        self.totals().sent[operation.index()]
    }

    /// How many requests of any kind were sent.
    pub fn sent_in_all(&self) -> u64 {
        self.totals().sent.iter().sum()
    }

    /// How many requests of this kind the store was really asked and has answered.
    pub fn applied(&self, operation: Operation) -> u64 {
        self.totals().applied[operation.index()]
    }

    /// How many requests were writes, or attempts to write: all but reads.
    pub fn writes(&self) -> u64 {
        let totals = self.totals();
        Operation::ALL
            .iter()
            .zip(totals.sent)
            .filter(|(op, _)| **op != Operation::Read)
            .fold(0, |sum, (_, sent)| sum + sent)
    }

    /// How many records all reads together have asked for.
    pub fn records_read(&self) -> u64 {
        self.totals().records_read
    }

    /// How many wake-ups came through.
    pub fn wakes(&self) -> u64 {
        self.totals().wakes
    }

    /// When the last request of this kind came by. Its sender read the clock before that.
    pub fn sent_at(&self, operation: Operation) -> Option<Moment> {
        self.totals().sent_at[operation.index()]
    }

    /// Waits until the store has answered this many requests of this kind.
    pub async fn reached(&self, operation: Operation, applied: u64) {
        self.until(|totals| totals.applied[operation.index()] >= applied).await;
    }

    /// Waits until this many requests of this kind were sent.
    pub async fn reached_sent(&self, operation: Operation, sent: u64) {
        self.until(|totals| totals.sent[operation.index()] >= sent).await;
    }

    /// Waits until this many wake-ups came through.
    pub async fn reached_wakes(&self, wakes: u64) {
        self.until(|totals| totals.wakes >= wakes).await;
    }

    async fn until(&self, reached: impl Fn(&Totals) -> bool) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Before the look, so that a change right after it is not missed.
            changed.as_mut().enable();
            if reached(&self.totals()) {
                return;
            }
            changed.await;
        }
    }

    pub(super) fn add_sent(&self, operation: Operation) {
        let now = Moment::now();
        self.add(|totals| {
            totals.sent[operation.index()] += 1;
            totals.sent_at[operation.index()] = Some(now);
        });
    }

    pub(super) fn add_applied(&self, operation: Operation) {
        self.add(|totals| totals.applied[operation.index()] += 1);
    }

    pub(super) fn add_read(&self, records: usize) {
        self.add(|totals| totals.records_read += records as u64);
    }

    pub(super) fn add_wake(&self) {
        self.add(|totals| totals.wakes += 1);
    }

    fn add(&self, change: impl FnOnce(&mut Totals)) {
        change(&mut self.totals());
        self.changed.notify_waiters();
    }

    fn totals(&self) -> MutexGuard<'_, Totals> {
        // Numbers are sound whatever panicked meanwhile.
        self.totals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
