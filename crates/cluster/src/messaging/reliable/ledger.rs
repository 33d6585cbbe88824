use std::sync::Arc;

/// What is entered in a ledger for one message: whose it is, and which.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Record {
    /// The sender's name.
    pub sender: Arc<str>,
    /// Which incarnation of the sender: a random number.
    pub stream: u64,
    /// The message's number in its stream, from 1, without gaps.
    pub number: u64,
}

/// Whether a message was done before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a message that was done already must not be done again"]
pub enum Entered {
    /// It was not: do it, in this transaction.
    New,
    /// It was: do nothing, and say that it is done.
    Already,
}

/// Where a receiver keeps which messages it has done: in the database that their effect is in, and
/// written in the same transaction.
///
/// One row for each stream is enough, since messages of a stream are done in order. A row may be
/// deleted when the process that sent it is gone for good.
///
/// ```
/// use std::collections::BTreeMap;
/// use std::convert::Infallible;
/// use tenure_cluster::messaging::reliable::{Entered, Ledger, Record};
///
/// #[derive(Default)]
/// struct InMemory(BTreeMap<(String, u64), u64>); // A real one is a table.
///
/// impl Ledger for InMemory {
///     type Error = Infallible;
///     fn last(&mut self, sender: &str, stream: u64) -> Result<u64, Infallible> {
///         Ok(self.0.get(&(sender.to_owned(), stream)).copied().unwrap_or(0))
///     }
///     fn set_last(&mut self, sender: &str, stream: u64, number: u64) -> Result<(), Infallible> {
///         self.0.insert((sender.to_owned(), stream), number);
///         Ok(())
///     }
/// }
///
/// let mut ledger = InMemory::default();
/// let mut record = Record { sender: "checkout".into(), stream: 7, number: 1 };
/// assert_eq!(ledger.enter(&record).unwrap(), Entered::New);
/// assert_eq!(ledger.enter(&record).unwrap(), Entered::Already);
/// record.number = 3;
/// assert!(ledger.enter(&record).is_err()); // 2 is missing
/// ```
pub trait Ledger {
    /// What can go wrong with the database.
    type Error;

    /// The highest number that was entered for a stream; 0 if none was. Nobody else may change it
    /// before this transaction ends.
    fn last(&mut self, sender: &str, stream: u64) -> Result<u64, Self::Error>;

    /// Notes the highest number.
    fn set_last(&mut self, sender: &str, stream: u64, number: u64) -> Result<(), Self::Error>;

    /// Enters a message, and says whether it has been done already. An error means that the
    /// transaction must not be committed.
    fn enter(&mut self, record: &Record) -> Result<Entered, LedgerError<Self::Error>> {
        let Record { sender, stream, number } = record;
        let last = self.last(sender, *stream).map_err(LedgerError::Database)?;
        if *number <= last {
            return Ok(Entered::Already);
        }
        if *number > last + 1 {
            return Err(LedgerError::Gap { record: record.clone(), last });
        }
        self.set_last(sender, *stream, *number).map_err(LedgerError::Database)?;
        Ok(Entered::New)
    }
}

/// Why a message cannot be entered.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError<E> {
    /// The database.
    #[error(transparent)]
    Database(E),
    /// A message before it is not done. Either two were taken and the later one is done first, or the
    /// one before was dropped: then drop this one too, both will come again. Or this is not the
    /// database that the earlier ones are in: every receiver of one name must use the same.
    #[error(
        "message {} of {:?} cannot be done: the last one in this ledger is {last}; do them in \
         order, and in the same database on every node",
        .record.number, .record.sender
    )]
    Gap {
        /// What was to be entered.
        record: Record,
        /// The last one in the ledger.
        last: u64,
    },
}
