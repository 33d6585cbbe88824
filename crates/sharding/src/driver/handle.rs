use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use tenure_cluster::clients::{Gate, Passing};
use tenure_cluster::messaging::{
    Ask, AskError, Expects, Message, NotDone, Origin, ReceiverError, Unknown, decode,
};
use tenure_cluster::transport::Closed;
use tenure_cluster::{Cluster, Node};
use tenure_lease::planted::{self, GlueBug};

use super::count::Counts;
use super::hosting::Hosting;
use super::reliable::Reliable;
use super::remote::{Frame, Peer, Raw, bad_id, forward_len, head_len, size};
use super::routes::{AskWay, Item, Routes, Sent, Ticket};
use super::say::Said;
use super::start::Start;
use super::{Event, Parcel, Turn, What};
use crate::id::EntityId;
use crate::remember::Remember;
use crate::settings::TIME_MAX;
use crate::{Settings, Shard, Status};

/// The way to all entities of a kind, wherever they are, from any node of the cluster. Cheap to
/// clone.
pub struct Sharding<M> {
    pub(super) shared: Arc<Shared<M>>,
}

pub(super) struct Shared<M> {
    pub(super) cluster: Cluster,
    pub(super) kind: Arc<str>,
    /// The receiver of messages between regions.
    pub(super) inbox: Arc<str>,
    pub(super) settings: Settings,
    pub(super) routes: Arc<Routes<M>>,
    pub(super) control: mpsc::Sender<Event<M>>,
    pub(super) said: Mutex<Said>,
    pub(super) remember: Option<Arc<dyn Remember>>,
    /// What is remembered may outlive the cluster: it is the ids of entities, not what Tenure says.
    pub(super) outlives: bool,
    pub(super) counts: Counts,
    /// Somebody wants shards to be evened out now.
    pub(super) rebalance: Notify,
    pub(super) hosting: mpsc::Sender<Hosting<M>>,
    /// This node has hosted it, and was told to stop.
    pub(super) is_stopped: AtomicBool,
}

impl<M: Message> Sharding<M> {
    /// The way to one entity. Nothing is made before it is sent something. Keep it if you send often.
    pub fn entity(&self, id: &str) -> EntityRef<M> {
        let id = EntityId::new(id);
        let shard = id.shard(&self.shared.settings);
        EntityRef { shared: self.shared.clone(), id, shard }
    }

    /// Who coordinates, what is hosted here, where the rest is; why not, if nobody coordinates.
    pub fn status(&self) -> Status {
        let (waiting, entities) = (self.shared.routes.waiting(), self.shared.counts.entities());
        let said = self.shared.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.status(self.shared.settings.shards, entities, waiting)
    }

    /// Stops hosting on this node, which stays in the cluster: its shards go to other nodes, if they
    /// may host, and this handle goes on as a proxy. Returns when nothing is hosted here any more, and
    /// the coordinator's lease is given back; and so is the session, unless something else in this
    /// process uses it. Without a lease the oldest member still says which shard goes where.
    ///
    /// The kind can be started here again, with the settings that it had
    /// ([`Builder::start`](crate::Builder::start)).
    pub async fn stop(&self) {
        let (stopped, waits) = oneshot::channel();
        if self.shared.hosting.send(Hosting::Stop(stopped)).await.is_ok() {
            let _ = waits.await; // If nobody answers, this node is out of the cluster.
        }
    }

    /// What these entities are called.
    pub fn kind(&self) -> &str {
        &self.shared.kind
    }

    /// Has the coordinator even out now who hosts how much, instead of at its next interval. Only the
    /// node that coordinates can; others say which one that is.
    pub fn rebalance(&self) -> Result<(), NotCoordinator> {
        let status = self.status();
        if !status.coordinates {
            return Err(NotCoordinator(status.coordinator.map(|(node, _)| node)));
        }
        self.shared.rebalance.notify_one();
        Ok(())
    }
}

impl<M> Clone for Sharding<M> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

impl<M> std::fmt::Debug for Sharding<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sharding").field("kind", &self.shared.kind).finish_non_exhaustive()
    }
}

/// This node does not coordinate; who does, if that is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotCoordinator(pub Option<Node>);

impl std::fmt::Display for NotCoordinator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Some(node) => write!(f, "this node does not coordinate: ask {node}, which does"),
            None => f.write_str("this node does not coordinate, and knows nobody who does"),
        }
    }
}

