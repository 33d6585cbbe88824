//! Which shard an entity belongs to, by a hash that nobody can foresee who does not know its key.
//!
//! Without a key the hash is public: whoever chooses ids, the users of a web service for instance,
//! can choose many that belong to one shard, and have one crew on one node do all the work.

use std::fmt;

use crate::Shard;

/// What entities are placed by, besides their ids: made from a secret that all nodes are given. It is
/// for good, as the number of shards is: another key has every entity belong elsewhere.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ShardKey([u64; 2]);

impl ShardKey {
    /// From a secret: 16 random bytes or more, in whatever form.
    ///
    /// ```
    /// use tenure_sharding::ShardKey;
    /// let key = ShardKey::from_secret("8f4be1c90d6a4b7b8ec2");
    /// assert_ne!(key, ShardKey::from_secret("another"));
    /// assert_eq!(format!("{key:?}"), "ShardKey(…)");
    /// ```
    pub fn from_secret(secret: &str) -> Self {
        let half = |number: u64| siphash([number, !number], secret.as_bytes());
        Self([half(1), half(2)])
    }

    /// The shard that an entity belongs to.
    pub fn shard_of(&self, id: &str, shards: u32) -> Shard {
        self.shard_of_bytes(id.as_bytes(), shards)
    }

    pub(crate) fn shard_of_bytes(&self, id: &[u8], shards: u32) -> Shard {
        Shard((siphash(self.0, id) % u64::from(shards.max(1))) as u32)
    }

    /// Enough of it to notice that another node has another; never 0.
    pub(crate) fn fingerprint(&self) -> u16 {
        (siphash(self.0, b"fingerprint") as u16).max(1)
    }
}

impl fmt::Debug for ShardKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ShardKey(…)") // It is a secret.
    }
}

/// SipHash-1-3. Not that of the standard library, which may become another one: where entities belong
/// stays as it is.
fn siphash([k0, k1]: [u64; 2], bytes: &[u8]) -> u64 {
    let mut state = [
        k0 ^ 0x736f_6d65_7073_6575,
        k1 ^ 0x646f_7261_6e64_6f6d,
        k0 ^ 0x6c79_6765_6e65_7261,
        k1 ^ 0x7465_6462_7974_6573,
    ];
    let mut chunks = bytes.chunks_exact(8);
    let word = |chunk: &[u8]| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    };
    for chunk in &mut chunks {
        let word = word(chunk);
        state[3] ^= word;
        round(&mut state);
        state[0] ^= word;
    }
    let last = word(chunks.remainder()) | (bytes.len() as u64) << 56;
    state[3] ^= last;
    round(&mut state);
    state[0] ^= last;
    state[2] ^= 0xff;
    for _ in 0..3 {
        round(&mut state);
    }
    state[0] ^ state[1] ^ state[2] ^ state[3]
}

#[inline]
fn round(state: &mut [u64; 4]) {
    let [mut a, mut b, mut c, mut d] = *state;
    a = a.wrapping_add(b);
    b = b.rotate_left(13) ^ a;
    a = a.rotate_left(32);
    c = c.wrapping_add(d);
    d = d.rotate_left(16) ^ c;
    a = a.wrapping_add(d);
    d = d.rotate_left(21) ^ a;
    c = c.wrapping_add(b);
    b = b.rotate_left(17) ^ c;
    c = c.rotate_left(32);
    *state = [a, b, c, d];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_siphash() {
        // Of the reference implementation, with 1 and 3 rounds.
        let key = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        assert_eq!(siphash(key, &[]), 0xabac_0158_050f_c4dc);
        assert_eq!(siphash(key, &[0]), 0xc9f4_9bf3_7d57_ca93);
    }

    /// Entities must never move to another shard: these values stay.
    #[test]
    fn the_shard_of_an_id_is_fixed() {
        let key = ShardKey::from_secret("secret");
        let found = ["", "a", "customer-17", "ä"].map(|id| key.shard_of(id, 1000).0);
        assert_eq!(found, [96, 119, 53, 874]);
    }

    #[test]
    fn ids_are_spread_and_cannot_be_aimed() {
        let (key, other) = (ShardKey::from_secret("one"), ShardKey::from_secret("two"));
        let mut counts = [0_u32; 64];
        for number in 0..64_000 {
            counts[key.shard_of(&format!("customer-{number}"), 64).0 as usize] += 1;
        }
        assert!(counts.iter().all(|count| (800..1200).contains(count)), "{counts:?}");
        // Those of one shard of the public hash, or of another key, are all over the place.
        let aimed: Vec<String> = (0..64_000).map(|number| format!("aimed-{number}")).collect();
        let all = |shard: &dyn Fn(&str) -> Shard| {
            let aimed = aimed.iter().filter(|id| shard(id) == Shard(3));
            let mut shards: Vec<u32> = aimed.map(|id| key.shard_of(id, 64).0).collect();
            shards.sort_unstable();
            shards.dedup();
            shards.len()
        };
        assert_eq!(all(&|id| crate::shard_of(id, 64)), 64);
        assert_eq!(all(&|id| other.shard_of(id, 64)), 64);
        assert_ne!(key.fingerprint(), other.fingerprint());
    }
}
