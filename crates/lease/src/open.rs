use crate::{MemoryStore, Store};

/// Opens one of the stores that need no feature: `memory:` or `file:DIR`.
///
/// The stores that live on servers are in the crate `tenure-stores`, whose `open` takes these
/// schemes too.
pub async fn open(url: &str) -> Result<Store, OpenError> {
    match url.split_once(':') {
        Some(("memory", "")) => Ok(Store::new(MemoryStore::new())),
        _ => Err(OpenError(format!(
            "{url:?} is not the URL of a store; \"file:./leases\" or \"memory:\" is"
        ))),
    }
}

/// Why a store could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct OpenError(pub String);
