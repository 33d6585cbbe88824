use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tenure_wire::Version;

use super::driver::Route;
use super::message::{append, encode};
use super::wire::{self, TELL, TRY};
use super::{Ask, AskError, DeadLetters, Expects, Message, Messaging, NotDone};
use crate::transport::{DataLane, SendError};
use crate::{Cluster, Node};

impl Cluster {
    /// The way to a receiver on a node, which may be this one. Nothing is looked up before
    /// something is sent. Keep it if you send often.
    ///
    /// ```no_run
    /// # async fn example(cluster: tenure_cluster::Cluster) -> Result<(), Box<dyn std::error::Error>> {
    /// let oldest = cluster.view().oldest(None).cloned().ok_or("nobody is up")?;
    /// cluster.to::<String>(&oldest, "lines").tell("hello".into()).await?;
    /// # Ok(()) }
    /// ```
    pub fn to<M: Message>(&self, node: &Node, receiver: &str) -> Sender<M> {
        Sender::new(self.messaging(), node.clone(), receiver.into())
    }

    /// How long a frame to another node may be, with what says where it goes:
    /// [`TransportSettings::data_frame_max`](crate::transport::TransportSettings::data_frame_max).
    pub fn data_frame_max(&self) -> usize {
        self.messaging().frame_max
    }

    /// The version of the protocol that is spoken with a node; as long as that is not known, the first, which
    /// every node understands.
    pub fn spoken_with(&self, node: &Node) -> Version {
        self.messaging().spoken_with(node)
    }

    /// What becomes of messages that were sent and then lost, from now on.
    pub fn dead_letters(&self) -> DeadLetters {
        self.messaging().dead_letters()
    }
}

/// The way to a receiver on a node. Cheap to clone.
#[derive(Debug)]
pub struct Sender<M> {
    messaging: Arc<Messaging>,
    node: Node,
    name: Arc<str>,
    lane: OnceLock<DataLane>,
    _messages: PhantomData<fn(M)>,
}

impl<M> Clone for Sender<M> {
    fn clone(&self) -> Self {
        Self {
            messaging: self.messaging.clone(),
            node: self.node.clone(),
            name: self.name.clone(),
            lane: self.lane.clone(),
            _messages: PhantomData,
        }
    }
}

impl<M: Message> Sender<M> {
    pub(crate) fn new(messaging: &Arc<Messaging>, node: Node, name: Arc<str>) -> Self {
        let lane = OnceLock::new();
        Self { messaging: messaging.clone(), node, name, lane, _messages: PhantomData }
    }

    /// On which node the receiver is.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// The receiver's name.
    pub fn receiver(&self) -> &str {
        &self.name
    }

    /// Sends a message, after waiting for room on the way if need be, and while the receiver does not
    /// keep up with what this node sends it. `Ok` means that it is on its way; if it is lost there, there will be a [`DeadLetter`](super::DeadLetter). Dropping the
    /// future before it is done means that nothing was sent.
    ///
    /// ```no_run
    /// # async fn example(lines: tenure_cluster::messaging::Sender<String>) -> Result<(), tenure_cluster::messaging::NotDone> {
    /// lines.tell("hello".into()).await?;
    /// # Ok(()) }
    /// ```
    pub async fn tell(&self, message: M) -> Result<(), NotDone> {
        if self.messaging.is_held(&self.node, &self.name) {
            self.messaging.released(&self.node, &self.name).await;
        }
        if let Some(lane) = self.open_lane() {
            return self.send(lane, TELL, message).await;
        }
        match self.messaging.route(&self.node, &self.name)? {
            Route::Lane(lane) => self.send(self.keep(&lane), TELL, message).await,
            Route::Own(mailbox) => self.messaging.put_own(&mailbox, message, None, true).await,
        }
    }

    /// As [`tell`](Self::tell), for a message that may go elsewhere instead: it is taken from its place
    /// when it is sent. While this waits, and if the future is dropped, it stays there.
    pub async fn tell_from(&self, place: &mut Option<M>) -> Result<(), NotDone> {
        if self.try_tell_from(place)? {
            return Ok(());
        }
        if self.messaging.is_held(&self.node, &self.name) {
            self.messaging.released(&self.node, &self.name).await;
        }
        let kept;
        let lane = match self.open_lane() {
            Some(lane) => lane,
            None => match self.messaging.route(&self.node, &self.name)? {
                Route::Lane(lane) => {
                    kept = lane;
                    self.keep(&kept)
                }
                Route::Own(mailbox) => {
                    let Some(message) = place.take() else { return Ok(()) };
                    return self.messaging.put_own(&mailbox, message, None, true).await;
                }
            },
        };
        let mut failed = None;
        // Not shared: a message need not be `Sync`.
        let (slot, why) = (&mut *place, &mut failed);
        let encode = move |out: &mut Vec<u8>| {
            if let Some(message) = slot.as_ref() {
                let head = |out: &mut Vec<u8>| wire::put_to(out, TELL, self.name.as_bytes());
                append(why, message, head, out);
            }
        };
        let sent = lane.send_with(encode).await;
        sent.map_err(|error| NotDone::from_send(error, failed))?;
        *place = None;
        Ok(())
    }

