//! The connection to the server: one for all requests of a kind, made when it is needed.
//!
//! It is given up as soon as anything about it is in doubt, be it an error or a caller who stopped
//! waiting: the next request makes a new one. Requests that are under way on one that was replaced
//! are left alone. There are no retries.
#![allow(clippy::disallowed_methods)] // It connects on a task that goes on when nobody waits.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ::redis::aio::{MultiplexedConnection, PubSub};
use ::redis::{
    AsyncConnectionConfig, Client, ErrorKind, Pipeline, RedisError, RedisResult, ScriptInvocation,
    ServerErrorKind, Value,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;

use tenure_lease::Moment;
use tenure_lease::backend::{StoreError, StoreErrorKind};

/// Clones are the same link.
#[derive(Clone)]
pub(super) struct Link(Arc<Inner>);

struct Inner {
    client: Client,
    /// For people.
    place: String,
    slot: watch::Sender<Slot>,
    /// When something was last sent to this server that had no answer, or a late one, on this link or
    /// on another: connections that have said nothing since are not used any more.
    doubted: Arc<Mutex<Moment>>,
    /// Whether a connection that was silent for a while has to answer before it is used.
    pings: bool,
    /// Only one connects, the others wait for it.
    permits: Arc<Semaphore>,
    /// So many connect at once for requests that want a fresh connection.
    fresh_permits: Arc<Semaphore>,
}

struct Slot {
    /// Counts connections, so that a late doubt does not hit the next one.
    number: u64,
    connection: Option<MultiplexedConnection>,
    opened: Moment,
    answered: Moment,
}

/// Which connections a request may take.
#[derive(Clone, Copy)]
pub(super) enum Age {
    Any,
    /// One that was opened at most so long ago.
    AtMost(Duration),
}

/// A connection and its number.
type Numbered = (u64, MultiplexedConnection);

impl Link {
    pub(super) fn new(client: Client, place: String) -> Self {
        Self::with(client, place, Arc::default(), true)
    }

    /// Another one to the same server, with a connection of its own, which is in use all the time.
    pub(super) fn another(&self) -> Self {
        let Inner { client, place, doubted, .. } = &*self.0;
        Self::with(client.clone(), place.clone(), Arc::clone(doubted), false)
    }

    fn with(client: Client, place: String, doubted: Arc<Mutex<Moment>>, pings: bool) -> Self {
        let now = Moment::now();
        let slot = Slot { number: 0, connection: None, opened: now, answered: now };
        Self(Arc::new(Inner {
            client,
            place,
            slot: watch::Sender::new(slot),
            doubted,
            pings,
            permits: Arc::new(Semaphore::new(1)),
            fresh_permits: Arc::new(Semaphore::new(FRESH_MAX)),
        }))
    }

    /// Runs a script; its answer is a list of texts.
    pub(super) async fn run(
        &self,
        age: Age,
        script: &ScriptInvocation<'_>,
    ) -> Result<Vec<Vec<u8>>, StoreError> {
        self.ask(age, async |mut connection| script.invoke_async(&mut connection).await).await
    }

    /// Sends all commands at once.
    pub(super) async fn send(&self, pipeline: &Pipeline) -> Result<Vec<Value>, StoreError> {
        self.ask(Age::Any, async |mut connection| pipeline.query_async(&mut connection).await).await
    }

    /// A connection of its own for messages.
    pub(super) async fn subscribe(&self, channel: &str) -> RedisResult<PubSub> {
        let mut messages = self.0.client.get_async_pubsub().await?;
        messages.subscribe(channel).await?;
        Ok(messages)
    }

    async fn ask<T, F>(
        &self,
        age: Age,
        ask: impl FnOnce(MultiplexedConnection) -> F,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = RedisResult<T>>,
    {
        let (number, connection) = self.proven(age).await?;
        // Dropped unanswered, it gives the connection up.
        let mut doubt = Doubt { link: &self.0, number: Some(number), sent: Moment::now() };
        let answer = ask(connection).await;
        let sound = match &answer {
            Ok(_) => true,
            // One that became a replica may have a successor at the same address.
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly) => false,
            Err(error) => matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension),
        };
        if sound {
            doubt.number = None;
            self.0.answered(number);
            if let Age::AtMost(_) = age {
                // What has not answered meanwhile hangs as the request before this one does.
                self.0.doubt(doubt.sent);
            }
        }
        answer.map_err(|error| self.0.trouble(&error))
    }

    /// A connection that has said something lately, or says it now: one that nobody needed for a
    /// while may have ended, which only its use shows.
    async fn proven(&self, age: Age) -> Result<Numbered, StoreError> {
        let found = self.connection(age).await?;
        let (number, mut connection) = found.clone();
        let silent = Moment::now().since(self.0.slot.borrow().answered);
        if !self.0.pings || silent < PING_AFTER {
            return Ok(found);
        }
        // Dropped unanswered, it gives the connection up.
        let mut doubt = Doubt { link: &self.0, number: Some(number), sent: Moment::now() };
        let ping = ::redis::cmd("PING");
        if let Ok(Ok(())) = timeout(PING_TIMEOUT, ping.query_async::<()>(&mut connection)).await {
            doubt.number = None;
            self.0.answered(number);
            return Ok(found);
        }
        drop(doubt);
        self.connection(age).await
    }

    async fn connection(&self, age: Age) -> Result<Numbered, StoreError> {
        let asked = Moment::now();
        let usable = |slot: &Slot| match age {
            _ if slot.answered < self.0.doubted() => None,
            Age::AtMost(age) if slot.opened + age <= asked => None,
            Age::Any | Age::AtMost(_) => Some((slot.number, slot.connection.clone()?)),
        };
        let mut slots = self.0.slot.subscribe();
        let permits = match age {
            Age::Any => &self.0.permits,
            Age::AtMost(_) => &self.0.fresh_permits,
        };
        let permit = tokio::select! {
            biased;
            found = next(&mut slots, usable) => return Ok(found),
            permit = Arc::clone(permits).acquire_owned() => permit,
        };
        let permit = permit.expect("the semaphore is never closed");
        // It finishes also if nobody waits any more.
        let connecting = tokio::spawn(Arc::clone(&self.0).connect(permit));
        tokio::select! {
            biased;
            found = next(&mut slots, usable) => Ok(found),
            connected = connecting => connected.unwrap_or_else(|_| {
                Err(StoreError::unavailable("the runtime that connected to Redis has ended"))
            }),
        }
    }
}

