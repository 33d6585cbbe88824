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
use tenure_cluster::messaging::{Message, Origin, Reply};
use tenure_lease::planted::{self, GlueBug};

use super::queue::{Queue, Refused};
use super::remote::Peer;
use crate::Shard;
use crate::id::EntityId;

/// A message in the hands of its shard.
pub(super) struct Item<M> {
    pub(super) id: EntityId,
    /// The node that told it; that of whoever asks is known by the reply.
    pub(super) from: Origin,
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
        match self.back.as_deref() {
            Some(Back::Reply(reply)) => reply.node().cloned(),
            None | Some(Back::Numbered(_)) => self.from.node().cloned(),
        }
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
    /// How many questions have given up on the slow way since somebody last looked for them.
    given_up: AtomicUsize,
}

pub(super) enum Way<M> {
    /// Into the queue of its crew.
    Here(Arc<Queue<M>>),
    /// To this node.
    There(Arc<Peer<M>>),
    /// Through the region.
    Slow,
    /// It is about to be here, or to be on another node: then what comes from other nodes goes back.
    Wait(Option<Node>),
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
    /// Into a queue that has no room, beyond it.
    Beyond(Arc<Queue<M>>),
    NotHere(Ticket, Item<M>),
    /// Its shard is about to be here.
    Wait(Item<M>),
    /// Too many wait for its shard.
    Full(Item<M>),
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
            given_up: AtomicUsize::new(0),
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
        self.line(shard).tickets.load(SeqCst) == 0 || planted::has(GlueBug::WayOpensTooEarly)
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

    /// Whether messages to a shard go into a queue of this node.
    #[inline]
    pub(super) fn is_here(&self, shard: Shard) -> bool {
        let way = self.line(shard).way.read().unwrap_or_else(PoisonError::into_inner);
        matches!(*way, Way::Here(_))
    }

    /// Whether there is room for messages to some shard of this node, or it has none.
    pub(super) fn have_room(&self) -> bool {
        let mut queues = 0;
        let has_room = self.lines.iter().any(|line| {
            match &*line.way.read().unwrap_or_else(PoisonError::into_inner) {
                Way::Here(queue) => {
                    queues += 1;
                    queue.has_room_or_closed()
                }
                _ => false,
            }
        });
        has_room || queues == 0
    }

    /// Waits until a shard is known to be elsewhere than on this node, or to be about to be.
    pub(super) async fn leads_elsewhere(&self, shard: Shard, node: &Node) {
        let mut version = self.version.subscribe();
        loop {
            match &*self.line(shard).way.read().unwrap_or_else(PoisonError::into_inner) {
                Way::There(peer) if peer.node == *node => {}
                Way::Wait(Some(to)) if to == node => {}
                Way::Slow => {}
                Way::Here(_) | Way::There(_) | Way::Wait(_) => return,
            }
            let _ = version.changed().await; // Whoever publishes keeps these routes.
        }
    }

    /// A question on the slow way waits no longer.
    pub(super) fn give_up(&self, shard: Shard) {
        self.line(shard).given_up.fetch_add(1, SeqCst);
    }

    /// Whether questions have given up since this was last asked.
    pub(super) fn have_given_up(&self, shard: Shard) -> bool {
        self.line(shard).given_up.swap(0, SeqCst) > 0
    }

    /// Where messages to a shard go: straight away if they can. Waits for room.
    #[inline]
    pub(super) async fn send(self: &Arc<Self>, shard: Shard, item: Item<M>) -> Sent<M> {
        let mut item = item;
        loop {
            item = match self.pick(shard, item) {
                Picked::Done => return Sent::Done,
                // Boxed: what is seldom waited for would make the future of each message large.
                Picked::Full(queue, item) => match Box::pin(self.room(shard, queue, item)).await {
                    None => return Sent::Done,
                    Some(item) => item,
                },
                Picked::There(peer, item) => {
                    let late = Late { routes: self.clone(), shard };
                    return Sent::There(peer, late, item);
                }
                Picked::Slow(item) => return Sent::Slow(self.ticket(shard), item),
                Picked::Wait(item) => {
                    Box::pin(self.settled(shard)).await;
                    item
                }
            }
        }
    }

