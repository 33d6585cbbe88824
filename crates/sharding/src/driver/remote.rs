//! Messages to entities on other nodes, on the data lane.
//!
//! A frame is a byte that says what it is; then, of a message, the length of the entity's id (two
//! bytes, little-endian), the id, and the message; of a mark, the number of the shard (four bytes).

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tenure_lease::planted::{self, GlueBug};
use tokio::sync::mpsc;
use tokio::time::timeout;

use tenure_cluster::messaging::reliable::{Delivery, ReliableReceiver};
use tenure_cluster::messaging::{
    CodecError, Lost, Message, Origin, Received, Receiver, Reply, Sender,
};
use tenure_cluster::{Cluster, Node};

use super::handle::Shared;
use super::queue::Queue;
use super::routes::{Arrived, Back, Item, Ticket};
use super::{Event, Parcel, What};
use crate::Shard;
use crate::id::{EntityId, ID_MAX};

/// What the regions of one kind send each other.
pub(super) enum Frame<M> {
    /// A message for an entity that should be there.
    Forward(EntityId, M),
    /// It was not, any more.
    Return(EntityId, M),
    /// Say when everything before this was returned or delivered.
    Mark(Shard),
    /// It was.
    Marked(Shard),
}

impl<M: Message> Message for Frame<M> {
    fn encode(&self, out: &mut Vec<u8>) -> Result<(), CodecError> {
        match self {
            Self::Forward(id, message) => put_message(out, FORWARD, id, message),
            Self::Return(id, message) => put_message(out, RETURN, id, message),
            Self::Mark(shard) => put_shard(out, MARK, *shard),
            Self::Marked(shard) => put_shard(out, MARKED, *shard),
        }
    }

    fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        let (&kind, rest) = bytes.split_first().ok_or_else(malformed)?;
        match kind {
            FORWARD | RETURN => {
                let (id, message) = addressed(rest)?;
                let message = M::decode(message)?;
                Ok(match kind {
                    FORWARD => Self::Forward(id, message),
                    _ => Self::Return(id, message),
                })
            }
            MARK | MARKED => {
                let number: [u8; 4] = rest.try_into().map_err(|_| malformed())?;
                let shard = Shard(u32::from_le_bytes(number));
                Ok(if kind == MARK { Self::Mark(shard) } else { Self::Marked(shard) })
            }
            _ => Err(CodecError::new("a frame of a newer version")),
        }
    }
}

/// A message with its entity: how numbered ones travel.
pub(super) struct Addressed<M>(pub(super) EntityId, pub(super) M);

impl<M: Message> Message for Addressed<M> {
    fn encode(&self, out: &mut Vec<u8>) -> Result<(), CodecError> {
        put_message(out, FORWARD, &self.0, &self.1)
    }

    fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        let (id, message) = addressed(bytes.get(1..).ok_or_else(malformed)?)?;
        Ok(Self(id, M::decode(message)?))
    }
}

/// A frame in the form in which it travels: a question can be asked again, elsewhere.
#[derive(Clone)]
pub(super) struct Raw(Bytes);

impl Raw {
    pub(super) fn forward<M: Message>(id: &EntityId, message: &M) -> Result<Self, CodecError> {
        let mut out = Vec::new();
        put_message(&mut out, FORWARD, id, message)?;
        Ok(Self(out.into()))
    }

