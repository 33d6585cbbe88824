//! Where messages meet tasks and deadlines: what a node has open, and what it waits for.
#![allow(clippy::disallowed_methods, reason = "this is where tasks and deadlines come in")]

mod ask;
mod holds;
mod overflow;
mod read;

use std::any::TypeId;
use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use tenure_wire::Version;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast, mpsc, watch};
use tokio::time::timeout;

use self::ask::Asks;
use self::holds::Holds;
pub(super) use self::overflow::Excess;
use super::mailbox::{Entry, Mailbox, Refused, Why};
use super::unreadable::one_line;
use super::wire::{self, Back, Head};
use super::{
    CodecError, DeadLetter, DeadLetters, Lost, Message, NotDone, ReceiverError, Reply, Unknown,
    telemetry,
};
use crate::Node;
use crate::clients::{self, ALL_REQUESTS, ClientLink, Gates};
use crate::cluster::State;
use crate::driver::Question;
use crate::transport::{
    Closed, DataLane, Frames, SendError, SenderAccount, Transport, TransportSettings,
};
use crate::wire::{Control, encode};

/// For how long a full mailbox may make others wait when nothing is taken from it.
pub const PATIENCE: Duration = Duration::from_secs(1);

/// The names of receivers that nodes post to each other begin so.
pub const BOARD: &str = "tenure/board/";

/// Everything about a node's messages; it outlives the node's incarnations.
#[derive(Debug)]
pub(crate) struct Messaging {
    /// The runtime that user code runs on.
    runtime: Handle,
    state: watch::Receiver<State>,
    /// The longest frame of the data lane.
    pub(super) frame_max: usize,
    control_frame_max: usize,
    attached: RwLock<Option<Attached>>,
    receivers: Mutex<Receivers>,
    asks: Asks,
    holds: Holds,
    letters: Mutex<Option<broadcast::Sender<DeadLetter>>>,
    /// How many more refusals may wait for room on their way back.
    refusals: Arc<Semaphore>,
    /// What clients get through to.
    gates: Gates,
    /// How many more requests of clients may be on their way.
    requests: Arc<Semaphore>,
}

/// What the present incarnation sends with.
#[derive(Clone, Debug)]
struct Attached {
    me: Node,
    transport: Arc<Transport>,
}

#[derive(Debug, Default)]
struct Receivers {
    by_name: HashMap<Arc<str>, Arc<Mailbox>>,
    ended: bool,
}

/// Where a message goes.
#[derive(Debug)]
pub(super) enum Route {
    Lane(DataLane),
    Own(Arc<Mailbox>),
}

impl Messaging {
    pub(crate) fn new(
        runtime: Handle,
        state: watch::Receiver<State>,
        transport: &TransportSettings,
    ) -> Self {
        Self {
            runtime,
            state,
            frame_max: transport.data_frame_max,
            control_frame_max: transport.control_frame_max,
            attached: RwLock::default(),
            receivers: Mutex::default(),
            asks: Asks { waiting: Mutex::default(), next: AtomicU64::new(0) },
            holds: Holds::default(),
            letters: Mutex::new(Some(broadcast::Sender::new(LETTERS))),
            refusals: Arc::new(Semaphore::new(REFUSALS)),
            gates: Gates::default(),
            requests: Arc::new(Semaphore::new(ALL_REQUESTS)),
        }
    }

    /// An incarnation begins.
    pub(crate) fn attach(&self, me: Node, transport: Arc<Transport>) {
        *self.attached.write().unwrap_or_else(PoisonError::into_inner) =
            Some(Attached { me, transport });
    }

    /// An incarnation has ended.
    pub(crate) fn detach(&self) {
        *self.attached.write().unwrap_or_else(PoisonError::into_inner) = None;
        self.asks.cut(None);
    }

    /// There will be no other incarnation.
    pub(crate) fn end(&self) {
        self.detach();
        let mut receivers = lock(&self.receivers);
        receivers.ended = true;
        for (_, mailbox) in receivers.by_name.drain() {
            mailbox.close();
        }
        drop(receivers);
        *lock(&self.letters) = None;
    }

    /// Whether there will be no other incarnation.
    pub(super) fn has_ended(&self) -> bool {
        lock(&self.receivers).ended
    }

    /// A node begins to send.
    pub(crate) fn incoming(
        self: &Arc<Self>,
        account: Arc<SenderAccount>,
        batches: mpsc::Receiver<Frames>,
    ) {
        self.runtime.spawn(read::read(self.clone(), account, batches));
    }

