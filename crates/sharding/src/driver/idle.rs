//! Which entities have not been used for long: they are passivated, by time or by number.
//!
//! Each has a stamp, when it was last used, and an entry in a heap with the stamp that it had when
//! it was entered. Use only changes the stamp; what comes out of the heap too early is entered
//! again. So a message costs nothing but the stamp.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use tenure_lease::Token;

use crate::id::{EntityId, IdHash};
use crate::{Settings, Shard};

pub(super) struct Idle {
    after: Option<Duration>,
    /// How many entities this crew may have.
    most: Option<usize>,
    began: Instant,
    now: u64,
    heap: BinaryHeap<Reverse<Entry>>,
    /// How many are being passivated.
    going: usize,
    /// Those that are made when others have gone.
    waiting: VecDeque<(Shard, Token, EntityId)>,
}

/// There is one for each entity, most of which do nothing: so it is small.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    /// The stamp, below 2^48, and in the lowest 16 bits the shard, whose number is below 2^16.
    stamp_and_shard: u64,
    id: IdHash,
}

impl Entry {
    fn new(stamp: u64, shard: Shard, id: IdHash) -> Self {
        Self { stamp_and_shard: stamp << SHARD_BITS | u64::from(shard.0), id }
    }

    fn stamp(&self) -> u64 {
        self.stamp_and_shard >> SHARD_BITS
    }

    fn parts(&self) -> (Shard, IdHash, u64) {
        let shard = self.stamp_and_shard & ((1 << SHARD_BITS) - 1);
        (Shard(shard as u32), self.id, self.stamp())
    }
}

impl Idle {
    pub(super) fn new(settings: &Settings, crews: usize) -> Self {
        Self {
            after: settings.passivate_after.map(|after| after.min(LONGEST)),
            most: settings.entities_max.map(|most| (most / crews).max(1)),
            began: Instant::now(),
            now: 0,
            heap: BinaryHeap::new(),
            going: 0,
            waiting: VecDeque::new(),
        }
    }

    fn is_on(&self) -> bool {
        self.after.is_some() || self.most.is_some()
    }

    /// Looks at the clock, if anybody cares.
    pub(super) fn look(&mut self) {
        if self.is_on() {
            self.now = self.began.elapsed().as_micros().min(STAMP_MAX.into()) as u64;
        }
    }

    /// What an entity that is used now is stamped with.
    #[inline]
    pub(super) fn stamp(&self) -> u64 {
        self.now
    }

    pub(super) fn is_now(&self, stamp: u64) -> bool {
        stamp >= self.now
    }

    /// An entity is there, or was used since the stamp that came out.
    pub(super) fn enter(&mut self, shard: Shard, id: IdHash, stamp: u64) {
        if self.is_on() {
            self.heap.push(Reverse(Entry::new(stamp, shard, id)));
        }
    }

    #[inline]
    pub(super) fn is_full(&self, live: usize) -> bool {
        self.most.is_some_and(|most| live >= most)
    }

    /// Whether somebody must go, and not enough do already.
    pub(super) fn needs_room(&self, live: usize) -> bool {
        self.most.is_some_and(|most| live + self.waiting.len() >= most + self.going)
    }

    pub(super) fn oldest(&mut self) -> Option<(Shard, IdHash, u64)> {
        self.heap.pop().map(|Reverse(entry)| entry.parts())
    }

    /// Forgets those that are no more, once they are many: who goes by itself leaves its entry behind.
    pub(super) fn forget(&mut self, live: usize, is_there: impl Fn(Shard, IdHash, u64) -> bool) {
        if self.heap.len() > 2 * live + SPARE {
            self.heap.retain(|Reverse(entry)| {
                let (shard, id, stamp) = entry.parts();
                is_there(shard, id, stamp)
            });
        }
    }

    /// The next one that may have been idle for too long.
    pub(super) fn due(&mut self) -> Option<(Shard, IdHash, u64)> {
        let after = self.after?.as_micros() as u64;
        let Reverse(first) = self.heap.peek()?;
        if first.stamp() + after > self.now { None } else { self.oldest() }
    }

    pub(super) fn next(&self) -> Option<Instant> {
        let Reverse(first) = self.heap.peek()?;
        Some(self.began + Duration::from_micros(first.stamp() + 1) + self.after?)
    }

    /// One begins to go.
    pub(super) fn goes(&mut self) {
        self.going += 1;
    }

    pub(super) fn gone(&mut self) {
        self.going = self.going.saturating_sub(1);
    }

    /// Whether a new one has to wait until others have gone. If all are at work, it does not: they
    /// may be waiting for it.
    pub(super) fn must_wait(&self, live: usize) -> bool {
        self.is_full(live) && self.going > 0
    }

    pub(super) fn wait(&mut self, shard: Shard, token: Token, id: EntityId) {
        self.waiting.push_back((shard, token, id));
    }

    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Who may be made now.
    pub(super) fn admitted(&mut self, live: usize) -> Option<(Shard, Token, EntityId)> {
        if self.must_wait(live) { None } else { self.waiting.pop_front() }
    }
}

/// How many entries of those that are no more do not matter.
const SPARE: usize = 1024;
/// Longer is as good as never; and can be added to any moment.
const LONGEST: Duration = Duration::from_secs(1 << 32);
/// As many as the number of a shard may have.
const SHARD_BITS: u32 = u16::BITS;
/// In microseconds: more than eight years. After that all are as old as each other.
const STAMP_MAX: u64 = u64::MAX >> SHARD_BITS;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Setup;

    fn idle(change: impl FnOnce(&mut Settings)) -> Idle {
        let mut settings = Settings::new(Setup::Lease, 8);
        change(&mut settings);
        Idle::new(&settings, 1)
    }

    #[test]
    fn who_is_no_more_is_forgotten() {
        let mut idle = idle(|it| it.entities_max = Some(1_000_000));
        for number in 0..10_000 {
            idle.enter(Shard(0), EntityId::new(&number.to_string()).id_hash(), number);
        }
        idle.forget(1, |_, _, stamp| stamp == 7);
        assert_eq!(idle.oldest().map(|(_, _, stamp)| stamp), Some(7));
        assert!(idle.oldest().is_none());
    }

    #[test]
    fn an_entry_is_small_and_has_all_of_its_parts() {
        let (shard, id) = (Shard(u32::from(u16::MAX)), EntityId::new("a").id_hash());
        assert_eq!(Entry::new(STAMP_MAX, shard, id).parts(), (shard, id, STAMP_MAX));
        assert_eq!(size_of::<Entry>(), 16);
    }

    #[test]
    fn any_time_will_do() {
        let mut idle = idle(|it| it.passivate_after = Some(Duration::MAX));
        idle.enter(Shard(0), EntityId::new("a").id_hash(), u64::from(u32::MAX));
        assert!(idle.next().is_some_and(|at| at > Instant::now()));
        assert!(idle.due().is_none());
    }
}
