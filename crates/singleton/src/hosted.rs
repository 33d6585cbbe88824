use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};

use tenure_cluster::Cluster;
use tenure_cluster::messaging::reliable::ReliableReceiver;
use tenure_cluster::messaging::{Message, Received, ReceiverError};
use tenure_lease::{Tenure, Token};

use crate::StopReason;

/// What goes wrong in a singleton: anything.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A singleton's guard: the proof that this node hosts it, for as long as it lasts.
///
/// Whoever keeps it says that the work goes on: the lease is given back when the work has returned
/// *and* every clone of its guard is dropped. So give a clone to whatever else the work starts, a task
/// or a thread, which waits for [`stopping`](Self::stopping), ends, and drops it. Without a lease the
/// singleton is handed over when the time to stop is over
/// ([`Settings::stop_within`](crate::Settings::stop_within)), though a clone is kept. If the singleton
/// fails, the clones of that run are waited for as long before it is started again.
///
/// ```
/// use tenure_cluster::messaging::Received;
/// use tenure_singleton::{Actor, BoxError, Hosted};
///
/// struct Importer;
///
/// impl Actor for Importer {
///     type Message = String;
///     async fn receive(&mut self, received: Received<String>, hosted: &Hosted) -> Result<(), BoxError> {
///         let (file, hosted) = (received.message, hosted.clone());
///         tokio::spawn(async move {
///             tokio::select! {
///                 () = import(&file) => {}
///                 _ = hosted.stopping() => {} // No other node begins before this is over.
///             }
///         });
///         Ok(())
///     }
/// }
/// # async fn import(_: &str) {}
/// ```
#[derive(Clone)]
pub struct Hosted {
    cluster: Cluster,
    name: Arc<str>,
    token: Token,
    tenure: Option<Arc<Tenure>>,
    stop: watch::Receiver<Option<StopReason>>,
    /// Closed when the last clone is dropped.
    _kept: mpsc::Sender<Infallible>,
}

impl Hosted {
    pub(crate) fn new(
        cluster: Cluster,
        name: Arc<str>,
        token: Token,
        tenure: Option<Arc<Tenure>>,
        stop: watch::Receiver<Option<StopReason>>,
        kept: mpsc::Sender<Infallible>,
    ) -> Self {
        Self { cluster, name, token, tenure, stop, _kept: kept }
    }

    /// The fencing token under which it is hosted: higher than that of every host before. Without a
    /// lease it rises as long as the cluster lives, but nothing outside knows of it.
    pub fn token(&self) -> Token {
        self.token
    }

    /// The tenure of its lease, to raise a [`fence`](tenure_lease::fence) with; none if it has no
    /// lease.
    pub fn tenure(&self) -> Option<&Tenure> {
        self.tenure.as_deref()
    }

    /// Whether it may go on: its lease is held, and it was not told to stop. No lock, no I/O.
    pub fn is_held(&self) -> bool {
        self.stop.borrow().is_none() && self.tenure.as_ref().is_none_or(|tenure| tenure.is_held())
    }

    /// Waits until it has to stop, and says why.
    pub async fn stopping(&self) -> StopReason {
        let mut stop = self.stop.clone();
        match stop.wait_for(Option::is_some).await {
            Ok(reason) => reason.clone().unwrap_or(StopReason::OutOfCluster),
            // Its manager is gone, which only a runtime that is shut down can cause.
            Err(_) => StopReason::OutOfCluster,
        }
    }

    /// The cluster that it is in.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Takes what proxies send with [`reliable`](crate::Proxy::reliable). Open it again after each
    /// start: what was sent and is not done comes again.
    pub fn reliable_receiver<M: Message>(&self) -> Result<ReliableReceiver<M>, ReceiverError> {
        self.cluster.reliable_receiver(&reliable_inbox(&self.name))
    }
}

impl std::fmt::Debug for Hosted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { name, token, .. } = self;
        f.debug_struct("Hosted").field("name", name).field("token", token).finish_non_exhaustive()
    }
}

/// A singleton that is spoken to: it has messages of one type, and handles one after the other.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use tenure_cluster::messaging::{Ask, Received};
/// use tenure_singleton::{Actor, BoxError, Hosted};
///
/// #[derive(Default)]
/// struct Counter { total: u64 }
///
/// #[derive(Serialize, Deserialize)]
/// enum CounterMessage { Add(u64), Get }
///
/// struct Get;
/// impl Ask for Get { type Reply = u64; }
/// impl From<Get> for CounterMessage { fn from(_: Get) -> Self { Self::Get } }
///
/// impl Actor for Counter {
///     type Message = CounterMessage;
///     async fn receive(&mut self, received: Received<CounterMessage>, _: &Hosted) -> Result<(), BoxError> {
///         match received.message {
///             CounterMessage::Add(count) => self.total += count,
///             CounterMessage::Get => received.reply.answer::<Get>(self.total).await?,
///         }
///         Ok(())
///     }
/// }
/// ```
pub trait Actor: Send + 'static {
    /// What it can be told and asked: usually an enum.
    type Message: Message;

    /// It begins on this node. Messages wait until this returns; an error is a failed start.
    fn started(&mut self, hosted: &Hosted) -> impl Future<Output = Result<(), BoxError>> + Send {
        let _ = hosted;
        async { Ok(()) }
    }

    /// The next message. An error, or a panic, ends it: a new one is made and started, after a pause
    /// and under the same tenure, and goes on with the message after this one. If this one was told,
    /// its sender gets a [`DeadLetter`](tenure_cluster::messaging::DeadLetter).
    fn receive(
        &mut self,
        received: Received<Self::Message>,
        hosted: &Hosted,
    ) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// It has to stop. If it hands over, it has received everything that had come; if its lease is lost,
    /// a message that it was at was dropped where it awaited, and time is short. Not called after a
    /// failure.
    fn stopped(&mut self, reason: StopReason) -> impl Future<Output = ()> + Send {
        let _ = reason;
        async {}
    }
}

/// The receiver of a singleton's messages.
pub(crate) fn inbox(name: &str) -> String {
    format!("tenure/singleton/{name}")
}

/// The receiver of its numbered messages.
pub(crate) fn reliable_inbox(name: &str) -> String {
    format!("tenure/singleton/{name}/reliable")
}