impl std::error::Error for NotCoordinator {}

/// The way to one entity, wherever it is.
///
/// Messages of one sender arrive in order, each at most once, also while the entity's shard moves.
/// While the shard has no place they wait, on the sender's node
/// ([`Settings::buffer_messages`](crate::Settings::buffer_messages)); one that was on its way to a node
/// that died is lost, with a [`DeadLetter`](tenure_cluster::messaging::DeadLetter). For *exactly once
/// in effect* see [`EntityRef::reliable`].
pub struct EntityRef<M> {
    shared: Arc<Shared<M>>,
    id: EntityId,
    shard: Shard,
}

impl<M: Message> EntityRef<M> {
    /// The entity's id.
    pub fn id(&self) -> &str {
        self.id.as_str()
    }

    /// The shard that it belongs to.
    pub fn shard(&self) -> Shard {
        self.shard
    }

    /// Sends a message, after waiting for room on the way if need be, or keeps it until its shard has a
    /// place. `Ok` means that it is on its way, or waits; [`NotDone::Full`] that too much waits. If it
    /// is lost later, because its entity does not keep up or a node dies, there will be a
    /// [`DeadLetter`](tenure_cluster::messaging::DeadLetter). Dropping the future before it is done
    /// leaves open whether it is sent.
    pub async fn tell(&self, message: M) -> Result<(), NotDone> {
        if !self.id.is_valid() {
            return Err(NotDone::Encoding(bad_id(self.id.as_str().len())));
        }
        // On its way to another node it is measured anyway.
        if may_be_long::<M>() && self.shared.routes.is_here(self.shard) {
            self.shared.check_length(forward_len(&self.id, size(&message)))?;
        }
        let mut item = Item { id: self.id.clone(), from: Origin::default(), message, back: None };
        loop {
            item = match self.shared.routes.send(self.shard, item).await {
                Sent::Done => return Ok(()),
                Sent::There(peer, late, Item { id, message, .. }) => {
                    let mut frame = Some(Frame::Forward(id, message));
                    if let Ok(true) = peer.tell.try_tell_from(&mut frame) {
                        return Ok(());
                    }
                    // Boxed, as what waits in `Routes::send` is.
                    let back = Box::pin(self.shared.tell_there(self.shard, &peer, frame)).await?;
                    drop(late);
                    match back {
                        None => return Ok(()),
                        Some(item) => item,
                    }
                }
                Sent::Slow(ticket, item) => {
                    return Box::pin(self.shared.tell_slow(self.shard, ticket, item)).await;
                }
            }
        }
    }

    /// Asks a question: `.within(…)` sends it, as soon as the shard has a place, and waits for the
    /// answer.
    pub fn ask<Q: Ask + Into<M>>(&self, question: Q) -> Asking<'_, M, Q> {
        Asking { entity: self, message: question.into(), _question: PhantomData }
    }

    /// Begins a stream of numbered messages whose effect happens exactly once, wherever the entity goes:
    /// see [`Entity::deliver`](crate::Entity::deliver). `sender` is what people and ledgers call this
    /// sender; it should be the same after a restart.
    pub fn reliable(&self, sender: &str) -> Result<Reliable<M>, ReceiverError> {
        Reliable::new(&self.shared, sender, self.id.clone(), self.shard)
    }
}

impl<M> Clone for EntityRef<M> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), id: self.id.clone(), shard: self.shard }
    }
}

impl<M> std::fmt::Debug for EntityRef<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EntityRef")
            .field("kind", &self.shared.kind)
            .field("id", &self.id)
            .field("shard", &self.shard)
            .finish_non_exhaustive()
    }
}

impl<M: Message> Shared<M> {
    /// It is stopped on this node, and may be started again.
    pub(super) fn set_stopped(&self) {
        self.is_stopped.store(true, Ordering::Release);
    }

    /// Whether it may be started on this node again, with these settings; once.
    pub(super) fn begin_again(&self, start: &Start) -> bool {
        start.settings == self.settings
            && start.remember.is_some() == self.remember.is_some()
            && self.is_stopped.swap(false, Ordering::AcqRel)
    }

