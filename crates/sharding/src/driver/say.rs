//! Tells users how things are.

use std::sync::{Arc, PoisonError};

use tenure_cluster::messaging::Message;
use tenure_lease::Moment;

use super::control::Control;
use crate::{Status, telemetry};

impl<M: Message> Control<M> {
    /// What users see, if it has changed.
    pub(super) fn say(&self) {
        let now = Moment::now();
        let coordinates =
            self.coordinator.as_ref().is_some_and(|it| it.is_active(now) && it.is_recovered());
        let term = self.region.term();
        let status = Status {
            coordinator: self.region.coordinator().cloned().zip(term),
            coordinates,
            shards: self.shared.settings.shards,
            hosted: self.region.shards().collect(),
            homes: self.region.homes().map(|(shard, node)| (shard, node.clone())).collect(),
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
