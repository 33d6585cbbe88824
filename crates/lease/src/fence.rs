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
//! A token is two whole numbers, the term and the step, and is compared as such: first the terms,
//! and if they are equal the steps. `7.41` is how people read it, and no decimal number: 7.9 is
//! below 7.41. So keep both numbers, in two columns, headers or attributes. (`tenure run` tells its
//! command both: `TENURE_TERM` and `TENURE_STEP`. The step of a plain lease is always 0.)
//!
//! **SQL.** The row of the resource has `fence_term` and `fence_step`. To raise: `UPDATE … SET
//! fence_term = :term, fence_step = :step WHERE fence_term < :term OR (fence_term = :term AND
//! fence_step <= :step)`, and one row must have changed. Every write has `WHERE fence_term = :term
//! AND fence_step = :step` in the same statement, or in its transaction.
//!
//! **HTTP.** Send both numbers with every request, `Tenure-Term: 42` and `Tenure-Step: 0`. The
//! server keeps the highest pair per resource beside the data, compares and writes in one
//! transaction, and answers 412 (Precondition Failed) to any other one. A successor begins with a
//! request that only raises it.
//!
//! **Object stores** (S3, GCS, Azure Blob). One object holds the two numbers beside the data. A
//! successor reads it, stops if they are higher than its own, and replaces it under its own with
//! `If-Match: <etag>`, until that succeeds: that is the raise. Every later write is `If-Match` on the
//! ETag of its own last write; a stale writer's ETag is no longer there, so it is refused with 412.
//! (A store that accepts the header and ignores it exists: try a write that must fail first.)
//!
//! **etcd.** The value of a fence key is the two numbers. To raise it, read it, compare the numbers,
//! and put yours with `If mod_revision(fence) == the one read`. Write in a transaction with `If
//! value(fence) == mine`.
//!
//! **DynamoDB.** Raise on the item itself, by `SET fence_term = :term, fence_step = :step` with
//! `ConditionExpression: attribute_not_exists(fence_term) OR fence_term < :term OR (fence_term =
//! :term AND fence_step <= :step)`, and write it later with `fence_term = :term AND fence_step =
//! :step`. (A comparison with an attribute that is not there is false.)

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
         {resource:?}; repair it with: tenure lease raise --lease URL --name {lease} --above {}", fence.term
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
