//! Leases in PostgreSQL: one row each.
//!
//! ```no_run
//! # async fn f() -> Result<(), Box<dyn std::error::Error>> {
//! let store = tenure_stores::open("postgres://app:secret@db.internal/app").await?;
//! let tenure = store.lease("nightly-report").acquire().await?;
//! # Ok(()) }
//! ```
//!
//! A row of `tenure_leases` is a record; every step is one statement that commits by itself and
//! writes only if the row still says what its sender believes.
//!
//! * **No clock of the server's decides.** A renewal compares the row's nonce and sets a new one; a
//!   contender watches the row, and takes it over, by the version that it watched, when that has
//!   not changed for the row's ttl by the contender's own boot clock. The server's clock is written
//!   down for people, and makes the first term of a row (microseconds). It may be stepped at will:
//!   a row that is deleted leaves its term behind in `tenure_terms`, and the next one starts above.
//! * **No session of the server's decides** either: no advisory lock, no open transaction, no
//!   temporary table. Those have neither ttl nor token, end when the server notices that a TCP
//!   connection died, and belong to whoever a pooler gives the connection to next.
//! * **A pooler may stand in between**, by transaction too, for everything but LISTEN.
//! * **Wake-ups** come by NOTIFY, from a trigger, when a tenure ends; renewals notify nobody. They
//!   need a direct connection: `listen=HOST:PORT` names one beside a pooler, `listen=off` leaves
//!   it to polling.
//!
//! Options in the URL's query, besides those of `tokio_postgres` (`connect_timeout`, `options`,
//! `application_name`, …): `schema` (where the tables are: `public`), `listen`, `connections` (at
//! most so many: 4), `sslmode` (`disable`; `require` and `verify-full` both verify), `sslrootcert`,
//! `sslcert`, `sslkey`. A password may come from `PGPASSWORD` instead.
//!
//! The promise is *safe* on a single primary, and behind a failover that loses no acknowledged
//! commit (synchronous replication). An asynchronous standby that is promoted may have missed the
//! last writes: then only a [fence](PostgresFence) refuses a stale holder.

mod clients;
mod fence;
mod listen;
mod pool;
mod statements;
mod tls;
mod trouble;
mod url;

use std::sync::Arc;
use std::time::Duration;

use tenure_lease::backend::{
    Acquire, Acquired, Backend, Boxed, Expected, Promise, Release, Released, Renew, Renewed,
    StoreError, StoreInfo, Watch,
};
use tenure_lease::{LeaseName, Nonce, OpenError, Record, Token, check_note};
pub use tokio_postgres;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

pub use clients::{PostgresClient, PostgresClients};
pub use fence::{PostgresFence, PostgresFenceError};
use listen::Listener;
use pool::{Failure, Parameters, Pool};
use statements::{Statements, check_format, column, record};
use url::Settings;

/// A store in a PostgreSQL database. See the [module](self).
pub struct PostgresStore {
    pool: Pool,
    listener: Option<Arc<Listener>>,
    statements: Statements,
}

impl PostgresStore {
    /// The store of a URL, `postgres://user:password@host:port/database?options`. It connects when
    /// it is first asked for something, and creates its tables at the first acquisition.
    pub fn new(url: &str) -> Result<Self, OpenError> {
        let settings = Settings::parse(url)?;
        Ok(Self {
            statements: Statements::new(settings.schema.as_deref().unwrap_or("public")),
            pool: Pool::new(settings.target, settings.connections),
            listener: settings.listen.map(Listener::new),
        })
    }

    /// Puts a statement that answers with one row; `None` if there is no table.
    async fn ask(
        &self,
        statement: &str,
        parameters: Parameters<'_>,
    ) -> Result<Option<Row>, StoreError> {
        match self.pool.query(statement, parameters).await {
            Ok(rows) => Ok(rows.into_iter().next()),
            Err(Failure { absent_table: true, .. }) => Ok(None),
            Err(Failure { error, .. }) => Err(error),
        }
    }