    /// The same of a message that is written already.
    pub(super) fn forward_bytes(id: &EntityId, message: &[u8]) -> Result<Self, CodecError> {
        let mut out = Vec::with_capacity(3 + id.as_bytes().len() + message.len());
        put_head(&mut out, FORWARD, id)?;
        out.extend_from_slice(message);
        Ok(Self(out.into()))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

impl Message for Raw {
    fn encode(&self, out: &mut Vec<u8>) -> Result<(), CodecError> {
        out.extend_from_slice(&self.0);
        Ok(())
    }

    fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        Ok(Self(Bytes::copy_from_slice(bytes)))
    }
}

/// The way to the region on another node.
pub(super) struct Peer<M> {
    pub(super) node: Node,
    pub(super) tell: Sender<Frame<M>>,
    pub(super) ask: Sender<Raw>,
}

impl<M: Message> Peer<M> {
    pub(super) fn new(cluster: &Cluster, node: &Node, inbox: &str) -> Self {
        Self { node: node.clone(), tell: cluster.to(node, inbox), ask: cluster.to(node, inbox) }
    }
}

/// Takes what other nodes send, until this node is out of the cluster for good.
pub(super) async fn receive<M: Message>(
    shared: Arc<Shared<M>>,
    mut inbox: Receiver<Frame<M>>,
    control: mpsc::Sender<Event<M>>,
) {
    let mut batch = Vec::new();
    let parked = HashMap::new();
    let mut arrivals =
        Arrivals { shared: shared.clone(), parked, found_room: false, overfull: None };
    let mut changes = shared.routes.changes();
    loop {
        let events: Vec<Event<M>> = tokio::select! {
            biased;
            Ok(()) = changes.changed(), if !arrivals.parked.is_empty() => arrivals.unpark(),
            count = inbox.recv_many(&mut batch, BATCH) => match count {
                0 => return,
                _ => arrivals.take_all(&inbox, &mut batch),
            },
        };
        for event in events {
            if control.send(event).await.is_err() {
                return;
            }
        }
        // Whoever sends is to wait, rather than to be refused, while all of this node does not keep up. One
        // crew that does not must not hold up the others for long.
        if let Some(queue) = arrivals.overfull() {
            while timeout(OVERFULL_PAUSE, queue.room()).await.is_err() && !shared.routes.have_room()
            {
            }
        }
    }
}

/// What has come, on its way to shards. Nothing here waits for one of them: the others are behind it.
struct Arrivals<M> {
    shared: Arc<Shared<M>>,
    /// What waits until its shard is here, which it is about to be.
    parked: HashMap<Shard, VecDeque<Item<M>>>,
    /// Since the last look: whether a crew had room, and one that had none.
    found_room: bool,
    overfull: Option<Arc<Queue<M>>>,
}

impl<M: Message> Arrivals<M> {
    /// What control is to do about messages.
    fn take_all(
        &mut self,
        inbox: &Receiver<Frame<M>>,
        batch: &mut Vec<Received<Frame<M>>>,
    ) -> Vec<Event<M>> {
        let (mut events, mut rest) = (Vec::new(), batch.drain(..));
        each_alone(|| {
            for received in &mut rest {
                if let Frame::Return(..) = &received.message {
                    inbox.take_back(&received.from);
                }
                events.extend(self.take(received));
            }
        });
        events
    }

    /// What control is to do about a message.
    fn take(&mut self, received: Received<Frame<M>>) -> Option<Event<M>> {
        let Received { message: frame, from, mut reply } = received;
        match frame {
            Frame::Forward(id, message) => {
                let from = reply.take_origin();
                let back = reply.is_awaited().then(|| Box::new(Back::Reply(reply)));
                self.arrive(Item { id, from, message, back })
            }
            Frame::Return(..) if planted::has(GlueBug::ReturnsLost) => None,
            Frame::Return(id, message) => {
                let shard = id.shard(&self.shared.settings);
                let bytes = size_or_guess(&message);
                let what = What::Tell(message);
                let parcel = Parcel { id, from: Origin::default(), what, ticket: None };
                Some(Event::Returned { from, shard, parcel, bytes })
            }
            Frame::Mark(shard) => Some(Event::Mark { from, shard }),
            Frame::Marked(shard) => Some(Event::Marked { from, shard }),
        }
    }

    /// A message has come that should be for a shard that is here; what else to do about it if not.
    fn arrive(&mut self, item: Item<M>) -> Option<Event<M>> {
        let (shared, max) = (&self.shared, self.shared.settings.buffer_messages);
        let shard = item.id.shard(&shared.settings);
        if let Some(parked) = self.parked.get_mut(&shard) {
            match parked.len() < max {
                true => parked.push_back(item),
                false => full(shared, item),
            }
            return None;
        }
        match shared.routes.arrive(shard, item, max) {
            Arrived::Delivered => {
                self.found_room = true;
                None
            }
            Arrived::Beyond(queue) => {
                self.overfull = Some(queue);
                None
            }
            Arrived::NotHere(ticket, item) => not_here(shared, shard, ticket, item),
            Arrived::Wait(item) => {
                self.parked.entry(shard).or_default().push_back(item);
                None
            }
            Arrived::Full(item) => {
                full(shared, item);
                None
            }
        }
    }

