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
const WRITE: &str = "INSERT INTO tenure_ledger (sender, stream, number) VALUES (?1, ?2, ?3)
    ON CONFLICT (sender, stream) DO UPDATE SET number = excluded.number";

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rusqlite::Connection;
    use tenure_wire::samples;

    use super::*;

    /// Says whether the ledger in a dump has this number, and takes the next.
    fn read_dump(dump: &str, stream: u64, number: u64) -> rusqlite::Result<()> {
        let mut database = Connection::open_in_memory()?;
        database.execute_batch(dump)?;
        let transaction = database.transaction()?;
        let mut ledger = SqliteLedger::new(&transaction)?;
        assert_eq!(ledger.last("chéckout", stream)?, number);
        ledger.set_last("chéckout", stream, number + 1)
    }

    #[test]
    fn samples_can_be_read_also_with_a_column_that_a_later_release_adds() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("samples/ledger.txt");
        let (stream, number) = (u64::MAX, 1 << 40);
        let mut database = Connection::open_in_memory().unwrap();
        let transaction = database.transaction().unwrap();
        SqliteLedger::new(&transaction).unwrap().set_last("chéckout", stream, number).unwrap();
        let dump: String = transaction.query_row(DUMP, [], |row| row.get(0)).unwrap();
        let current = vec![("SqliteLedger".to_owned(), dump.clone().into_bytes())];
        samples::check_bytes(&file, "SqliteLedger", current, |bytes| {
            let dump = String::from_utf8_lossy(bytes);
            read_dump(&dump, stream, number).map_err(|error| error.to_string())
        });
        let added = "; ALTER TABLE tenure_ledger ADD COLUMN added TEXT DEFAULT 'later'";
        read_dump(&(dump + added), stream, number).unwrap();
    }

    /// The table and its row, as SQL.
    const DUMP: &str = "SELECT sql || '; INSERT INTO tenure_ledger VALUES (' || quote(sender)
        || ', ' || stream || ', ' || number || ')'
        FROM sqlite_schema, tenure_ledger WHERE name = 'tenure_ledger'";
}
