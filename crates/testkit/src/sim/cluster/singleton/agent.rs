use std::collections::VecDeque;
use std::time::Duration;

use tenure_cluster::Node;
use tenure_cluster::view::Digest;
use tenure_lease::keeper::Keeper;
use tenure_lease::{Moment, Token};
use tenure_singleton::Finder;
use tenure_singleton::manager::Manager;

use super::drive::Arrival;
use crate::sim::clock::Clock;

/// What one process has of the singleton.
pub(super) struct Agent {
    /// The number of the process.
    pub(super) id: u64,
    pub(super) place: usize,
    pub(super) node: Node,
    /// Runs as the process's own does.
    pub(super) clock: Clock,
    pub(super) pauses: Pauses,
    pub(super) manager: Manager,
    pub(super) desk: Desk,
    pub(super) finder: Finder<u64>,
    pub(super) client: Client,
    pub(super) instance: Option<Instance>,
    /// The last one ended by itself.
    pub(super) failed: bool,
    /// What the manager was last shown.
    pub(super) shown: Option<Digest>,
    /// What the proxy here was last told of its own node.
    pub(super) hosting: Option<Token>,
    pub(super) membership: Membership,
    /// What of that the manager was told.
    pub(super) said: Membership,
    pub(super) over: bool,
    /// What has arrived and was not looked at.
    pub(super) inbox: VecDeque<Arrival>,
    /// When its next wake is in the queue, in true time.
    pub(super) wake_at: Moment,
}

/// How this process is related to the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Membership {
    /// It is a member, or wants to be one.
    In,
    /// It is to hand over, and then to go.
    Leaves,
    /// It is out, and stops. Then another process starts in its place, or not.
    Out { again: bool },
}

/// The process's dealings with the store.
#[derive(Default)]
pub(super) struct Desk {
    /// The keeper, with a number of its own.
    pub(super) keeper: Option<(u64, Keeper)>,
    /// Keepers that have ended and may have something left to give back.
    pub(super) former: Vec<(u64, Keeper)>,
    /// By when an instance must have ended, as of the last renewal.
    pub(super) kill: Moment,
    /// The keeper that gives the lease back, and until when to wait for that.
    pub(super) releasing: Option<(u64, Moment)>,
}

/// Somebody who tells the singleton something now and then.
pub(super) struct Client {
    pub(super) next: u64,
    pub(super) at: Moment,
    /// The way to the host was closed; try again then.
    pub(super) retry_at: Moment,
    /// When to ask again who hosts it, if that is not known.
    pub(super) ask_at: Moment,
}

/// What runs.
pub(super) struct Instance {
    /// Counts all instances in the world.
    pub(super) run: u64,
    pub(super) token: Token,
    pub(super) stopping: bool,
    /// When it is dropped, whether it has stopped or not.
    pub(super) drop_at: Moment,
}

/// When this process stood still.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pauses {
    pub(super) since: Option<Moment>,
    /// How long it stood still of late, and when that ended.
    total: Duration,
    ended: Option<Moment>,
}

impl Pauses {
    pub(super) fn begin(&mut self, now: Moment) {
        self.since.get_or_insert(now);
    }

    /// Pauses that are not a ttl apart count together.
    pub(super) fn end(&mut self, now: Moment, ttl: Duration) {
        let Some(since) = self.since.take() else { return };
        if self.ended.is_none_or(|ended| since.since(ended) > ttl) {
            self.total = Duration::ZERO;
        }
        self.total += now.since(since);
        self.ended = Some(now);
    }

    /// Whether it stands still, or stood still not long ago, for longer than its lease allows for: what it
    /// does until its lease has run out by its own clock is not held against it.
    pub(super) fn beyond(&self, now: Moment, lease: &tenure_lease::Settings) -> bool {
        // Clocks that are wrong by 1 % each way use up a fifth of a margin of ttl/10.
        let allowed = lease.margin * 7 / 10;
        let recent = self.ended.is_some_and(|ended| now.since(ended) < lease.ttl * 11 / 10);
        let before = if recent { self.total } else { Duration::ZERO };
        before + self.since.map_or(Duration::ZERO, |since| now.since(since)) > allowed
    }
}

impl Agent {
    /// When it has something to do, by its own clock.
    pub(super) fn next_wake(&self) -> Moment {
        let keepers = self.desk.keeper.iter().chain(&self.desk.former);
        let mut wake = self.manager.next_wake();
        for at in keepers.map(|(_, keeper)| keeper.next_at()) {
            wake = wake.min(at);
        }
        if let Some((_, until)) = self.desk.releasing {
            wake = wake.min(until);
        }
        if let Some(instance) = &self.instance {
            wake = wake.min(instance.drop_at);
        }
        if self.membership == Membership::In {
            wake = wake.min(self.client.at);
            if self.finder.host().is_none() {
                wake = wake.min(self.client.ask_at);
            } else if self.finder.waiting() > 0 {
                wake = wake.min(self.client.retry_at);
            }
        }
        wake
    }

    /// Whether its instance does its work, and is not stopping.
    pub(super) fn serves(&self) -> bool {
        self.manager.hosting().is_some() && self.instance.as_ref().is_some_and(|it| !it.stopping)
    }
}
