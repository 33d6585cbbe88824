use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};

use super::{FenceError, check_fence};
use crate::{Tenure, Token};

/// A fence in a SQLite database, over whatever else is in it.
///
/// SQLite has one writer at a time, and a transaction that is begun `IMMEDIATE` is that writer from
/// its first statement on: nobody can raise the fence between the check and the commit.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use tenure_lease::fence::SqliteFence;
/// # let store = tenure_lease::Store::new(tenure_lease::MemoryStore::new());
/// # let mut db = rusqlite::Connection::open_in_memory()?;
/// # db.execute_batch("CREATE TABLE done (day TEXT)")?;
/// let tenure = store.lease("nightly-report").acquire().await?;
/// let fence = SqliteFence::raise(&tenure, &mut db, "reports")?; // before the first read
/// let work = fence.begin(&mut db)?; // refused once a newer tenure has raised it
/// work.execute("INSERT INTO done VALUES ('monday')", [])?;
/// work.commit()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct SqliteFence {
    resource: String,
    token: Token,
}

impl SqliteFence {
    /// Opens a resource for a tenure, by raising its fence. Do this before the first read.
    ///
    /// If the fence is already above the token although the lease is held, the lease's store has
    /// lost history (a restored backup): the tenure is given up with
    /// [`Loss::TokenRegressed`](crate::Loss::TokenRegressed).
    pub fn raise(
        tenure: &Tenure,
        connection: &mut Connection,
        resource: &str,
    ) -> Result<Self, FenceError> {
        match Self::raise_token(tenure.token(), connection, resource) {
            Err(FenceError::Refused { held, fence, resource }) => {
                Err(if tenure.report_fence(fence) {
                    let lease = tenure.name().to_string();
                    FenceError::TokenRegressed { lease, held, fence, resource }
                } else {
                    FenceError::Refused { held, fence, resource }
                })
            }
            result => result,
        }
    }

    /// As [`SqliteFence::raise`], for a token that came another way: `TENURE_TERM` and `TENURE_STEP`
    /// in the environment of a command, or the token of a shard.
    pub fn raise_token(
        token: Token,
        connection: &mut Connection,
        resource: &str,
    ) -> Result<Self, FenceError> {
        connection.execute_batch(TABLE)?;
        let raised = Self::raised(token, resource);
        let (transaction, fence) = raised.look(connection)?;
        match check_fence(token, fence, resource) {
            // What it says is below us, or nothing.
            Ok(()) | Err(FenceError::RaiseLost { .. }) => {}
            Err(error) => return Err(error),
        }
        transaction.execute(RAISE, params![resource, token.term, token.step])?;
        transaction.commit()?;
        Ok(raised)
    }

    /// The fence that this tenure has raised to this token before, in another call or process.
    pub fn raised(token: Token, resource: &str) -> Self {
        Self { resource: resource.to_owned(), token }
    }

    /// Begins a transaction in which nothing can get past the fence: it is refused if a newer
    /// tenure has raised it, or if the raise to our token was lost
    /// ([`FenceError::RaiseLost`]), and no newer one can raise it before this ends.
    pub fn begin<'a>(&self, connection: &'a mut Connection) -> Result<Transaction<'a>, FenceError> {
        let (transaction, fence) = self.look(connection)?;
        check_fence(self.token, fence, &self.resource)?;
        Ok(transaction)
    }

    /// Begins to write, and what the fence says.
    fn look<'a>(
        &self,
        connection: &'a mut Connection,
    ) -> Result<(Transaction<'a>, Option<Token>), FenceError> {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let fence = transaction
            .query_row(READ, params![self.resource], |row| Ok(Token::new(row.get(0)?, row.get(1)?)))
            .optional()?;
        Ok((transaction, fence))
    }

    /// The token that it was raised to.
    pub fn token(&self) -> Token {
        self.token
    }
}

const TABLE: &str = "CREATE TABLE IF NOT EXISTS tenure_fences (
    resource TEXT PRIMARY KEY, term INTEGER NOT NULL, step INTEGER NOT NULL) WITHOUT ROWID";