    async fn try_acquire(&self, request: Acquire) -> Result<Acquired, StoreError> {
        check_note(request.note.as_deref())?;
        let claim = request.claim.to_string();
        let owner = request.owner.to_string();
        let floor = request.above.saturating_add(1).to_string();
        let session_name = request.session.as_ref().map(|session| session.name.as_str());
        let session_term = request.session.as_ref().map(|session| session.term.to_string());
        let takeover = request.takeover.as_ref().map(|version| version.0.as_str());
        let expected_term = match request.expected {
            Some(Expected::Term(term)) => Some(term.to_string()),
            Some(Expected::Absent) | None => None,
        };
        let parameters: Parameters<'_> = &[
            (&request.name.as_str(), Type::TEXT),
            (&claim, Type::TEXT),
            (&owner, Type::TEXT),
            (&floor, Type::TEXT),
            (&milliseconds(request.ttl), Type::INT8),
            (&session_name, Type::TEXT),
            (&session_term, Type::TEXT),
            (&request.note, Type::BYTEA),
            (&request.create, Type::BOOL),
            (&takeover, Type::TEXT),
            (&(request.expected == Some(Expected::Absent)), Type::BOOL),
            (&expected_term, Type::TEXT),
        ];
        let mut row = self.ask(&self.statements.acquire, parameters).await?;
        if row.is_none() && request.allowed_by(None, false) {
            // There is no table, so nothing was written.
            self.pool.transact(&self.statements.create).await.map_err(|failure| failure.error)?;
            row = self.ask(&self.statements.acquire, parameters).await?;
        }
        let Some(row) = row else { return Ok(Acquired::Lost(None)) };
        let found = record(&row)?;
        if let Some(term) = column::<Option<String>>(&row, "won")? {
            // What our own statement computed.
            let term = term.parse().expect("a term is a number");
            return Ok(Acquired::Won { token: Token::new(term, 0), former: found });
        }
        if request.allowed_by(found.as_ref(), false) {
            // Somebody was faster, and their record is newer than what we were shown.
            return Ok(Acquired::Lost(self.look(&request.name).await?));
        }
        Ok(Acquired::Lost(found))
    }

    async fn try_renew(&self, request: Renew) -> Result<Renewed, StoreError> {
        check_note(request.note.as_deref())?;
        let known = texts(&request.known);
        if request.token.step != 0 {
            // No record has such a token.
            return Ok(Renewed::Refused(self.look(&request.name).await?));
        }
        let row = self
            .ask(
                &self.statements.renew,
                &[
                    (&request.name.as_str(), Type::TEXT),
                    (&request.claim.to_string(), Type::TEXT),
                    (&request.token.term.to_string(), Type::TEXT),
                    (&known, Type::TEXT_ARRAY),
                    (&request.nonce.to_string(), Type::TEXT),
                    (&milliseconds(request.ttl), Type::INT8),
                    (&request.note, Type::BYTEA),
                ],
            )
            .await?;
        let Some(row) = row else { return Ok(Renewed::Refused(None)) };
        if column(&row, "done")? {
            return Ok(Renewed::Yes);
        }
        let found = record(&row)?;
        let ours = found.as_ref().is_some_and(|found| {
            let nonce = found.holder.as_ref().and_then(|holder| holder.nonce);
            found.is_of(request.claim)
                && found.token == request.token
                && nonce.is_some_and(|nonce| request.known.contains(&nonce))
        });
        // If what we were shown is ours, it is older than what refused us.
        let found = if ours { self.look(&request.name).await? } else { found };
        Ok(Renewed::Refused(found))
    }

    async fn try_release(&self, request: Release) -> Result<Released, StoreError> {
        let known = texts(&request.known);
        let row = self
            .ask(
                &self.statements.release,
                &[
                    (&request.name.as_str(), Type::TEXT),
                    (&request.claim.to_string(), Type::TEXT),
                    (&known, Type::TEXT_ARRAY),
                ],
            )
            .await?;
        let Some(row) = row else { return Ok(Released::Refused) };
        if column(&row, "done")? {
            return Ok(Released::Yes);
        }
        if let Some(format) = column(&row, "format")? {
            check_format(request.name.as_str(), format)?;
        }
        Ok(Released::Refused)
    }

    async fn try_read(&self, names: &[LeaseName]) -> Result<Vec<Option<Record>>, StoreError> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let wanted: Vec<&str> = names.iter().map(LeaseName::as_str).collect();
        let rows = self.pool.query(&self.statements.read, &[(&wanted, Type::TEXT_ARRAY)]).await;
        let rows = match rows {
            Ok(rows) => rows,
            Err(Failure { absent_table: true, .. }) => return Ok(vec![None; names.len()]),
            Err(Failure { error, .. }) => return Err(error),
        };
        // A pooler may have been pointed elsewhere since we connected.
        if rows.iter().any(|row| column(row, "standby").unwrap_or(false)) {
            return Err(StoreError::unavailable(
                "the postgres server has become a standby: its records are not current",
            ));
        }
        let records: Vec<_> = rows.iter().map(record).collect::<Result<_, _>>()?;
        assert_eq!(records.len(), names.len(), "the statement answers for each name");
        Ok(records)
    }

    /// The record as it is now.
    async fn look(&self, name: &LeaseName) -> Result<Option<Record>, StoreError> {
        Ok(self.try_read(std::slice::from_ref(name)).await?.into_iter().next().flatten())
    }
}

impl Backend for PostgresStore {
    fn info(&self) -> StoreInfo {
        StoreInfo {
            kind: "postgres",
            promise: Promise::Safe,
            ttl_min: Duration::from_millis(100),
            ttl_max: Duration::from_secs(24 * 3600),
            ttl_step: Duration::from_millis(1),
            frees_after_ttls: 1,
            pushes: self.listener.is_some(),
        }
    }

    fn acquire(&self, request: Acquire) -> Boxed<'_, Result<Acquired, StoreError>> {
        Box::pin(self.try_acquire(request))
    }

    fn renew(&self, request: Renew) -> Boxed<'_, Result<Renewed, StoreError>> {
        Box::pin(self.try_renew(request))
    }

    fn release(&self, request: Release) -> Boxed<'_, Result<Released, StoreError>> {
        Box::pin(self.try_release(request))
    }

    fn read(&self, names: Vec<LeaseName>) -> Boxed<'_, Result<Vec<Option<Record>>, StoreError>> {
        Box::pin(async move { self.try_read(&names).await })
    }

    fn watch(&self, name: &LeaseName) -> Option<Box<dyn Watch>> {
        let listener = self.listener.as_ref()?;
        Some(Box::new(listener.watch(name)))
    }
}

impl std::fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresStore").field("pool", &self.pool).finish_non_exhaustive()
    }
}

fn texts(nonces: &[Nonce]) -> Vec<String> {
    nonces.iter().map(Nonce::to_string).collect()
}

/// A ttl is a multiple of one, and at most a day; see [`Backend::info`].
fn milliseconds(ttl: Duration) -> i64 {
    i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX).max(1)
}
