use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, params};
use tokio::sync::Mutex;

use tenure_lease::fence::{FenceError, SqliteFence};

use super::{Place, Remember, RememberError, Remembering, resource};

/// Remembers entities in a SQLite database: for nodes that share one machine, or one file.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = std::env::temp_dir();
/// let remember = tenure_sharding::SqliteRemember::open(directory.join("entities.db"))?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct SqliteRemember {
    connection: Arc<Mutex<Connection>>,
}

impl SqliteRemember {
    /// Opens a database, and makes its tables if they are not there.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, rusqlite::Error> {
        let connection = Connection::open(path)?;
        connection.busy_timeout(BUSY)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.execute_batch(TABLE)?;
        Ok(Self { connection: Arc::new(Mutex::new(connection)) })
    }

    /// SQLite waits for disks: not where others wait for us.
    #[allow(clippy::disallowed_methods, reason = "it drives a database")]
    fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> Result<T, FenceError> + Send + 'static,
    ) -> Remembering<'_, T> {
        let connection = self.connection.clone();
        Box::pin(async move {
            // Before a thread is taken: many shards may begin at once.
            let mut connection = connection.lock_owned().await;
            match tokio::task::spawn_blocking(move || work(&mut connection)).await {
                Ok(done) => Ok(done?),
                Err(error) => Err(RememberError::Failed(error.into())),
            }
        })
    }
}

impl Remember for SqliteRemember {
    fn load(&self, place: Place<'_>) -> Remembering<'_, Vec<String>> {
        let (resource, token) = (resource(place), place.token);
        let (kind, shard) = (place.kind.to_owned(), place.shard.0);
        self.run(move |connection| {
            let fence = SqliteFence::raise_token(token, connection, &resource)?;
            let read = fence.begin(connection)?;
            let mut rows = read.prepare(SELECT)?;
            let ids = rows.query_map(params![kind, shard], |row| row.get(0))?;
            Ok(ids.collect::<Result<_, _>>()?)
        })
    }

    fn change(
        &self,
        place: Place<'_>,
        added: Vec<String>,
        removed: Vec<String>,
    ) -> Remembering<'_, ()> {
        let (resource, token) = (resource(place), place.token);
        let (kind, shard) = (place.kind.to_owned(), place.shard.0);
        self.run(move |connection| {
            let work = SqliteFence::raised(token, &resource).begin(connection)?;
            for id in &added {
                work.execute(INSERT, params![kind, shard, id])?;
            }
            for id in &removed {
                work.execute(DELETE, params![kind, shard, id])?;
            }
            Ok(work.commit()?)
        })
    }
}

const TABLE: &str = "CREATE TABLE IF NOT EXISTS tenure_entities (
    kind TEXT NOT NULL, shard INTEGER NOT NULL, id TEXT NOT NULL,
    PRIMARY KEY (kind, shard, id)) WITHOUT ROWID";
const SELECT: &str = "SELECT id FROM tenure_entities WHERE kind = ?1 AND shard = ?2";
const INSERT: &str = "INSERT OR IGNORE INTO tenure_entities (kind, shard, id) VALUES (?1, ?2, ?3)";
const DELETE: &str = "DELETE FROM tenure_entities WHERE kind = ?1 AND shard = ?2 AND id = ?3";
/// How long another process may be at it.
const BUSY: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use tenure_lease::Token;
    use tenure_wire::samples;

    use super::*;
    use crate::Shard;

    /// Loads a shard from a dump, and remembers one entity more.
    async fn read_dump(dump: &str, place: Place<'_>) -> Result<Vec<String>, RememberError> {
        let remember = in_memory();
        let batch = format!("DROP TABLE tenure_entities; {dump}");
        remember.connection.lock().await.execute_batch(&batch).unwrap();
        let ids = remember.load(place).await?;
        remember.change(place, vec!["more".into()], Vec::new()).await?;
        Ok(ids)
    }

    fn in_memory() -> SqliteRemember {
        SqliteRemember::open(":memory:").unwrap()
    }

    #[test]
    fn samples_can_be_read_also_with_a_column_that_a_later_release_adds() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("samples/remember.txt");
        let place = Place { kind: "càrt", shard: Shard(300), token: Token::new(7, 0) };
        let (ids, remember) = (vec!["ällice".to_owned()], in_memory());
        runtime.block_on(remember.load(place)).unwrap();
        runtime.block_on(remember.change(place, ids.clone(), Vec::new())).unwrap();
        let connection = runtime.block_on(remember.connection.lock());
        let dump: String = connection.query_row(DUMP, [], |row| row.get(0)).unwrap();
        let check = |dump: &str| match runtime.block_on(read_dump(dump, place)) {
            Ok(read) if read == ids => Ok(()),
            other => Err(format!("{other:?}")),
        };
        let current = vec![("SqliteRemember".to_owned(), dump.clone().into_bytes())];
        samples::check_bytes(&file, "SqliteRemember", current, |bytes| {
            check(&String::from_utf8_lossy(bytes))
        });
        let added = "; ALTER TABLE tenure_entities ADD COLUMN added TEXT DEFAULT 'later'";
        assert_eq!(check(&(dump.clone() + added)), Ok(()));
    }

    /// The table and its row, as SQL.
    const DUMP: &str = "SELECT sql || '; INSERT INTO tenure_entities VALUES (' || quote(kind)
        || ', ' || shard || ', ' || quote(id) || ')'
        FROM sqlite_schema, tenure_entities WHERE name = 'tenure_entities'";
}
