use std::collections::VecDeque;
use std::time::Duration;

use tenure_cluster::formation::{Formation, FormationNote};
use tenure_cluster::resolver::Resolver;
use tenure_cluster::wire::Control;
use tenure_cluster::{Membership, Node, Status};
use tenure_lease::Moment;

use crate::sim::clock::Clock;

/// One process: a node of the cluster.
#[derive(Clone, Debug)]
pub(super) struct Process {
    /// Tells two apart that are one node.
    pub(super) id: u64,
    pub(super) node: Node,
    pub(super) membership: Membership,
    /// The cluster that it is in, or was.
    pub(super) cluster: Option<u64>,
    pub(super) formation: Formation,
    pub(super) clock: Clock,
    /// When its next wake is in the queue, in true time.
    pub(super) wake_at: Moment,
    pub(super) paused: bool,
    /// What arrived while it stood still.
    pub(super) inbox: VecDeque<(Node, Control)>,
    pub(super) lease: Lease,
    pub(super) resolver: Option<Resolver>,
    /// The last request to the resolver's store that was answered, or given up.
    pub(super) answered: u64,
    /// It was told that it holds the resolver's lease, and renews it.
    pub(super) arbitrates: bool,
    /// What is to be written into the record.
    pub(super) note: Option<FormationNote>,
    /// Since when it has been a full member that leads, reaches the store, and does not stand still,
    /// so that it should guard its cluster with the formation lease; in true time.
    pub(super) guards_since: Option<Moment>,
    /// It leaves, and what it hosts is being handed over.
    pub(super) handing_over: bool,
}

/// What this process does about the formation lease.
#[derive(Clone, Debug)]
pub(super) enum Lease {
    Idle,
    Contending { next: Moment },
    Held { term: u64, renewed: Moment, next: Moment },
}

impl Lease {
    pub(super) fn next(&self) -> Moment {
        match self {
            Self::Idle => Moment::NEVER,
            Self::Contending { next } | Self::Held { next, .. } => *next,
        }
    }
}

impl Process {
    /// Whether it is a full member of a cluster, as far as it knows.
    pub(super) fn is_full_member(&self) -> bool {
        let own = self.membership.view().and_then(|view| view.member(&self.node));
        own.is_some_and(|own| own.status < Status::Down && own.up_number > 0)
    }

    /// When it has something to do, by its own clock.
    pub(super) fn next_wake(&self, local: Moment) -> Moment {
        let resolver = self.resolver.as_ref().map_or(Moment::NEVER, |it| it.next_wake(local));
        let membership = self.membership.next_wake();
        membership.min(self.formation.next_wake()).min(self.lease.next()).min(resolver)
    }
}

/// How often somebody who contends asks the store.
pub(super) const ASK_STORE: Duration = Duration::from_millis(250);
