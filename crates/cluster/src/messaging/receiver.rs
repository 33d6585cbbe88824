use std::any::TypeId;
use std::marker::PhantomData;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tenure_lease::Moment;

use super::mailbox::{Entry, Mailbox};
use super::message::decode;
use super::unreadable::UnreadableLog;
use super::wire::{self, Back};
use super::{
    Ask, CodecError, DeadLetter, Lost, Message, Messaging, NotDone, Origin, ReceiverError,
};
use crate::{Cluster, Node};

impl Cluster {
    /// Opens a mailbox on this node under a name that nobody else here has. It has room for 4096
    /// messages; names that begin with `tenure/` are Tenure's own.
    ///
    /// ```no_run
    /// # async fn example(cluster: tenure_cluster::Cluster) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut lines = cluster.receiver::<String>("lines")?;
    /// while let Some(received) = lines.recv().await {
    ///     println!("{}: {}", received.from, received.message);
    /// }
    /// # Ok(()) }
    /// ```
    pub fn receiver<M: Message>(&self, name: &str) -> Result<Receiver<M>, ReceiverError> {
        self.receiver_with_room(name, ROOM)
    }

    /// The same with room for so many messages, and for what else is read along with the last of
    /// them. More smooths bursts; fewer tell a sender sooner that its receiver does not keep up.
    pub fn receiver_with_room<M: Message>(
        &self,
        name: &str,
        room: usize,
    ) -> Result<Receiver<M>, ReceiverError> {
        Receiver::open(self.messaging(), name, room)
    }

    /// Tells the sender that a message, which this receiver of this node had in its hands, was not
    /// handled and will not be: for a receiver that passes messages on. Whoever asked gets a
    /// [`NotDone`], whoever told a [`DeadLetter`] that names the entity, if it was for one.
    pub fn refuse<M>(&self, receiver: &str, id: Option<&str>, received: Received<M>, why: Lost) {
        let Received { from, mut reply, .. } = received;
        match reply.take() {
            Some((node, ask)) => self.messaging().refuse(&node, receiver, Some(ask), 1, why),
            None => {
                reply.take_origin().give_back();
                self.messaging().refuse_told(&from, receiver, id.unwrap_or_default(), why);
            }
        }
    }

    /// Says that messages of this node are lost: for what sends them on behalf of others.
    pub fn dead_letter(&self, letter: DeadLetter) {
        self.messaging().dead(letter);
    }
}

/// A mailbox under a name. Dropping it closes it; what was still in it is refused.
#[derive(Debug)]
pub struct Receiver<M> {
    messaging: Arc<Messaging>,
    mailbox: Arc<Mailbox>,
    /// Taken from the mailbox, and not yet given out.
    hand: Option<Entry>,
    unreadable: UnreadableLog,
    _messages: PhantomData<fn() -> M>,
}

/// A message, and where it is from.
#[derive(Debug)]
pub struct Received<M> {
    /// The message.
    pub message: M,
    /// Who sent it.
    pub from: Node,
    /// How to answer. If it was told and not asked, nobody waits for an answer.
    pub reply: Reply,
}

impl<M: Message> Receiver<M> {
    pub(crate) fn open(
        messaging: &Arc<Messaging>,
        name: &str,
        room: usize,
    ) -> Result<Self, ReceiverError> {
        if !(1..=wire::NAME_MAX).contains(&name.len()) {
            return Err(ReceiverError::Name(name.len()));
        }
        let mailbox = Arc::new(Mailbox::new(name.into(), TypeId::of::<M>(), room.max(1)));
        messaging.add_receiver(mailbox.clone())?;
        let messaging = messaging.clone();
        let unreadable = UnreadableLog::default();
        Ok(Self { messaging, mailbox, hand: None, unreadable, _messages: PhantomData })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.mailbox.name
    }

    /// Says that messages of this node, which came back to this receiver, are lost.
    pub fn dead_letter(&self, letter: DeadLetter) {
        self.messaging.dead(letter);
    }

    /// A message of this node came back to this receiver from a node that has given its [`Origin`] back.
    pub fn take_back(&self, from: &Node) {
        self.messaging.take_back(from, 1);
    }

    /// The next message; `None` when this node is out of the cluster for good. Dropping the future
    /// loses nothing.
    pub async fn recv(&mut self) -> Option<Received<M>> {
        loop {
            if let Some(received) = self.next_in_hand() {
                return Some(received);
            }
            if !self.fill_hand().await {
                return None;
            }
        }
    }

