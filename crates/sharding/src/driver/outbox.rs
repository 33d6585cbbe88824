//! What took the slow way to another node, or goes back to one: in order, and nobody waits for it.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use tenure_cluster::Node;
use tenure_cluster::messaging::{Message, NotDone};

use super::remote::{Frame, Peer, size};
use super::routes::Ticket;
use super::{Event, Parcel, Turn, What};
use crate::Shard;
use crate::driver::handle::Shared;

/// The queue to one node.
pub(super) struct Outbox<M> {
    queue: mpsc::Sender<Out<M>>,
}

pub(super) enum Out<M> {
    Frame(Frame<M>, Option<Ticket>),
    /// A mark, once nobody is about to send to that node any more.
    Mark(Shard),
    /// It is somebody's turn to ask a question there.
    Turn(oneshot::Sender<Result<Turn, NotDone>>),
}

impl<M: Message> Outbox<M> {
    pub(super) fn new(shared: &Arc<Shared<M>>, node: &Node) -> Self {
        let (queue, queued) = mpsc::channel(ROOM);
        tokio::spawn(send(shared.clone(), node.clone(), queued));
        Self { queue }
    }

    /// Queues something, if there is room.
    pub(super) fn put(&self, out: Out<M>) -> Result<(), Out<M>> {
        self.queue.try_send(out).map_err(|error| match error {
            mpsc::error::TrySendError::Full(out) | mpsc::error::TrySendError::Closed(out) => out,
        })
    }
}

async fn send<M: Message>(shared: Arc<Shared<M>>, node: Node, mut queued: mpsc::Receiver<Out<M>>) {
    let peer = Peer::<M>::new(&shared.cluster, &node, &shared.inbox);
    while let Some(out) = queued.recv().await {
        let (frame, ticket) = match out {
            Out::Frame(frame, ticket) => (frame, ticket),
            Out::Mark(shard) => {
                // Nobody waits longer for the mark; those that are late may be of the next way, too.
                let _ = timeout(shared.settings.patience, shared.routes.no_late(shard)).await;
                (Frame::Mark(shard), None)
            }
            Out::Turn(grant) => {
                let _ = grant.send(Ok(Turn::There(node.clone()))); // Its time may be over.
                continue;
            }
        };
        if let Err((why, frame)) = peer.tell.tell_or_back(frame).await {
            tracing::debug!(kind = %shared.kind, %node, "not sent: {why}");
            // The node is gone. What others sent goes with it; what this one sends waits.
            let from = node.clone();
            let event = match frame {
                Some(Frame::Forward(id, message)) => {
                    let shard = id.shard(&shared.settings);
                    let bytes = size(&message);
                    let parcel = Parcel { id, from: None, what: What::Tell(message), ticket };
                    Event::Returned { from, shard, parcel, bytes }
                }
                // Nothing comes back from there any more.
                Some(Frame::Mark(shard)) => Event::Marked { from, shard },
                _ => continue,
            };
            if shared.control.send(event).await.is_err() {
                return;
            }
        }
    }
}

/// How much may wait for one node. More is refused.
const ROOM: usize = 1 << 16;