    /// Sends a message to the node where its shard is, as soon as there is room for it on the way. It comes
    /// back if the shard has moved before that.
    async fn tell_there(
        &self,
        shard: Shard,
        peer: &Peer<M>,
        mut frame: Option<Frame<M>>,
    ) -> Result<Option<Item<M>>, NotDone> {
        let told = tokio::select! {
            biased;
            told = peer.tell.tell_from(&mut frame) => Some(told),
            () = self.routes.leads_elsewhere(shard, &peer.node) => None,
        };
        match (told, frame) {
            (None, Some(Frame::Forward(id, message))) => {
                Ok(Some(Item { id, from: Origin::default(), message, back: None }))
            }
            (Some(Err(why)), Some(Frame::Forward(id, message))) if retriable(&why) => {
                // Nothing has come of it: it waits for the next place.
                let bytes = size(&message);
                let (origin, what) = (Origin::default(), What::Tell(message));
                let parcel = Parcel { id, from: origin, what, ticket: None };
                let from = peer.node.clone();
                self.control(Event::Returned { from, shard, parcel, bytes }).await.map(|()| None)
            }
            (told, _) => told.unwrap_or(Ok(())).map(|()| None),
        }
    }

    /// Whether a frame of this length could be sent to any other node: it may have to be, wherever its
    /// shard is now.
    fn check_length(&self, frame: usize) -> Result<(), NotDone> {
        let (len, max) = (head_len(&self.inbox) + frame, self.cluster.data_frame_max());
        if len > max { Err(NotDone::TooLong { len, max }) } else { Ok(()) }
    }

    async fn tell_slow(&self, shard: Shard, ticket: Ticket, item: Item<M>) -> Result<(), NotDone> {
        let Item { id, message, .. } = item;
        let bytes = size(&message);
        self.check_length(forward_len(&id, bytes))?;
        let (ack, taken) = oneshot::channel();
        let what = What::Tell(message);
        let parcel = Parcel { id, from: Origin::default(), what, ticket: Some(ticket) };
        self.control(Event::Send { shard, parcel, bytes, ack: Some(ack) }).await?;
        taken.await.unwrap_or_else(|_| Err(closed()))
    }

    async fn control(&self, event: Event<M>) -> Result<(), NotDone> {
        self.control.send(event).await.map_err(|_| closed())
    }

    /// Sends it as soon as the shard has a place, and waits for the bytes of the answer, or until it
    /// was handled.
    async fn send_expecting(
        &self,
        id: &EntityId,
        shard: Shard,
        message: Raw,
        expects: Expects,
        time: Duration,
    ) -> Result<Vec<u8>, AskError> {
        let deadline = Instant::now() + time.min(TIME_MAX);
        let _question = self.cluster.question()?;
        // The node that was asked last, and has refused since the shard is not there any more.
        let mut refused: Option<Node> = None;
        // The one that refused before, and how often in a row: whoever coordinates may say for a while
        // that the shard is there, and if it is this node, it says so at once.
        let (mut refused_before, mut refusals): (Option<Node>, u32) = (None, 0);
        let mut full = 0;
        loop {
            let way = timeout_at(deadline, self.way(id, shard, refused.take())).await;
            let way = way.map_err(|_| NotDone::NotSentWithin(time))??;
            let left = deadline.saturating_duration_since(Instant::now());
            let raw = message.clone();
            let (node, answer) = match way {
                AskWay::There(peer) => {
                    let answer = peer.ask.send_expecting(raw, expects, left).await;
                    (Some(peer.node.clone()), answer)
                }
                _ => {
                    let own = self.cluster.to::<Raw>(&self.cluster.me(), &self.inbox);
                    (None, own.send_expecting(raw, expects, left).await)
                }
            };
            match answer {
                Err(AskError::NotDone(why)) if retriable(&why) && Instant::now() < deadline => {
                    let is_same = node.is_some()
                        && node == refused_before
                        && !planted::has(GlueBug::AskDoesNotPause);
                    refusals = if is_same { (refusals + 1).min(REFUSALS_MAX) } else { 0 };
                    if node.is_none() || is_same {
                        tokio::time::sleep_until(
                            deadline.min(Instant::now() + PAUSE * (1 << refusals)),
                        )
                        .await;
                    }
                    refused_before.clone_from(&node);
                    refused = node;
                }
                // Many come at once. If there is still no room, somebody does not keep up.
                Err(AskError::NotDone(NotDone::Full)) if full < FULL_MAX => {
                    full += 1;
                    tokio::time::sleep_until(deadline.min(Instant::now() + PAUSE * (1 << full)))
                        .await;
                }
                answer => return answer,
            }
        }
    }

