//! What an actor is sent. It outlives each run of the actor on this node, so that messages wait
//! while the next one starts.

use std::collections::VecDeque;

use tokio::sync::{Mutex, MutexGuard};

use tenure_cluster::messaging::{Lost, Message, Receipt, Received, Receiver, ReceiverError, Reply};
use tenure_cluster::{Cluster, Node};

/// The inbox of one singleton on this node. A run of the actor has it for itself.
pub(super) struct Inbox<M> {
    name: String,
    open: Mutex<OpenInbox<M>>,
}

pub(super) struct OpenInbox<M> {
    /// None until the first run, and while the singleton is not here.
    receiver: Option<Receiver<M>>,
    /// Taken from the receiver, and not yet begun with.
    taken: VecDeque<Received<M>>,
}

impl<M: Message> Inbox<M> {
    pub(super) fn new(name: String) -> Self {
        Self { name, open: Mutex::new(OpenInbox { receiver: None, taken: VecDeque::new() }) }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Lets messages come, if they could not yet.
    pub(super) async fn open(
        &self,
        cluster: &Cluster,
    ) -> Result<MutexGuard<'_, OpenInbox<M>>, ReceiverError> {
        let mut open = self.open.lock().await;
        if open.receiver.is_none() {
            open.receiver = Some(cluster.receiver(&self.name)?);
        }
        Ok(open)
    }

    /// Refuses what waits for a run that will not come on this node.
    pub(super) fn refuse_waiting(&self, cluster: &Cluster) {
        // A run has it: it is not over.
        let Ok(mut open) = self.open.try_lock() else { return };
        for received in open.taken.drain(..) {
            cluster.refuse(&self.name, received, Lost::NoSuchReceiver);
        }
        open.receiver = None;
    }
}

impl<M: Message> OpenInbox<M> {
    /// Waits until there is a message; false when the node is out of the cluster for good. Dropping
    /// the future loses nothing.
    pub(super) async fn fill(&mut self) -> bool {
        if !self.taken.is_empty() {
            return true;
        }
        let Some(receiver) = &mut self.receiver else { return false };
        let mut batch = Vec::from(std::mem::take(&mut self.taken)); // Empty; with its room.
        let count = receiver.recv_many(&mut batch, BATCH).await;
        self.taken = batch.into();
        count > 0
    }

    pub(super) fn next(&mut self) -> Option<Received<M>> {
        self.taken.pop_front()
    }

    /// Takes what has come; what comes from now on is refused.
    pub(super) fn close(&mut self) {
        if let Some(mut receiver) = self.receiver.take() {
            self.taken.extend(std::iter::from_fn(|| receiver.try_recv()));
        }
    }
}

/// A told message that is being handled: unless that is finished, it becomes a dead letter. (Whoever
/// asks is told by the reply.)
pub(super) struct Handling<'a> {
    cluster: &'a Cluster,
    inbox: &'a str,
    told_by: Option<Node>,
    /// To be told when it is handled.
    receipt: Option<Receipt>,
}

impl<'a> Handling<'a> {
    pub(super) fn begin<M>(
        cluster: &'a Cluster,
        inbox: &'a str,
        received: &mut Received<M>,
    ) -> Self {
        let told_by = (!received.reply.is_wanted()).then(|| received.from.clone());
        let receipt = received.reply.take_receipt();
        Self { cluster, inbox, told_by, receipt }
    }

    pub(super) fn finish(mut self) {
        self.told_by = None;
        if let Some(receipt) = self.receipt.take() {
            receipt.handled();
        }
    }
}

impl Drop for Handling<'_> {
    fn drop(&mut self) {
        if let Some(from) = self.told_by.take() {
            let letter = Received { message: (), from, reply: Reply::nobody() };
            self.cluster.refuse(self.inbox, letter, Lost::Unfinished);
        }
    }
}

/// How many messages are taken at a time.
const BATCH: usize = 256;