    /// The same for what has come from another node: if the shard is not here, it must go back. Never
    /// waits, since what has come for other shards is behind it.
    pub(super) fn arrive(self: &Arc<Self>, shard: Shard, item: Item<M>, max: usize) -> Arrived<M> {
        let line = self.line(shard);
        let item = match &*line.way.read().unwrap_or_else(PoisonError::into_inner) {
            Way::Here(queue) => match queue.put_beyond(shard, item, max) {
                Ok(false) => return Arrived::Delivered,
                Ok(true) => return Arrived::Beyond(Arc::clone(queue)),
                Err(Refused::Full(item)) => return Arrived::Full(item),
                // Whoever looks after the shard hears of it, and what the crew had goes first.
                Err(Refused::Closed(item)) => item,
            },
            Way::Wait(None) => return Arrived::Wait(item),
            // All others would wait behind this one, for as long as the new place is slow.
            Way::There(_) | Way::Slow | Way::Wait(Some(_)) => item,
        };
        line.tickets.fetch_add(1, SeqCst);
        Arrived::NotHere(self.ticket(shard), item)
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
            Way::Wait(_) => None,
        }
    }

    /// The node where a shard is, if that is another.
    pub(super) fn node(&self, shard: Shard, me: &Node) -> Option<Node> {
        match &*self.line(shard).way.read().unwrap_or_else(PoisonError::into_inner) {
            Way::Here(_) => Some(me.clone()),
            Way::There(peer) => Some(peer.node.clone()),
            Way::Slow | Way::Wait(_) => None,
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
            Way::Wait(_) => Picked::Wait(item),
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

    /// Where it is about to be, if it is about to change.
    fn is_changing(&self, shard: Shard) -> Option<Option<Node>> {
        match &*self.line(shard).way.read().unwrap_or_else(PoisonError::into_inner) {
            Way::Wait(to) => Some(to.clone()),
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
    use std::collections::VecDeque;

    use super::*;

    fn item() -> Item<u64> {
        Item { id: EntityId::new("a"), from: Origin::default(), message: 1, back: None }
    }

    fn node(incarnation: u64) -> Node {
        let address = tenure_cluster::Address::new("127.0.0.1:7400").unwrap();
        Node { address, incarnation: tenure_cluster::Incarnation(incarnation) }
    }

    #[tokio::test]
    async fn who_waits_on_the_way_to_a_node_hears_when_its_shard_moves() {
        let routes = Routes::<u64>::new(1);
        routes.publish(Shard(0), Way::Wait(Some(node(1))));
        let former = node(1);
        let mut elsewhere = std::pin::pin!(routes.leads_elsewhere(Shard(0), &former));
        let mut is_elsewhere = async || {
            tokio::time::timeout(std::time::Duration::from_millis(20), &mut elsewhere).await.is_ok()
        };
        assert!(!is_elsewhere().await);
        // Nowhere is not elsewhere: that node may be the next one.
        routes.publish(Shard(0), Way::Slow);
        assert!(!is_elsewhere().await);
        routes.publish(Shard(0), Way::Wait(Some(node(2))));
        assert!(is_elsewhere().await);
    }

    #[test]
    fn what_arrives_for_a_shard_that_goes_elsewhere_goes_back() {
        let routes = Routes::<u64>::new(1);
        let slow = routes.issue(Shard(0));
        routes.publish(Shard(0), Way::Wait(None));
        let Arrived::Wait(item) = routes.arrive(Shard(0), item(), 1) else {
            panic!("it is about to be here")
        };
        // It does not come after all.
        routes.publish(Shard(0), Way::Wait(Some(node(1))));
        let Arrived::NotHere(ticket, _) = routes.arrive(Shard(0), item, 1) else {
            panic!("it is not here")
        };
        drop((slow, ticket));
        assert!(routes.is_settled(Shard(0)));
    }

    #[test]
    fn a_shard_for_which_much_has_come_leaves_the_others_of_its_crew_their_room() {
        const MAX: usize = 10;
        let (routes, queue) = (Routes::<u64>::new(2), Arc::new(Queue::new()));
        routes.publish(Shard(0), Way::Here(queue.clone()));
        routes.publish(Shard(1), Way::Here(queue.clone()));
        let mut delivered = 0;
        while let Arrived::Delivered = routes.arrive(Shard(0), item(), MAX) {
            delivered += 1;
        }
        let beyond = 1
            + (1..MAX)
                .filter(|_| matches!(routes.arrive(Shard(0), item(), MAX), Arrived::Beyond(_)))
                .count();
        assert_eq!(beyond, MAX);
        assert!(matches!(routes.arrive(Shard(0), item(), MAX), Arrived::Full(_)));
        assert!(!routes.have_room());
        for _ in 0..MAX {
            assert!(matches!(routes.arrive(Shard(1), item(), MAX), Arrived::Beyond(_)));
        }
        assert!(matches!(routes.arrive(Shard(1), item(), MAX), Arrived::Full(_)));
        // There is room again for both as soon as the crew has taken what there is.
        let mut taken = VecDeque::new();
        assert_eq!(queue.take(&mut taken, false), delivered + 2 * MAX);
        assert!(routes.have_room());
        assert!(matches!(routes.arrive(Shard(0), item(), MAX), Arrived::Delivered));
        queue.close();
        assert!(matches!(routes.arrive(Shard(0), item(), MAX), Arrived::NotHere(..)));
    }
}