    /// Appends up to `limit` messages to `into`, as soon as there is one, and says how many; 0 when
    /// this node is out of the cluster for good. Dropping the future loses nothing.
    pub async fn recv_many(&mut self, into: &mut Vec<Received<M>>, limit: usize) -> usize {
        let before = into.len();
        while into.len() == before && limit > 0 {
            while into.len() - before < limit
                && let Some(received) = self.next_in_hand()
            {
                into.push(received);
            }
            if into.len() == before && !self.fill_hand().await {
                break;
            }
        }
        into.len() - before
    }

    /// The next message if it is here already.
    pub fn try_recv(&mut self) -> Option<Received<M>> {
        loop {
            if let Some(received) = self.next_in_hand() {
                return Some(received);
            }
            self.hand = Some(self.mailbox.take()?);
        }
    }

    /// False if there is nothing more to come.
    async fn fill_hand(&mut self) -> bool {
        tokio::task::consume_budget().await;
        loop {
            self.hand = self.mailbox.take();
            if self.hand.is_some() {
                return true;
            }
            if self.mailbox.is_closed() {
                return false;
            }
            self.mailbox.filled().await;
        }
    }

    #[inline]
    fn next_in_hand(&mut self) -> Option<Received<M>> {
        loop {
            match self.hand.as_mut()? {
                Entry::Frames { from, frames, account, .. } => {
                    let next = frames.read_next(|frame| {
                        let delivered = wire::delivered(frame)?;
                        Some((delivered.ask, decode::<M>(delivered.body)))
                    });
                    match next {
                        None => self.hand = None,
                        // Not reached: whoever put it in has looked at its head.
                        Some(None) => {}
                        Some(Some((ask, Ok(message)))) => {
                            let reply = match ask {
                                None => Reply::told(account.as_ref().map(Origin::new)),
                                Some(ask) => Reply::to(&self.messaging, from.clone(), ask),
                            };
                            return Some(Received { message, from: from.clone(), reply });
                        }
                        Some(Some((ask, Err(error)))) => self.refuse_unreadable(ask, &error),
                    }
                }
                Entry::Own { .. } => {
                    let Some(Entry::Own { from, message, reply }) = self.hand.take() else {
                        return None; // Not reached.
                    };
                    match message.downcast::<M>() {
                        Ok(message) => return Some(Received { message: *message, from, reply }),
                        // Not reached: it was put in because it is of this type.
                        Err(_) => {
                            self.messaging.refuse_own(&self.mailbox.name, reply, Lost::Refused)
                        }
                    }
                }
            }
        }
    }

    #[cold]
    fn refuse_unreadable(&mut self, ask: Option<u64>, error: &CodecError) {
        let Some(Entry::Frames { from, account, .. }) = &self.hand else { return };
        let name = &self.mailbox.name;
        let detail = self.unreadable.note(Moment::now(), name, from, error);
        self.messaging.refuse_unreadable(from, account.as_deref(), name, ask, &detail);
    }
}

impl<M> Drop for Receiver<M> {
    fn drop(&mut self) {
        self.messaging.remove_receiver(&self.mailbox);
        let mut next = self.hand.take();
        while let Some(entry) = next.or_else(|| self.mailbox.take()) {
            self.messaging.refuse_entry(&self.mailbox.name, entry, Lost::NoSuchReceiver);
            next = None;
        }
    }
}

/// The way back to whoever asked, or told.
///
/// Of what was told, it says when it is dropped that the message is handled: see [`Origin`].
///
/// Dropped without an answer, it tells so: the asker learns at once that no answer will come
/// ([`Unknown::Unanswered`](super::Unknown::Unanswered)). That is *unknown* and not *not done*,
/// because the receiver had the question in its hands, and nobody else can say how far it got.
#[derive(Debug)]
#[must_use = "dropping it tells the asker that there will be no answer"]
pub struct Reply(ReplyTo);

#[derive(Debug)]
enum ReplyTo {
    /// Nobody waits.
    Told(Origin),
    Asked(Box<Asker>),
}

#[derive(Debug)]
struct Asker {
    messaging: Arc<Messaging>,
    node: Node,
    ask: u64,
}

