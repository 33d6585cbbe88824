//! What an actor is sent. It outlives each run of the actor on this node, so that messages wait while
//! the next one starts; while the singleton is not here, what comes goes back to its proxies.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tokio::sync::{Mutex, MutexGuard, watch};
use tokio::time::timeout;

use tenure_cluster::messaging::{
    Lost, Message, Origin, Receipt, Received, Receiver, ReceiverError, Reply,
};
use tenure_cluster::{Cluster, Node};

use super::PATIENCE;
use super::frame::{Frame, RETURNED, Returned};
use crate::hosted::inbox;

/// The inbox of one singleton on this node. A run of the actor has it for itself.
pub(super) struct Inbox<M> {
    singleton: Arc<str>,
    name: String,
    open: Mutex<OpenInbox<M>>,
    place: watch::Sender<Place>,
}

/// Where the singleton is, as far as its inbox on this node is concerned.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Here: what comes waits for its next run.
    Here,
    /// Elsewhere, or nowhere: what comes goes back.
    Away,
    /// It was stopped on this node: nothing comes any more.
    Closed,
}

pub(super) struct OpenInbox<M> {
    /// None until the singleton is managed on this node.
    receiver: Option<Receiver<Frame<M>>>,
    /// Taken from the receiver, and not yet begun with.
    taken: VecDeque<Received<Frame<M>>>,
}

/// What an actor is sent.
pub(super) enum Next<M> {
    Message(Received<M>),
    /// A proxy, by its node and its number there, asks for an answer when all that it sent before is done with.
    Mark(Node, u32),
}

impl<M: Message> Inbox<M> {
    pub(super) fn new(singleton: Arc<str>) -> Self {
        let open = OpenInbox { receiver: None, taken: VecDeque::new() };
        let (name, place) = (inbox(&singleton), watch::Sender::new(Place::Away));
        Self { singleton, name, open: Mutex::new(open), place }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// For a run, once nothing is given back any more.
    pub(super) async fn lock(&self) -> MutexGuard<'_, OpenInbox<M>> {
        self.open.lock().await
    }

    /// Whenever the singleton is not here, gives back what comes.
    async fn give_back(self: Arc<Self>, cluster: Cluster) {
        let mut place = self.place.subscribe();
        loop {
            // Its sender is in `self`.
            let _ = place.wait_for(|place| *place != Place::Here).await;
            let mut open = self.open.lock().await;
            if *place.borrow() == Place::Closed {
                open.receiver = None;
                return;
            }
            while *place.borrow_and_update() == Place::Away {
                tokio::select! {
                    biased;
                    _ = place.changed() => continue,
                    filled = open.fill() => if !filled {
                        return; // This node is out of the cluster.
                    }
                }
                if let Some(received) = open.taken.pop_front() {
                    self.give_one_back(&cluster, received).await;
                }
            }
        }
    }

    async fn give_one_back(&self, cluster: &Cluster, received: Received<Frame<M>>) {
        let Received { message: frame, from, mut reply } = received;
        match frame {
            Frame::Mark { proxy } => self.answer_mark(cluster, &from, proxy).await,
            // Whoever asks is better served by an answer at once, and asks again.
            Frame::Message { .. } if reply.is_awaited() => {
                self.refuse(cluster, from, reply, Lost::NoSuchReceiver);
            }
            Frame::Message { proxy, message } => {
                let mut bytes = Vec::new();
                let encoded = catch_unwind(AssertUnwindSafe(|| message.encode(&mut bytes)));
                let sent = match encoded {
                    Ok(Ok(())) => self.send_back(cluster, &from, proxy, Some(bytes)).await,
                    _ => false,
                };
                match sent {
                    true => reply.take_origin().give_back(),
                    false => self.refuse(cluster, from, reply, Lost::NoSuchReceiver),
                }
            }
        }
    }

    pub(super) async fn answer_mark(&self, cluster: &Cluster, from: &Node, proxy: u32) {
        self.send_back(cluster, from, proxy, None).await;
    }

