//! Fencing: what a token is for.
//!
//! A lease alone never gives mutual exclusion. Between "do I hold it?" and the write that follows,
//! a process may be stopped for an hour; its lease runs out, a successor takes over, and then the
//! write arrives. What refuses it is the resource: it remembers the highest [`Token`] that it has
//! seen, and takes nothing from a lower one.
//!
//! Three rules make that airtight, and the helpers here cannot be used without them:
//!
//! 1. **Raise before you read.** A tenure opens a resource by raising its fence there, before its
//!    first read. Otherwise it reads, a stale write slips in below the fence, and it goes on with
//!    what is no longer there.
//! 2. **Hold the fence until you commit.** The check and the write are one transaction that keeps
//!    the fence's row locked, so that a raise waits for stale transactions in flight, or ends them.
//! 3. **Write only while the fence has your very token.** You raised it, and fences only rise: one
//!    that is lower than your token has lost your raise, and with it what you wrote since
//!    ([`FenceError::RaiseLost`]). Raise it again, and read again what you know of the resource.
//!
//! # What a fence cannot do
//!
//! It is as durable as the database that it is in. An asynchronous replica that is promoted, or a
//! restored backup, may not know of the last raise; then a stale holder whose token is the one that
//! the database remembers is let through, until the present holder has begun its next transaction,
//! was told `RaiseLost`, and has raised the fence again. Nothing in that database can tell them
//! apart before: the fence detects the loss, and does not prevent it. What prevents it is a
//! failover that loses no acknowledged commit (PostgreSQL: `synchronous_standby_names` and
//! `synchronous_commit = on`).
//!
//! With the feature `sqlite` there is [`SqliteFence`]; Postgres has its own in `tenure-stores`.
//!
//! # Recipes
//!
//! **HTTP.** Send the token with every request, `Tenure-Token: 42.0`. The server keeps the highest
//! token per resource beside the data, compares and writes in one transaction, and answers 412
//! (Precondition Failed) to any other one. A successor begins with a request that only raises it.
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
//! **DynamoDB.** Raise by `SET fence = :mine` with
//! `ConditionExpression: attribute_not_exists(fence) OR fence <= :mine` on the item itself, and write
//! it later with `fence = :mine`. (A comparison with an attribute that is not there is false.)

#[cfg(feature = "sqlite")]
mod sqlite;

#[cfg(feature = "sqlite")]
pub use sqlite::SqliteFence;

use crate::Token;

/// Whether a fence that says `fence` lets a transaction under the token `held` through, which has
/// raised it.
pub fn check_fence(held: Token, fence: Option<Token>, resource: &str) -> Result<(), FenceError> {
    let resource = || resource.to_owned();
    match fence {
        Some(fence) if fence > held => {
            Err(FenceError::Refused { held, fence, resource: resource() })
        }
        Some(fence) if fence == held => Ok(()),
        // Raising it again here would let work go on that was built on lost writes.
        fence => Err(FenceError::RaiseLost { held, fence, resource: resource() }),
    }
}

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
    /// The tenure raised the fence to its token, and the database has forgotten that: it was
    /// restored, or failed over to a replica that lacked it. Whatever was written since the raise
    /// may be gone as well, and a stale holder may have written. Raise the fence again, and read
    /// again what you know of the resource; or give the tenure up.
    #[error(
        "the raise of the fence on {resource:?} to token {held} was lost ({}): the database has \
         lost writes; raise the fence again, and read again before you write", found(*fence)
    )]
    RaiseLost {
        /// Our token.
        held: Token,
        /// What the fence says; `None`: it is gone.
        fence: Option<Token>,
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

fn found(fence: Option<Token>) -> String {
    fence.map_or("it is gone".to_owned(), |fence| format!("it is at {fence}"))
}
