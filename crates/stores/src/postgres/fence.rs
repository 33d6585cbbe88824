//! A fence in the database that a tenure writes to.

use tenure_lease::fence::{FenceError, check_fence};
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
/// The fence is as durable as its database: a failover to an asynchronous replica may lose a raise.
/// `begin` then says [`FenceError::RaiseLost`] to the tenure that raised it; see
/// [what a fence cannot do](tenure_lease::fence#what-a-fence-cannot-do).
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
    /// The token is too low, or the database has forgotten that the fence was raised to it.
    #[error(transparent)]
    Fence(#[from] FenceError),
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
        let fence = Self::raised(token, resource);
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
        // It was above us, and only rises, unless somebody deleted it meanwhile.
        let row = client.query_typed_opt(READ, &[(&resource, Type::TEXT)]).await?;
        check_fence(token, row.as_ref().map(token_of), resource)?;
        Ok(fence)
    }

    /// The fence that this tenure has raised to this token before, in another call or process.
    pub fn raised(token: Token, resource: &str) -> Self {
        Self { resource: resource.to_owned(), token }
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
    /// tenure has raised it, or if the raise to our token was lost
    /// ([`FenceError::RaiseLost`]), and no newer one can raise it before this ends.
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
        let row = match transaction.query_typed_opt(HOLD, &[(&self.resource, Type::TEXT)]).await {
            // The raise created the table; it is gone, as a row can be.
            Err(error) if error.code() == Some(&SqlState::UNDEFINED_TABLE) => None,
            row => row?,
        };
        Ok(check_fence(self.token, row.as_ref().map(token_of), &self.resource)?)
    }

    /// The token that it was raised to.
    pub fn token(&self) -> Token {
        self.token
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tenure_wire::samples;

    use super::*;

    /// A table that is there stays as it is: what the statements name must be in every table that was ever made.
    #[test]
    fn samples_of_tables_suit_the_statements() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("samples/records.txt");
        let table = &CREATE[CREATE.find("CREATE TABLE").unwrap()..];
        let current = vec![("PostgresFence".to_owned(), table.into())];
        samples::check_bytes(&file, "PostgresFence", current, |bytes| {
            let table = String::from_utf8_lossy(bytes);
            let columns =
                ["resource text PRIMARY KEY", "term numeric(20, 0)", "step numeric(20, 0)"];
            let missing = columns.iter().find(|column| !table.contains(*column));
            missing.map_or(Ok(()), |missing| Err(format!("there is no {missing}")))
        });
    }
}
