//! Messages whose effect happens exactly once, in order, although connections are cut, the receiver
//! moves to another node, and its process dies at any moment.
//!
//! The sender numbers its messages and sends each again until the receiver says that it is *done*.
//! So a message may be delivered more than once; what happens once is its effect, because the
//! receiver enters the number in a [`Ledger`] *in the same transaction as the effect*, and a number
//! that is in there is not done again:
//!
//! ```no_run
//! # #[cfg(feature = "sqlite")] mod example {
//! # use tenure_cluster::Cluster;
//! # async fn example(cluster: Cluster, mut db: rusqlite::Connection) -> Result<(), Box<dyn std::error::Error>> {
//! use tenure_cluster::messaging::reliable::{Entered, Ledger, SqliteLedger};
//!
//! let mut payments = cluster.reliable_receiver::<i64>("payments")?;
//! while let Some(delivery) = payments.recv().await {
//!     let transaction = db.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
//!     if SqliteLedger::new(&transaction)?.enter(delivery.record())? == Entered::New {
//!         transaction.execute("UPDATE till SET cents = cents + ?1", [delivery.message()])?;
//!     }
//!     transaction.commit()?;
//!     delivery.done(); // only now
//! }
//! # Ok(()) } }
//! ```
//!
//! The receiver that takes over on another node must work on the same database, fenced as always; the
//! ledger is in there with the rest.
//!
//! What a sender holds lives as long as its process. The next one begins a new *stream* with numbers
//! of its own; a message that must survive its sender belongs in the sender's database first.

mod driver;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod incoming;
mod ledger;
mod outgoing;
mod packet;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(test)]
mod tests;

pub use driver::{Delivery, ReliableReceiver, ReliableSender};
pub use ledger::{Entered, Ledger, LedgerError, Record};
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteLedger;