    /// Whether it is on its way. A node that does not take it is not waited for.
    async fn send_back(
        &self,
        cluster: &Cluster,
        to: &Node,
        proxy: u32,
        message: Option<Vec<u8>>,
    ) -> bool {
        let returned = Returned { singleton: self.singleton.to_string(), proxy, message };
        let proxies = cluster.to::<Returned>(to, RETURNED);
        matches!(timeout(PATIENCE, proxies.tell(returned)).await, Ok(Ok(())))
    }

    fn refuse(&self, cluster: &Cluster, from: Node, reply: Reply, why: Lost) {
        cluster.refuse(&self.name, None, Received { message: (), from, reply }, why);
    }

    /// The next message for a run, of those that were taken. All that came before are done with.
    pub(super) async fn next(
        &self,
        cluster: &Cluster,
        open: &mut OpenInbox<M>,
    ) -> Option<Received<M>> {
        loop {
            match open.next()? {
                Next::Message(received) => return Some(received),
                Next::Mark(from, proxy) => self.answer_mark(cluster, &from, proxy).await,
            }
        }
    }
}

/// An inbox, whatever its messages are.
pub(super) trait AnyInbox: Send + Sync {
    /// Lets messages come, for as long as this node is in the cluster.
    fn open(self: Arc<Self>, cluster: &Cluster) -> Result<(), ReceiverError>;

    /// Says whether the singleton is here, or about to start again: if not, what waits goes back.
    fn set_place(&self, place: Place);

    /// Nobody follows it once the inbox is closed.
    fn place(&self) -> &watch::Sender<Place>;
}

impl<M: Message> AnyInbox for Inbox<M> {
    fn open(self: Arc<Self>, cluster: &Cluster) -> Result<(), ReceiverError> {
        let receiver = cluster.receiver(&self.name)?;
        if let Ok(mut open) = self.open.try_lock() {
            open.receiver = Some(receiver); // Always: nobody has it yet.
        }
        tokio::spawn(self.give_back(cluster.clone()));
        Ok(())
    }

    fn set_place(&self, place: Place) {
        self.place.send_if_modified(|now| std::mem::replace(now, place) != place);
    }

    fn place(&self) -> &watch::Sender<Place> {
        &self.place
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

    /// The next of those that were taken.
    #[inline]
    pub(super) fn next(&mut self) -> Option<Next<M>> {
        let Received { message: frame, from, reply } = self.taken.pop_front()?;
        Some(match frame {
            Frame::Message { message, .. } => Next::Message(Received { message, from, reply }),
            Frame::Mark { proxy } => Next::Mark(from, proxy),
        })
    }

    /// Takes what has come, though not what comes meanwhile without end.
    pub(super) fn take_all(&mut self) {
        if let Some(receiver) = &mut self.receiver {
            let come = std::iter::from_fn(|| receiver.try_recv());
            self.taken.extend(come.take(ALL));
        }
    }
}

/// A told message that is being handled: unless that is finished, it becomes a dead letter. (Whoever
/// asks is told by the reply.)
pub(super) struct Handling<'a> {
    cluster: &'a Cluster,
    inbox: &'a str,
    told_by: Option<Origin>,
    /// To be told when it is handled.
    receipt: Option<Receipt>,
}

impl<'a> Handling<'a> {
    pub(super) fn begin<M>(
        cluster: &'a Cluster,
        inbox: &'a str,
        received: &mut Received<M>,
    ) -> Self {
        let told_by = match received.reply.is_awaited() {
            true => None,
            false => Some(received.reply.take_origin()),
        };
        let receipt = received.reply.take_receipt();
        Self { cluster, inbox, told_by, receipt }
    }

    pub(super) fn finish(mut self) {
        if let Some(origin) = self.told_by.take() {
            origin.settle();
        }
        if let Some(receipt) = self.receipt.take() {
            receipt.handled();
        }
    }
}

impl Drop for Handling<'_> {
    fn drop(&mut self) {
        if let Some(origin) = self.told_by.take() {
            let from = origin.node().cloned().unwrap_or_else(|| self.cluster.me());
            let letter = Received { message: (), from, reply: origin.into() };
            self.cluster.refuse(self.inbox, None, letter, Lost::Unfinished);
        }
    }
}

/// How many messages are taken at a time.
const BATCH: usize = 256;
/// How many are taken at the end: more than wait in an inbox.
const ALL: usize = 1 << 14;
