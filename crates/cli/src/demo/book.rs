//! What the counters have written: one SQLite file for each shard, behind a fence that the shard's
//! token raises.
//!
//! A file for each, so that a process that is stopped in the middle of a write keeps nobody from
//! writing but those who take over that very shard. As with the ledger, a process that is killed
//! loses nothing that the operating system has.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension as _, params};
use tenure_lease::Token;
use tenure_lease::fence::{FenceError, SqliteFence};
use tenure_sharding::Shard;

/// The books of the shards, as one node writes them. Clones share their connections.
#[derive(Clone)]
pub(super) struct Books(Arc<Inner>);

struct Inner {
    directory: PathBuf,
    node: usize,
    open: Mutex<HashMap<u32, Connection>>,
}

/// The book of one shard, opened for one counter.
pub(super) struct Book {
    books: Books,
    shard: Shard,
    key: u32,
    fence: SqliteFence,
}

/// What came of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// It is there, now or since an earlier time.
    Done,
    /// One that comes before it is not.
    TooEarly,
}

impl Books {
    pub(super) fn new(directory: &Path, node: usize) -> Self {
        let (directory, open) = (directory.to_owned(), Mutex::default());
        Self(Arc::new(Inner { directory, node, open }))
    }

    /// Raises the fence of a shard, so that nobody with a lower token can write any more.
    pub(super) fn open(&self, shard: Shard, token: Token, key: u32) -> Result<Book, FenceError> {
        let raise = |database: &mut _| SqliteFence::raise_token(token, database, RESOURCE);
        let fence = self.with(shard, raise)?;
        Ok(Book { books: self.clone(), shard, key, fence })
    }

    fn with<T>(
        &self,
        shard: Shard,
        act: impl FnOnce(&mut Connection) -> Result<T, FenceError>,
    ) -> Result<T, FenceError> {
        // A transaction that a panic left open is rolled back.
        let mut open = self.0.open.lock().unwrap_or_else(PoisonError::into_inner);
        let database = match open.remove(&shard.0) {
            Some(database) => database,
            None => connect(&path(&self.0.directory, shard))?,
        };
        act(open.entry(shard.0).or_insert(database))
    }
}

impl Book {
    /// Appends a counter's write, once, if all that come before it are there.
    pub(super) fn write(&self, number: u64) -> Result<Written, FenceError> {
        let (key, node) = (self.key, self.books.0.node);
        self.books.with(self.shard, |database| {
            let transaction = self.fence.begin(database)?;
            let read = |row: &rusqlite::Row<'_>| row.get(0);
            let last: Option<u64> =
                transaction.prepare_cached(LAST)?.query_row([key], read).optional()?;
            let last = last.unwrap_or(0);
            if number != last + 1 {
                return Ok(if number <= last { Written::Done } else { Written::TooEarly });
            }
            let Token { term, step } = self.fence.token();
            transaction.prepare_cached(SET_LAST)?.execute(params![key, number])?;
            let row = params![key, number, term, step, node];
            transaction.prepare_cached(INSERT)?.execute(row)?;
            transaction.commit()?;
            Ok(Written::Done)
        })
    }

    /// What a program does that does not look whether it still may: it writes.
    pub(super) fn write_without_looking(&self) -> Result<(), FenceError> {
        let (key, node) = (self.key, self.books.0.node);
        self.books.with(self.shard, |database| {
            let transaction = self.fence.begin(database)?;
            let Token { term, step } = self.fence.token();
            transaction.execute(INSERT, params![key, None::<u64>, term, step, node])?;
            Ok(transaction.commit()?)
        })
    }
}

/// What stands in the books in the end.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Audit {
    /// Writes that came after one with a higher token.
    pub(super) stale: u64,
    /// Writes that were acknowledged and are not there.
    pub(super) lost: u64,
    /// Rows that a write has beyond one.
    pub(super) twice: u64,
    /// Writes that came after a later one of their key.
    pub(super) out_of_order: u64,
}

