//! Talks to the singletons and entities of a cluster, from a program that is no member.
//!
//! A web tier that comes and goes by the minute should not be a member: members watch each other, wait
//! for each other, and decide who is down. A client takes part in none of that. It has a few *contact
//! points*, members at addresses that are known, and has them pass its messages on; they know where
//! singletons and entities are, and follow them when they move.
//!
//! ```no_run
//! # use std::time::Duration;
//! # use tenure_cluster::messaging::Ask;
//! # #[derive(serde::Serialize, serde::Deserialize)] enum Order { Add(u64), Count }
//! # struct Count;
//! # impl Ask for Count { type Reply = u64; }
//! # impl From<Count> for Order { fn from(_: Count) -> Self { Self::Count } }
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use tenure_cluster::client::{Client, ClientSettings};
//! let settings = ClientSettings::new("shop", "web")
//!     .identity("certs/client/web") // tenure certs new --client web
//!     .contact("10.0.0.1:7400".parse()?)
//!     .contact("10.0.0.2:7400".parse()?);
//! let client = Client::connect(settings).await?;
//! let cart = client.entity::<Order>("cart", "customer-17");
//! cart.tell(Order::Add(2)).await?;
//! let count = cart.ask(Count).within(Duration::from_secs(2)).await?;
//! # Ok(()) }
//! ```
//!
//! # What is promised
//!
//! - **Nothing silent.** `Ok` of a `tell` means that it was handled: the singleton or entity has
//!   returned from it without an error. Otherwise an [`AskError`] says that it certainly was not, nor
//!   will be, or that nobody knows.
//! - **Each at most once.** What a member says is not done is tried through the next one, for as long as
//!   there is time. What may have been done is never tried again: it is *unknown*.
//! - **In order**, if each is awaited before the next is sent.
//! - **Bounded.** So many messages are on their way at once
//!   ([`in_flight_max`](ClientSettings::in_flight_max)); the next one waits for its turn.
#![allow(clippy::disallowed_methods, reason = "this is where tasks and deadlines come in")]

mod point;

use std::marker::PhantomData;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout_at};

use self::point::{Point, Sent};
use crate::Address;
use crate::clients::wire::{Request, To, Why};
use crate::messaging::{Ask, AskError, Expects, Message, NotDone, Unknown, decode};
use crate::transport::handshake::client_name;
use crate::transport::{
    Identity, IdentityError, Security, TransportSettings, TransportSettingsError, is_name,
};

/// How a client reaches a cluster.
#[derive(Clone, Debug)]
pub struct ClientSettings {
    /// The cluster's name.
    pub cluster: String,
    /// What the client is called; replicas may share a name and a certificate.
    pub name: String,
    /// The directory of its certificate, which says `tenure://CLUSTER/client/NAME`: `ca.pem`,
    /// `node.pem` and `node.key`, as of a node.
    pub identity: Option<PathBuf>,
    /// Nothing is encrypted, and anybody may pass for a client or a member: for trying things out on
    /// one machine.
    pub plaintext_without_any_protection: bool,
    /// Members that pass messages on. A name may stand for several: it is looked up each time.
    pub contacts: Vec<Address>,
    /// How long a [`tell`](Remote::tell) may take, from its call until it was handled. Default: 10 s.
    pub tell_within: Duration,
    /// How many messages are on their way at once; more wait for their turn. A member takes 1,024 from
    /// each connection. Default: 256.
    pub in_flight_max: usize,
    /// Its connections. What is about listening plays no part.
    pub transport: TransportSettings,
}

impl ClientSettings {
    /// A client of this name, for a cluster of that name.
    pub fn new(cluster: &str, name: &str) -> Self {
        Self {
            cluster: cluster.into(),
            name: name.into(),
            identity: None,
            plaintext_without_any_protection: false,
            contacts: Vec::new(),
            tell_within: Duration::from_secs(10),
            in_flight_max: 256,
            transport: TransportSettings::default(),
        }
    }

    /// Where its certificate is.
    pub fn identity(mut self, directory: impl Into<PathBuf>) -> Self {
        self.identity = Some(directory.into());
        self
    }

    /// Another contact point.
    pub fn contact(mut self, address: Address) -> Self {
        self.contacts.push(address);
        self
    }

