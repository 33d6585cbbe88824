//! Gives the cores a clock, a cluster, leases and something to run.
//!
//! ```text
//! start.rs      begins a kind, once; hosting.rs: stops it on this node, and starts it again
//! control.rs    one task for each kind: drives coordinator and region
//! effects.rs    does what they ask for; say.rs: tells users how things are
//! guard.rs      the coordinator's lease, the session, sessions of others
//! routes.rs     where messages go, for whoever sends one
//! count.rs      entities and messages, counted without slowing them
//! crew.rs       a few tasks, each with its share of the shards; queue.rs: what waits for one
//! turn.rs       how long a crew is at it before others have their turn; due.rs: its timers
//! shard.rs      one shard: its entities; shard/stop.rs: how it stops
//! run.rs        one call of an entity; failures.rs: those that failed
//! idle.rs       which entities to passivate; memory.rs: which are remembered; unbegun.rs: and not yet made
//! remote.rs     messages from and to other nodes; outbox.rs: those that took the slow way
//! handle.rs     what users hold; reliable.rs; look.rs: what regions say of themselves
//! ```
#![allow(clippy::disallowed_methods)]

mod control;
#[cfg(test)]
mod cost;
mod count;
mod crew;
mod due;
mod effects;
mod failures;
mod guard;
mod handle;
mod hosting;
mod idle;
mod keep;
mod letter;
mod look;
mod memory;
mod observer;
mod outbox;
mod queue;
mod reliable;
mod remote;
mod routes;
mod run;
mod say;
mod session_end;
mod shard;
mod start;
mod strangers;
mod turn;
mod unbegun;

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::oneshot;

use tenure_cluster::Node;
use tenure_cluster::messaging::{NotDone, Origin, Reply};

use crate::Shard;
use crate::id::EntityId;
pub(crate) use guard::Guards;
pub use handle::{Asking, EntityRef, NotCoordinator, Sharding};
pub use look::RegionStats;
pub use reliable::Reliable;
use routes::Ticket;
pub(crate) use run::Factory;
pub(crate) use start::{Start, start};

/// A message on the slow way.
struct Parcel<M> {
    id: EntityId,
    /// The node that told it; that of whoever asks is known by the reply.
    from: Origin,
    what: What<M>,
    /// Until it is where it goes.
    ticket: Option<Ticket>,
}

impl<M> Parcel<M> {
    /// The node that sent it; `None` if that is this one.
    fn sender(&self) -> Option<Node> {
        match &self.what {
            What::Asked(_, reply) => reply.node().cloned(),
            What::Tell(_) | What::Turn(_) => self.from.node().cloned(),
        }
    }
}

enum What<M> {
    Tell(M),
    /// A question that has come, and the way back.
    Asked(M, Reply),
    /// A question of this node: whoever asks is told when, and where, it may be asked.
    Turn(oneshot::Sender<Result<Turn, NotDone>>),
}

/// Where a question may be asked now.
#[derive(Debug)]
enum Turn {
    Here,
    There(Node),
}

/// What a region hears of messages.
enum Event<M> {
    /// Somebody on this node sends.
    Send {
        shard: Shard,
        parcel: Parcel<M>,
        bytes: usize,
        /// Told when it is taken in, or why not.
        ack: Option<oneshot::Sender<Result<(), NotDone>>>,
    },
    /// It came from another node, and the shard did not seem to be here.
    Forwarded {
        from: Node,
        shard: Shard,
        parcel: Parcel<M>,
    },
    /// It came back from another node, or could not be sent there.
    Returned {
        from: Node,
        shard: Shard,
        parcel: Parcel<M>,
        bytes: usize,
    },
    Mark {
        from: Node,
        shard: Shard,
    },
    Marked {
        from: Node,
        shard: Shard,
    },
}

impl<M> Event<M> {
    fn shard(&self) -> Shard {
        match self {
            Self::Send { shard, .. }
            | Self::Forwarded { shard, .. }
            | Self::Returned { shard, .. }
            | Self::Mark { shard, .. }
            | Self::Marked { shard, .. } => *shard,
        }
    }
}

/// The receiver of messages between the regions of a kind.
fn inbox(kind: &str) -> String {
    format!("tenure/sharding/{kind}")
}

/// The receiver of numbered messages.
fn reliable_inbox(kind: &str) -> String {
    format!("tenure/sharding-reliable/{kind}")
}

/// Before looking again at what changes in no time.
async fn pause_briefly() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

/// How work came out that may panic.
async fn caught<T>(work: impl Future<Output = T>) -> std::thread::Result<T> {
    let mut work = pin!(work);
    poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context))) {
        Ok(polled) => polled.map(Ok),
        Err(panic) => Poll::Ready(Err(panic)),
    })
    .await
}