    /// A client begins to talk. As long as it does, this node waits for it before it goes.
    pub(crate) fn client(self: &Arc<Self>, link: ClientLink, waited_for: Question) {
        let serving = clients::serve(self.clone(), link);
        self.runtime.spawn(async move {
            serving.await;
            drop(waited_for);
        });
    }

    pub(crate) fn gates(&self) -> &Gates {
        &self.gates
    }

    /// The right to pass on one request of a client, if there are not too many.
    pub(crate) fn client_permit(&self) -> Option<OwnedSemaphorePermit> {
        self.requests.clone().try_acquire_owned().ok()
    }

    pub(crate) fn state(&self) -> watch::Receiver<State> {
        self.state.clone()
    }

    /// The connection to a node has ended, other than by being idle.
    pub(crate) fn cut(&self, node: &Node, unknown: u64) {
        self.asks.cut(Some(node));
        self.dead(DeadLetter::cut(node, unknown, Lost::Cut));
    }

    /// Messages to a node that never left.
    pub(crate) fn unsent(&self, node: &Node, count: u64) {
        self.asks.cut(Some(node));
        self.dead(DeadLetter::cut(node, count, Lost::Unsent));
    }

    /// Messages that a process had in its memory when it was gone.
    pub(crate) fn unsettled(&self, node: &Node, count: u64) {
        self.dead(DeadLetter::cut(node, count, Lost::Unknown));
    }

    /// So many messages of this node came back from another, or were refused there.
    pub(super) fn take_back(&self, from: &Node, count: u64) {
        if !self.is_me(from)
            && let Ok(lane) = self.lane(from)
        {
            lane.take_back(count);
        }
    }

    /// A node is no more.
    pub(crate) fn gone(&self, node: &Node) {
        self.asks.cut(Some(node));
    }

    pub(super) fn dead_letters(&self) -> DeadLetters {
        let letters = lock(&self.letters);
        // Once it is over: a stream that ends at once.
        DeadLetters::new(
            letters.as_ref().map_or_else(
                || broadcast::Sender::new(1).subscribe(),
                broadcast::Sender::subscribe,
            ),
        )
    }

    pub(super) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    pub(super) fn dead(&self, letter: DeadLetter) {
        if letter.count == 0 {
            return;
        }
        telemetry::dead(letter.why, letter.count);
        tracing::debug!("dead letter: {letter}");
        if let Some(letters) = &*lock(&self.letters) {
            let _ = letters.send(letter); // Nobody need listen.
        }
    }

    pub(super) fn add_receiver(&self, mailbox: Arc<Mailbox>) -> Result<(), ReceiverError> {
        let mut receivers = lock(&self.receivers);
        if receivers.ended {
            return Err(ReceiverError::Ended);
        }
        if receivers.by_name.contains_key(&mailbox.name) {
            return Err(ReceiverError::Taken(mailbox.name.clone()));
        }
        receivers.by_name.insert(mailbox.name.clone(), mailbox);
        Ok(())
    }

    pub(super) fn remove_receiver(&self, mailbox: &Mailbox) {
        // Closed first: whoever takes the name next must not share its messages.
        mailbox.close();
        let mut receivers = lock(&self.receivers);
        let own = receivers.by_name.get(&mailbox.name).map(Arc::as_ptr);
        if own == Some(std::ptr::from_ref(mailbox)) {
            receivers.by_name.remove(&mailbox.name);
        }
    }

    fn receiver(&self, name: &[u8]) -> Option<Arc<Mailbox>> {
        let name = std::str::from_utf8(name).ok()?;
        lock(&self.receivers).by_name.get(name).cloned()
    }

    fn own(&self, name: &Arc<str>) -> Result<Arc<Mailbox>, NotDone> {
        self.receiver(name.as_bytes()).ok_or_else(|| NotDone::NoSuchReceiver(name.clone()))
    }

    pub(super) fn route(&self, node: &Node, name: &Arc<str>) -> Result<Route, NotDone> {
        if name.len() > wire::NAME_MAX {
            return Err(NotDone::NoSuchReceiver(name.clone()));
        }
        match self.is_me(node) {
            true => self.own(name).map(Route::Own),
            false => self.lane(node).map(Route::Lane),
        }
    }

