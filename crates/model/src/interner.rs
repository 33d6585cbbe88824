//! The set of all states met so far, each with a number.

use std::hash::{Hash, Hasher};

/// Stores each distinct state once and numbers them in the order of their arrival.
///
/// A `HashMap<State, u32>` beside a `Vec<State>` would keep every state twice, and memory is what
/// bounds a check. Here the hash table holds only numbers; the states lie in one vector.
pub(crate) struct Interner<S> {
    states: Vec<S>,
    /// Open addressing with linear probing, a power of two long, at most half full.
    slots: Vec<u32>,
}

impl<S: Eq + Hash> Interner<S> {
    pub(crate) fn new() -> Self {
        Self { states: Vec::new(), slots: vec![FREE; SLOTS_MIN] }
    }

    /// The number of `state`, and whether it is new.
    pub(crate) fn insert(&mut self, state: S) -> (u32, bool) {
        if self.states.len() * 2 >= self.slots.len() {
            self.grow();
        }
        let mut slot = self.first_slot(&state);
        while self.slots[slot] != FREE {
            let id = self.slots[slot];
            if self.states[id as usize] == state {
                return (id, false);
            }
            slot = self.following(slot);
        }
        let id = u32::try_from(self.states.len()).expect("fewer than 2^32 states fit into memory");
        assert_ne!(id, FREE);
        self.slots[slot] = id;
        self.states.push(state);
        (id, true)
    }

    /// All states, by number.
    pub(crate) fn states(&self) -> &[S] {
        &self.states
    }

    fn grow(&mut self) {
        self.slots = vec![FREE; self.slots.len() * 2];
        for id in 0..self.states.len() {
            let mut slot = self.first_slot(&self.states[id]);
            while self.slots[slot] != FREE {
                slot = self.following(slot);
            }
            self.slots[slot] = id as u32;
        }
    }

    fn first_slot(&self, state: &S) -> usize {
        let mut hasher = WordHasher(0);
        state.hash(&mut hasher);
        hasher.finish() as usize & (self.slots.len() - 1)
    }

    fn following(&self, slot: usize) -> usize {
        (slot + 1) & (self.slots.len() - 1)
    }
}

/// A multiplicative hash like the one of rustc: one rotation and one multiplication per field.
///
/// States are small and nobody chooses them with malice, so std's hasher would only be slower.
struct WordHasher(u64);

impl Hasher for WordHasher {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    #[inline]
    fn write_u8(&mut self, byte: u8) {
        self.write_u64(byte.into());
    }

    #[inline]
    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(MULTIPLIER);
    }

    /// What derived implementations call for the variant of an enum.
    #[inline]
    fn write_isize(&mut self, word: isize) {
        self.write_u64(word as u64);
    }

    /// Multiplication mixes upwards; the table looks at the low bits, so the high ones come down.
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 29)
    }
}

const FREE: u32 = u32::MAX;
const SLOTS_MIN: usize = 1 << 12;
const MULTIPLIER: u64 = 0x517c_c1b7_2722_0a95;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_states_in_order_and_only_once() {
        let mut interner = Interner::new();
        for value in 0..10_000_u32 {
            assert_eq!(interner.insert((value, value % 7)), (value, true));
        }
        for value in 0..10_000_u32 {
            assert_eq!(interner.insert((value, value % 7)), (value, false));
        }
        assert_eq!(interner.states().len(), 10_000);
    }
}
