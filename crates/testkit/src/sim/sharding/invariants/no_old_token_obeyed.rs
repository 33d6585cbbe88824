//! A region never starts a shard for a coordinator with a lower term than one that has greeted it,
//! nor for an allocation that it has confirmed to be over.

use std::collections::BTreeMap;

use tenure_lease::Token;
use tenure_sharding::Shard;
use tenure_sharding::wire::Answer;

use super::Active;

#[derive(Debug, Default)]
pub(super) struct Memory {
    greeted: BTreeMap<u64, u64>,
    over: BTreeMap<(u64, Shard), Token>,
}

impl Memory {
    pub(super) fn greeted(&mut self, shell: u64, term: u64) {
        let highest = self.greeted.entry(shell).or_default();
        *highest = term.max(*highest);
    }

    pub(super) fn confirmed(&mut self, shell: u64, answer: &Answer) {
        for (shard, token) in &answer.shards {
            let highest = self.over.entry((shell, *shard)).or_default();
            *highest = (*token).max(*highest);
        }
    }

    pub(super) fn started(&self, shard: Shard, active: &Active) -> Option<String> {
        let Active { shell, node, token } = active;
        let term = self.greeted.get(shell).copied().unwrap_or_default();
        if token.term < term {
            return Some(format!(
                "{node} starts shard {shard} with {token}, and knows term {term}"
            ));
        }
        let over = self.over.get(&(*shell, shard)).filter(|over| token <= *over)?;
        Some(format!("{node} starts shard {shard} with {token} after it confirmed {over} over"))
    }
}
