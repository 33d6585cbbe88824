use rusqlite::{OptionalExtension, Transaction, params};

use super::Ledger;

/// A ledger in a SQLite database, within a transaction. Begin it `IMMEDIATE`, as
/// [`SqliteFence`](tenure_lease) does: then nobody enters anything in between.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use rusqlite::TransactionBehavior::Immediate;
/// use tenure_cluster::messaging::reliable::{Entered, Ledger, Record, SqliteLedger};
///
/// let mut db = rusqlite::Connection::open_in_memory()?;
/// let record = Record { sender: "checkout".into(), stream: 7, number: 1 };
/// let transaction = db.transaction_with_behavior(Immediate)?;
/// assert_eq!(SqliteLedger::new(&transaction)?.enter(&record)?, Entered::New);
/// // … the effect …
/// transaction.commit()?;
/// let transaction = db.transaction_with_behavior(Immediate)?;
/// assert_eq!(SqliteLedger::new(&transaction)?.enter(&record)?, Entered::Already);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct SqliteLedger<'a>(&'a Transaction<'a>);

impl<'a> SqliteLedger<'a> {
    /// Makes the table if it is not there.
    pub fn new(transaction: &'a Transaction<'a>) -> rusqlite::Result<Self> {
        transaction.execute_batch(TABLE)?;
        Ok(Self(transaction))
    }
}

impl Ledger for SqliteLedger<'_> {
    type Error = rusqlite::Error;

    fn last(&mut self, sender: &str, stream: u64) -> rusqlite::Result<u64> {
        let last = self
            .0
            .prepare_cached(READ)?
            .query_row(params![sender, stream.cast_signed()], |row| row.get::<_, i64>(0))
            .optional()?;
        Ok(last.unwrap_or(0).cast_unsigned())
    }

    fn set_last(&mut self, sender: &str, stream: u64, number: u64) -> rusqlite::Result<()> {
        let parameters = params![sender, stream.cast_signed(), number.cast_signed()];
        self.0.prepare_cached(WRITE)?.execute(parameters).map(drop)
    }
}

const TABLE: &str = "CREATE TABLE IF NOT EXISTS tenure_ledger (
    sender TEXT NOT NULL, stream INTEGER NOT NULL, number INTEGER NOT NULL,
    PRIMARY KEY (sender, stream)) WITHOUT ROWID";
const READ: &str = "SELECT number FROM tenure_ledger WHERE sender = ?1 AND stream = ?2";
const WRITE: &str = "INSERT INTO tenure_ledger VALUES (?1, ?2, ?3)
    ON CONFLICT (sender, stream) DO UPDATE SET number = excluded.number";