impl From<Origin> for Reply {
    fn from(origin: Origin) -> Self {
        Self::told(Some(origin))
    }
}

impl Reply {
    /// Of what was told: nobody waits.
    #[inline]
    pub fn nobody() -> Self {
        Self::told(None)
    }

    #[inline]
    pub(crate) fn told(origin: Option<Origin>) -> Self {
        Self(ReplyTo::Told(origin.unwrap_or_default()))
    }

    pub(crate) fn to(messaging: &Arc<Messaging>, node: Node, ask: u64) -> Self {
        Self(ReplyTo::Asked(Box::new(Asker { messaging: messaging.clone(), node, ask })))
    }

    /// Whether somebody asked.
    #[inline]
    pub fn is_wanted(&self) -> bool {
        self.asker().is_some_and(|asker| asker.ask & wire::RECEIPT == 0)
    }

    /// Whether somebody waits: for an answer, or to hear that what was told was handled.
    #[inline]
    pub fn is_awaited(&self) -> bool {
        matches!(self.0, ReplyTo::Asked(_))
    }

    /// The node of whoever asked, or told; `None` if it was told on this one.
    #[inline]
    pub fn node(&self) -> Option<&Node> {
        match &self.0 {
            ReplyTo::Told(origin) => origin.node(),
            ReplyTo::Asked(asker) => Some(&asker.node),
        }
    }

    /// Of what was told and not asked: takes along what says that it is handled.
    #[inline]
    pub fn take_origin(&mut self) -> Origin {
        match &mut self.0 {
            ReplyTo::Told(origin) => std::mem::take(origin),
            ReplyTo::Asked(_) => Origin::default(),
        }
    }

    #[inline]
    fn asker(&self) -> Option<&Asker> {
        match &self.0 {
            ReplyTo::Told(_) => None,
            ReplyTo::Asked(asker) => Some(asker),
        }
    }

    fn take_asker(&mut self) -> Option<Box<Asker>> {
        match std::mem::replace(&mut self.0, ReplyTo::Told(Origin::default())) {
            ReplyTo::Asked(asker) => Some(asker),
            told @ ReplyTo::Told(_) => {
                self.0 = told;
                None
            }
        }
    }

    /// Of what was told and not asked: how to say that it was handled, if somebody waits for that.
    #[inline]
    pub fn take_receipt(&mut self) -> Option<Receipt> {
        match self.is_awaited() && !self.is_wanted() {
            true => self.take_asker().map(|asker| Receipt(Self(ReplyTo::Asked(asker)))),
            false => None,
        }
    }

    /// Answers the question `Q`, after waiting for room on the way back if need be. Does nothing if
    /// nobody asked. An error means that the asker will not get this answer.
    pub async fn answer<Q: Ask>(mut self, reply: Q::Reply) -> Result<(), NotDone> {
        let Some(asker) = self.asker() else {
            return Ok(());
        };
        let sent = asker.messaging.answer(&asker.node, asker.ask, reply).await;
        if sent.is_ok() {
            self.take_asker(); // Nothing more to tell.
        }
        sent
    }

    /// Says that the question was not handled. Only its mailbox may say that.
    pub(crate) fn take(&mut self) -> Option<(Node, u64)> {
        self.take_asker().map(|asker| (asker.node, asker.ask))
    }
}

impl Drop for Reply {
    #[inline]
    fn drop(&mut self) {
        match &mut self.0 {
            ReplyTo::Told(origin) => std::mem::take(origin).settle(),
            ReplyTo::Asked(asker) => asker.tell_unanswered(),
        }
    }
}

impl Asker {
    #[cold]
    fn tell_unanswered(&self) {
        self.messaging.back(&self.node, Back::Unanswered { ask: self.ask });
    }
}

/// Says that what was told was handled. Dropped, it says that nobody knows.
#[derive(Debug)]
#[must_use = "dropping it says that nobody knows whether it was handled"]
pub struct Receipt(Reply);

impl Receipt {
    /// It was handled.
    pub fn handled(mut self) {
        if let Some(asker) = self.0.take_asker() {
            asker.messaging.back(&asker.node, Back::Answer { ask: asker.ask, body: &[] });
        }
    }
}

/// What a sender waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Expects {
    /// An answer.
    Answer,
    /// To hear that it was handled.
    Receipt,
}

/// How many messages wait in a mailbox, unless said otherwise.
const ROOM: usize = 4096;
