//! What took the slow way to another node, or goes back to one: in order, and nobody waits for it.

use std::sync::Arc;
use std::time::Duration;

use tenure_lease::planted::{self, GlueBug};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};

use tenure_cluster::Node;
use tenure_cluster::messaging::{Lost, Message, NotDone, Origin, Reply};

use super::remote::{Frame, Peer, refuse, refuse_from, size};
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
    let mut patience = shared.settings.patience;
    // How often in a row all that was queued came back.
    let mut refusals: u32 = 0;
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
        let shard = match &frame {
            Frame::Forward(id, _) => Some(id.shard(&shared.settings)),
            _ => None,
        };
        let mut place = Some(frame);
        let told = tokio::select! {
            biased;
            told = peer.tell.tell_from(&mut place) => told,
            // There was no room for it, and it is for another node now.
            () = elsewhere(&shared, shard, &node, &mut patience) => Err(NotDone::Full),
        };
        let Err(why) = told else {
            patience = shared.settings.patience;
            refusals = 0;
            continue;
        };
        tracing::debug!(kind = %shared.kind, %node, "not sent: {why}");
        let lasting = matches!(why, NotDone::TooLong { .. } | NotDone::Encoding(_));
        if shard.is_some() && planted::has(GlueBug::UnsendableMessagesLost) {
            continue;
        }
        let from = node.clone();
        let event = match (place, shard) {
            // What this node sends waits for the next place.
            (Some(Frame::Forward(id, message)), Some(shard)) if !lasting => {
                let bytes = size(&message);
                let (origin, what) = (Origin::default(), What::Tell(message));
                let parcel = Parcel { id, from: origin, what, ticket };
                Event::Returned { from, shard, parcel, bytes }
            }
            // Nothing comes back from a node that is gone. Of one that has no room the region does not wait
            // longer than this did.
            (Some(Frame::Mark(shard)), _) if why != NotDone::Full => Event::Marked { from, shard },
            (Some(Frame::Forward(id, _)), _) => {
                refuse(&shared, &id, Reply::nobody(), Lost::Unsent);
                continue;
            }
            (Some(Frame::Return(id, _)), _) => {
                refuse_from(&shared, &id, from, Reply::nobody(), Lost::Unsent);
                continue;
            }
            _ => continue,
        };
        // A coordinator on this node says at once that the shard is still there, as long as it believes so;
        // while this node's transport closes, for instance. Only after the last one: many may wait.
        if queued.is_empty() {
            if refusals > 0 && !planted::has(GlueBug::OutboxDoesNotPause) {
                sleep(PAUSE * (1 << refusals.min(REFUSALS_MAX))).await;
            }
            refusals = refusals.saturating_add(1);
        }
        if shared.control.send(event).await.is_err() {
            return;
        }
    }
}

/// Waits until a message is for another node; one that is not for a shard, until it has waited for long. The
/// next one does not wait at all then, unless something was sent in between.
async fn elsewhere<M: Message>(
    shared: &Shared<M>,
    shard: Option<Shard>,
    node: &Node,
    patience: &mut Duration,
) {
    match shard {
        Some(shard) => shared.routes.leads_elsewhere(shard, node).await,
        None => {
            sleep(*patience).await;
            *patience = Duration::ZERO;
        }
    }
}

/// Half of the first pause after all that was queued came back twice; each is twice as long as the one before.
const PAUSE: Duration = Duration::from_millis(1);
/// How often that pause is doubled.
const REFUSALS_MAX: u32 = 5;
/// How much may wait for one node. More is refused.
const ROOM: usize = 1 << 16;
