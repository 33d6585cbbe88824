use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;

use tenure_cluster::Cluster;
use tenure_cluster::messaging::reliable::Delivery;
use tenure_cluster::messaging::{Message, Received, Reply};
use tenure_lease::{Loss, Session, Token};

use crate::Shard;
use crate::hosted_guard::{GuardCount, HostedGuard};
use crate::id::IdText;

/// What goes wrong in an entity: anything.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// One of many: it has an id, lives in one place, and handles one message after the other.
///
/// It is made when the first message for it arrives where its shard is, and lives until it passivates
/// ([`Hosted::passivate`]), fails, or its shard moves. What must outlive that belongs into a database,
/// fenced with [`Hosted::token`].
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use tenure_cluster::messaging::{Ask, Received};
/// use tenure_sharding::{BoxError, Entity, Hosted};
///
/// #[derive(Default)]
/// struct Cart { items: u64 }
///
/// #[derive(Serialize, Deserialize)]
/// enum CartMessage { Add(u64), Count }
///
/// struct Count;
/// impl Ask for Count { type Reply = u64; }
/// impl From<Count> for CartMessage { fn from(_: Count) -> Self { Self::Count } }
///
/// impl Entity for Cart {
///     type Message = CartMessage;
///     async fn receive(&mut self, received: Received<CartMessage>, _: &Hosted) -> Result<(), BoxError> {
///         match received.message {
///             CartMessage::Add(count) => self.items += count,
///             CartMessage::Count => received.reply.answer::<Count>(self.items).await?,
///         }
///         Ok(())
///     }
/// }
/// ```
pub trait Entity: Send + 'static {
    /// What it can be told and asked: usually an enum.
    type Message: Message;

    /// It begins here: read what is known of it. Messages wait until this returns; an error is a
    /// failed start, which is tried again, after a pause.
    fn started(&mut self, hosted: &Hosted) -> impl Future<Output = Result<(), BoxError>> + Send {
        let _ = hosted;
        async { Ok(()) }
    }

    /// The next message. While this awaits, others of its shard go on, and what comes for this one
    /// waits ([`Settings::mailbox`](crate::Settings::mailbox)). An error, or a panic, ends it: the
    /// next message makes a new one, after a pause if it keeps failing.
    fn receive(
        &mut self,
        received: Received<Self::Message>,
        hosted: &Hosted,
    ) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// The next message that was sent with [`EntityRef::reliable`](crate::EntityRef::reliable). For
    /// *exactly once in effect*, enter [`Delivery::record`] in a
    /// [`Ledger`](tenure_cluster::messaging::reliable::Ledger) in the same transaction as the effect,
    /// then say [`Delivery::done`]. Unless you do, it is received as any other, and at least once.
    fn deliver(
        &mut self,
        message: Self::Message,
        delivery: Delivery<()>,
        hosted: &Hosted,
    ) -> impl Future<Output = Result<(), BoxError>> + Send {
        async move {
            let (from, reply) = (hosted.cluster().me(), Reply::nobody());
            self.receive(Received { message, from, reply }, hosted).await?;
            delivery.done();
            Ok(())
        }
    }

    /// It has to stop. If its shard is handed off, the message that it was at was finished, and what
    /// it has not received goes where the shard goes; if a session is lost, that message was dropped
    /// where it awaited, and time is short. Not called after a failure.
    fn stopped(&mut self, reason: StopReason) -> impl Future<Output = ()> + Send {
        let _ = reason;
        async {}
    }
}

/// Why an entity stops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// Its shard goes to another node.
    HandOff,
    /// This node leaves the cluster.
    Leaving,
    /// The session of this process was lost.
    SessionLost(Loss),
    /// This node is out of the cluster.
    OutOfCluster,
    /// It wanted to.
    Passivated,
}

