//! Where the lines of all accounts are, behind a fence: SQLite or PostgreSQL. Both understand the same
//! statements; what differs is who waits, and for what. SQLite blocks, so it has a thread for that: an account
//! that kept the thread of its shard would keep its neighbours waiting.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, params};
use tenure::Token;
use tenure::fence::SqliteFence;
use tenure::sharding::BoxError;
use tenure::stores::postgres::{PostgresClients, PostgresFence};

/// A database for one run of the example: a file, or a schema.
#[derive(Clone, Debug)]
pub(crate) enum Books {
    Sqlite(PathBuf),
    Postgres { clients: PostgresClients, schema: String },
}

/// The way to one account, under one token. Whoever has it keeps it, also when it is worth nothing any more.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    account: String,
    fence: Fence,
}

#[derive(Clone, Debug)]
enum Fence {
    Sqlite(PathBuf, SqliteFence),
    Postgres(PostgresClients, PostgresFence),
}

impl Books {
    pub(crate) fn sqlite() -> Result<Self, BoxError> {
        let path = std::env::temp_dir().join(format!("bank-{}.db", std::process::id()));
        open(&path)?.execute_batch(CREATE)?;
        Ok(Self::Sqlite(path))
    }

    pub(crate) async fn postgres(url: &str) -> Result<Self, BoxError> {
        let schema = format!("bank_{}", std::process::id());
        let made = PostgresClients::new(url)?.take().await?;
        made.batch_execute(&format!("CREATE SCHEMA {schema}")).await?;
        let sign = if url.contains('?') { '&' } else { '?' };
        let clients = PostgresClients::new(&format!("{url}{sign}schema={schema}"))?;
        let client = clients.take().await?;
        client.batch_execute(CREATE).await?;
        client.give_back();
        Ok(Self::Postgres { clients, schema })
    }

    /// The way to an account: raises its fence before anything is read. Whoever had it before can write no
    /// more.
    pub(crate) async fn open(&self, account: &str, token: Token) -> Result<Line, BoxError> {
        let resource = format!("account/{account}");
        let fence = match self {
            Self::Sqlite(path) => {
                let fence = blocking(path, move |database| {
                    Ok(SqliteFence::raise_token(token, database, &resource)?)
                });
                Fence::Sqlite(path.clone(), fence.await?)
            }
            Self::Postgres { clients, .. } => {
                let mut client = clients.take().await?;
                let fence = PostgresFence::raise_token(token, &mut client, &resource).await?;
                client.give_back();
                Fence::Postgres(clients.clone(), fence)
            }
        };
        Ok(Line { account: account.to_owned(), fence })
    }

    pub(crate) async fn remove(self) -> Result<(), BoxError> {
        match self {
            Self::Sqlite(path) => Ok(std::fs::remove_file(path)?),
            Self::Postgres { clients, schema } => {
                let drop = format!("DROP SCHEMA {schema} CASCADE");
                Ok(clients.take().await?.batch_execute(&drop).await?)
            }
        }
    }
}

impl Line {
    pub(crate) async fn balance(&self) -> Result<i64, BoxError> {
        match &self.fence {
            Fence::Sqlite(path, _) => {
                let account = self.account.clone();
                let read = move |database: &mut Connection| {
                    Ok(database.query_row(SELECT, [&account], |row| row.get(0))?)
                };
                blocking(path, read).await
            }
            Fence::Postgres(clients, _) => {
                let client = clients.take().await?;
                let balance = client.query_one(SELECT, &[&self.account]).await?.get(0);
                client.give_back();
                Ok(balance)
            }
        }
    }

    /// Refused once a newer host has raised the fence.
    pub(crate) async fn deposit(&self, amount: i64) -> Result<(), BoxError> {
        match &self.fence {
            Fence::Sqlite(path, fence) => {
                let (account, fence) = (self.account.clone(), fence.clone());
                let write = move |database: &mut Connection| {
                    let work = fence.begin(database)?;
                    work.execute(INSERT, params![account, amount])?;
                    Ok(work.commit()?)
                };
                blocking(path, write).await
            }
            Fence::Postgres(clients, fence) => {
                let mut client = clients.take().await?;
                let work = fence.begin(&mut client).await?;
                work.execute(INSERT, &[&self.account, &amount]).await?;
                work.commit().await?;
                client.give_back();
                Ok(())
            }
        }
    }
}

/// Works on the database where that keeps nobody waiting.
async fn blocking<T: Send + 'static>(
    path: &Path,
    work: impl FnOnce(&mut Connection) -> Result<T, BoxError> + Send + 'static,
) -> Result<T, BoxError> {
    let path = path.to_owned();
    tokio::task::spawn_blocking(move || work(&mut open(&path)?)).await?
}

fn open(path: &Path) -> Result<Connection, rusqlite::Error> {
    let database = Connection::open(path)?;
    database.busy_timeout(Duration::from_secs(5))?;
    Ok(database)
}

const CREATE: &str = "CREATE TABLE lines (account text NOT NULL, amount bigint NOT NULL)";
const INSERT: &str = "INSERT INTO lines VALUES ($1, $2)";
const SELECT: &str =
    "SELECT CAST(coalesce(sum(amount), 0) AS bigint) FROM lines WHERE account = $1";
