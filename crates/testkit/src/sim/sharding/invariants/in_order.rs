//! What one process sends to one shard arrives in order: never after a later message, at the same
//! allocation or an earlier one. (A host that stood still may go on with what it has: its token is lower.)

use std::collections::BTreeMap;

use tenure_lease::Token;
use tenure_sharding::Shard;

#[derive(Debug, Default)]
pub(super) struct Memory {
    /// By message: who sent it.
    senders: BTreeMap<u64, u64>,
    /// The last that arrived, by sender, shard and allocation.
    last: BTreeMap<(u64, Shard, Token), u64>,
}

impl Memory {
    pub(super) fn sent(&mut self, shell: u64, message: u64) {
        self.senders.insert(message, shell);
    }

    pub(super) fn arrived(&mut self, shard: Shard, token: Token, message: u64) -> Option<String> {
        let sender = *self.senders.get(&message)?;
        let until = (sender, shard, Token::default())..=(sender, shard, token);
        let later = self.last.range(until).find(|(_, last)| **last > message);
        let found = later.map(|((_, _, at), last)| {
            format!("message {message} reaches shard {shard} at {token} after {last}, at {at}")
        });
        let last = self.last.entry((sender, shard, token)).or_default();
        *last = message.max(*last);
        found
    }
}