    fn security(&self) -> Result<Security, ClientError> {
        let wrong = |why: &str| Err(ClientError::Settings(why.into()));
        self.transport.check()?;
        if let Some(name) = [&self.cluster, &self.name].into_iter().find(|name| !is_name(name)) {
            return wrong(&format!(
                "{name:?} cannot name a cluster or a client: 1 to 128 letters, digits, '-', '.' or '_'"
            ));
        }
        if self.contacts.is_empty() {
            return wrong("contacts: a client needs the address of at least one member");
        }
        if self.in_flight_max == 0 || self.tell_within.is_zero() {
            return wrong("in_flight_max and tell_within must be above 0");
        }
        match (&self.identity, self.plaintext_without_any_protection) {
            (Some(directory), _) => {
                let name = client_name(&self.name);
                Ok(Security::Tls(Identity::load(directory, &self.cluster, &name)?))
            }
            (None, true) => Ok(Security::PlaintextWithoutAnyProtection),
            (None, false) => wrong(
                "identity: a client needs a certificate (tenure certs new --client); or set plaintext_without_any_protection, on one machine",
            ),
        }
    }
}

/// A way into a cluster for a program that is no member. Clones share it.
#[derive(Clone, Debug)]
pub struct Client {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    points: Vec<Point>,
    /// The place of the one that is tried first.
    preferred: AtomicUsize,
    in_flight: Semaphore,
    tell_within: Duration,
    frame_max: usize,
}

impl Client {
    /// Connects to the first contact point that lets it in; an error if none does. It must be called
    /// within a tokio runtime, and connects again by itself, there, whenever that is necessary.
    pub async fn connect(settings: ClientSettings) -> Result<Self, ClientError> {
        let security = settings.security()?;
        let settings = Arc::new(settings);
        let points: Vec<Point> = settings
            .contacts
            .iter()
            .map(|contact| Point::new(contact.clone(), settings.clone(), security.clone()))
            .collect();
        // Not all clients at the same member.
        let first = point::random() as usize % points.len();
        let shared = Arc::new(Shared {
            preferred: AtomicUsize::new(first),
            in_flight: Semaphore::new(settings.in_flight_max),
            tell_within: settings.tell_within,
            frame_max: settings.transport.data_frame_max,
            points,
        });
        let mut refusals = Vec::new();
        for (place, point) in shared.in_turn() {
            match point.connection().await {
                Ok(_) => {
                    shared.preferred.store(place, Relaxed);
                    return Ok(Self { shared: shared.clone() });
                }
                Err(refusal) => refusals.push(format!("{}: {refusal}", point.address())),
            }
        }
        Err(ClientError::NoContact(refusals.join("; ")))
    }

    /// The way to a singleton.
    pub fn singleton<M: Message>(&self, name: &str) -> Remote<M> {
        self.remote(To::Singleton, name, "")
    }

    /// The way to an entity of a kind.
    pub fn entity<M: Message>(&self, kind: &str, id: &str) -> Remote<M> {
        self.remote(To::Entity, kind, id)
    }

    fn remote<M: Message>(&self, to: To, name: &str, entity: &str) -> Remote<M> {
        let (name, entity) = (name.into(), entity.into());
        Remote { shared: self.shared.clone(), to, name, entity, _messages: PhantomData }
    }
}

/// The way to a singleton or an entity, from outside of the cluster. Cheap to clone.
pub struct Remote<M> {
    shared: Arc<Shared>,
    to: To,
    name: Arc<str>,
    entity: Arc<str>,
    _messages: PhantomData<fn(M)>,
}

impl<M: Message> Remote<M> {
    /// Sends a message, and returns when it was handled. An error says that it certainly was not, nor
    /// will be, or that nobody knows: then look before you send it again. It may take
    /// [`tell_within`](ClientSettings::tell_within).
    pub async fn tell(&self, message: M) -> Result<(), AskError> {
        let within = self.shared.tell_within;
        self.send(&message, Expects::Receipt, within).await.map(drop)
    }

    /// Asks a question: `.within(…)` sends it, and waits for the answer.
    pub fn ask<Q: Ask + Into<M>>(&self, question: Q) -> Asking<'_, M, Q> {
        Asking { remote: self, message: question.into(), _question: PhantomData }
    }

    async fn send(
        &self,
        message: &M,
        expects: Expects,
        within: Duration,
    ) -> Result<Vec<u8>, AskError> {
        let mut body = Vec::new();
        message.encode(&mut body).map_err(NotDone::Encoding)?;
        let request = Request {
            id: 0,
            to: self.to,
            name: self.name.to_string(),
            entity: self.entity.to_string(),
            expects,
            within_ms: 0,
        };
        self.shared.send(&self.name, request, &body, within).await
    }
}

