//! The connections of a process: opened when they are needed, kept, and not trusted for ever.
//!
//! A process with one lease has one connection. A second is opened only while the first is busy, up
//! to a small number: a statement that waits (for a row that somebody has locked in a session of
//! their own, say) must not hold up the renewals of all other leases behind it, and a few that
//! commit at once share the server's disk flush.
//!
//! Whoever asks may lose interest at any moment, as the keeper does at its time-out. Then
//!
//! * a statement that was sent is cancelled at the server and its connection closed: otherwise each
//!   retry would leave another session waiting there;
//! * other connections that have been silent since before it was sent are closed as well, so that a
//!   network that went dead costs one time-out, not one per connection;
//! * a connection that is being made is finished all the same, for whoever comes next: a handshake
//!   may take longer than the operation time-out of a short ttl.
#![allow(clippy::disallowed_methods)] // It connects, and waits for a bounded time.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_lease::Moment;
use tenure_lease::backend::{StoreError, StoreErrorKind};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Connection, Row, Socket};

use super::tls::Stream;
use super::trouble::{is_absent_table, store_error};
use super::url::Target;

/// Why a statement has no result.
pub(super) struct Failure {
    pub(super) error: StoreError,
    /// The statement was refused because its table does not exist.
    pub(super) absent_table: bool,
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self { error, absent_table: false }
    }
}

/// The parameters of a statement.
pub(super) type Parameters<'a> = &'a [(&'a (dyn ToSql + Sync), Type)];

pub(super) struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    target: Target,
    idle: Mutex<Vec<Connected>>,
    /// One for each statement or handshake under way: as many connections are needed at most.
    permits: Arc<Semaphore>,
}

/// An open connection, driven by a task of its own.
struct Connected {
    client: Client,
    driver: AbortHandle,
    /// When it last answered.
    answered: Moment,
}

impl Pool {
    /// Connects to nothing yet.
    pub(super) fn new(target: Target, connections: usize) -> Self {
        let permits = Arc::new(Semaphore::new(connections));
        Self { shared: Arc::new(Shared { target, idle: Mutex::default(), permits }) }
    }

    /// A connection for a while.
    pub(super) async fn take(&self) -> Result<Busy, StoreError> {
        self.shared.take().await
    }

    /// Where it is, for people.
    pub(super) fn place(&self) -> String {
        self.shared.target.place()
    }

    /// Puts one statement, which commits by itself, in one round trip.
    pub(super) async fn query(
        &self,
        statement: &str,
        parameters: Parameters<'_>,
    ) -> Result<Vec<Row>, Failure> {
        let busy = self.shared.take().await?;
        let answer = busy.client().query_typed(statement, parameters).await;
        busy.answered(answer.is_ok() || is_answer(answer.as_ref().err()));
        answer.map_err(|error| self.shared.failure(&error))
    }

    /// Puts several statements that make a transaction.
    pub(super) async fn transact(&self, statements: &str) -> Result<(), Failure> {
        let busy = self.shared.take().await?;
        let answer = busy.client().batch_execute(statements).await;
        // After an error the transaction is still open; it ends with the connection.
        busy.answered(answer.is_ok());
        answer.map_err(|error| self.shared.failure(&error))
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.place())
    }
}

/// Whether the server has spoken, and will go on listening.
fn is_answer(error: Option<&tokio_postgres::Error>) -> bool {
    error.is_some_and(|error| error.as_db_error().is_some())
}

impl Shared {
    async fn take(self: &Arc<Self>) -> Result<Busy, StoreError> {
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        let permit = permit.expect("the semaphore is never closed");
        let idle = {
            let mut idle = self.lock();
            let now = Moment::now();
            idle.retain(|connected| {
                !connected.client.is_closed() && now.since(connected.answered) < IDLE_MAX
            });
            idle.pop()
        };
        let (connected, permit) = match idle {
            Some(connected) => (connected, permit),
            None => self.connect(permit).await?,
        };
        Ok(Busy {
            shared: Arc::clone(self),
            connected: Some(connected),
            sent: Moment::now(),
            _permit: permit,
        })
    }