    pub(super) fn is_me(&self, node: &Node) -> bool {
        let attached = self.attached.read().unwrap_or_else(PoisonError::into_inner);
        attached.as_ref().is_some_and(|attached| attached.me == *node)
    }

    /// As `is_me`, and between two incarnations, too: then what waited for the cluster is given up.
    fn is_mine(&self, node: &Node) -> bool {
        let attached = self.attached.read().unwrap_or_else(PoisonError::into_inner);
        attached.as_ref().map_or_else(|| self.state.borrow().me == *node, |it| it.me == *node)
    }

    fn lane(&self, node: &Node) -> Result<DataLane, NotDone> {
        Ok(self.transport_to(node)?.data(node))
    }

    /// The version of the protocol that is spoken with a node, or what every node understands.
    pub(crate) fn spoken_with(&self, node: &Node) -> Version {
        let attached = self.attached.read().unwrap_or_else(PoisonError::into_inner);
        let transport = attached.as_ref().map(|attached| &attached.transport);
        transport.map_or(Version::FIRST, |transport| transport.spoken_with(&node.address))
    }

    fn transport_to(&self, node: &Node) -> Result<Arc<Transport>, NotDone> {
        let attached = self.attached.read().unwrap_or_else(PoisonError::into_inner);
        let Some(attached) = &*attached else {
            return Err(NotDone::Closed(Arc::new(Closed::Transport)));
        };
        let is_member =
            self.state.borrow().view.as_ref().is_some_and(|view| view.member(node).is_some());
        if !is_member {
            return Err(NotDone::NotAMember(node.clone()));
        }
        Ok(attached.transport.clone())
    }

    /// Puts a message of this node into a mailbox of this node.
    pub(super) async fn put_own<M: Message>(
        self: &Arc<Self>,
        mailbox: &Mailbox,
        message: M,
        ask: Option<u64>,
        wait: bool,
    ) -> Result<(), NotDone> {
        let entry = self.own_entry(mailbox, message, ask)?;
        let put = match wait {
            true => put(mailbox, entry).await,
            false => mailbox.try_put(entry),
        };
        put.map_err(|refused| Self::not_put(mailbox, refused))
    }

    pub(super) fn try_put_own<M: Message>(
        self: &Arc<Self>,
        mailbox: &Mailbox,
        message: M,
        ask: Option<u64>,
    ) -> Result<(), NotDone> {
        let entry = self.own_entry(mailbox, message, ask)?;
        mailbox.try_put(entry).map_err(|refused| Self::not_put(mailbox, refused))
    }

    fn not_put(mailbox: &Mailbox, refused: Refused) -> NotDone {
        if let Entry::Own { mut reply, .. } = refused.entry {
            reply.take(); // The caller is told right here.
        }
        not_done(refused.why.into(), &mailbox.name, String::new)
    }

    /// A receiver of the same type gets the message as it is. One of another type gets its bytes, as
    /// it would from any other node.
    fn own_entry<M: Message>(
        self: &Arc<Self>,
        mailbox: &Mailbox,
        message: M,
        ask: Option<u64>,
    ) -> Result<Entry, NotDone> {
        let from = self.state.borrow().me.clone();
        if mailbox.type_id == TypeId::of::<M>() {
            let reply = match ask {
                Some(ask) => Reply::to(self, from.clone(), ask),
                None => Reply::nobody(),
            };
            return Ok(Entry::Own { from, message: Box::new(message), reply });
        }
        let mut failed = None;
        let frames = Frames::one(|out| {
            match ask {
                Some(ask) => wire::put_ask(out, mailbox.name.as_bytes(), ask),
                None => wire::put_to(out, wire::TELL, mailbox.name.as_bytes()),
            }
            failed = message.encode(out).err();
        });
        match (frames, failed) {
            (Ok(frames), None) => Ok(Entry::frames(from, frames)),
            (_, failed) => Err(NotDone::from_send(SendError::Empty, failed)),
        }
    }

    /// Sends a message on the control lane.
    pub(super) fn post<M: Message>(
        self: &Arc<Self>,
        node: &Node,
        name: &Arc<str>,
        message: M,
    ) -> Result<(), NotDone> {
        if self.is_me(node) {
            return self.try_put_own(&*self.own(name)?, message, None);
        }
        let mut frame = Vec::new();
        wire::put_to(&mut frame, wire::TRY, name.as_bytes());
        message.encode(&mut frame).map_err(NotDone::Encoding)?;
        self.post_frame(node, frame)
    }

