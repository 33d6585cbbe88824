#![allow(clippy::disallowed_methods, reason = "it drives a database, and waits for a bounded time")]

use std::time::Duration;

use tokio::time::timeout;

use tenure_lease::{OpenError, Token};
use tenure_stores::postgres::tokio_postgres::error::SqlState;
use tenure_stores::postgres::tokio_postgres::types::Type;
use tenure_stores::postgres::tokio_postgres::{Client, Error};
use tenure_stores::postgres::{PostgresClients, PostgresFence, PostgresFenceError};

use super::{Place, Remember, RememberError, Remembering, resource};

/// Remembers entities in a PostgreSQL database that all nodes reach.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let url = "postgres://app:secret@db.internal:5432/app?schema=shop";
/// let remember = tenure_sharding::PostgresRemember::open(url)?;
/// # Ok(()) }
/// ```
///
/// The URL is that of a [store](tenure_stores::postgres) in PostgreSQL. It connects when it is first
/// asked for something, and makes its tables, `tenure_entities` and `tenure_fences`, if they are not
/// there.
#[derive(Clone, Debug)]
pub struct PostgresRemember {
    clients: PostgresClients,
}

impl PostgresRemember {
    /// In the database of a URL.
    pub fn open(url: &str) -> Result<Self, OpenError> {
        Ok(Self { clients: PostgresClients::new(url)? })
    }

    async fn run(&self, work: &Work) -> Result<Vec<Vec<u8>>, RememberError> {
        let done = async {
            // Whatever goes wrong from here on closes the connection; the next call has another.
            let mut client = self.clients.take().await.map_err(failed)?;
            let mut done = work.run(&mut client).await;
            if let Err(PostgresFenceError::Database(error)) = &done
                && error.code() == Some(&SqlState::UNDEFINED_TABLE)
            {
                create(&mut client).await.map_err(|error| self.error(error.into()))?;
                done = work.run(&mut client).await;
            }
            if matches!(done, Ok(_) | Err(PostgresFenceError::Fence(_))) {
                client.give_back();
            }
            done.map_err(|error| self.error(error))
        };
        timeout(PATIENCE, done).await.unwrap_or_else(|_| {
            let place = self.clients.place();
            Err(failed(format!("postgres at {place} was not done within {PATIENCE:?}")))
        })
    }

    fn error(&self, error: PostgresFenceError) -> RememberError {
        match error {
            PostgresFenceError::Fence(error) => error.into(),
            PostgresFenceError::Database(error) => {
                let advice = match error.code() {
                    Some(&SqlState::INSUFFICIENT_PRIVILEGE) => DENIED,
                    Some(&SqlState::INVALID_SCHEMA_NAME) => NOWHERE,
                    _ => "",
                };
                failed(format!("{}{advice}", self.clients.describe(&error)))
            }
            error => failed(error),
        }
    }
}

impl Remember for PostgresRemember {
    fn load(&self, place: Place<'_>) -> Remembering<'_, Vec<String>> {
        let mut work = Work::new(place, What::Load(Vec::new()));
        Box::pin(async move {
            // Page by page, so that many take longer and do not fail. The fence is raised with the
            // first, so that nobody changes anything meanwhile.
            let mut ids = Vec::new();
            loop {
                let page = self.run(&work).await?;
                let last = page.last().filter(|_| page.len() == PAGE).cloned();
                // What is no text was written by somebody else.
                ids.extend(page.into_iter().filter_map(|id| String::from_utf8(id).ok()));
                match last {
                    Some(last) => work.what = What::Load(last),
                    None => return Ok(ids),
                }
            }
        })
    }

    fn change(
        &self,
        place: Place<'_>,
        added: Vec<String>,
        removed: Vec<String>,
    ) -> Remembering<'_, ()> {
        let bytes = |ids: Vec<String>| ids.into_iter().map(String::into_bytes).collect();
        let work = Work::new(place, What::Change(bytes(added), bytes(removed)));
        Box::pin(async move { self.run(&work).await.map(drop) })
    }
}

/// What to do for a shard.
struct Work {
    kind: String,
    shard: i64,
    token: Token,
    resource: String,
    what: What,
}