impl<M> Clone for Remote<M> {
    fn clone(&self) -> Self {
        let Self { shared, to, name, entity, .. } = self;
        let (shared, name, entity) = (shared.clone(), name.clone(), entity.clone());
        Self { shared, to: *to, name, entity, _messages: PhantomData }
    }
}

impl<M> std::fmt::Debug for Remote<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { name, entity, .. } = self;
        f.debug_struct("Remote").field("name", name).field("entity", entity).finish_non_exhaustive()
    }
}

/// A question that waits for its deadline.
#[must_use = "nothing is sent before `.within(…)` is awaited"]
pub struct Asking<'a, M, Q> {
    remote: &'a Remote<M>,
    message: M,
    _question: PhantomData<fn(Q)>,
}

impl<M, Q> std::fmt::Debug for Asking<'_, M, Q> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Asking").finish_non_exhaustive()
    }
}

impl<M: Message, Q: Ask> Asking<'_, M, Q> {
    /// Sends the question and waits for the answer, all within this time. Dropping the future gives
    /// the answer up, not the question.
    pub async fn within(self, time: Duration) -> Result<Q::Reply, AskError> {
        let answer = self.remote.send(&self.message, Expects::Answer, time).await?;
        decode(&answer).map_err(|error| Unknown::Unreadable(error).into())
    }
}

impl Shared {
    /// All points, and their places, beginning with the preferred one.
    fn in_turn(&self) -> impl Iterator<Item = (usize, &Point)> {
        let (count, first) = (self.points.len(), self.preferred.load(Relaxed));
        (0..count).map(move |step| (first + step) % count).map(|place| (place, &self.points[place]))
    }

    /// Has a member pass it on; another, as long as it is certain that nothing has come of it.
    async fn send(
        &self,
        name: &Arc<str>,
        mut request: Request,
        body: &[u8],
        within: Duration,
    ) -> Result<Vec<u8>, AskError> {
        let late = || AskError::from(NotDone::NotSentWithin(within));
        let deadline = Instant::now() + within.min(WITHIN_MAX);
        let turn = timeout_at(deadline, self.in_flight.acquire()).await;
        // Never closed.
        let _turn = turn.map_err(|_| late())?;
        let mut pause = PAUSE;
        loop {
            let mut strangers = 0;
            for (place, point) in self.in_turn() {
                let Ok(connection) = timeout_at(deadline, point.connection()).await else {
                    return Err(late());
                };
                let Ok(connection) = connection else { continue };
                let left = deadline.saturating_duration_since(Instant::now());
                // The member should give up first: it knows what has come of it.
                let theirs = left - (left / 10).min(HEAD_START);
                request.within_ms = theirs.as_millis().try_into().unwrap_or(u32::MAX);
                match connection.send(&mut request, body, self.frame_max, deadline).await {
                    Sent::Unsent => {}
                    Sent::Late => return Err(late()),
                    Sent::TooLong { len, max } => return Err(NotDone::TooLong { len, max }.into()),
                    Sent::Unknown(doubt) => return Err(doubt.into_error(within).into()),
                    Sent::Done(answer) => {
                        self.preferred.store(place, Relaxed);
                        return Ok(answer);
                    }
                    Sent::NotDone(Why::Outside) => {}
                    // It has no proxy of that. Others may.
                    Sent::NotDone(Why::Unknown) => strangers += 1,
                    Sent::NotDone(why) => return Err(why.into_error(name, within).into()),
                }
            }
            if strangers == self.points.len() {
                return Err(NotDone::NoSuchReceiver(name.clone()).into());
            }
            let wait = pause.mul_f64(0.5 + 0.5 * (point::random() as f64 / u64::MAX as f64));
            if timeout_at(deadline, sleep(wait)).await.is_err() {
                return Err(late());
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Settings that cannot work.
    #[error("{0}")]
    Settings(String),
    /// Settings of its connections that cannot work.
    #[error(transparent)]
    Transport(#[from] TransportSettingsError),
    /// The certificate cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// No contact point lets it in: each, and why.
    #[error("no contact point can be reached: {0}")]
    NoContact(String),
}

/// Nobody waits for longer.
const WITHIN_MAX: Duration = Duration::from_secs(24 * 3600);
/// Before all contact points are tried again, at first and at most.
const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// A member has so much less time than the client waits, at most.
const HEAD_START: Duration = Duration::from_millis(200);
