//! A shard is never active in two places, except in a process that stood still: its token is then
//! lower than the other's, so that the fence refuses what it does.
//!
//! Active is from when the shard was started until it has stopped. A process counts as one that
//! stood still until it has renewed its session: that it could shows that nobody has taken it over.

use std::collections::{BTreeMap, BTreeSet};

use tenure_cluster::Node;
use tenure_lease::Token;
use tenure_sharding::Shard;

#[derive(Clone, Debug)]
pub(in super::super) struct Active {
    pub(in super::super) shell: u64,
    pub(in super::super) node: Node,
    pub(in super::super) token: Token,
}

#[derive(Debug, Default)]
pub(super) struct Memory {
    active: BTreeMap<Shard, Vec<Active>>,
    impaired: BTreeSet<u64>,
}

/// Where else a shard is active.
pub(super) struct Others {
    /// In a process that did not stand still.
    pub(super) fresh: bool,
    /// In one that did.
    pub(super) stale: bool,
}

impl Memory {
    pub(super) fn others(&self, shard: Shard, new: &Active) -> Others {
        let own = self.impaired.contains(&new.shell);
        let others = || self.active.get(&shard).into_iter().flatten();
        let is_stale = |other: &Active| own || self.impaired.contains(&other.shell);
        Others { fresh: others().any(|it| !is_stale(it)), stale: others().any(is_stale) }
    }

    pub(super) fn started(&mut self, shard: Shard, new: Active) -> Option<String> {
        let shell = new.shell;
        self.active.entry(shard).or_default().push(new);
        self.check(shard, shell)
    }

    pub(super) fn stopped(&mut self, shard: Shard, shell: u64) {
        if let Some(active) = self.active.get_mut(&shard) {
            active.retain(|one| one.shell != shell);
        }
    }

    pub(super) fn gone(&mut self, shell: u64) {
        for active in self.active.values_mut() {
            active.retain(|one| one.shell != shell);
        }
        self.impaired.remove(&shell);
    }

    pub(super) fn impaired(&mut self, shell: u64) {
        self.impaired.insert(shell);
    }

    pub(super) fn renewed(&mut self, shell: u64) -> Option<String> {
        if !self.impaired.remove(&shell) {
            return None;
        }
        let shards: Vec<Shard> = self.active.keys().copied().collect();
        shards.into_iter().find_map(|shard| self.check(shard, shell))
    }

    pub(super) fn active(&self, shard: Shard) -> impl Iterator<Item = (u64, Token)> {
        self.active.get(&shard).into_iter().flatten().map(|one| (one.shell, one.token))
    }

    /// Compares what this process does with what others do.
    fn check(&self, shard: Shard, shell: u64) -> Option<String> {
        let all = self.active.get(&shard)?;
        let own = all.iter().rfind(|one| one.shell == shell)?;
        let own_stale = self.impaired.contains(&shell);
        all.iter().filter(|other| other.shell != shell || other.token != own.token).find_map(
            |other| {
                let stale = self.impaired.contains(&other.shell);
                let wrong = match (own_stale, stale) {
                    (false, false) => true,
                    (true, false) => own.token >= other.token,
                    (false, true) => other.token >= own.token,
                    (true, true) => false,
                };
                let show = |one: &Active, stale: bool| {
                    let stale = if stale { " (stood still)" } else { "" };
                    format!("{}{stale} with {}", one.node, one.token)
                };
                wrong.then(|| {
                    format!("shard {shard}: {} and {}", show(other, stale), show(own, own_stale))
                })
            },
        )
    }
}
