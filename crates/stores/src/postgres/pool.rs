//! The connections of a process: opened when they are needed, kept, and not trusted for ever.
//!
//! A process with one lease has one connection. A second is opened only while the first is busy, up
//! to a small number: a statement that waits (for a row that somebody has locked in a session of
//! their own, say) must not hold up the renewals of all other leases behind it, and a few that
//! commit at once share the server's disk flush. Renewals have as many of their own as everything
//! else together, so that they never wait for reads or acquisitions.
//!
//! Whoever asks may lose interest at any moment, as the keeper does at its time-out. Then
//!
//! * a statement that was sent is cancelled at the server and its connection closed: otherwise each
//!   retry would leave another session waiting there. Only then: a renewal that asks for a fresh
//!   connection leaves the one before it alone. The cancel request carries the key of that one
//!   connection, which serves nothing else from then on, and which is closed when the statement has
//!   ended; PgBouncer passes it on only while that connection has a statement at a server;
//! * other connections that have been silent since before it was sent are closed as well, so that a
//!   network that went dead costs one time-out, not one per connection;
//! * a connection that is being made is finished all the same, for whoever comes next: a handshake
//!   may take longer than the operation time-out of a short ttl.
//!
//! When a fresh connection answers, the same goes for older ones that are idle, and older requests
//! without an answer give their place to others.
#![allow(clippy::disallowed_methods)] // It connects, and waits for a bounded time.

use std::collections::BTreeMap;
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

use super::cancel::cancel;
use super::tls::Stream;
use super::trouble::{is_absent_table, is_read_only, store_error};
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

/// Which connections a statement may take, and whom it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// With everything else that can wait.
    Shared,
    /// Before that: a renewal or a release.
    First,
    /// As [`Lane::First`], on a connection that was opened at most so long ago.
    Fresh(Duration),
}

pub(super) struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    target: Target,
    state: Mutex<State>,
    /// How many idle connections are kept.
    idle_max: usize,
    /// One for each statement or handshake under way: as many connections are needed at most.
    permits: Arc<Semaphore>,
    /// The same for renewals and releases.
    first_permits: Arc<Semaphore>,
    /// The same for those that want a fresh connection.
    fresh_permits: Arc<Semaphore>,
    /// For requests that had no answer when a newer connection had one: they free their permit.
    overtaken_permits: Arc<Semaphore>,
}

#[derive(Default)]
struct State {
    /// Those that answered last stand last.
    idle: Vec<Connected>,
    /// What is under way, by its number.
    requests: BTreeMap<u64, InFlight>,
    /// How many requests there have been.
    count: u64,
}

struct InFlight {
    sent: Moment,
    permit: OwnedSemaphorePermit,
}

/// An open connection, driven by a task of its own.
struct Connected {
    client: Client,
    driver: AbortHandle,
    opened: Moment,
    /// When it last answered.
    answered: Moment,
}

impl Pool {
    /// Connects to nothing yet.
    pub(super) fn new(target: Target, connections: usize) -> Self {
        let permits = |number| Arc::new(Semaphore::new(number));
        Self {
            shared: Arc::new(Shared {
                target,
                state: Mutex::default(),
                idle_max: connections,
                permits: permits(connections),
                first_permits: permits(connections),
                fresh_permits: permits(FRESH_MAX),
                overtaken_permits: permits(OVERTAKEN_MAX),
            }),
        }
    }

    /// A connection for a while.
    pub(super) async fn take(&self) -> Result<Busy, StoreError> {
        self.shared.take(Lane::Shared).await
    }

    /// Where it is, for people.
    pub(super) fn place(&self) -> String {
        self.shared.target.place()
    }

    /// Puts one statement, which commits by itself, in one round trip.
    pub(super) async fn query(
        &self,
        lane: Lane,
        statement: &str,
        parameters: Parameters<'_>,
    ) -> Result<Vec<Row>, Failure> {
        let busy = self.shared.take(lane).await?;
        let answer = busy.client().query_typed(statement, parameters).await;
        match &answer {
            Ok(_) => busy.answered(true),
            Err(error) if is_read_only(error) => {
                busy.answered(false);
                self.leave();
            }
            Err(error) => busy.answered(error.as_db_error().is_some()),
        }
        answer.map_err(|error| self.shared.failure(&error))
    }

    /// Puts several statements that make a transaction.
    pub(super) async fn transact(&self, statements: &str) -> Result<(), Failure> {
        let busy = self.shared.take(Lane::Shared).await?;
        let answer = busy.client().batch_execute(statements).await;
        // After an error the transaction is still open; it ends with the connection.
        busy.answered(answer.is_ok());
        answer.map_err(|error| self.shared.failure(&error))
    }

    /// The server is not the primary any more: what is asked next looks for the one that is.
    pub(super) fn leave(&self) {
        self.shared.lock().idle.clear();
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.place())
    }
}

