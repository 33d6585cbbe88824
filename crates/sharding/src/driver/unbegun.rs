//! Entities of a shard that are remembered, and not yet made: so many are made at once, and one that is
//! sent something before that comes first.

use std::collections::{HashSet, VecDeque};

use crate::id::{EntityId, Hashed};

#[derive(Default)]
pub(super) struct Unbegun {
    /// In order, with some that have come first.
    line: VecDeque<EntityId>,
    waiting: HashSet<EntityId, Hashed>,
    /// Those that are being made.
    starting: HashSet<EntityId, Hashed>,
}

impl Unbegun {
    pub(super) fn put(&mut self, id: EntityId) {
        self.waiting.insert(id.clone());
        self.line.push_back(id);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The next one, if there may be one more.
    pub(super) fn next(&mut self) -> Option<EntityId> {
        if self.starting.len() >= AT_ONCE {
            return None;
        }
        while let Some(id) = self.line.pop_front() {
            if self.waiting.remove(&id) {
                self.starting.insert(id.clone());
                return Some(id);
            }
        }
        None
    }

    /// This one, if it is not yet made: it has been sent something.
    pub(super) fn take(&mut self, id: &EntityId) -> Option<EntityId> {
        if self.waiting.is_empty() { None } else { self.waiting.take(id) }
    }

    /// It is made, or has failed.
    #[inline]
    pub(super) fn begun(&mut self, id: &EntityId) {
        if !self.starting.is_empty() {
            self.starting.remove(id);
        }
    }
}

/// How many of one shard are made at once.
const AT_ONCE: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_at_once_and_who_is_sent_something_first() {
        let mut unbegun = Unbegun::default();
        let ids: Vec<_> = (0..100).map(|id| EntityId::new(&id.to_string())).collect();
        ids.iter().for_each(|id| unbegun.put(id.clone()));
        assert_eq!(std::iter::from_fn(|| unbegun.next()).count(), AT_ONCE);
        assert_eq!(unbegun.take(&ids[99]), Some(ids[99].clone()), "beyond the limit");
        assert_eq!(unbegun.take(&ids[99]), None);
        assert_eq!(unbegun.take(&ids[0]), None, "it is being made");
        ids.iter().take(10).for_each(|id| unbegun.begun(id));
        let next: Vec<_> = std::iter::from_fn(|| unbegun.next()).collect();
        assert_eq!(next, ids[AT_ONCE..AT_ONCE + 10]);
        ids.iter().for_each(|id| unbegun.begun(id));
        while let Some(id) = unbegun.next() {
            assert_ne!(id, ids[99], "twice");
            unbegun.begun(&id);
        }
        assert!(unbegun.is_empty());
    }
}
