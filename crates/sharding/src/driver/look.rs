//! What the other regions of a kind say of themselves, for people who ask.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use tenure_cluster::messaging::{Ask, AskError, Message, Receiver};
use tenure_cluster::{Node, Status as MemberStatus};
use tenure_lease::Token;

use super::handle::{Sharding, Shared};
use crate::Shard;
use crate::id::EntityId;

/// What a region has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionStats {
    /// The shards that are there, and their tokens.
    pub shards: Vec<(Shard, Token)>,
    /// How many entities are.
    pub entities: usize,
    /// How many messages its shards have taken in since it began.
    pub received: u64,
    /// How many messages wait there until their shard has a place.
    pub waiting: usize,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Look;

impl Ask for Look {
    type Reply = RegionStats;
}

/// The receiver of these questions.
pub(super) fn name(kind: &str) -> String {
    format!("tenure/sharding-look/{kind}")
}

/// Answers until this node is out of the cluster for good.
pub(super) async fn answer<M: Message>(shared: Arc<Shared<M>>, mut asked: Receiver<Look>) {
    while let Some(received) = asked.recv().await {
        let _ = received.reply.answer::<Look>(shared.stats()).await; // Whoever asked may be gone.
    }
}

impl<M: Message> Shared<M> {
    /// All nodes that host something, as far as this one knows.
    fn homes(&self) -> BTreeSet<Node> {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.homes.values().cloned().collect()
    }

    fn stats(&self) -> RegionStats {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        RegionStats {
            shards: said.hosted.iter().map(|(shard, token)| (*shard, *token)).collect(),
            entities: self.counts.entities(),
            received: self.counts.received(),
            waiting: self.routes.waiting(),
        }
    }
}

impl<M: Message> Sharding<M> {
    /// The node that an entity is on, or would be, as far as this node knows.
    pub fn home(&self, id: &str) -> Option<Node> {
        let shard = EntityId::new(id).shard(&self.shared.settings);
        let said = self.shared.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.homes.get(&shard).cloned()
    }

    /// Asks every region of this kind what it has: all members that are known to host something, or may.
    pub async fn regions(&self, within: Duration) -> Vec<(Node, Result<RegionStats, AskError>)> {
        let shared = &self.shared;
        let view = shared.cluster.view();
        let role = shared.settings.role.as_ref();
        let mut nodes: BTreeSet<Node> = view
            .members()
            .filter(|(_, it)| (MemberStatus::Up..MemberStatus::Down).contains(&it.status))
            .filter(|(_, it)| role.is_none_or(|role| it.roles.contains(role)))
            .map(|(node, _)| node.clone())
            .collect();
        nodes.extend(shared.homes());
        let mut asked = JoinSet::new();
        for node in nodes {
            let region = shared.cluster.to::<Look>(&node, &name(&shared.kind));
            asked.spawn(async move { (node, region.ask(Look).within(within).await) });
        }
        let mut answers = asked.join_all().await;
        answers.sort_by(|(one, _), (other, _)| one.cmp(other));
        answers
    }
}
