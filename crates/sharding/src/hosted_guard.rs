use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use tokio::sync::Notify;

use tenure_cluster::Cluster;
use tenure_lease::Token;

use crate::entity::HostedShard;
use crate::id::IdText;
use crate::{Shard, StopReason};

/// What an entity gives to work that it starts beside its messages ([`Hosted::guard`]).
///
/// The entity's shard goes to no other node before all guards of it are dropped, or the time to stop is
/// over: [`Settings::stop_within`](crate::Settings::stop_within), or the stop budget of the session's lease
/// when that is lost. So the work waits for [`stopping`](Self::stopping), ends, and drops its guard. What
/// blocks its thread past that time is at work beside the next host; the session's lease can have a
/// [`watchdog`](tenure_lease::Lease::watchdog) for that. A guard keeps the shard, not the entity, which may
/// be passivated meanwhile.
///
/// ```
/// use tenure_cluster::messaging::Received;
/// use tenure_sharding::{BoxError, Entity, Hosted};
///
/// struct Cart;
///
/// impl Entity for Cart {
///     type Message = String;
///     async fn receive(&mut self, received: Received<String>, hosted: &Hosted) -> Result<(), BoxError> {
///         let (address, guard) = (received.message, hosted.guard());
///         tokio::spawn(async move {
///             tokio::select! {
///                 () = deliver(&address) => {}
///                 _ = guard.stopping() => {}
///             }
///         });
///         Ok(())
///     }
/// }
/// # async fn deliver(_: &str) {}
/// ```
///
/// [`Hosted::guard`]: crate::Hosted::guard
#[must_use = "the shard can go as soon as it is dropped"]
pub struct HostedGuard {
    shard: Arc<HostedShard>,
    id: IdText,
}

impl HostedGuard {
    pub(crate) fn new(shard: Arc<HostedShard>, id: IdText) -> Self {
        shard.guards.count.fetch_add(1, SeqCst);
        Self { shard, id }
    }

    /// The entity's id.
    pub fn id(&self) -> &str {
        self.id.as_str()
    }

    /// The shard that it belongs to.
    pub fn shard(&self) -> Shard {
        self.shard.shard
    }

    /// The fencing token of its shard: see [`Hosted::token`](crate::Hosted::token).
    pub fn token(&self) -> Token {
        self.shard.token
    }

    /// Whether the work may go on: the shard was not told to stop, and the session of this process is held.
    /// No I/O.
    pub fn is_held(&self) -> bool {
        self.shard.is_held()
    }

    /// Waits until the work has to stop, and says why.
    pub async fn stopping(&self) -> StopReason {
        self.shard.stopping().await
    }

    /// The cluster that it is in.
    pub fn cluster(&self) -> &Cluster {
        &self.shard.cluster
    }
}

impl Clone for HostedGuard {
    fn clone(&self) -> Self {
        Self::new(self.shard.clone(), self.id.clone())
    }
}

impl Drop for HostedGuard {
    fn drop(&mut self) {
        let guards = &self.shard.guards;
        if guards.count.fetch_sub(1, SeqCst) == 1 && self.shard.stop.borrow().is_some() {
            guards.dropped.notify_one();
        }
    }
}

impl fmt::Debug for HostedGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HostedShard { shard, token, .. } = &*self.shard;
        f.debug_struct("HostedGuard")
            .field("id", &self.id)
            .field("shard", shard)
            .field("token", token)
            .finish_non_exhaustive()
    }
}

/// How many guards of a shard are kept.
#[derive(Debug)]
pub(crate) struct GuardCount {
    count: AtomicUsize,
    /// Told when a shard that stops has none any more.
    dropped: Arc<Notify>,
}

impl GuardCount {
    pub(crate) fn new(dropped: Arc<Notify>) -> Self {
        Self { count: AtomicUsize::new(0), dropped }
    }

    pub(crate) fn kept(&self) -> usize {
        self.count.load(SeqCst)
    }
}
