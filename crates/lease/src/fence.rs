//! Fencing: what a token is for.
//!
//! A lease alone never gives mutual exclusion. Between "do I hold it?" and the write that follows,
//! a process may be stopped for an hour; its lease runs out, a successor takes over, and then the
//! write arrives. What refuses it is the resource: it remembers the highest [`Token`] that it has
//! seen, and takes nothing from a lower one.
//!
//! Two rules make that airtight, and the helpers here cannot be used without them:
//!
//! 1. **Raise before you read.** A tenure opens a resource by raising its fence there, before its
//!    first read. Otherwise it reads, a stale write slips in below the fence, and it goes on with
//!    what is no longer there.
//! 2. **Hold the fence until you commit.** The check and the write are one transaction that keeps
//!    the fence's row locked, so that a raise waits for stale transactions in flight, or ends them.
//!
//! With the feature `sqlite` there is [`SqliteFence`]; Postgres has its own in `tenure-stores`.
//!
//! # Recipes
//!
//! **HTTP.** Send the token with every request, `Tenure-Token: 42.0`. The server keeps the highest
//! token per resource beside the data, compares and writes in one transaction, and answers 412
//! (Precondition Failed) to a lower one. A successor begins with a request that only raises it.
//!
//! **Object stores** (S3, GCS, Azure Blob). One object holds the token beside the data. A successor
//! reads it, and replaces it under its own token with `If-Match: <etag>`, until that succeeds: that
//! is the raise. Every later write is `If-Match` on the ETag of its own last write; a stale writer's
//! ETag is no longer there, so it is refused with 412. (A store that accepts the header and ignores
//! it exists: try a write that must fail first.)
//!
//! **etcd.** Write in a transaction that compares a fence key: `If value(fence) == my token`; raise
//! it with `If mod_revision(fence) == the one read`.
//!
//! **DynamoDB.** Every write of the item is an `UpdateItem` with `SET fence = :mine` and the condition
//! `attribute_not_exists(fence) OR fence <= :mine`. (Without its first part the condition is false on
//! an item that has no fence yet.) A successor begins with one that sets the fence alone.

#[cfg(feature = "sqlite")]
mod sqlite;

#[cfg(feature = "sqlite")]
pub use sqlite::SqliteFence;

use crate::Token;

/// Why a fence did not let something through.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FenceError {
    /// A newer tenure has raised the fence: this one is over, whatever it believes.
    #[error("refused: token {held} is below the fence's {fence} on {resource:?}")]
    Refused {
        /// Our token.
        held: Token,
        /// What the fence has seen.
        fence: Token,
        /// Where.
        resource: String,
    },
    /// The lease is held, and yet the fence has seen a higher token: the lease's store has lost
    /// history. The tenure has been given up.
    #[error(
        "the lease's store has lost history: token {held} is below the fence's {fence} on \
         {resource:?}; repair it with: tenure lease raise --name {lease} --above {}", fence.term
    )]
    TokenRegressed {
        /// The name of the lease.
        lease: String,
        /// Our token.
        held: Token,
        /// What the fence has seen.
        fence: Token,
        /// Where.
        resource: String,
    },
    /// The database failed.
    #[cfg(feature = "sqlite")]
    #[error("the fence could not be read or written: {0}")]
    Sqlite(#[from] rusqlite::Error),
}
