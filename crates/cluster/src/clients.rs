//! What members do for clients: programs that are no members, and talk to singletons and entities
//! through one ([`client`](crate::client) is the other end).
//!
//! A client has a connection of its own kind, on which it can say nothing but *requests*: tell this
//! singleton, ask that entity. The member passes each on as if it was its own, through the proxy that
//! it has open, and says what came of it. So a client follows every move, and never hears of members,
//! homes or tokens; and it can reach what the member has a proxy of, and no other receiver.
#![allow(clippy::disallowed_methods, reason = "this is where tasks and deadlines come in")]

pub(crate) mod wire;

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::timeout;

use self::wire::{Outcome, Request};
use crate::cluster::State;
use crate::messaging::{AskError, Expects, Messaging, NotDone, Unknown};
use crate::transport::{Frames, Outgoing};
use crate::{Cluster, Status};

/// What messages of clients go through: the way to a singleton, or to all entities of a kind.
pub trait Gate: Send + Sync + 'static {
    /// Sends a message, to the entity `id` if these are entities, and waits for the bytes of its
    /// answer, or until it was handled.
    fn pass(self: Arc<Self>, id: &str, body: Bytes, expects: Expects, within: Duration) -> Passing;
}

/// A message on its way through a [`Gate`].
pub type Passing = Pin<Box<dyn Future<Output = Result<Vec<u8>, AskError>> + Send>>;

/// What there are gates to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Gateway {
    /// A singleton.
    Singleton,
    /// The entities of a kind.
    Entities,
}

impl Cluster {
    /// Lets clients through to what is called so, for as long as the gate is kept: for what is built
    /// on the cluster.
    pub fn open_gate(&self, to: Gateway, name: &str, gate: &Arc<dyn Gate>) {
        self.messaging().gates().open(to, name, gate);
    }
}

/// The gates to one thing: one for each handle to it.
type OpenGates = Vec<Weak<dyn Gate>>;

/// All gates of a node.
#[derive(Default)]
pub(crate) struct Gates {
    open: Mutex<HashMap<(Gateway, Arc<str>), OpenGates>>,
}

impl std::fmt::Debug for Gates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Gates")
    }
}

impl Gates {
    fn open(&self, to: Gateway, name: &str, gate: &Arc<dyn Gate>) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|_, gates| {
            gates.retain(|gate| gate.strong_count() > 0);
            !gates.is_empty()
        });
        open.entry((to, name.into())).or_default().push(Arc::downgrade(gate));
    }

    fn find(&self, to: Gateway, name: &str) -> Option<Arc<dyn Gate>> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.get(&(to, name.into()))?.iter().find_map(Weak::upgrade)
    }
}

/// A client's connection, as the transport gives it.
#[derive(Debug)]
pub struct ClientLink {
    /// The client's name, as certified.
    pub name: Arc<str>,
    /// What it says.
    pub requests: mpsc::Receiver<Frames>,
    /// What it is told.
    pub(crate) answers: mpsc::Sender<Outgoing>,
}

/// Does what a client asks for, until it is gone. Nothing here waits for a message that is passed on:
/// a client has so many on their way, all clients together so many, and more are refused.
pub(crate) async fn serve(messaging: Arc<Messaging>, link: ClientLink) {
    let ClientLink { name, mut requests, answers } = link;
    let own = Arc::new(Semaphore::new(CLIENT_REQUESTS));
    let mut state = messaging.state();
    let mut bye = false;
    loop {
        let frames = tokio::select! {
            frames = requests.recv() => match frames {
                Some(frames) => frames,
                None => return,
            },
            // It goes to another member with what comes next.
            () = leaving(&mut state), if !bye => {
                bye = true;
                let _ = answers.send(answered(wire::pack(0, Outcome::Goodbye, &[]))).await;
                continue;
            }
        };
        for frame in frames {
            let Some((request, body)) = wire::request(&frame) else {
                return tracing::warn!(client = %name, "a request that cannot be read; it is disconnected");
            };
            let permits = (own.clone().try_acquire_owned(), messaging.client_permit());
            let (messaging, answers, body) =
                (messaging.clone(), answers.clone(), frame.slice_ref(body));
            tokio::spawn(async move {
                let id = request.id;
                let outcome = match &permits {
                    (Ok(_), Some(_)) => pass(&messaging, request, body).await,
                    _ => Err(NotDone::Full.into()),
                };
                let _ = answers.send(answered(wire::answer(id, outcome))).await; // It may be gone.
                drop(permits);
            });
        }
    }
}

fn answered(body: Vec<u8>) -> Outgoing {
    Outgoing { body, taken: None }
}

async fn pass(messaging: &Messaging, request: Request, body: Bytes) -> Result<Vec<u8>, AskError> {
    let Request { to, name, entity, expects, within_ms, .. } = request;
    let within = Duration::from_millis(within_ms.into());
    let Some(gate) = messaging.gates().find(to.into(), &name) else {
        return Err(NotDone::NoSuchReceiver(name.into()).into());
    };
    // A gate keeps to the time by itself; it must not keep a place for longer.
    match timeout(within + GRACE, gate.pass(&entity, body, expects, within)).await {
        Ok(outcome) => outcome,
        Err(_) => Err(Unknown::NoAnswer(within).into()),
    }
}

/// Waits until this node is about to leave the cluster, or has.
async fn leaving(state: &mut watch::Receiver<State>) {
    let leaves = |state: &State| {
        let view = state.view.as_ref();
        let status = view.and_then(|view| view.member(&state.me)).map(|member| member.status);
        state.ended.is_some() || status.is_some_and(|status| status > Status::Up)
    };
    let _ = state.wait_for(leaves).await; // Its end is that of the node.
}

/// How many messages of one client, and of all, are on their way through one member.
pub(crate) const CLIENT_REQUESTS: usize = 1024;
pub(crate) const ALL_REQUESTS: usize = 16 << 10;
const GRACE: Duration = Duration::from_secs(1);
