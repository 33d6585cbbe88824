//! Connections for what is written behind a fence.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use tenure_lease::OpenError;
use tenure_lease::backend::StoreError;
use tokio_postgres::{Client, Error};

use super::pool::{Busy, Pool};
use super::trouble::said;
use super::url::Settings;

/// A few connections to a database, for fenced work: opened when they are needed, kept for the next one,
/// and replaced when they break.
///
/// ```no_run
/// # async fn f(token: tenure_lease::Token) -> Result<(), Box<dyn std::error::Error>> {
/// use tenure_stores::postgres::{PostgresClients, PostgresFence};
/// let clients = PostgresClients::new("postgres://app:secret@db.internal/app?schema=shop")?;
/// let mut client = clients.take().await?;
/// let fence = PostgresFence::raise_token(token, &mut client, "reports").await?;
/// let work = fence.begin(&mut client).await?;
/// work.execute("INSERT INTO done VALUES ('monday')", &[]).await?;
/// work.commit().await?;
/// client.give_back();
/// # Ok(()) }
/// ```
///
/// The URL is that of a [store](super), without what only leases need. `schema` becomes the search path,
/// which PgBouncer refuses: there, set it for the role.
#[derive(Clone)]
pub struct PostgresClients(Arc<Pool>);

/// A connection, for as long as this is there. Dropped without [`give_back`](Self::give_back), what is under
/// way is cancelled and the connection closed.
pub struct PostgresClient(Busy);

impl PostgresClients {
    /// To the database of a URL. Connects to nothing yet.
    pub fn new(url: &str) -> Result<Self, OpenError> {
        let Settings { target, schema, connections, .. } = Settings::parse(url)?;
        let target = match schema {
            Some(schema) => target.within(&schema),
            None => target,
        };
        Ok(Self(Arc::new(Pool::new(target, connections))))
    }

    /// One that nobody else has now. Waits for a turn; bound it from outside.
    pub async fn take(&self) -> Result<PostgresClient, StoreError> {
        Ok(PostgresClient(self.0.take().await?))
    }

    /// What went wrong and where, in a sentence without secrets.
    pub fn describe(&self, error: &Error) -> String {
        said(&self.0.place(), error)
    }

    /// Where the database is: `host:port`.
    pub fn place(&self) -> String {
        self.0.place()
    }
}

impl std::fmt::Debug for PostgresClients {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("PostgresClients").field(&self.0).finish()
    }
}

impl PostgresClient {
    /// All is done, and nothing of it is left open: the next one may have it.
    pub fn give_back(self) {
        self.0.answered(true);
    }
}

impl Deref for PostgresClient {
    type Target = Client;

    fn deref(&self) -> &Client {
        self.0.client()
    }
}

impl DerefMut for PostgresClient {
    fn deref_mut(&mut self) -> &mut Client {
        self.0.client_mut()
    }
}

impl std::fmt::Debug for PostgresClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresClient").finish_non_exhaustive()
    }
}
