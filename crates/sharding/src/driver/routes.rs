//! Where messages to each shard go, for whoever sends one: read without asking anybody.
//!
//! The region decides; [`Routes`] is what it last said. A message goes straight to the queue of the
//! shard's crew, or straight to the node where the shard is; only while that is not settled it takes the
//! slow way, through the region.
//!
//! # Order
//!
//! Messages of one sender must not overtake each other when the way changes.
//!
//! - *From slow to straight.* Each message on the slow way has a [`Ticket`], from when its sender saw
//!   that way until it is in the queue, or on the way to the node. A shard's new way is published only
//!   when there is no ticket left; until then senders wait.
//! - *From straight to slow, here.* What is in the queue when the way is withdrawn comes back and
//!   goes before what takes the slow way; what is not in it by then takes the slow way.
//! - *From straight to slow, elsewhere.* Who sends to another node has a [`Late`], from when it saw
//!   that way until the message is on the lane. The mark that ends that way is sent when there is
//!   none left.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, PoisonError, RwLock};

use tokio::sync::{Notify, watch};

use tenure_cluster::Node;
use tenure_cluster::messaging::reliable::Delivery;
use tenure_cluster::messaging::{Message, Reply};

use super::queue::Queue;
use super::remote::Peer;
use crate::Shard;
use crate::id::EntityId;

/// A message in the hands of its shard.
pub(super) struct Item<M> {
    pub(super) id: EntityId,
    /// The node that sent it; `None` if that is this one.
    pub(super) from: Option<Arc<Node>>,
    pub(super) message: M,
    /// Who waits for what comes of it. Most are told, and take one line of a cache as they are.
    pub(super) back: Option<Box<Back>>,
}

/// Who waits for what comes of a message.
pub(super) enum Back {
    Reply(Reply),
    Numbered(Delivery<()>),
}

impl<M> Item<M> {
    /// The node that sent it; `None` if that is this one.
    pub(super) fn sender(&self) -> Option<Node> {
        self.from.as_deref().cloned()
    }
}

pub(super) struct Routes<M> {
    lines: Box<[Line<M>]>,
    /// Rises with everything that is published.
    version: watch::Sender<u64>,
    /// A shard has no ticket left, or no late.
    drained: Notify,
}

/// The way to one shard.
struct Line<M> {
    way: RwLock<Way<M>>,
    tickets: AtomicUsize,
    late: AtomicUsize,
}

pub(super) enum Way<M> {
    /// Into the queue of its crew.
    Here(Arc<Queue<M>>),
    /// To this node.
    There(Arc<Peer<M>>),
    /// Through the region.
    Slow,
    /// It is about to be here, or to be elsewhere: then what comes from other nodes goes back.
    Wait { here: bool },
}

/// What came of sending a message.
pub(super) enum Sent<M> {
    Done,
    /// It is for this node.
    There(Arc<Peer<M>>, Late<M>, Item<M>),
    Slow(Ticket, Item<M>),
}

/// What came of a message from another node.
pub(super) enum Arrived<M> {
    Delivered,
    NotHere(Ticket, Item<M>),
}

/// Where a question goes.
pub(super) enum AskWay<M> {
    Here,
    There(Arc<Peer<M>>),
    Slow(Ticket),
}

/// How a look at the table came out.
enum Picked<M> {
    Done,
    /// There is no room yet.
    Full(Arc<Queue<M>>, Item<M>),
    There(Arc<Peer<M>>, Item<M>),
    Slow(Item<M>),
    Wait(Item<M>),
}

impl<M: Message> Routes<M> {
    pub(super) fn new(shards: u32) -> Arc<Self> {
        let line = |_| Line {
            way: RwLock::new(Way::Slow),
            tickets: AtomicUsize::new(0),
            late: AtomicUsize::new(0),
        };
        Arc::new(Self {
            lines: (0..shards).map(line).collect(),
            version: watch::channel(0).0,
            drained: Notify::new(),
        })
    }

    /// Says where messages go from now on.
    pub(super) fn publish(&self, shard: Shard, way: Way<M>) {
        *self.line(shard).way.write().unwrap_or_else(PoisonError::into_inner) = way;
        self.version.send_modify(|version| *version += 1);
    }

    /// For a message that came back, and takes the slow way from here.
    pub(super) fn issue(self: &Arc<Self>, shard: Shard) -> Ticket {
        self.line(shard).tickets.fetch_add(1, SeqCst);
        self.ticket(shard)
    }

