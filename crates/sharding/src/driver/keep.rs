//! Shards that have stopped, and are kept by guards that entities have given to other work.

use std::time::Duration;

use tokio::time::Instant;

use tenure_cluster::messaging::Message;
use tenure_lease::Moment;

use super::control::Control;
use super::crew::{Ended, StopOrder};
use crate::{Shard, telemetry};

impl<M: Message> Control<M> {
    /// Keeps a shard that has ended for as long as guards of it are kept, and there is time; it comes back
    /// if there are none, or none is left.
    pub(super) fn keep_guarded(&mut self, ended: Ended<M>) -> Option<Ended<M>> {
        let (shard, token, now) = (ended.shard, ended.token, Moment::now());
        let running = self.shards.get_mut(&shard).filter(|running| running.token == token)?;
        if running.ended.is_some() {
            return None; // It has ended with its crew, and was told to stop since.
        }
        let kept = running.guards.kept();
        if kept == 0 {
            return Some(ended);
        }
        if running.stop_by.is_some_and(|by| now >= by) {
            let kind = &self.shared.kind;
            telemetry::failed(kind);
            tracing::error!(%kind, %shard, kept, "work that entities have started keeps its guards, and has no more time to stop");
            return Some(ended);
        }
        let told = running.stop_by.is_some();
        running.ended = Some(ended);
        self.kept.insert(shard);
        if !told {
            // It has ended with its crew. What its entities have started ends, too.
            self.region.give_back(shard, token, now);
        }
        None
    }

    /// Lets go what is not kept any more.
    pub(super) fn let_kept_go(&mut self) {
        for shard in self.kept.clone() {
            let Some(running) = self.shards.get_mut(&shard) else {
                self.kept.remove(&shard);
                continue;
            };
            let is_late = running.stop_by.is_some_and(|by| Moment::now() >= by);
            if (running.guards.kept() == 0 || is_late)
                && let Some(ended) = running.ended.take()
            {
                self.kept.remove(&shard);
                self.ended(ended);
            }
        }
    }

    /// When the first of them has no more time.
    pub(super) fn kept_until(&self) -> Moment {
        let until = |shard: &Shard| self.shards.get(shard).and_then(|running| running.stop_by);
        self.kept.iter().filter_map(until).min().unwrap_or(Moment::NEVER)
    }
}

impl StopOrder {
    /// Its deadline by the clock that control goes by.
    pub(super) fn stop_by(&self) -> Moment {
        let left: Duration = self.deadline.saturating_duration_since(Instant::now());
        Moment::now() + left
    }
}
