//! Whose turn it is, and what this node does about the lease accordingly.

use std::collections::BTreeMap;

use tenure_cluster::{Node, Status};

use super::{Instance, Manager, Peer, Phase, Stance};
use crate::Placement;
use crate::settings::Rule;

impl Manager {
    /// Why this node does not host it, for people.
    pub fn why_not(&self) -> String {
        match &self.phase {
            Phase::Hosting { instance: Instance::Runs { .. }, .. } => "it does".into(),
            Phase::Hosting { .. } => "the singleton failed, and will be started again".into(),
            Phase::Stopping { .. } => "the singleton is stopping".into(),
            Phase::Releasing { .. } => "its lease is being given back".into(),
            Phase::Over if self.is_retired() => "it was stopped on this node".into(),
            Phase::Over => "this node has handed over for good".into(),
            Phase::Waiting if self.unable_until.is_some() => {
                "the singleton does not start on this node".into()
            }
            Phase::Waiting if self.away_until.is_some() => {
                "an operator handed it over, and another node can host it".into()
            }
            Phase::Waiting if self.refused_until.is_some() => {
                "the store refuses the lease to this node".into()
            }
            Phase::Waiting if !self.store_answers => "the store does not answer this node".into(),
            Phase::Waiting => match self.candidate() {
                None => "no node that may host it is up, reachable and able".into(),
                Some(node) if *node != self.me => format!("it is the turn of {node}"),
                Some(_) if self.guarded => "another node still holds its lease".into(),
                Some(_) if self.peers.values().any(|peer| peer.hosting) => {
                    "another node hosts it, and keeps it until it leaves".into()
                }
                Some(_) if self.unknown().next().is_some() => {
                    "not all members have said whether they host it".into()
                }
                Some(_) => "a former host has not said that it has stopped".into(),
            },
        }
    }

    /// Who should host it, as far as this node knows.
    pub fn candidate(&self) -> Option<&Node> {
        let fit = |node: &Node, peer: &Peer| {
            if *node == self.me {
                return self.ending.is_none() && (!self.guarded || self.able());
            }
            !peer.absent && (!self.guarded || peer.able && peer.reachable)
        };
        self.by_placement().find(|(node, peer)| fit(node, peer)).map(|(node, _)| node)
    }

    /// The members that are up, the best placed first.
    pub(super) fn by_placement(&self) -> impl Iterator<Item = (&Node, &Peer)> {
        let up = self.peers.iter().filter(|(_, peer)| peer.status == Status::Up);
        let mut up: Vec<(u64, (&Node, &Peer))> = match self.settings.placement {
            Placement::Oldest => up.map(|it| (it.1.up_number, it)).collect(),
            Placement::Spread => {
                let mut named: BTreeMap<&str, usize> = BTreeMap::new();
                for name in up.clone().filter_map(|(_, peer)| peer.name.as_deref()) {
                    *named.entry(name).or_default() += 1;
                }
                // A name that several have says nothing: all processes of one machine may have its name.
                let rank = |node: &Node, peer: &Peer| {
                    let name = peer.name.as_deref().filter(|name| named.get(name) == Some(&1));
                    weight(&self.name, name.unwrap_or_else(|| node.address.as_str()))
                };
                up.map(|it| (rank(it.0, it.1), it)).collect()
            }
        };
        up.sort_unstable_by_key(|(rank, (node, _))| (*rank, *node));
        up.into_iter().map(|(_, it)| it)
    }

    /// The best placed of the others that could host it.
    pub(super) fn others_first(&self) -> Option<&Node> {
        let fit = |node: &Node, peer: &Peer| {
            *node != self.me && !peer.absent && peer.able && peer.reachable
        };
        self.by_placement().find(|(node, peer)| fit(node, peer)).map(|(node, _)| node)
    }

    /// Without a lease: whether nobody else can be hosting it.
    pub(super) fn may_start(&self) -> bool {
        let Some(me) = self.mine().filter(|me| me.status == Status::Up) else { return false };
        let is_out = |peer: &Peer| match peer.up_number {
            0 => true, // It is not up, and never was.
            age if age < me.up_number => peer.over || peer.absent,
            _ => peer.over || peer.absent || peer.managed && !peer.hosting,
        };
        let mut others = self.peers.iter().filter(|(node, _)| **node != self.me);
        self.gone.is_empty() && others.all(|(_, peer)| is_out(peer))
    }

    /// Without a lease: the older ones on their way out that have not said that they have stopped.
    pub(super) fn silent_older(&self) -> impl Iterator<Item = &Node> {
        let age = match self.mine() {
            Some(me) if me.status == Status::Up && !self.guarded => me.up_number,
            _ => 0,
        };
        let leaving =
            move |peer: &Peer| peer.up_number < age && peer.status > Status::Up && !peer.absent;
        self.peers.iter().filter(move |(_, peer)| leaving(peer) && !peer.over).map(|(node, _)| node)
    }

    pub(super) fn best_stance(&self) -> Stance {
        let up = self.mine().is_some_and(|me| me.status == Status::Up);
        let waits = matches!(self.phase, Phase::Waiting);
        if !up || !waits || self.ending.is_some() || self.refused_until.is_some() {
            return Stance::Out;
        }
        let first = self.by_placement().next().map(|(node, _)| node);
        let candidate = match self.settings.obeys(Rule::CandidateContends) {
            true => self.candidate(),
            false => first,
        };
        if candidate == Some(&self.me) {
            return Stance::Allowed;
        }
        // One that the store did not answer has to find out when it does again.
        let present = self.by_placement().filter(|(_, peer)| !peer.absent);
        let next = present.take(OBSERVERS).any(|(node, _)| *node == self.me);
        if next || !self.store_answers { Stance::Observing } else { Stance::Out }
    }
}

/// Lower is better placed: the same on every node, and another order for every singleton.
fn weight(singleton: &str, node: &str) -> u64 {
    // FNV-1a, and a finish that spreads what differs in the last letter only.
    let text = [singleton.as_bytes(), b"@", node.as_bytes()].concat();
    let hash = text.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^ (hash >> 33)
}

/// How many of the best placed observe the lease.
const OBSERVERS: usize = 3;
