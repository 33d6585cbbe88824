//! The connection to the server: one for all leases, made when it is needed.
//!
//! It is given up as soon as anything about it is in doubt, be it an error or a caller who stopped
//! waiting: the next request makes a new one. There are no retries.

use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::redis::aio::{MultiplexedConnection, PubSub};
use ::redis::{
    AsyncConnectionConfig, Client, ErrorKind, Pipeline, RedisError, RedisResult, ScriptInvocation,
    ServerErrorKind, Value,
};

use tenure_lease::backend::{StoreError, StoreErrorKind};

pub(super) struct Link {
    client: Client,
    /// For people.
    place: String,
    slot: Mutex<Slot>,
    /// Only one connects, the others wait for it.
    connecting: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Slot {
    /// Counts connections, so that a late doubt does not hit the next one.
    number: u64,
    connection: Option<MultiplexedConnection>,
}

impl Link {
    pub(super) fn new(client: Client, place: String) -> Self {
        Self { client, place, slot: Mutex::default(), connecting: tokio::sync::Mutex::default() }
    }

    /// Runs a script; its answer is a list of texts.
    pub(super) async fn run(
        &self,
        script: &ScriptInvocation<'_>,
    ) -> Result<Vec<Vec<u8>>, StoreError> {
        self.ask(async |mut connection| script.invoke_async(&mut connection).await).await
    }

    /// Sends all commands at once.
    pub(super) async fn send(&self, pipeline: &Pipeline) -> Result<Vec<Value>, StoreError> {
        self.ask(async |mut connection| pipeline.query_async(&mut connection).await).await
    }

    /// A connection of its own for messages.
    pub(super) async fn subscribe(&self, channel: &str) -> RedisResult<PubSub> {
        let mut messages = self.client.get_async_pubsub().await?;
        messages.subscribe(channel).await?;
        Ok(messages)
    }

    async fn ask<T, F>(&self, ask: impl FnOnce(MultiplexedConnection) -> F) -> Result<T, StoreError>
    where
        F: Future<Output = RedisResult<T>>,
    {
        let (number, connection) = self.connection().await?;
        // Dropped unanswered, it gives the connection up.
        let mut doubt = Doubt { link: self, number: Some(number) };
        let answer = ask(connection).await;
        let sound = match &answer {
            Ok(_) => true,
            Err(error) => matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension),
        };
        if sound {
            doubt.number = None;
        }
        answer.map_err(|error| self.trouble(&error))
    }

    async fn connection(&self) -> Result<(u64, MultiplexedConnection), StoreError> {
        if let Some(found) = self.slot().found() {
            return Ok(found);
        }
        let _alone = self.connecting.lock().await;
        if let Some(found) = self.slot().found() {
            return Ok(found);
        }
        // How long an answer may take is the keeper's business.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(None);
        let connection = self.client.get_multiplexed_async_connection_with_config(&config).await;
        let connection = connection.map_err(|error| self.trouble(&error))?;
        let mut slot = self.slot();
        slot.number += 1;
        slot.connection = Some(connection.clone());
        Ok((slot.number, connection))
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        // A slot is sound between any two of its operations.
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
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

impl Slot {
    fn found(&self) -> Option<(u64, MultiplexedConnection)> {
        Some((self.number, self.connection.clone()?))
    }
}

/// Gives a connection up when it is dropped, unless it was disarmed.
struct Doubt<'a> {
    link: &'a Link,
    number: Option<u64>,
}

impl Drop for Doubt<'_> {
    fn drop(&mut self) {
        let mut slot = self.link.slot();
        if self.number == Some(slot.number) {
            slot.connection = None;
        }
    }
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