    /// Asks a node to hold back what it sends to a receiver of this one, or to go on with that.
    fn post_hold(&self, node: &Node, receiver: &str, hold: bool) {
        let mut frame = Vec::new();
        wire::put_to(
            &mut frame,
            if hold { wire::HOLD } else { wire::RELEASE },
            receiver.as_bytes(),
        );
        // If it is gone, nothing comes from there anyway.
        drop(self.post_frame(node, frame));
    }

    fn post_frame(&self, node: &Node, frame: Vec<u8>) -> Result<(), NotDone> {
        let transport = self.transport_to(node)?;
        #[cfg(feature = "planted")]
        if let (Some(surplus), Head::To { kind, name }) =
            (tenure_wire::surplus(), wire::head(&frame))
        {
            let mut unknown = Vec::new();
            wire::put_to(&mut unknown, kind, name);
            unknown.extend(surplus);
            let posted = encode(&Control::Posted(unknown), transport.spoken_with(&node.address));
            posted.map(|it| transport.control(&node.address, Some(node.incarnation), it));
        }
        let Some(frame) = encode(&Control::Posted(frame), transport.spoken_with(&node.address))
        else {
            return Err(NotDone::Encoding(CodecError::new("it cannot be posted")));
        };
        let (len, max) = (frame.len(), self.control_frame_max);
        match transport.control(&node.address, Some(node.incarnation), frame) {
            true => Ok(()),
            false if len > max => Err(NotDone::TooLong { len, max }),
            false => Err(NotDone::Closed(Arc::new(Closed::Transport))),
        }
    }

    /// A node has posted something. Nobody waits here: what finds no room is dropped.
    pub(crate) fn posted(self: &Arc<Self>, from: &Node, frame: &[u8]) {
        let name = match wire::head(frame) {
            Head::To { name, .. } => name,
            Head::Hold(name) => return self.hold(from, name),
            Head::Release(name) => return self.release(from, name),
            Head::Back(_) | Head::Other => return telemetry::ignored(),
        };
        let frames = Frames::one(|out| out.extend_from_slice(frame));
        if let (Some(mailbox), Ok(frames)) = (self.receiver(name), frames)
            && let Err(refused) = mailbox.try_put(Entry::frames(from.clone(), frames))
        {
            telemetry::refused(refused.why.into(), 1);
        }
    }

    /// Messages of a node are not handled: tells it so. Questions have a number, the others a count.
    pub(super) fn refuse(
        self: &Arc<Self>,
        from: &Node,
        name: &str,
        ask: Option<u64>,
        count: u64,
        why: Lost,
    ) {
        telemetry::refused(why, count);
        let back = match ask {
            Some(ask) => Back::Refused { ask, why, detail: &[] },
            None => Back::Dead { why, count, name: name.as_bytes(), id: &[], detail: &[] },
        };
        self.back(from, back);
    }

    /// The same for what one entity was told.
    pub(super) fn refuse_told(self: &Arc<Self>, from: &Node, name: &str, id: &str, why: Lost) {
        telemetry::refused(why, 1);
        let (name, id) = (name.as_bytes(), id.as_bytes());
        self.back(from, Back::Dead { why, count: 1, name, id, detail: &[] });
    }

    /// The same for all of an entry.
    pub(super) fn refuse_entry(self: &Arc<Self>, name: &str, entry: Entry, why: Lost) {
        match entry {
            Entry::Own { reply, .. } => self.refuse_own(name, reply, why),
            Entry::Frames { from, mut frames, account, .. } => {
                let mut tells = 0;
                while let Some(delivered) =
                    frames.read_next(|frame| wire::delivered(frame).map(|message| message.ask))
                {
                    match delivered.flatten() {
                        Some(ask) => self.refuse(&from, name, Some(ask), 1, why),
                        None => tells += 1,
                    }
                }
                if tells > 0 {
                    self.refuse_tells(&from, account.as_deref(), name, tells, why);
                }
            }
        }
    }

    /// The same for some that were told, or posted: of those nobody hears.
    pub(super) fn refuse_tells(
        self: &Arc<Self>,
        from: &Node,
        account: Option<&SenderAccount>,
        name: &str,
        count: u64,
        why: Lost,
    ) {
        match account {
            Some(account) => account.give_back(count),
            None if self.is_mine(from) => {}
            None => return telemetry::refused(why, count),
        }
        self.refuse(from, name, None, count, why);
    }

