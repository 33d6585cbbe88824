use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tenure_cluster::Node;
use tenure_cluster::view::Digest;
use tenure_lease::keeper::Keeper;
use tenure_lease::record::SessionRef;
use tenure_lease::{Moment, Token};
use tenure_sharding::{Coordinator, Region, Shard};

use super::queue::What;
use crate::sim::clock::Clock;

/// What runs in a process besides membership. It lives on for a moment when the membership has
/// ended, until its shards have stopped.
pub(super) struct Shell {
    pub(super) place: usize,
    pub(super) node: Node,
    pub(super) clock: Clock,
    pub(super) paused: bool,
    /// The membership has ended.
    pub(super) ended: bool,
    /// What arrived while it stood still.
    pub(super) inbox: VecDeque<What>,
    pub(super) wake_at: Moment,
    pub(super) coordinator: Coordinator,
    pub(super) region: Region<u64>,
    pub(super) keepers: BTreeMap<u64, Kept>,
    pub(super) next_keeper: u64,
    /// Sessions of others that the coordinator observes.
    pub(super) observed: BTreeSet<SessionRef>,
    /// Of those, and others, the ones to be taken over.
    pub(super) taking_over: BTreeSet<SessionRef>,
    /// When to look at the record of the coordinator's lease.
    pub(super) look_at: Moment,
    /// When the store last answered anything.
    pub(super) answered_at: Moment,
    pub(super) view: Option<Digest>,
    pub(super) entities: BTreeMap<Shard, Entity>,
    /// When it last went on after it had stood still, by its own clock.
    pub(super) resumed_at: Moment,
    /// It stood still since it last renewed the coordinator's lease.
    pub(super) lease_impaired: bool,
}

/// A keeper, and what it is for.
pub(super) struct Kept {
    pub(super) keeper: Keeper,
    pub(super) purpose: Purpose,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The coordinator's lease.
    Lease,
    /// The region's session.
    Session,
    /// Another's session: to be observed, or to be taken over.
    Others(SessionRef),
    /// Giving back.
    Ending,
}

/// A shard that is active.
#[derive(Clone, Debug)]
pub(super) struct Entity {
    pub(super) token: Token,
    pub(super) fence: Token,
    /// What it knows to stand in the database, once it has read that.
    pub(super) known: Option<(u64, u64)>,
    pub(super) busy: bool,
    /// Messages that it has not acted on yet.
    pub(super) waiting: u32,
}

impl Shell {
    pub(super) fn next_wake(&self) -> Moment {
        let keepers = self.keepers.values().map(|kept| kept.keeper.next_at());
        let keepers = keepers.min().unwrap_or(Moment::NEVER);
        let look = if self.ended { Moment::NEVER } else { self.look_at };
        self.coordinator.next_wake().min(self.region.next_wake()).min(keepers).min(look)
    }

    /// Nothing is left of it.
    pub(super) fn is_over(&self) -> bool {
        self.ended && self.entities.is_empty() && self.keepers.is_empty()
    }
}