impl Audit {
    /// Reads the books of so many shards; of each key the writes up to what was acknowledged must be
    /// in one of them.
    pub(super) fn of(
        directory: &Path,
        shards: u32,
        acknowledged: &[u64],
    ) -> rusqlite::Result<Self> {
        let mut audit = Self::default();
        let mut effects: BTreeMap<(u32, u64), u64> = BTreeMap::new();
        for shard in (0..shards).map(Shard) {
            let database = connect(&path(directory, shard))?;
            let mut statement = database.prepare(ROWS)?;
            let mut rows = statement.query([])?;
            let mut highest = Token::default();
            let mut last: BTreeMap<u32, u64> = BTreeMap::new();
            while let Some(row) = rows.next()? {
                let token = Token::new(row.get(2)?, row.get(3)?);
                audit.stale += u64::from(token < highest);
                highest = highest.max(token);
                let (key, number): (u32, Option<u64>) = (row.get(0)?, row.get(1)?);
                let Some(number) = number else { continue };
                let last = last.entry(key).or_default();
                audit.out_of_order += u64::from(number < *last);
                *last = number.max(*last);
                *effects.entry((key, number)).or_default() += 1;
            }
        }
        for (key, acknowledged) in (0..).zip(acknowledged) {
            let is_lost = |number: &u64| !effects.contains_key(&(key, *number));
            audit.lost += (1..=*acknowledged).filter(is_lost).count() as u64;
        }
        audit.twice = effects.values().map(|count| count - 1).sum();
        Ok(audit)
    }
}

fn path(directory: &Path, shard: Shard) -> PathBuf {
    directory.join(format!("shard-{}.db", shard.0))
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let database = Connection::open(path)?;
    database.busy_timeout(BUSY)?;
    database.execute_batch(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF;
         CREATE TABLE IF NOT EXISTS counters (
            key INTEGER PRIMARY KEY, number INTEGER NOT NULL);
         CREATE TABLE IF NOT EXISTS writes (
            place INTEGER PRIMARY KEY AUTOINCREMENT, key INTEGER NOT NULL, number INTEGER,
            term INTEGER NOT NULL, step INTEGER NOT NULL, node INTEGER NOT NULL)",
    )?;
    Ok(database)
}

const LAST: &str = "SELECT number FROM counters WHERE key = ?1";
const SET_LAST: &str = "INSERT INTO counters VALUES (?1, ?2)
    ON CONFLICT (key) DO UPDATE SET number = excluded.number";
const INSERT: &str =
    "INSERT INTO writes (key, number, term, step, node) VALUES (?1, ?2, ?3, ?4, ?5)";
const ROWS: &str = "SELECT key, number, term, step FROM writes ORDER BY place";
const RESOURCE: &str = "shard";
/// Short: nothing else goes on in this process meanwhile.
const BUSY: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir()
                .join(format!("tenure-demo-book-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    const SHARD: Shard = Shard(0);

    #[test]
    fn each_write_is_there_once_and_in_order() {
        let directory = Directory::new("once");
        let book = Books::new(&directory.0, 1).open(SHARD, Token::new(7, 1), 0).unwrap();
        assert_eq!(book.write(2).unwrap(), Written::TooEarly);
        for number in [1, 1, 2, 1] {
            assert_eq!(book.write(number).unwrap(), Written::Done);
        }
        assert_eq!(Audit::of(&directory.0, 1, &[2]).unwrap(), Audit::default());
        let lost = Audit { lost: 1, ..Audit::default() };
        assert_eq!(Audit::of(&directory.0, 1, &[3]).unwrap(), lost);
    }

    #[test]
    fn a_stale_shard_is_refused() {
        let directory = Directory::new("stale");
        let old = Books::new(&directory.0, 1).open(SHARD, Token::new(7, 1), 0).unwrap();
        old.write(1).unwrap();
        let new = Books::new(&directory.0, 2).open(SHARD, Token::new(7, 2), 0).unwrap();
        assert!(matches!(old.write(2), Err(FenceError::Refused { .. })));
        assert!(matches!(old.write_without_looking(), Err(FenceError::Refused { .. })));
        assert_eq!(new.write(2).unwrap(), Written::Done);
        assert_eq!(Audit::of(&directory.0, 1, &[2]).unwrap(), Audit::default());
    }

    #[test]
    fn the_audit_finds_what_must_not_be() {
        let directory = Directory::new("audit");
        let database = connect(&path(&directory.0, SHARD)).unwrap();
        let rows: [(u32, Option<u64>, u64); 6] = [
            (0, Some(1), 1),
            (0, Some(3), 2),
            (1, Some(1), 1),
            (0, Some(2), 2),
            (0, Some(2), 2),
            (1, None, 2),
        ];
        for (key, number, step) in rows {
            database.execute(INSERT, params![key, number, 7, step, 1]).unwrap();
        }
        let expected = Audit { stale: 1, lost: 1, twice: 1, out_of_order: 2 };
        assert_eq!(Audit::of(&directory.0, 1, &[3, 2]).unwrap(), expected);
    }
}