/// The first connection in the slot that will do.
async fn next(
    slots: &mut watch::Receiver<Slot>,
    usable: impl Fn(&Slot) -> Option<Numbered>,
) -> Numbered {
    loop {
        if let Some(found) = usable(&slots.borrow_and_update()) {
            return found;
        }
        if slots.changed().await.is_err() {
            // The link outlives whoever asks it.
            std::future::pending::<()>().await;
        }
    }
}

impl Inner {
    async fn connect(
        self: Arc<Self>,
        _permit: OwnedSemaphorePermit,
    ) -> Result<Numbered, StoreError> {
        let began = Moment::now();
        // How long an answer may take is the keeper's business.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(None);
        let connection = self.client.get_multiplexed_async_connection_with_config(&config).await;
        let connection = connection.map_err(|error| self.trouble(&error))?;
        let mut connected = None;
        self.slot.send_modify(|slot| {
            // Another one may have been faster, and is as new.
            let current = slot.connection.take().filter(|_| slot.opened >= began);
            let connection = current.unwrap_or_else(|| {
                let now = Moment::now();
                (slot.number, slot.opened, slot.answered) = (slot.number + 1, now, now);
                connection
            });
            slot.connection = Some(connection.clone());
            connected = Some((slot.number, connection));
        });
        Ok(connected.expect("the slot was modified"))
    }

    fn answered(&self, number: u64) {
        self.slot.send_if_modified(|slot| {
            if slot.number == number {
                slot.answered = Moment::now();
            }
            false
        });
    }

    fn doubt(&self, sent: Moment) {
        let mut doubted = self.doubted.lock().unwrap_or_else(PoisonError::into_inner);
        *doubted = sent.max(*doubted);
    }

    fn doubted(&self) -> Moment {
        *self.doubted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn trouble(&self, error: &RedisError) -> StoreError {
        let place = &self.place;
        let kind = match (error.kind(), error.code()) {
            (ErrorKind::AuthenticationFailed, _)
            | (_, Some("NOAUTH" | "WRONGPASS" | "NOPERM" | "DENIED")) => {
                // Not its own words: they may say who tried what.
                return StoreError::new(
                    StoreErrorKind::Denied,
                    format!(
                        "Redis at {place} refuses our user, password or permissions ({})",
                        error.code().unwrap_or("authentication failed")
                    ),
                );
            }
            (ErrorKind::Server(ServerErrorKind::ReadOnly), _) => {
                return StoreError::unavailable(format!(
                    "Redis at {place} is a replica now, and takes no writes"
                ));
            }
            (ErrorKind::Server(ServerErrorKind::Moved | ServerErrorKind::Ask), _) => {
                return StoreError::new(
                    StoreErrorKind::Unsuitable,
                    format!("Redis at {place} is part of a cluster; leases need a single server"),
                );
            }
            (_, Some("OOM" | "MISCONF")) => StoreErrorKind::Unsuitable,
            _ => StoreErrorKind::Unavailable,
        };
        StoreError::new(kind, format!("Redis at {place}: {error}"))
    }
}

/// Gives a connection up when it is dropped, unless it was disarmed.
struct Doubt<'a> {
    link: &'a Inner,
    number: Option<u64>,
    sent: Moment,
}

impl Drop for Doubt<'_> {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        self.link.doubt(self.sent);
        self.link.slot.send_if_modified(|slot| {
            if slot.number == number {
                slot.connection = None;
            }
            false
        });
    }
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// So many fresh connections are opened at once.
const FRESH_MAX: usize = 16;
const PING_AFTER: Duration = Duration::from_secs(2);
const PING_TIMEOUT: Duration = Duration::from_secs(1);
