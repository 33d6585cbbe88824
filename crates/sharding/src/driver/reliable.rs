use std::sync::Arc;

use tokio::sync::watch;

use tenure_cluster::messaging::reliable::ReliableSender;
use tenure_cluster::messaging::{Message, NotDone, ReceiverError};

use super::handle::Shared;
use super::reliable_inbox;
use super::remote::Addressed;
use crate::Shard;
use crate::id::EntityId;

/// A stream of numbered messages to one entity. Clones share it; when the last one is dropped, what is
/// not done is given up, as a dead letter: wait for [`Reliable::done`] before.
pub struct Reliable<M> {
    sender: ReliableSender<Addressed<M>>,
    id: EntityId,
}

impl<M> std::fmt::Debug for Reliable<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reliable").field("id", &self.id).finish_non_exhaustive()
    }
}

impl<M: Message> Reliable<M> {
    pub(super) fn new(
        shared: &Arc<Shared<M>>,
        sender: &str,
        id: EntityId,
        shard: Shard,
    ) -> Result<Self, ReceiverError> {
        let (node, target) = watch::channel(None);
        tokio::spawn(follow(shared.clone(), shard, node));
        let sender = shared.cluster.reliable(sender, &reliable_inbox(&shared.kind), target)?;
        Ok(Self { sender, id })
    }

    /// Numbers a message and begins to send it, after waiting while too many are not done. From now on
    /// it is sent until it is done, for as long as this process lives.
    pub async fn send(&self, message: M) -> Result<u64, NotDone> {
        self.sender.send(Addressed(self.id.clone(), message)).await
    }

    /// Waits until this message and all before it are done. An error means that this node left the
    /// cluster before it heard of it.
    pub async fn done(&self, number: u64) -> Result<(), NotDone> {
        self.sender.done(number).await
    }
}

impl<M> Clone for Reliable<M> {
    fn clone(&self) -> Self {
        Self { sender: self.sender.clone(), id: self.id.clone() }
    }
}

/// Says where the shard is, for as long as somebody wants to know.
async fn follow<M: Message>(
    shared: Arc<Shared<M>>,
    shard: Shard,
    node: watch::Sender<Option<tenure_cluster::Node>>,
) {
    let mut changes = shared.routes.changes();
    loop {
        changes.borrow_and_update();
        let found = shared.routes.node(shard, &shared.cluster.me());
        // While it moves, the last place is as good as none.
        if found.is_some() {
            node.send_if_modified(|node| {
                let moved = *node != found;
                *node = found;
                moved
            });
        }
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            () = node.closed() => return,
        }
    }
}
