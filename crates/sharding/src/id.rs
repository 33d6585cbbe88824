use std::borrow::Borrow;
use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::{Arc, LazyLock};

use crate::{Settings, Shard};

/// The shard that an entity belongs to: FNV-1a of its id's bytes, in 64 bits, modulo the number of
/// shards. The same on every node and in every version, for good. A kind that has a
/// [`ShardKey`](crate::ShardKey) has another hash: [`ShardKey::shard_of`](crate::ShardKey::shard_of).
///
/// ```
/// use tenure_sharding::{Shard, shard_of};
/// assert_eq!(shard_of("customer-17", 64), Shard(32));
/// ```
pub fn shard_of(id: &str, shards: u32) -> Shard {
    shard_of_bytes(id.as_bytes(), shards)
}

fn shard_of_bytes(id: &[u8], shards: u32) -> Shard {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(FNV_PRIME);
    let hash = id.iter().fold(FNV_BASIS, step);
    Shard((hash % u64::from(shards.max(1))) as u32)
}

/// What an entity is called, with a hash of it that is made once.
#[derive(Clone)]
pub(crate) struct EntityId {
    hash: IdHash,
    text: IdText,
}

/// The hash of an id, random in each process, so that nobody can choose ids that collide. Tables of ids
/// find an id by it, too: two ids of one process hardly ever have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct IdHash(u64);

/// An id without its hash. Most are short: then there is nothing that threads share, and nothing to look
/// up elsewhere.
#[derive(Clone)]
pub(crate) struct IdText(Text);

#[derive(Clone)]
enum Text {
    Short { len: u8, bytes: [u8; SHORT] },
    Long(Arc<str>),
}

impl EntityId {
    pub(crate) fn new(text: &str) -> Self {
        static RANDOM: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        let hash = IdHash(RANDOM.hash_one(text));
        let mut bytes = [0; SHORT];
        let text = match bytes.get_mut(..text.len()) {
            Some(place) => {
                place.copy_from_slice(text.as_bytes());
                Text::Short { len: text.len() as u8, bytes }
            }
            None => Text::Long(text.into()),
        };
        Self { hash, text: IdText(text) }
    }

    pub(crate) fn id_hash(&self) -> IdHash {
        self.hash
    }

    pub(crate) fn text(&self) -> &IdText {
        &self.text
    }

    pub(crate) fn as_str(&self) -> &str {
        self.text.as_str()
    }

    #[inline]
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.text.as_bytes()
    }

    /// Whether it can be one.
    #[inline]
    pub(crate) fn is_valid(&self) -> bool {
        (1..=ID_MAX).contains(&self.as_bytes().len())
    }

    /// The shard that it belongs to.
    pub(crate) fn shard(&self, settings: &Settings) -> Shard {
        match &settings.shard_key {
            Some(key) => key.shard_of_bytes(self.as_bytes(), settings.shards),
            None => shard_of_bytes(self.as_bytes(), settings.shards),
        }
    }
}

impl IdText {
    pub(crate) fn as_str(&self) -> &str {
        match &self.0 {
            // It was made from one.
            Text::Short { .. } => std::str::from_utf8(self.as_bytes()).unwrap_or_default(),
            Text::Long(text) => text,
        }
    }

    #[inline]
    fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Text::Short { len, bytes } => bytes.get(..usize::from(*len)).unwrap_or_default(),
            Text::Long(text) => text.as_bytes(),
        }
    }
}

impl PartialEq for EntityId {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash && self.as_bytes() == other.as_bytes()
    }
}

impl Eq for EntityId {}

impl Hash for EntityId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.hash.hash(state);
    }
}

impl Hash for IdHash {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0);
    }
}

impl Borrow<IdHash> for EntityId {
    fn borrow(&self) -> &IdHash {
        &self.hash
    }
}

impl fmt::Display for EntityId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for EntityId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

impl fmt::Debug for IdText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// Takes the hash that an id has already.
#[derive(Clone, Copy, Default)]
pub(crate) struct Hashed;

impl BuildHasher for Hashed {
    type Hasher = Taken;

    fn build_hasher(&self) -> Taken {
        Taken(0)
    }
}

pub(crate) struct Taken(u64);

impl Hasher for Taken {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

/// The longest id that is kept in place, in bytes: so that it takes no more than three words.
const SHORT: usize = 22;
/// The longest id, in bytes.
pub(crate) const ID_MAX: usize = 1000;
const FNV_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

#[cfg(test)]
mod tests {
    use super::*;

    /// Entities must never move to another shard: these values stay.
    #[test]
    fn the_shard_of_an_id_is_fixed() {
        let shards = [("", 1000), ("a", 1000), ("customer-17", 64), ("ä", 1 << 20)];
        let found = shards.map(|(id, count)| shard_of(id, count).0);
        assert_eq!(found, FIXED);
    }

    #[test]
    fn ids_are_spread() {
        let mut counts = [0_u32; 64];
        for number in 0..64_000 {
            counts[shard_of(&format!("customer-{number}"), 64).0 as usize] += 1;
        }
        assert!(counts.iter().all(|count| (800..1200).contains(count)), "{counts:?}");
    }

    const FIXED: [u32; 4] = [37, 996, 32, 529794];
}
