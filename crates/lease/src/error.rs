use crate::backend::StoreError;
use crate::record::Record;
use crate::{Loss, NameError, SettingsError};

/// Why a lease could not be asked for, or not be had.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LeaseError {
    /// The name is none.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The timing cannot work.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The store did not answer. Whatever was asked for may have been done; what may have been won
    /// is being given back.
    #[error("the store did not answer: {0}")]
    Store(#[from] StoreError),
    /// The record was not the one that the acquisition was conditional on.
    #[error("the record is not the one that was expected")]
    Unexpected(Option<Box<Record>>),
    /// The tenure, or the session that it would have been attached to, is over.
    #[error("the tenure is over: {0}")]
    Over(Loss),
}
