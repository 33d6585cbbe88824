//! Tells users how things are.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;
use std::time::Duration;

use tenure_cluster::Node;
use tenure_cluster::messaging::Message;
use tenure_lease::{Moment, Token};

use super::control::Control;
use super::handle::Shared;
use crate::wire::GuardedBy;
use crate::{Shard, Status, telemetry};

/// What a node knows of a kind, as it was last said.
#[derive(Default)]
pub(super) struct Said {
    pub(super) coordinator: Option<(Node, u64)>,
    pub(super) coordinates: bool,
    pub(super) hosted: BTreeMap<Shard, Token>,
    pub(super) homes: BTreeMap<Shard, Node>,
    pub(super) why_not: Option<String>,
}

impl Said {
    pub(super) fn status(&self, shards: u32, entities: usize, waiting: usize) -> Status {
        Status {
            coordinator: self.coordinator.clone(),
            coordinates: self.coordinates,
            shards,
            hosted: self.hosted.iter().map(|(shard, token)| (*shard, *token)).collect(),
            homes: self.homes.iter().map(|(shard, node)| (*shard, node.clone())).collect(),
            entities,
            waiting,
            why_not: self.why_not.clone(),
        }
    }
}

impl<M: Message> Control<M> {
    /// What users see; of these shards, and of the whole.
    pub(super) fn say(&mut self, shards: &BTreeSet<Shard>) {
        let now = Moment::now();
        self.say_traffic(now);
        let coordinates =
            self.coordinator.as_ref().is_some_and(|it| it.is_active(now) && it.is_recovered());
        let term = self.region.term();
        let coordinator = self.region.coordinator().cloned().zip(term);
        let why_not = self.why_not(now);
        let mut said = self.shared.said.lock().unwrap_or_else(PoisonError::into_inner);
        let before = (said.hosted.len(), said.coordinates);
        for &shard in shards {
            match self.region.token(shard) {
                Some(token) => drop(said.hosted.insert(shard, token)),
                None => drop(said.hosted.remove(&shard)),
            }
            match self.region.home_of(shard) {
                Some(node) => drop(said.homes.insert(shard, node.clone())),
                None => drop(said.homes.remove(&shard)),
            }
        }
        (said.coordinator, said.coordinates, said.why_not) = (coordinator, coordinates, why_not);
        let after = (said.hosted.len(), coordinates);
        drop(said);
        if before != after {
            telemetry::hosting(&self.shared.kind, after.0);
            telemetry::coordinating(&self.shared.kind, coordinates);
        }
    }

    /// Tells the metrics what passes here, once in a while.
    fn say_traffic(&mut self, now: Moment) {
        if now >= self.traffic_at {
            self.traffic_at = now + TRAFFIC;
            let Shared { kind, routes, counts, .. } = &*self.shared;
            telemetry::traffic(kind, counts.entities(), routes.waiting(), counts.news());
        }
    }

    fn why_not(&self, now: Moment) -> Option<String> {
        if self.out || self.handed_over.is_some() {
            return Some("this node has left the cluster".into());
        }
        if let Some(why) = self.strangers.why() {
            return Some(why.into());
        }
        if self.withdrawn {
            let known = self.region.coordinator().is_some_and(|node| *node != self.me);
            return (!known).then(|| "it is stopped on this node".into());
        }
        let coordinator = self.coordinator.as_ref()?;
        if let (GuardedBy::Lease(_), Some(why)) =
            (&self.setup.guarded_by, self.unlike.values().next())
        {
            return Some(why.clone());
        }
        if self.elsewhere {
            return Some(
                "the session of this process is in another store than the coordinator's lease: keep both in one"
                    .into(),
            );
        }
        if self.guards.session.is_some() && self.session.is_none() {
            return Some("this process does not have its session".into());
        }
        if !coordinator.is_candidate() {
            let known = self.region.coordinator().is_some();
            return (!known)
                .then(|| "another node should coordinate, and has not greeted this one".into());
        }
        if !coordinator.is_active(now) {
            return Some(
                "another node still holds the coordinator's lease, or its store does not answer"
                    .into(),
            );
        }
        if !coordinator.is_recovered() {
            return Some(
                "it coordinates, and waits for all that may host shards to answer, or to be over"
                    .into(),
            );
        }
        None
    }
}

/// How often it is told what passes.
const TRAFFIC: Duration = Duration::from_secs(1);