    /// Whether nothing is on the slow way to a shard.
    pub(super) fn is_settled(&self, shard: Shard) -> bool {
        self.line(shard).tickets.load(SeqCst) == 0
    }

    /// How many messages are on the slow way.
    pub(super) fn waiting(&self) -> usize {
        self.lines.iter().map(|line| line.tickets.load(SeqCst)).sum()
    }

    /// Waits until a shard may have become settled.
    pub(super) async fn drained(&self) {
        self.drained.notified().await;
    }

    /// Waits until nobody is about to send to another node for this shard, who was when this was
    /// called.
    pub(super) async fn no_late(&self, shard: Shard) {
        while self.line(shard).late.load(SeqCst) > 0 {
            super::pause_briefly().await;
        }
    }

    /// Where messages to a shard go: straight away if they can. Waits for room.
    #[inline]
    pub(super) async fn send(self: &Arc<Self>, shard: Shard, item: Item<M>) -> Sent<M> {
        let mut item = item;
        loop {
            item = match self.pick(shard, item) {
                Picked::Done => return Sent::Done,
                Picked::Full(queue, item) => match self.room(shard, queue, item).await {
                    None => return Sent::Done,
                    Some(item) => item,
                },
                Picked::There(peer, item) => {
                    let late = Late { routes: self.clone(), shard };
                    return Sent::There(peer, late, item);
                }
                Picked::Slow(item) => return Sent::Slow(self.ticket(shard), item),
                Picked::Wait(item) => {
                    self.settled(shard).await;
                    item
                }
            }
        }
    }

    /// The same for what has come from another node: if the shard is not here, it must go back.
    pub(super) async fn arrive(self: &Arc<Self>, shard: Shard, item: Item<M>) -> Arrived<M> {
        let mut item = item;
        loop {
            item = match self.pick_here(shard, item) {
                Picked::Done => return Arrived::Delivered,
                Picked::Full(queue, item) => match self.room(shard, queue, item).await {
                    None => return Arrived::Delivered,
                    Some(item) => item,
                },
                Picked::Wait(item) => {
                    self.settled(shard).await;
                    item
                }
                Picked::There(_, item) | Picked::Slow(item) => {
                    return Arrived::NotHere(self.ticket(shard), item);
                }
            }
        }
    }

    /// Where a question goes.
    pub(super) async fn ask(self: &Arc<Self>, shard: Shard) -> AskWay<M> {
        loop {
            if let Some(way) = self.pick_ask(shard) {
                return way;
            }
            self.settled(shard).await;
        }
    }

    fn pick_ask(self: &Arc<Self>, shard: Shard) -> Option<AskWay<M>> {
        let line = self.line(shard);
        match &*line.way.read().unwrap_or_else(PoisonError::into_inner) {
            Way::Here(_) => Some(AskWay::Here),
            Way::There(peer) => Some(AskWay::There(peer.clone())),
            Way::Slow => {
                line.tickets.fetch_add(1, SeqCst);
                Some(AskWay::Slow(self.ticket(shard)))
            }
            Way::Wait { .. } => None,
        }
    }

    /// The node where a shard is, if that is another.
    pub(super) fn node(&self, shard: Shard, me: &Node) -> Option<Node> {
        match &*self.line(shard).way.read().unwrap_or_else(PoisonError::into_inner) {
            Way::Here(_) => Some(me.clone()),
            Way::There(peer) => Some(peer.node.clone()),
            Way::Slow | Way::Wait { .. } => None,
        }
    }

    /// Whenever something is published.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    #[inline]
    fn pick(&self, shard: Shard, item: Item<M>) -> Picked<M> {
        let line = self.line(shard);
        // Counted while the way cannot change: see `publish`.
        match &*line.way.read().unwrap_or_else(PoisonError::into_inner) {
            Way::Here(queue) => put(queue, shard, item),
            Way::There(peer) => {
                line.late.fetch_add(1, SeqCst);
                Picked::There(peer.clone(), item)
            }
            Way::Slow => {
                line.tickets.fetch_add(1, SeqCst);
                Picked::Slow(item)
            }
            Way::Wait { .. } => Picked::Wait(item),
        }
    }

