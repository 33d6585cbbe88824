//! The ledger that the worker appends to: one SQLite file for all nodes, behind a fence.
//!
//! In write-ahead mode, so that a process that is stopped while it reads keeps nobody from writing;
//! and without waiting for the disk at each commit: a process that is killed loses nothing that the
//! operating system has, only a machine that loses power does. A process that is stopped in the
//! middle of a write keeps the file locked until it goes on; the shorter a write, the rarer that is.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, params};
use tenure_cluster::messaging::reliable::{
    Delivery, Entered, Ledger as _, LedgerError, SqliteLedger,
};
use tenure_lease::Token;
use tenure_lease::fence::{FenceError, SqliteFence};

/// The ledger, opened by one tenure.
pub(super) struct Ledger {
    database: Connection,
    fence: SqliteFence,
    node: usize,
}

impl Ledger {
    /// Raises the fence, so that nobody with a lower token can write any more, and notes that in the
    /// ledger.
    pub(super) fn open(path: &Path, node: usize, token: Token) -> Result<Self, FenceError> {
        let mut database = connect(path)?;
        let fence = SqliteFence::raise_token(token, &mut database, RESOURCE)?;
        let mut ledger = Self { database, fence, node };
        ledger.note(OPENED)?;
        Ok(ledger)
    }

    /// Does the jobs whose turn it is, each once, in one transaction: row and number are committed
    /// together or not at all. Jobs that were done say so; the others come again.
    pub(super) fn write(&mut self, jobs: Vec<Delivery<u64>>) -> Result<(), FenceError> {
        let transaction = self.fence.begin(&mut self.database)?;
        let term = self.fence.token().term;
        let mut done = Vec::new();
        for job in jobs {
            match SqliteLedger::new(&transaction)?.enter(job.record()) {
                Ok(Entered::New) => {
                    let row = params![JOB, job.message(), term, self.node];
                    transaction.prepare_cached(INSERT)?.execute(row)?;
                }
                Ok(Entered::Already) => {}
                Err(LedgerError::Gap { .. }) => break,
                Err(LedgerError::Database(error)) => return Err(error.into()),
            }
            done.push(job);
        }
        transaction.commit()?;
        done.into_iter().for_each(Delivery::done);
        Ok(())
    }

    /// What a program does that does not look whether it still may: it writes.
    pub(super) fn write_without_looking(&mut self) -> Result<(), FenceError> {
        self.note(LATE)
    }

    fn note(&mut self, kind: &str) -> Result<(), FenceError> {
        let transaction = self.fence.begin(&mut self.database)?;
        let row = params![kind, None::<u64>, self.fence.token().term, self.node];
        transaction.execute(INSERT, row)?;
        Ok(transaction.commit()?)
    }
}

/// Whether somebody else is just writing: worth trying again.
pub(super) fn is_busy(error: &FenceError) -> bool {
    match error {
        FenceError::Sqlite(error) => matches!(
            error.sqlite_error_code(),
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
        ),
        _ => false,
    }
}

/// What stands in the ledger in the end.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Audit {
    /// Writes that came after one with a higher token.
    pub(super) stale: u64,
    /// Jobs that were acknowledged and are not there.
    pub(super) lost: u64,
    /// Rows that a job has beyond one.
    pub(super) twice: u64,
}

impl Audit {
    /// Reads the ledger; the jobs up to `acknowledged` must be in it.
    pub(super) fn of(path: &Path, acknowledged: u64) -> rusqlite::Result<Self> {
        let database = connect(path)?;
        let mut statement = database.prepare("SELECT job, term FROM rows ORDER BY place")?;
        let mut rows = statement.query([])?;
        let mut audit = Self::default();
        let mut effects: BTreeMap<u64, u64> = BTreeMap::new();
        let mut highest = 0u64;
        while let Some(row) = rows.next()? {
            let (job, term): (Option<u64>, u64) = (row.get(0)?, row.get(1)?);
            audit.stale += u64::from(term < highest);
            highest = highest.max(term);
            if let Some(job) = job {
                *effects.entry(job).or_default() += 1;
            }
        }
        audit.lost = (1..=acknowledged).filter(|job| !effects.contains_key(job)).count() as u64;
        audit.twice = effects.values().map(|count| count - 1).sum();
        Ok(audit)
    }
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let database = Connection::open(path)?;
    database.busy_timeout(BUSY)?;
    database.execute_batch(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;
         CREATE TABLE IF NOT EXISTS rows (
            place INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL,
            job INTEGER, term INTEGER NOT NULL, node INTEGER NOT NULL)",
    )?;
    Ok(database)
}

const INSERT: &str = "INSERT INTO rows (kind, job, term, node) VALUES (?1, ?2, ?3, ?4)";
const RESOURCE: &str = "ledger";
const OPENED: &str = "opened";
const JOB: &str = "job";
const LATE: &str = "late";
/// Short: whoever waits here does not answer its lease's liveness call.
const BUSY: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    struct File(std::path::PathBuf);

    impl File {
        fn new(name: &str) -> Self {
            let directory = std::env::temp_dir()
                .join(format!("tenure-demo-ledger-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&directory).unwrap();
            Self(directory)
        }

        fn path(&self) -> std::path::PathBuf {
            self.0.join("ledger.db")
        }
    }

    impl Drop for File {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_stale_tenure_is_refused() {
        let file = File::new("stale");
        let mut old = Ledger::open(&file.path(), 1, Token::new(7, 0)).unwrap();
        old.write_without_looking().unwrap();
        Ledger::open(&file.path(), 2, Token::new(8, 0)).unwrap();
        let refused = old.write_without_looking().unwrap_err();
        assert!(matches!(refused, FenceError::Refused { .. }), "{refused}");
        assert!(!is_busy(&refused));
        assert_eq!(Audit::of(&file.path(), 0).unwrap(), Audit::default());
    }

    #[test]
    fn the_audit_finds_what_must_not_be() {
        let file = File::new("audit");
        let database = connect(&file.path()).unwrap();
        let rows: [(Option<u64>, u64); 6] =
            [(None, 7), (Some(1), 7), (Some(2), 7), (None, 8), (Some(2), 8), (Some(4), 7)];
        for (job, term) in rows {
            database.execute(INSERT, params![JOB, job, term, 1]).unwrap();
        }
        let expected = Audit { stale: 1, lost: 1, twice: 1 };
        assert_eq!(Audit::of(&file.path(), 4).unwrap(), expected);
    }
}