    /// Where to ask now; waits for its turn.
    async fn way(
        &self,
        id: &EntityId,
        shard: Shard,
        refused: Option<Node>,
    ) -> Result<AskWay<M>, NotDone> {
        let (grant, granted) = oneshot::channel();
        let what = What::Turn(grant);
        let parcel = |ticket| Parcel { id: id.clone(), from: Origin::default(), what, ticket };
        let event = match refused {
            Some(from) => Event::Returned { from, shard, parcel: parcel(None), bytes: 0 },
            None => match self.routes.ask(shard).await {
                AskWay::Slow(ticket) => {
                    Event::Send { shard, parcel: parcel(Some(ticket)), bytes: 0, ack: None }
                }
                way => return Ok(way),
            },
        };
        self.control(event).await?;
        let mut waits = Waits { routes: &self.routes, shard, granted: false };
        let granted = granted.await;
        waits.granted = true;
        match granted {
            Ok(Ok(Turn::Here)) => Ok(AskWay::Here),
            Ok(Ok(Turn::There(node))) => {
                Ok(AskWay::There(Arc::new(Peer::new(&self.cluster, &node, &self.inbox))))
            }
            Ok(Err(why)) => Err(why),
            Err(_) => Err(closed()),
        }
    }
}

/// A question that waits for its turn.
struct Waits<'a, M: Message> {
    routes: &'a Routes<M>,
    shard: Shard,
    granted: bool,
}

impl<M: Message> Drop for Waits<'_, M> {
    fn drop(&mut self) {
        if !self.granted {
            self.routes.give_up(self.shard);
        }
    }
}

/// Whether messages of this type need to be measured: one that owns nothing is as long as it is.
fn may_be_long<M>() -> bool {
    std::mem::needs_drop::<M>() || size_of::<M>() > SHORT
}

/// The way of clients, through this node.
impl<M: Message> Gate for Shared<M> {
    fn pass(self: Arc<Self>, id: &str, body: Bytes, expects: Expects, within: Duration) -> Passing {
        let id = EntityId::new(id);
        Box::pin(async move {
            let shard = id.shard(&self.settings);
            let message = Raw::forward_bytes(&id, &body).map_err(NotDone::Encoding)?;
            self.send_expecting(&id, shard, message, expects, within).await
        })
    }
}

/// It certainly was not handled, and may be elsewhere.
fn retriable(why: &NotDone) -> bool {
    matches!(why, NotDone::NoSuchReceiver(_) | NotDone::NotAMember(_) | NotDone::Closed(_))
}

/// This node is out of the cluster.
pub(super) fn closed() -> NotDone {
    NotDone::Closed(Arc::new(Closed::Transport))
}

/// A question that waits for its deadline.
#[must_use = "nothing is sent before `.within(…)` is awaited"]
pub struct Asking<'a, M, Q> {
    entity: &'a EntityRef<M>,
    message: M,
    _question: PhantomData<fn(Q)>,
}

impl<M, Q> std::fmt::Debug for Asking<'_, M, Q> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Asking").field("id", &self.entity.id).finish_non_exhaustive()
    }
}

impl<M: Message, Q: Ask> Asking<'_, M, Q> {
    /// Sends the question, as soon as the shard has a place, and waits for the answer, all within this
    /// time.
    pub async fn within(self, time: Duration) -> Result<Q::Reply, AskError> {
        let EntityRef { shared, id, shard } = self.entity;
        let question = Raw::forward(id, &self.message).map_err(NotDone::Encoding)?;
        shared.check_length(question.len())?;
        let answer = shared.send_expecting(id, *shard, question, Expects::Answer, time).await?;
        decode(&answer).map_err(|error| Unknown::Unreadable(error).into())
    }
}

/// A message that owns nothing and takes no more bytes in memory takes fewer than a frame may have.
const SHORT: usize = 1 << 10;
/// How often a question is asked again for which there was no room.
const FULL_MAX: u32 = 5;
/// How often the pause after a refusal is doubled.
const REFUSALS_MAX: u32 = 5;
/// Half of the first pause before that; each is twice as long as the one before.
const PAUSE: Duration = Duration::from_millis(1);