    /// On a task of its own, which finishes also if nobody waits any more.
    async fn connect(
        self: &Arc<Self>,
        permit: OwnedSemaphorePermit,
    ) -> Result<(Connected, OwnedSemaphorePermit), StoreError> {
        let (sender, receiver) = oneshot::channel();
        let shared = Arc::clone(self);
        tokio::spawn(async move {
            let result = open(&shared.target).await;
            let unwanted = sender.send(result.map(|connected| (connected, permit))).err();
            if let Some(Ok((connected, _permit))) = unwanted {
                shared.lock().push(connected);
            }
        });
        receiver.await.unwrap_or_else(|_| {
            Err(StoreError::unavailable("the runtime that connected to postgres has ended"))
        })
    }

    fn failure(&self, error: &tokio_postgres::Error) -> Failure {
        Failure {
            error: store_error(&self.target.place(), error),
            absent_table: is_absent_table(error),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Connected>> {
        // Each change is a single push, pop or retain, so a panic elsewhere leaves it sound.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection with something under way.
pub(super) struct Busy {
    shared: Arc<Shared>,
    /// Gone once it was answered.
    connected: Option<Connected>,
    sent: Moment,
    _permit: OwnedSemaphorePermit,
}

impl Busy {
    pub(super) fn client(&self) -> &Client {
        // Only `answered` and `drop` take it, and both consume us.
        &self.connected.as_ref().expect("it is answered once").client
    }

    pub(super) fn client_mut(&mut self) -> &mut Client {
        &mut self.connected.as_mut().expect("it is answered once").client
    }

    /// What was under way is over; if the connection is `sound`, the next one may have it.
    pub(super) fn answered(mut self, sound: bool) {
        if let Some(mut connected) = self.connected.take()
            && sound
        {
            connected.answered = Moment::now();
            self.shared.lock().push(connected);
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let Some(abandoned) = self.connected.take() else { return };
        let silent = {
            let mut idle = self.shared.lock();
            let (keep, silent) = std::mem::take(&mut *idle)
                .into_iter()
                .partition::<Vec<_>, _>(|connected| connected.answered >= self.sent);
            *idle = keep;
            silent
        };
        silent.iter().for_each(|connected| connected.driver.abort());
        let (cancel, target) = (abandoned.client.cancel_token(), self.shared.target.clone());
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                // If it cannot be cancelled, it does no harm: every write is conditional.
                let _ = timeout(target.timeout, cancel.cancel_query(target.tls)).await;
                abandoned.driver.abort();
            });
        }
    }
}

/// A connection to a server that is fit to keep leases.
async fn open(target: &Target) -> Result<Connected, StoreError> {
    let opened = async {
        let (client, mut connection) = dial(target).await?;
        let driver = tokio::spawn(async move {
            // Notices are of no interest, and whoever waits for an answer hears of the end.
            while let Some(Ok(_)) = poll_fn(|cx| connection.poll_message(cx)).await {}
        });
        let driver = driver.abort_handle();
        let row = client
            .query_typed_one(CHECK, &[])
            .await
            .map_err(|error| store_error(&target.place(), &error))?;
        check(target, &row)?;
        Ok(Connected { client, driver, answered: Moment::now() })
    };
    match timeout(target.timeout, opened).await {
        Ok(result) => result,
        Err(_) => Err(slow(target)),
    }
}

/// A connection, not yet driven.
pub(super) async fn dial(
    target: &Target,
) -> Result<(Client, Connection<Socket, Stream<Socket>>), StoreError> {
    let dialled = target.config.connect(target.tls.clone());
    match timeout(target.timeout, dialled).await {
        Ok(result) => result.map_err(|error| store_error(&target.place(), &error)),
        Err(_) => Err(slow(target)),
    }
}

fn slow(target: &Target) -> StoreError {
    let (place, time): (_, Duration) = (target.place(), target.timeout);
    StoreError::unavailable(format!("postgres at {place} was not ready within {time:?}"))
}

fn check(target: &Target, row: &Row) -> Result<(), StoreError> {
    let place = target.place();
    if row.get::<_, bool>(0) {
        return Err(StoreError::unavailable(format!(
            "postgres at {place} is a standby: its records are not current"
        )));
    }
    if row.get::<_, &str>(1) == "off" {
        return Err(StoreError::new(
            StoreErrorKind::Unsuitable,
            format!(
                "postgres at {place} has synchronous_commit off: a crash would make it forget \
                 what it has granted or fenced off; ALTER ROLE … SET synchronous_commit = on"
            ),
        ));
    }
    Ok(())
}

/// What nobody needed for so long goes; a firewall may have forgotten it, too.
const IDLE_MAX: Duration = Duration::from_secs(60);
const CHECK: &str = "SELECT pg_is_in_recovery(), current_setting('synchronous_commit')";
