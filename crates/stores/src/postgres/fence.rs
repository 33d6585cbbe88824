//! A fence in the database that a tenure writes to.

use tenure_lease::fence::FenceError;
use tenure_lease::{Tenure, Token};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error, Row, Transaction};

/// A fence in a PostgreSQL database, over whatever else is in it. It need not be the database that
/// keeps the lease.
///
/// A transaction from [`begin`](Self::begin) holds the fence's row `FOR SHARE` until it ends, so
/// that a newer tenure's [`raise`](Self::raise) waits for stale transactions in flight; those of
/// one tenure do not wait for each other. What it commits was written before the raise; what comes
/// after the raise is refused.
///
/// ```no_run
/// # async fn f(store: tenure_lease::Store, mut db: tokio_postgres::Client)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// use tenure_stores::postgres::PostgresFence;
/// let tenure = store.lease("nightly-report").acquire().await?;
/// let fence = PostgresFence::raise(&tenure, &mut db, "reports").await?; // before the first read
/// let work = fence.begin(&mut db).await?; // refused once a newer tenure has raised it
/// work.execute("INSERT INTO done VALUES ('monday')", &[]).await?;
/// work.commit().await?;
/// # Ok(()) }
/// ```
///
/// The table is `tenure_fences` in the first schema of the connection's `search_path`, created at
/// the first raise. All that write to a resource must find the same one. A raise waits as long as
/// transactions of a stale tenure overlap without a gap; the connection's `lock_timeout` bounds it.
#[derive(Clone, Debug)]
pub struct PostgresFence {
    resource: String,
    token: Token,
}

/// Why a fence did not let something through.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PostgresFenceError {
    /// The token is too low.
    #[error(transparent)]
    Fence(#[from] FenceError),
    /// The fence was raised, and its row is no longer there: the database has lost history, or
    /// somebody deleted it. Raise it again before anything is read.
    #[error("the fence on {resource:?} is gone; raise it again")]
    Missing {
        /// Where.
        resource: String,
    },
    /// The database failed.
    #[error("the fence could not be read or written: {0}")]
    Database(#[from] Error),
}

impl PostgresFence {
    /// Opens a resource for a tenure, by raising its fence. Do this before the first read. Waits
    /// for transactions that an older tenure has in flight.
    ///
    /// If the fence is already above the token although the lease is held, the lease's store has
    /// lost history (a restored backup): the tenure is given up with
    /// [`Loss::TokenRegressed`](tenure_lease::Loss::TokenRegressed).
    pub async fn raise(
        tenure: &Tenure,
        client: &mut Client,
        resource: &str,
    ) -> Result<Self, PostgresFenceError> {
        match Self::raise_token(tenure.token(), client, resource).await {
            Err(PostgresFenceError::Fence(FenceError::Refused { held, fence, resource })) => {
                Err(PostgresFenceError::Fence(if tenure.report_fence(fence) {
                    let lease = tenure.name().to_string();
                    FenceError::TokenRegressed { lease, held, fence, resource }
                } else {
                    FenceError::Refused { held, fence, resource }
                }))
            }
            result => result,
        }
    }

    /// As [`PostgresFence::raise`], for a token that came another way: `TENURE_TERM` and `TENURE_STEP`
    /// in the environment of a command, or the token of a shard.
    pub async fn raise_token(
        token: Token,
        client: &mut Client,
        resource: &str,
    ) -> Result<Self, PostgresFenceError> {
        let fence = Self { resource: resource.to_owned(), token };
        let raised = match fence.try_raise(client).await {
            Err(error) if error.code() == Some(&SqlState::UNDEFINED_TABLE) => {
                let transaction = client.transaction().await?;
                transaction.batch_execute(CREATE).await?;
                transaction.commit().await?;
                fence.try_raise(client).await?
            }
            result => result?,
        };
        if raised {
            return Ok(fence);
        }
        // It was above us, and only rises.
        let row = client.query_typed_opt(READ, &[(&resource, Type::TEXT)]).await?;
        Err(match row {
            Some(row) => fence.refusal(token_of(&row)).into(),
            None => PostgresFenceError::Missing { resource: fence.resource },
        })
    }

    async fn try_raise(&self, client: &Client) -> Result<bool, Error> {
        let rows = client
            .query_typed(
                RAISE,
                &[
                    (&self.resource, Type::TEXT),
                    (&self.token.term.to_string(), Type::TEXT),
                    (&self.token.step.to_string(), Type::TEXT),
                ],
            )
            .await?;
        Ok(!rows.is_empty())
    }

    /// Begins a transaction in which nothing can get past the fence: it is refused if a newer
    /// tenure has raised it, and no newer one can raise it before this ends.
    pub async fn begin<'a>(
        &self,
        client: &'a mut Client,
    ) -> Result<Transaction<'a>, PostgresFenceError> {
        let transaction = client.transaction().await?;
        self.hold(&transaction).await?;
        Ok(transaction)
    }

    /// The same for a transaction that you have begun yourself (with another isolation level, say):
    /// checks the fence, and holds it until the transaction ends. Before its first read.
    pub async fn hold(&self, transaction: &Transaction<'_>) -> Result<(), PostgresFenceError> {
        let row = transaction.query_typed_opt(HOLD, &[(&self.resource, Type::TEXT)]).await?;
        let Some(row) = row else {
            return Err(PostgresFenceError::Missing { resource: self.resource.clone() });
        };
        match token_of(&row) {
            fence if fence > self.token => Err(self.refusal(fence).into()),
            _ => Ok(()),
        }
    }

    /// The token that it was raised to.
    pub fn token(&self) -> Token {
        self.token
    }

    fn refusal(&self, fence: Token) -> FenceError {
        FenceError::Refused { held: self.token, fence, resource: self.resource.clone() }
    }
}

/// What is no number of ours is above all of ours.
fn token_of(row: &Row) -> Token {
    let number = |index| row.get::<_, &str>(index).parse().unwrap_or(u64::MAX);
    Token::new(number(0), number(1))
}

/// Two processes that create the table at once would trip over each other's catalogue rows.
const CREATE: &str = "SET LOCAL client_min_messages TO warning;
SELECT pg_advisory_xact_lock(6074866001784464742);
CREATE TABLE IF NOT EXISTS tenure_fences (
    resource text PRIMARY KEY, term numeric(20, 0) NOT NULL, step numeric(20, 0) NOT NULL)";
const RAISE: &str = "INSERT INTO tenure_fences AS fence (resource, term, step)
    VALUES ($1, $2::numeric, $3::numeric)
    ON CONFLICT (resource) DO UPDATE SET term = excluded.term, step = excluded.step
        WHERE (fence.term, fence.step) <= (excluded.term, excluded.step)
    RETURNING 1";
const READ: &str = "SELECT term::text, step::text FROM tenure_fences WHERE resource = $1";
const HOLD: &str = "SELECT term::text, step::text FROM tenure_fences WHERE resource = $1 FOR SHARE";