    /// The queue of a crew, if none of those that were sent something since the last look had room.
    fn overfull(&mut self) -> Option<Arc<Queue<M>>> {
        let found_room = std::mem::take(&mut self.found_room);
        self.overfull.take().filter(|_| !found_room)
    }

    /// The way to some shards has changed: what waited for them goes on, in order.
    fn unpark(&mut self) -> Vec<Event<M>> {
        let mut events = Vec::new();
        for (_, mut items) in std::mem::take(&mut self.parked) {
            if planted::has(GlueBug::ParkedMessagesLost) {
                continue;
            }
            each_alone(|| {
                while let Some(item) = items.pop_front() {
                    events.extend(self.arrive(item));
                }
            });
        }
        events
    }
}

/// Takes messages one by one until there are no more. A panic of what users wrote, such as of a message when
/// it is dropped, costs that message alone: `take` is called again for those after it.
fn each_alone(mut take: impl FnMut()) {
    while catch_unwind(AssertUnwindSafe(&mut take)).is_err() {
        tracing::error!("a message of another node has panicked, and is lost");
    }
}

/// A message for a shard that is not here.
fn not_here<M: Message>(
    shared: &Shared<M>,
    shard: Shard,
    ticket: Ticket,
    item: Item<M>,
) -> Option<Event<M>> {
    let from = item.sender().unwrap_or_else(|| shared.cluster.me());
    let Item { id, from: origin, message, back } = item;
    let what = match back.map(|back| *back) {
        None => What::Tell(message),
        Some(Back::Reply(reply)) => What::Asked(message, reply),
        Some(Back::Numbered(_)) => return None, // Not done: it comes again.
    };
    let parcel = Parcel { id, from: origin, what, ticket: Some(ticket) };
    Some(Event::Forwarded { from, shard, parcel })
}

/// There is no room for a message.
pub(super) fn full<M: Message>(shared: &Shared<M>, item: Item<M>) {
    match item.back.map(|back| *back) {
        None => refuse(shared, &item.id, item.from.into(), Lost::Full),
        Some(Back::Reply(reply)) => refuse(shared, &item.id, reply, Lost::Full),
        Some(Back::Numbered(_)) => {} // Not done: it comes again.
    }
}

/// Takes numbered messages, likewise.
pub(super) async fn receive_numbered<M: Message>(
    shared: Arc<Shared<M>>,
    mut inbox: ReliableReceiver<Addressed<M>>,
) {
    while let Some(delivery) = inbox.recv().await {
        let (Addressed(id, message), delivery): (_, Delivery<()>) = delivery.split();
        let shard = id.shard(&shared.settings);
        let back = Some(Box::new(Back::Numbered(delivery)));
        let item = Item { id, from: Origin::default(), message, back };
        let mut item = Some(item);
        each_alone(|| {
            if let Some(item) = item.take() {
                // If it is not here, it is dropped: not done, it comes again.
                drop(shared.routes.arrive(shard, item, shared.settings.buffer_messages));
            }
        });
    }
}

/// How much a message takes on the wire, for bounds in bytes.
pub(super) fn size<M: Message>(message: &M) -> usize {
    let mut out = SCRATCH.take();
    out.clear();
    let size = match message.encode(&mut out) {
        Ok(()) => out.len(),
        Err(_) => size_of::<M>(),
    };
    if out.capacity() <= SCRATCH_MAX {
        SCRATCH.set(out);
    }
    size
}

/// How long the frame of a message of this size is.
pub(super) fn forward_len(id: &EntityId, size: usize) -> usize {
    3 + id.as_bytes().len() + size
}

/// What messaging puts before a frame to this receiver: a byte, the receiver's name with its length, and
/// the number of a question.
pub(super) fn head_len(inbox: &str) -> usize {
    2 + inbox.len() + 8
}

thread_local! {
    /// Where messages are measured.
    static SCRATCH: std::cell::Cell<Vec<u8>> = const { std::cell::Cell::new(Vec::new()) };
}

/// How long nothing is taken from other nodes when those crews have no room for which it was, before a look
/// at all of them.
const OVERFULL_PAUSE: Duration = Duration::from_millis(1);
/// A larger one is not kept, lest each thread holds on to its longest message.
const SCRATCH_MAX: usize = 64 << 10;

/// The same where a panic of what users wrote would end more than their own task.
pub(super) fn size_or_guess<M: Message>(message: &M) -> usize {
    catch_unwind(AssertUnwindSafe(|| size(message))).unwrap_or(size_of::<M>())
}

/// Tells a sender that its message was not handled.
pub(super) fn refuse<M: Message>(shared: &Shared<M>, id: &EntityId, reply: Reply, why: Lost) {
    let from = reply.node().cloned().unwrap_or_else(|| shared.cluster.me());
    refuse_from(shared, id, from, reply, why);
}

/// The same for one that was to go back to its sender.
pub(super) fn refuse_from<M: Message>(
    shared: &Shared<M>,
    id: &EntityId,
    from: Node,
    reply: Reply,
    why: Lost,
) {
    crate::telemetry::refused(&shared.kind, why);
    if planted::has(GlueBug::RefusalIsNotTold) {
        return;
    }
    let received = Received { message: (), from, reply };
    shared.cluster.refuse(&shared.inbox, Some(id.as_str()), received, why);
}

fn put_message<M: Message>(
    out: &mut Vec<u8>,
    kind: u8,
    id: &EntityId,
    message: &M,
) -> Result<(), CodecError> {
    put_head(out, kind, id)?;
    message.encode(out)
}

fn put_head(out: &mut Vec<u8>, kind: u8, id: &EntityId) -> Result<(), CodecError> {
    let id = id.as_bytes();
    if !(1..=ID_MAX).contains(&id.len()) {
        return Err(bad_id(id.len()));
    }
    out.push(kind);
    out.extend_from_slice(&(id.len() as u16).to_le_bytes());
    out.extend_from_slice(id);
    Ok(())
}

/// What is said of an id that is none.
pub(super) fn bad_id(len: usize) -> CodecError {
    CodecError::new(format!("an entity's id has 1 to {ID_MAX} bytes, not {len}"))
}

fn addressed(rest: &[u8]) -> Result<(EntityId, &[u8]), CodecError> {
    let (len, rest) = rest.split_first_chunk::<2>().ok_or_else(malformed)?;
    let len = usize::from(u16::from_le_bytes(*len));
    let (id, message) = rest.split_at_checked(len).ok_or_else(malformed)?;
    let id = std::str::from_utf8(id).map_err(CodecError::new)?;
    if !(1..=ID_MAX).contains(&len) {
        return Err(bad_id(len));
    }
    Ok((EntityId::new(id), message))
}

fn put_shard(out: &mut Vec<u8>, kind: u8, shard: Shard) -> Result<(), CodecError> {
    out.push(kind);
    out.extend_from_slice(&shard.0.to_le_bytes());
    Ok(())
}

fn malformed() -> CodecError {
    CodecError::new("it is malformed")
}

const FORWARD: u8 = 1;
const RETURN: u8 = 2;
const MARK: u8 = 3;
const MARKED: u8 = 4;
/// How many messages are taken at a time.
const BATCH: usize = 512;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tenure_wire::samples;