    /// As [`tell_from`](Self::tell_from), but only if that need not wait; whether it was sent. It never is to
    /// a receiver on this node, nor before anything else was sent.
    #[inline]
    pub fn try_tell_from(&self, place: &mut Option<M>) -> Result<bool, NotDone> {
        let is_held = self.messaging.is_held(&self.node, &self.name);
        let lane = self.open_lane().filter(|_| !is_held);
        let (Some(lane), Some(message)) = (lane, place.as_ref()) else { return Ok(false) };
        let mut failed = None;
        let head = |out: &mut Vec<u8>| wire::put_to(out, TELL, self.name.as_bytes());
        match lane.try_send_with(|out| append(&mut failed, message, head, out)) {
            Ok(()) => {
                *place = None;
                Ok(true)
            }
            Err(SendError::Full) => Ok(false),
            Err(error) => Err(NotDone::from_send(error, failed)),
        }
    }

    /// Sends a message if there is room for it, both on the way and in the receiver's mailbox: if
    /// only then the latter turns out to be full, there will be a [`DeadLetter`](super::DeadLetter).
    ///
    /// ```no_run
    /// # use tenure_cluster::messaging::{NotDone, Sender};
    /// # fn example(lines: Sender<String>) {
    /// if let Err(NotDone::Full) = lines.try_tell("hello".into()) {
    ///     println!("busy");
    /// }
    /// # }
    /// ```
    pub fn try_tell(&self, message: M) -> Result<(), NotDone> {
        if self.messaging.is_held(&self.node, &self.name) {
            return Err(NotDone::Full);
        }
        if let Some(lane) = self.open_lane() {
            return self.try_send(lane, message);
        }
        match self.messaging.route(&self.node, &self.name)? {
            Route::Lane(lane) => self.try_send(self.keep(&lane), message),
            Route::Own(mailbox) => self.messaging.try_put_own(&mailbox, message, None),
        }
    }

    /// Sends a message on the control lane: it overtakes whatever waits on the way, and never waits
    /// itself. It may be lost without a word, if the node cannot be reached, does not keep up, or has no
    /// such receiver. For the few words that keep a cluster in order, and are said again.
    ///
    /// ```no_run
    /// # use tenure_cluster::messaging::{NotDone, Sender};
    /// # fn example(moved: Sender<String>) -> Result<(), NotDone> {
    /// moved.post("shard 7 is mine now".into())
    /// # }
    /// ```
    pub fn post(&self, message: M) -> Result<(), NotDone> {
        self.messaging.post(&self.node, &self.name, message)
    }

    /// Asks a question: `.within(…)` sends it, and waits for the answer.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use tenure_cluster::messaging::{Ask, AskError, Sender};
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct HowMany;
    /// impl Ask for HowMany { type Reply = u32; }
    /// # async fn example(stock: Sender<HowMany>) -> Result<(), AskError> {
    /// let count: u32 = stock.ask(HowMany).within(Duration::from_secs(2)).await?;
    /// # Ok(()) }
    /// ```
    pub fn ask<Q: Ask + Into<M>>(&self, question: Q) -> Asking<'_, M, Q> {
        Asking { sender: self, message: question.into(), _question: PhantomData }
    }

    /// For what passes messages on without knowing their type: sends one, and waits for the bytes of
    /// its answer, or until it was handled, in which case there are none.
    pub async fn send_expecting(
        &self,
        message: M,
        expects: Expects,
        within: Duration,
    ) -> Result<Vec<u8>, AskError> {
        let Self { messaging, node, name, .. } = self;
        messaging.ask_for(node, name, message, expects, within).await
    }

    /// The lane, if it has been used and is still open.
    #[inline]
    fn open_lane(&self) -> Option<&DataLane> {
        self.lane.get().filter(|lane| !lane.is_closed())
    }

    /// Remembers a lane for the next time. One that was closed stays; then there is a look at the
    /// table each time.
    fn keep<'a>(&self, lane: &'a DataLane) -> &'a DataLane {
        let _ = self.lane.set(lane.clone());
        lane
    }

    /// Sends a message, after waiting for room on the way, but not in the receiver's mailbox.
    pub(crate) async fn offer(&self, message: M) -> Result<(), NotDone> {
        if let Some(lane) = self.open_lane() {
            return self.send(lane, TRY, message).await;
        }
        match self.messaging.route(&self.node, &self.name)? {
            Route::Lane(lane) => self.send(self.keep(&lane), TRY, message).await,
            Route::Own(mailbox) => self.messaging.try_put_own(&mailbox, message, None),
        }
    }

    #[inline]
    async fn send(&self, lane: &DataLane, kind: u8, message: M) -> Result<(), NotDone> {
        let mut failed = None;
        let head = |out: &mut Vec<u8>| wire::put_to(out, kind, self.name.as_bytes());
        let sent = lane.send_with(encode(&mut failed, message, head)).await;
        sent.map_err(|error| NotDone::from_send(error, failed))
    }

    #[inline]
    fn try_send(&self, lane: &DataLane, message: M) -> Result<(), NotDone> {
        let mut failed = None;
        let head = |out: &mut Vec<u8>| wire::put_to(out, TRY, self.name.as_bytes());
        let sent = lane.try_send_with(encode(&mut failed, message, head));
        sent.map_err(|error| NotDone::from_send(error, failed))
    }
}

/// A question that waits for its deadline.
#[derive(Debug)]
#[must_use = "nothing is sent before `.within(…)` is awaited"]
pub struct Asking<'a, M, Q> {
    sender: &'a Sender<M>,
    message: M,
    _question: PhantomData<fn(Q)>,
}

impl<M: Message, Q: Ask> Asking<'_, M, Q> {
    /// Sends the question and waits for the answer, all within this time. Dropping the future gives
    /// the answer up, not the question.
    pub async fn within(self, time: Duration) -> Result<Q::Reply, AskError> {
        let Sender { messaging, node, name, .. } = self.sender;
        messaging.ask(node, name, self.message, time).await
    }
}