enum What {
    /// A page, of those behind this one; the first one raises the fence.
    Load(Vec<u8>),
    /// Ids may have any bytes; a text of PostgreSQL may not.
    Change(Vec<Vec<u8>>, Vec<Vec<u8>>),
}

impl Work {
    fn new(place: Place<'_>, what: What) -> Self {
        let (kind, shard) = (place.kind.to_owned(), place.shard.0.into());
        Self { kind, shard, token: place.token, resource: resource(place), what }
    }

    async fn run(&self, client: &mut Client) -> Result<Vec<Vec<u8>>, PostgresFenceError> {
        let Self { kind, shard, token, resource, what } = self;
        let fence = match what {
            What::Load(after) if after.is_empty() => {
                PostgresFence::raise_token(*token, client, resource).await?
            }
            What::Load(_) | What::Change(..) => PostgresFence::raised(*token, resource),
        };
        let work = fence.begin(client).await?;
        let mut ids = Vec::new();
        match what {
            What::Load(after) => {
                let (after, page) = ((after as _, Type::BYTEA), (&(PAGE as i64) as _, Type::INT8));
                let place = [(kind as _, Type::TEXT), (shard as _, Type::INT8), after, page];
                for row in work.query_typed(SELECT, &place).await? {
                    ids.push(row.try_get(0)?);
                }
            }
            What::Change(added, removed) => {
                for (statement, ids) in [(INSERT, added), (DELETE, removed)] {
                    if !ids.is_empty() {
                        let ids = (ids as _, Type::BYTEA_ARRAY);
                        let rows = [(kind as _, Type::TEXT), (shard as _, Type::INT8), ids];
                        work.execute_typed(statement, &rows).await?;
                    }
                }
            }
        }
        work.commit().await?;
        Ok(ids)
    }
}

async fn create(client: &mut Client) -> Result<(), Error> {
    let work = client.transaction().await?;
    work.batch_execute(CREATE).await?;
    work.commit().await
}

fn failed(error: impl Into<crate::BoxError>) -> RememberError {
    RememberError::Failed(error.into())
}

/// Nodes that create the table at once would trip over each other's catalogue rows.
const CREATE: &str = "SET LOCAL client_min_messages TO warning;
SELECT pg_advisory_xact_lock(6074866001784464743);
CREATE TABLE IF NOT EXISTS tenure_entities (
    kind text NOT NULL, shard bigint NOT NULL, id bytea NOT NULL, PRIMARY KEY (kind, shard, id))";
const SELECT: &str = "SELECT id FROM tenure_entities
    WHERE kind = $1 AND shard = $2 AND id > $3 ORDER BY id LIMIT $4";
const INSERT: &str = "INSERT INTO tenure_entities (kind, shard, id) SELECT $1, $2, unnest($3)
    ON CONFLICT DO NOTHING";
const DELETE: &str = "DELETE FROM tenure_entities WHERE kind = $1 AND shard = $2 AND id = ANY($3)";
const DENIED: &str = "; the role needs SELECT, INSERT and DELETE on tenure_entities and SELECT, INSERT \
    and UPDATE on tenure_fences, and, where they do not exist yet, CREATE on their schema";
const NOWHERE: &str = "; create the schema and grant the role USAGE and CREATE on it, or name another with schema=NAME";
/// How many entities are read at a time.
const PAGE: usize = 10_000;
/// For one call, or one page, with connecting and with waiting for a stale host's last transaction.
const PATIENCE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tenure_wire::samples;

    use super::*;

    /// A table that is there stays as it is: what the statements name must be in every table that was ever made.
    #[test]
    fn samples_of_tables_suit_the_statements() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("samples/remember.txt");
        let table = &CREATE[CREATE.find("CREATE TABLE").unwrap()..];
        let current = vec![("PostgresRemember".to_owned(), table.into())];
        samples::check_bytes(&file, "PostgresRemember", current, |bytes| {
            let table = String::from_utf8_lossy(bytes);
            let columns = ["kind text", "shard bigint", "id bytea"];
            let missing = columns.iter().find(|column| !table.contains(*column));
            missing.map_or(Ok(()), |missing| Err(format!("there is no {missing}")))
        });
    }
}