    use super::*;

    struct Body(Vec<u8>);

    impl Message for Body {
        fn encode(&self, out: &mut Vec<u8>) -> Result<(), CodecError> {
            out.extend_from_slice(&self.0);
            Ok(())
        }

        fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
            Ok(Self(bytes.to_vec()))
        }
    }

    /// Each kind has one form for ever; another form is another kind.
    #[test]
    fn samples_can_be_read() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("samples/frames.txt");
        let (id, body) = (|| EntityId::new("customer-17"), || Body(b"body".to_vec()));
        let current = [
            ("Frame::Forward", Frame::Forward(id(), body())),
            ("Frame::Return", Frame::Return(id(), body())),
            ("Frame::Mark", Frame::Mark(Shard(300))),
            ("Frame::Marked", Frame::Marked(Shard(300))),
        ];
        let current = current.map(|(name, frame)| {
            let mut out = Vec::new();
            frame.encode(&mut out).unwrap();
            (name.to_owned(), out)
        });
        samples::check_bytes(&file, "Frame", current.into(), |bytes| match Frame::<Body>::decode(
            bytes,
        )
        .map_err(|error| error.to_string())?
        {
            Frame::Forward(read, body) | Frame::Return(read, body)
                if read == id() && body.0 == b"body" =>
            {
                Ok(())
            }
            Frame::Mark(Shard(300)) | Frame::Marked(Shard(300)) => Ok(()),
            _ => Err("it is another".into()),
        });
    }
}
