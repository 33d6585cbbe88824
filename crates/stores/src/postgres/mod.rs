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

mod cancel;
mod clients;
mod fence;
mod listen;
mod pool;
#[cfg(test)]
mod samples;
mod statements;
mod tls;
mod trouble;
mod url;

use std::sync::Arc;
use std::time::Duration;

use tenure_lease::backend::{
    Acquire, Acquired, Backend, Boxed, Expected, Promise, Release, Released, Renew, Renewed,
    StoreError, StoreErrorKind, StoreInfo, Watch,
};
use tenure_lease::{LeaseName, Nonce, OpenError, Record, Token, check_note};
pub use tokio_postgres;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

pub use clients::{PostgresClient, PostgresClients};
pub use fence::{PostgresFence, PostgresFenceError};
use listen::Listener;
use pool::{Failure, Lane, Parameters, Pool};
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
        lane: Lane,
        statement: &str,
        parameters: Parameters<'_>,
    ) -> Result<Option<Row>, StoreError> {
        match self.pool.query(lane, statement, parameters).await {
            Ok(rows) => Ok(rows.into_iter().next()),
            Err(Failure { absent_table: true, .. }) => Ok(None),
            Err(Failure { error, .. }) => Err(error),
        }
    }

    async fn try_acquire(&self, request: Acquire) -> Result<Acquired, StoreError> {
        check_note(request.note.as_deref())?;
        if request.above > ABOVE_MAX {
            return Err(StoreError::new(
                StoreErrorKind::Unsuitable,
                format!(
                    "no term above {} can be asked for: it would leave no room for later ones; \
                     {ABOVE_MAX} is the highest that it can be above of",
                    request.above
                ),
            ));
        }
        let claim = request.claim.to_string();
        let owner = request.owner.to_string();
        let floor = (request.above + 1).to_string();
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
        let mut row = self.ask(Lane::Shared, &self.statements.acquire, parameters).await?;
        if row.is_none() && request.allowed_by(None, false) {
            // There is no table, so nothing was written.
            self.pool.transact(&self.statements.create).await.map_err(|failure| failure.error)?;
            row = self.ask(Lane::Shared, &self.statements.acquire, parameters).await?;
        }
        let Some(row) = row else { return Ok(Acquired::Lost(None)) };
        let found = record(&row)?;
        if let Some(term) = column::<Option<String>>(&row, "won")? {
            let term = term.parse().map_err(|_| exhausted(&request.name, &term))?;
            return Ok(Acquired::Won { token: Token::new(term, 0), former: found });
        }
        if let Some(found) = &found
            && found.token.term == u64::MAX
        {
            return Err(exhausted(&request.name, &u64::MAX.to_string()));
        }
        if request.allowed_by(found.as_ref(), false) {
            // Somebody was faster, and their record is newer than what we were shown.
            return Ok(Acquired::Lost(self.look(Lane::Shared, &request.name).await?));
        }
        Ok(Acquired::Lost(found))
    }

    async fn try_renew(&self, request: Renew) -> Result<Renewed, StoreError> {
        check_note(request.note.as_deref())?;
        let known = texts(&request.known);
        if request.token.step != 0 {
            // No record has such a token.
            return Ok(Renewed::Refused(self.look(Lane::First, &request.name).await?));
        }
        let lane = match request.fresh_connection {
            true => Lane::Fresh(FRESH_FOR.min(request.ttl / 30)),
            false => Lane::First,
        };
        let row = self
            .ask(
                lane,
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
        let found = if ours { self.look(lane, &request.name).await? } else { found };
        Ok(Renewed::Refused(found))
    }

    async fn try_release(&self, request: Release) -> Result<Released, StoreError> {
        let known = texts(&request.known);
        let row = self
            .ask(
                Lane::First,
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

    async fn try_read(
        &self,
        lane: Lane,
        names: &[LeaseName],
    ) -> Result<Vec<Option<Record>>, StoreError> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let wanted: Vec<&str> = names.iter().map(LeaseName::as_str).collect();
        let parameters: Parameters<'_> = &[(&wanted, Type::TEXT_ARRAY)];
        let Some(rows) = self.rows(lane, &self.statements.read, parameters).await? else {
            return Ok(vec![None; names.len()]);
        };
        let records: Vec<_> = rows.iter().map(record).collect::<Result<_, _>>()?;
        assert_eq!(records.len(), names.len(), "the statement answers for each name");
        Ok(records)
    }

    async fn try_list(&self) -> Result<Vec<LeaseName>, StoreError> {
        let rows = self.rows(Lane::Shared, &self.statements.list, &[]).await?.unwrap_or_default();
        let mut names = Vec::with_capacity(rows.len());
        for row in &rows {
            let name = column::<Option<String>>(row, "name")?;
            // A row that somebody else made may have a name that no lease has.
            names.extend(name.and_then(|name| LeaseName::new(&name).ok()));
        }
        Ok(names)
    }

    /// Reads, from a primary; `None` if there is no table.
    async fn rows(
        &self,
        lane: Lane,
        statement: &str,
        parameters: Parameters<'_>,
    ) -> Result<Option<Vec<Row>>, StoreError> {
        let rows = match self.pool.query(lane, statement, parameters).await {
            Ok(rows) => rows,
            Err(Failure { absent_table: true, .. }) => return Ok(None),
            Err(Failure { error, .. }) => return Err(error),
        };
        // A pooler may have been pointed elsewhere since we connected.
        if rows.iter().any(|row| column(row, "standby").unwrap_or(false)) {
            self.pool.leave();
            return Err(StoreError::unavailable(
                "the postgres server has become a standby: its records are not current",
            ));
        }
        Ok(Some(rows))
    }

    /// The record as it is now.
    async fn look(&self, lane: Lane, name: &LeaseName) -> Result<Option<Record>, StoreError> {
        Ok(self.try_read(lane, std::slice::from_ref(name)).await?.into_iter().next().flatten())
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
            // A notification at each renewal would cost the server most of its renewals per second.
            pushes_renewals: false,
            reads_everything: false,
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
        Box::pin(async move { self.try_read(Lane::Shared, &names).await })
    }

    fn list(&self) -> Option<Boxed<'_, Result<Vec<LeaseName>, StoreError>>> {
        Some(Box::pin(self.try_list()))
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

/// A term that nothing can follow.
fn exhausted(name: &LeaseName, term: &str) -> StoreError {
    StoreError::new(
        StoreErrorKind::Damaged,
        format!(
            "lease {name:?} has reached the term {term}, and there is none above it; set a lower \
             one in tenure_leases and tenure_terms that is above what its fences have seen"
        ),
    )
}

fn texts(nonces: &[Nonce]) -> Vec<String> {
    nonces.iter().map(Nonce::to_string).collect()
}

/// A ttl is a multiple of one, and at most a day; see [`Backend::info`].
fn milliseconds(ttl: Duration) -> i64 {
    i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX).max(1)
}

/// The highest term that a repair can ask to be above of: what signed numbers of 64 bits can say, as
/// other stores and fences have them. As many lie above it.
const ABOVE_MAX: u64 = i64::MAX as u64;
/// A connection that was opened within this time is newer than a renewal that has had no answer for
/// long enough to be followed by another.
const FRESH_FOR: Duration = Duration::from_millis(100);
