//! The fence refuses stale shards only: never the one with the highest token that was ever started.

use std::collections::BTreeMap;

use tenure_lease::Token;
use tenure_sharding::Shard;

use super::super::data::{Done, Op};

#[derive(Debug, Default)]
pub(super) struct Memory {
    highest: BTreeMap<Shard, Token>,
}

impl Memory {
    pub(super) fn started(&mut self, shard: Shard, token: Token) {
        let highest = self.highest.entry(shard).or_default();
        *highest = token.max(*highest);
    }

    pub(super) fn check(&self, op: &Op, done: &Done) -> Option<String> {
        let highest = self.highest.get(&op.shard).copied().unwrap_or_default();
        let refused = done.result.is_none() && op.token == highest;
        refused.then(|| format!("{op:?} is refused, though it is the newest"))
    }
}