    pub(super) fn refuse_own(self: &Arc<Self>, name: &str, mut reply: Reply, why: Lost) {
        match reply.take() {
            Some((node, ask)) => self.refuse(&node, name, Some(ask), 1, why),
            None => {
                let me = self.state.borrow().me.clone();
                self.refuse(&me, name, None, 1, why);
            }
        }
    }

    /// Tells a sender what became of what it sent. Never waits: what finds no room goes on its own,
    /// if there are not too many of its kind.
    pub(super) fn back(self: &Arc<Self>, to: &Node, back: Back<'_>) {
        if self.is_mine(to) {
            return self.returned(to, back);
        }
        let Ok(lane) = self.lane(to) else {
            return telemetry::untold(); // Nobody is there to be told.
        };
        match lane.try_send_with(|out| wire::put_back(out, back)) {
            Ok(()) => {}
            Err(SendError::Full) => {
                let Ok(permit) = self.refusals.clone().try_acquire_owned() else {
                    return telemetry::untold();
                };
                let mut bytes = Vec::new();
                wire::put_back(&mut bytes, back);
                self.runtime.spawn(async move {
                    let _permit = permit;
                    if lane.send_with(|out| out.extend_from_slice(&bytes)).await.is_err() {
                        telemetry::untold();
                    }
                });
            }
            Err(_) => telemetry::untold(),
        }
    }

    /// What became of something that this node sent.
    fn returned(&self, from: &Node, back: Back<'_>) {
        match back {
            Back::Answer { ask, body } => self.asks.end(from, ask, Ok(body.to_vec())),
            Back::Unanswered { ask } => self.asks.end(from, ask, Err(Unknown::Unanswered.into())),
            Back::Refused { ask, why, detail } => {
                let detail =
                    || format!("{} (on {from})", one_line(&String::from_utf8_lossy(detail)));
                self.asks.end_with(from, ask, |name| Err(not_done(why, name, detail).into()));
            }
            Back::Dead { why, count, name, id, detail } => {
                self.take_back(from, count);
                let text = |bytes| -> Arc<str> { String::from_utf8_lossy(bytes).as_ref().into() };
                let (to, receiver) = (from.clone(), Some(text(name)));
                let id = (!id.is_empty()).then(|| text(id));
                let detail = one_line(&String::from_utf8_lossy(detail));
                let detail = (!detail.is_empty()).then(|| detail.into());
                self.dead(DeadLetter { to, receiver, id, count, why, detail });
            }
        }
    }
}

/// Puts an entry into a mailbox, after waiting for room if need be, for as long as it goes forward.
async fn put(mailbox: &Mailbox, entry: Entry) -> Result<(), Refused> {
    let refused = match mailbox.try_put(entry) {
        Err(refused) if refused.why == Why::Full => refused,
        settled => return settled,
    };
    telemetry::waited();
    let place = mailbox.wait();
    let mut turn = std::pin::pin!(place.turn());
    // Twice: this process may have stood still, and the receiver with it.
    let (mut taken, mut halves) = (mailbox.taken(), 0);
    loop {
        match timeout(PATIENCE / 2, &mut turn).await {
            Ok(turn) => return turn.put(refused.entry),
            Err(_) if mailbox.taken() != taken => (taken, halves) = (mailbox.taken(), 0),
            Err(_) if halves == 0 => halves = 1,
            Err(_) => {
                mailbox.set_stuck();
                return Err(refused);
            }
        }
    }
}

fn not_done(why: Lost, name: &Arc<str>, detail: impl FnOnce() -> String) -> NotDone {
    match why {
        Lost::Full => NotDone::Full,
        Lost::Unreadable => NotDone::Unreadable { receiver: name.clone(), detail: detail().into() },
        Lost::NoSuchReceiver => NotDone::NoSuchReceiver(name.clone()),
        // A question that was begun is not refused: its reply, dropped, says that it is unknown.
        Lost::Cut
        | Lost::Unknown
        | Lost::Unsent
        | Lost::Unfinished
        | Lost::Late
        | Lost::Refused => NotDone::Refused(name.clone()),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is guarded is never left half changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many dead letters a slow listener may be behind.
const LETTERS: usize = 1024;
/// How many refusals may wait for room on the way back.
const REFUSALS: usize = 1024;
