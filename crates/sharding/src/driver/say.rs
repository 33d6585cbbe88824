//! Tells users how things are.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tenure_cluster::messaging::Message;
use tenure_lease::Moment;

use super::control::Control;
use super::handle::Shared;
use crate::{Status, telemetry};

impl<M: Message> Control<M> {
    /// What users see, if it has changed.
    pub(super) fn say(&mut self) {
        let now = Moment::now();
        self.say_traffic(now);
        let coordinates =
            self.coordinator.as_ref().is_some_and(|it| it.is_active(now) && it.is_recovered());
        let term = self.region.term();
        let status = Status {
            coordinator: self.region.coordinator().cloned().zip(term),
            coordinates,
            shards: self.shared.settings.shards,
            hosted: self.region.shards().collect(),
            homes: self.region.homes().map(|(shard, node)| (shard, node.clone())).collect(),
            entities: 0,
            waiting: 0,
            why_not: self.why_not(now),
        };
        let mut said = self.shared.status.lock().unwrap_or_else(PoisonError::into_inner);
        if **said != status {
            telemetry::hosting(&self.shared.kind, status.hosted.len());
            telemetry::coordinating(&self.shared.kind, coordinates);
            *said = Arc::new(status);
        }
    }

    /// Tells the metrics what passes here, once in a while.
    fn say_traffic(&mut self, now: Moment) {
        if now >= self.traffic_at {
            self.traffic_at = now + TRAFFIC;
            let Shared { kind, routes, counts, .. } = &*self.shared;
            telemetry::traffic(kind, counts.entities(), routes.waiting(), counts.take_received());
        }
    }

    fn why_not(&self, now: Moment) -> Option<String> {
        if self.out || self.handed_over.is_some() {
            return Some("this node has left the cluster".into());
        }
        if let Some((node, shards, until)) = &self.stranger
            && now < *until
        {
            let own = self.shared.settings.shards;
            return Some(format!("it has {shards} shards on {node}, and {own} here"));
        }
        let coordinator = self.coordinator.as_ref()?;
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