const READ: &str = "SELECT term, step FROM tenure_fences WHERE resource = ?1";
const RAISE: &str = "INSERT INTO tenure_fences (resource, term, step) VALUES (?1, ?2, ?3)
    ON CONFLICT (resource) DO UPDATE SET term = excluded.term, step = excluded.step";

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tenure_wire::samples;

    use super::*;
    use crate::{Loss, MemoryStore, Store};

    fn database() -> Connection {
        let database = Connection::open_in_memory().unwrap();
        database.execute_batch("CREATE TABLE ledger (line TEXT)").unwrap();
        database
    }

    fn raise(term: u64, step: u64, database: &mut Connection) -> Result<SqliteFence, FenceError> {
        SqliteFence::raise_token(Token::new(term, step), database, "ledger")
    }

    #[test]
    fn a_lower_token_is_refused_and_writes_nothing() {
        let mut database = database();
        let old = raise(7, 0, &mut database).unwrap();
        old.begin(&mut database).unwrap().commit().unwrap();
        let new = raise(8, 0, &mut database).unwrap();
        assert!(matches!(old.begin(&mut database), Err(FenceError::Refused { .. })));
        assert!(matches!(raise(7, 9, &mut database), Err(FenceError::Refused { .. })));
        let work = new.begin(&mut database).unwrap();
        work.execute("INSERT INTO ledger VALUES ('x')", []).unwrap();
        work.commit().unwrap();
    }

    #[test]
    fn the_whole_token_counts() {
        let mut database = database();
        let old = raise(7, 1, &mut database).unwrap();
        raise(7, 2, &mut database).unwrap();
        assert!(matches!(old.begin(&mut database), Err(FenceError::Refused { .. })));
    }

    /// A backup is restored, or a copy that lacks the last raise takes over.
    #[test]
    fn a_raise_that_was_lost_is_noticed() {
        let mut database = database();
        let old = raise(7, 0, &mut database).unwrap();
        for forget in [
            "UPDATE tenure_fences SET term = 7",
            "UPDATE tenure_fences SET term = 7, step = 9",
            "DELETE FROM tenure_fences",
        ] {
            let new = raise(8, 1, &mut database).unwrap();
            assert!(matches!(old.begin(&mut database), Err(FenceError::Refused { .. })));
            database.execute_batch(forget).unwrap();
            let error = new.begin(&mut database).expect_err(forget);
            assert!(matches!(error, FenceError::RaiseLost { .. }), "{error}");
            assert!(error.to_string().contains("raise the fence again"), "{error}");
            // It does not raise by itself.
            assert!(matches!(new.begin(&mut database), Err(FenceError::RaiseLost { .. })));
            let again = raise(8, 1, &mut database).unwrap();
            again.begin(&mut database).unwrap().commit().unwrap();
            assert!(matches!(old.begin(&mut database), Err(FenceError::Refused { .. })));
            database.execute_batch("UPDATE tenure_fences SET term = 7, step = 0").unwrap();
        }
    }

    #[test]
    fn resources_are_apart() {
        let mut database = database();
        raise(8, 0, &mut database).unwrap();
        SqliteFence::raise_token(Token::new(7, 0), &mut database, "other").unwrap();
    }

    /// Says whether the fence in a dump refuses what is below this token, and lets this token through.
    fn read_dump(dump: &str, token: Token) -> Result<(), FenceError> {
        let mut database = Connection::open_in_memory()?;
        database.execute_batch(dump)?;
        let below = SqliteFence::raise_token(Token::new(token.term, 0), &mut database, "lédger");
        assert!(matches!(below, Err(FenceError::Refused { fence, .. }) if fence == token));
        SqliteFence::raised(token, "lédger").begin(&mut database)?.commit()?;
        let higher = Token::new(token.term + 1, 0);
        SqliteFence::raise_token(higher, &mut database, "lédger").map(drop)
    }

    #[test]
    fn samples_can_be_read_also_with_a_column_that_a_later_release_adds() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("samples/records.txt");
        let token = Token::new(7, 1 << 40);
        let mut database = Connection::open_in_memory().unwrap();
        SqliteFence::raise_token(token, &mut database, "lédger").unwrap();
        let dump: String = database.query_row(DUMP, [], |row| row.get(0)).unwrap();
        let current = vec![("SqliteFence".to_owned(), dump.clone().into_bytes())];
        samples::check_bytes(&file, "SqliteFence", current, |bytes| {
            let dump = String::from_utf8_lossy(bytes);
            read_dump(&dump, token).map_err(|error| error.to_string())
        });
        let added = "; ALTER TABLE tenure_fences ADD COLUMN added TEXT DEFAULT 'later'";
        read_dump(&(dump + added), token).unwrap();
    }

    /// The table and its row, as SQL.
    const DUMP: &str = "SELECT sql || '; INSERT INTO tenure_fences VALUES (' || quote(resource)
        || ', ' || term || ', ' || step || ')'
        FROM sqlite_schema, tenure_fences WHERE name = 'tenure_fences'";

    #[tokio::test]
    async fn a_fence_above_a_held_lease_means_lost_history() {
        let mut database = database();
        raise(u64::MAX >> 1, 0, &mut database).unwrap();
        let tenure = Store::new(MemoryStore::new()).lease("a").acquire().await.unwrap();
        let error = SqliteFence::raise(&tenure, &mut database, "ledger").unwrap_err();
        assert!(matches!(error, FenceError::TokenRegressed { .. }), "{error}");
        assert!(matches!(tenure.lost().await, Loss::TokenRegressed { .. }));
        assert!(!tenure.is_held());
    }

    #[tokio::test]
    async fn an_attached_lease_is_given_up_too_and_its_session_lives_on() {
        let mut database = database();
        raise(u64::MAX >> 1, 0, &mut database).unwrap();
        let store = Store::new(MemoryStore::new());
        let session = store.lease("node").session().await.unwrap();
        let tenure = session.lease("a").acquire().await.unwrap();
        SqliteFence::raise(&tenure, &mut database, "ledger").unwrap_err();
        assert!(matches!(tenure.lost().await, Loss::TokenRegressed { .. }));
        assert!(!tenure.is_held() && session.tenure().is_held());
    }
}