    #[inline]
    fn pick_here(&self, shard: Shard, item: Item<M>) -> Picked<M> {
        let line = self.line(shard);
        match &*line.way.read().unwrap_or_else(PoisonError::into_inner) {
            Way::Here(queue) => put(queue, shard, item),
            // All others would wait behind this one, for as long as the new place is slow.
            Way::There(_) | Way::Slow | Way::Wait { here: false } => {
                line.tickets.fetch_add(1, SeqCst);
                Picked::Slow(item)
            }
            Way::Wait { here: true } => Picked::Wait(item),
        }
    }

    /// Waits for room. If the way has changed meanwhile, the message comes back: nothing is put into
    /// the queue for a shard whose way was withdrawn.
    async fn room(&self, shard: Shard, queue: Arc<Queue<M>>, item: Item<M>) -> Option<Item<M>> {
        let turn = queue.turn().await;
        let put = match &*self.line(shard).way.read().unwrap_or_else(PoisonError::into_inner) {
            Way::Here(present) if Arc::ptr_eq(present, &queue) => turn.put(shard, item),
            _ => return Some(item),
        };
        if put.is_err() {
            // Its crew is gone: whoever publishes the new way does so when nothing of it goes on.
            super::pause_briefly().await;
        }
        put.err()
    }

    /// Waits until the way to a shard is not about to change any more, or changes otherwise.
    async fn settled(&self, shard: Shard) {
        let mut version = self.version.subscribe();
        let began = self.is_changing(shard);
        loop {
            version.borrow_and_update();
            let now = self.is_changing(shard);
            if now.is_none() || now != began {
                return;
            }
            // Whoever publishes keeps these routes.
            let _ = version.changed().await;
        }
    }

    /// Whether it is about to be here, if it is about to change.
    fn is_changing(&self, shard: Shard) -> Option<bool> {
        match *self.line(shard).way.read().unwrap_or_else(PoisonError::into_inner) {
            Way::Wait { here } => Some(here),
            _ => None,
        }
    }

    /// Of what was counted.
    fn ticket(self: &Arc<Self>, shard: Shard) -> Ticket {
        Ticket { counted: self.clone(), shard }
    }
}

impl<M> Routes<M> {
    fn line(&self, shard: Shard) -> &Line<M> {
        &self.lines[shard.0 as usize]
    }
}

#[inline]
fn put<M>(queue: &Arc<Queue<M>>, shard: Shard, item: Item<M>) -> Picked<M> {
    match queue.try_put(shard, item) {
        Ok(()) => Picked::Done,
        Err(item) => Picked::Full(queue.clone(), item),
    }
}

/// A message on the slow way.
pub(super) struct Ticket {
    counted: Arc<dyn Counted>,
    shard: Shard,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.counted.ticket_gone(self.shard);
    }
}

/// So that a ticket need not know what kind of messages there are.
trait Counted: Send + Sync {
    fn ticket_gone(&self, shard: Shard);
}

impl<M: Message> Counted for Routes<M> {
    fn ticket_gone(&self, shard: Shard) {
        if self.line(shard).tickets.fetch_sub(1, SeqCst) == 1 {
            self.drained.notify_one();
        }
    }
}

/// A message that is about to be on the lane to another node.
pub(super) struct Late<M> {
    routes: Arc<Routes<M>>,
    shard: Shard,
}

impl<M> Drop for Late<M> {
    fn drop(&mut self) {
        self.routes.line(self.shard).late.fetch_sub(1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use super::*;

    #[tokio::test]
    async fn who_waits_for_a_shard_that_goes_elsewhere_does_not_stop_the_others() {
        let routes = Routes::<u64>::new(1);
        let item = || Item { id: EntityId::new("a"), from: None, message: 1, back: None };
        let slow = routes.issue(Shard(0));
        routes.publish(Shard(0), Way::Wait { here: true });
        let mut arriving = Box::pin(routes.arrive(Shard(0), item()));
        let pending =
            std::future::poll_fn(|cx| Poll::Ready(arriving.as_mut().poll(cx).is_pending()));
        assert!(pending.await);
        // It does not come after all.
        routes.publish(Shard(0), Way::Wait { here: false });
        let Arrived::NotHere(ticket, _) = arriving.await else { panic!("it is not here") };
        let Arrived::NotHere(..) = routes.arrive(Shard(0), item()).await else {
            panic!("it is not here")
        };
        drop((slow, ticket));
        assert!(routes.is_settled(Shard(0)));
    }
}