impl StopReason {
    /// In one word, for metrics.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::HandOff => "hand_off",
            Self::Leaving => "leaving",
            Self::SessionLost(_) => "session_lost",
            Self::OutOfCluster => "out_of_cluster",
            Self::Passivated => "passivated",
        }
    }

    /// Whether there is time to finish what was begun.
    pub(crate) fn is_graceful(&self) -> bool {
        matches!(self, Self::HandOff | Self::Leaving | Self::Passivated)
    }
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HandOff => f.write_str("its shard is handed off"),
            Self::Leaving => f.write_str("this node leaves"),
            Self::SessionLost(loss) => write!(f, "the session is lost: {loss}"),
            Self::OutOfCluster => f.write_str("this node is out of the cluster"),
            Self::Passivated => f.write_str("it was passivated"),
        }
    }
}

/// An entity's proof that its shard is here, for as long as it lasts.
pub struct Hosted {
    shard: Arc<HostedShard>,
    id: IdText,
    passivate: AtomicBool,
    /// The last call of the entity kept the thread for long, so that the next one goes into a task of its
    /// own at once. It is here since it takes no room here.
    slow: AtomicBool,
}

impl Hosted {
    pub(crate) fn new(shard: Arc<HostedShard>, id: IdText) -> Self {
        let (passivate, slow) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { shard, id, passivate, slow }
    }

    /// The entity's id.
    pub fn id(&self) -> &str {
        self.id.as_str()
    }

    /// The shard that it belongs to.
    pub fn shard(&self) -> Shard {
        self.shard.shard
    }

    /// The fencing token of its shard: higher than that of every place where the shard was before.
    /// With it, fence whatever the entity writes. Without a lease it rises as long as the cluster
    /// lives, but nothing outside knows of it.
    pub fn token(&self) -> Token {
        self.shard.token
    }

    /// Whether it may go on: its shard was not told to stop, and the session of this process is held.
    /// No I/O.
    pub fn is_held(&self) -> bool {
        self.shard.is_held()
    }

    /// Waits until it has to stop, and says why.
    pub async fn stopping(&self) -> StopReason {
        self.shard.stopping().await
    }

    /// Lets the entity go once it has received what waits for it, to save memory; the next message
    /// makes a new one.
    pub fn passivate(&self) {
        self.passivate.store(true, Ordering::Relaxed);
    }

    /// The cluster that it is in.
    pub fn cluster(&self) -> &Cluster {
        &self.shard.cluster
    }

    /// A guard for work that the entity starts beside its messages, such as a task. While one is kept, the
    /// shard is given to no other node, until its time to stop is over.
    pub fn guard(&self) -> HostedGuard {
        HostedGuard::new(self.shard.clone(), self.id.clone())
    }

    #[inline]
    pub(crate) fn is_passivated(&self) -> bool {
        self.passivate.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn is_slow(&self) -> bool {
        self.slow.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn set_slow(&self, slow: bool) {
        self.slow.store(slow, Ordering::Relaxed);
    }
}

impl fmt::Debug for Hosted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HostedShard { shard, token, .. } = &*self.shard;
        f.debug_struct("Hosted")
            .field("id", &self.id)
            .field("shard", shard)
            .field("token", token)
            .finish_non_exhaustive()
    }
}

/// What all entities of a shard share.
pub(crate) struct HostedShard {
    pub(crate) cluster: Cluster,
    pub(crate) shard: Shard,
    pub(crate) token: Token,
    /// Kept for as long as anything of the shard goes on: it is given back after that.
    pub(crate) session: Option<Arc<Session>>,
    /// Kept for as long, too: whoever takes the place of a control that failed waits for that.
    pub(crate) _life: Arc<()>,
    pub(crate) stop: watch::Receiver<Option<StopReason>>,
    pub(crate) guards: Arc<GuardCount>,
}

impl HostedShard {
    pub(crate) fn is_held(&self) -> bool {
        self.stop.borrow().is_none() && self.has_session()
    }

    pub(crate) async fn stopping(&self) -> StopReason {
        let mut stop = self.stop.clone();
        match stop.wait_for(Option::is_some).await {
            Ok(reason) => reason.clone().unwrap_or(StopReason::OutOfCluster),
            // Whoever drives it is gone: control has failed, or the runtime is shut down.
            Err(_) => StopReason::OutOfCluster,
        }
    }

    /// Whether its time is not over, whoever has noticed.
    pub(crate) fn has_session(&self) -> bool {
        self.session.as_ref().is_none_or(|session| session.tenure().is_held())
    }
}