impl Shared {
    async fn take(self: &Arc<Self>, lane: Lane) -> Result<Busy, StoreError> {
        // Beyond so many fresh ones, the newest that there is has to do.
        let fresh_permit = match lane {
            Lane::Fresh(_) => Arc::clone(&self.fresh_permits).try_acquire_owned().ok(),
            Lane::Shared | Lane::First => None,
        };
        let (lane, permit) = match (lane, fresh_permit) {
            (Lane::Fresh(_), Some(permit)) => (lane, permit),
            (Lane::Shared, _) => (lane, wait_for(&self.permits).await),
            (Lane::First | Lane::Fresh(_), _) => (Lane::First, wait_for(&self.first_permits).await),
        };
        let idle = self.lock().take_idle(lane);
        let (connected, permit) = match idle {
            Some(connected) => (connected, permit),
            None => self.connect(permit).await?,
        };
        let sent = Moment::now();
        let number = self.lock().begin(InFlight { sent, permit });
        let (shared, connected) = (Arc::clone(self), Some(connected));
        Ok(Busy { shared, connected, lane, number, sent })
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
                shared.lock().keep(connected, shared.idle_max);
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

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change is one of the methods of `State`, which do not panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn wait_for(permits: &Arc<Semaphore>) -> OwnedSemaphorePermit {
    Arc::clone(permits).acquire_owned().await.expect("the semaphore is never closed")
}

impl State {
    fn take_idle(&mut self, lane: Lane) -> Option<Connected> {
        let now = Moment::now();
        self.idle.retain(|connected| {
            !connected.client.is_closed() && now.since(connected.answered) < IDLE_MAX
        });
        match lane {
            Lane::Shared | Lane::First => self.idle.pop(),
            Lane::Fresh(age) => {
                let is_fresh = |connected: &Connected| now.since(connected.opened) < age;
                let index = self.idle.iter().rposition(is_fresh)?;
                Some(self.idle.remove(index))
            }
        }
    }

    /// Keeps a connection that has just answered; a burst leaves no more than `idle_max` behind.
    fn keep(&mut self, connected: Connected, idle_max: usize) {
        if self.idle.len() >= idle_max {
            self.idle.remove(0);
        }
        self.idle.push(connected);
    }

    fn begin(&mut self, request: InFlight) -> u64 {
        self.count += 1;
        self.requests.insert(self.count, request);
        self.count
    }

    /// Takes out the idle connections that have said nothing since then.
    fn take_silent(&mut self, since: Moment) -> Vec<Connected> {
        let all = std::mem::take(&mut self.idle);
        let (keep, silent) = all.into_iter().partition(|connected| connected.answered >= since);
        self.idle = keep;
        silent
    }
}

/// A connection with something under way.
pub(super) struct Busy {
    shared: Arc<Shared>,
    /// Gone once it was answered.
    connected: Option<Connected>,
    lane: Lane,
    /// Of the request.
    number: u64,
    sent: Moment,
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
        let Some(mut connected) = self.connected.take() else { return };
        if !sound {
            return;
        }
        connected.answered = Moment::now();
        let mut state = self.shared.lock();
        if let Lane::Fresh(age) = self.lane {
            // A request that this one follows, and all that hangs with it, is older than that.
            let since = self.sent - age;
            drop(state.take_silent(since));
            for request in state.requests.values_mut().filter(|request| request.sent < since) {
                let permits = Arc::clone(&self.shared.overtaken_permits);
                let Ok(permit) = permits.try_acquire_owned() else { break };
                request.permit = permit;
            }
        }
        state.keep(connected, self.shared.idle_max);
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.requests.remove(&self.number);
        let Some(abandoned) = self.connected.take() else { return };
        let silent = state.take_silent(self.sent);
        drop(state);
        silent.iter().for_each(|connected| connected.driver.abort());
        let (token, target) = (abandoned.client.cancel_token(), self.shared.target.clone());
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                let ended = async {
                    cancel(&token, &target).await;
                    // A pooler closes a server's connection if its client goes in mid-statement.
                    let _ = abandoned.client.batch_execute("").await;
                };
                let _ = timeout(target.timeout, ended).await;
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
        let now = Moment::now();
        Ok(Connected { client, driver, opened: now, answered: now })
    };
    match timeout(target.timeout, opened).await {
        Ok(result) => result,
        Err(_) => Err(slow(target)),
    }
}

/// A connection, not yet driven.
pub(super) async fn dial(
    target: &Target,
) -> Result<(Client, Connection<Socket, Stream>), StoreError> {
    let dialled = target.config.connect(target.tls.connector.clone());
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

/// So many fresh connections are being opened or in use at once.
const FRESH_MAX: usize = 16;
/// So many requests wait on connections that newer ones have overtaken, before they count again.
const OVERTAKEN_MAX: usize = 16;
/// What nobody needed for so long goes; a firewall may have forgotten it, too.
const IDLE_MAX: Duration = Duration::from_secs(60);
const CHECK: &str = "SELECT pg_is_in_recovery(), current_setting('synchronous_commit')";
