//! Which entities there are, so that they are back without being sent anything.

use std::future::Future;
use std::pin::Pin;

use tenure_lease::Token;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
use tenure_lease::fence::FenceError;

use crate::{BoxError, Shard};

#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(feature = "postgres")]
pub use postgres::PostgresRemember;
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteRemember;

/// What becomes of something that is remembered.
pub type Remembering<'a, T> = Pin<Box<dyn Future<Output = Result<T, RememberError>> + Send + 'a>>;

/// Where the entities of a kind are remembered, by shard: a database that all nodes reach. With it,
/// all of a shard's entities are made when the shard begins, wherever that is.
///
/// Whatever it does is fenced by the shard's token: [`load`](Self::load) raises the fence before it
/// reads, and both refuse a token below it. [`change`](Self::change) raises nothing: it is refused
/// unless the fence has the very token that the shard was loaded under.
pub trait Remember: Send + Sync + 'static {
    /// A shard begins: raises its fence, and says which entities it has.
    fn load(&self, place: Place<'_>) -> Remembering<'_, Vec<String>>;

    /// Some entities are there, and others are no more. All of it, or nothing.
    fn change(
        &self,
        place: Place<'_>,
        added: Vec<String>,
        removed: Vec<String>,
    ) -> Remembering<'_, ()>;
}

/// A shard, and who hosts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place<'a> {
    /// The kind of entities.
    pub kind: &'a str,
    /// The shard.
    pub shard: Shard,
    /// Its token.
    pub token: Token,
}

#[cfg(any(feature = "postgres", feature = "sqlite"))]
impl From<FenceError> for RememberError {
    fn from(error: FenceError) -> Self {
        match error {
            FenceError::Refused { held, fence, .. } => Self::Refused { held, fence },
            FenceError::RaiseLost { held, fence, .. } => Self::RaiseLost { held, fence },
            error => Self::Failed(error.into()),
        }
    }
}

/// What the fence of a shard's rows is called.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
fn resource(Place { kind, shard, .. }: Place<'_>) -> String {
    format!("sharding/{kind}/{shard}")
}

/// Why something was not remembered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RememberError {
    /// The shard is elsewhere by now.
    #[error("refused: the token {held} is below the fence's {fence}")]
    Refused {
        /// Our token.
        held: Token,
        /// What the fence has seen.
        fence: Token,
    },
    /// The database has forgotten that the shard was loaded under this token, and perhaps what was
    /// remembered since: it was restored, or failed over to a replica that lacked it. The shard is
    /// given back, and loaded again.
    #[error(
        "the database has lost writes: it has forgotten that the shard was loaded under token {held}"
    )]
    RaiseLost {
        /// Our token.
        held: Token,
        /// What the fence says; `None`: it is gone.
        fence: Option<Token>,
    },
    /// The database failed; it is tried again.
    #[error(transparent)]
    Failed(#[from] BoxError),
}
