use std::path::PathBuf;

use crate::backend::StoreError;
use crate::{FileStore, MemoryStore, Store};

/// Opens one of the stores that need no feature: `memory:` or `file:DIR`.
///
/// The stores that live on servers are in the crate `tenure-stores`, whose `open` takes these
/// schemes too.
pub async fn open(url: &str) -> Result<Store, OpenError> {
    open_by(url, FileStore::open).await
}

/// As [`open`], for who only looks: a directory that is not there is not created, and has no leases.
pub async fn open_to_look(url: &str) -> Result<Store, OpenError> {
    open_by(url, FileStore::look).await
}

async fn open_by(
    url: &str,
    open: impl FnOnce(PathBuf) -> Result<FileStore, StoreError> + Send + 'static,
) -> Result<Store, OpenError> {
    match url.split_once(':') {
        Some(("memory", "")) => Ok(Store::new(MemoryStore::new())),
        Some(("file", directory)) => {
            let directory = directory_of(directory).ok_or_else(|| {
                OpenError::Url(format!(
                    "{url:?} names no directory of this machine; \"file:./leases\" or \
                     \"file:///var/lib/leases\" does"
                ))
            })?;
            Ok(Store::new(FileStore::aside(|| open(directory)).await?))
        }
        // Not the whole of it: it may be the URL of another store, with a password in it.
        _ => Err(OpenError::Url(format!(
            "{:?} is no kind of store; \"file:./leases\" or \"memory:\" is a store's URL",
            url.split(':').next().unwrap_or_default()
        ))),
    }
}

/// `file:DIR` or `file:///DIR`; what would be a host is refused.
fn directory_of(path: &str) -> Option<PathBuf> {
    let path = match path.strip_prefix("//") {
        Some(path) => path.starts_with('/').then_some(path)?,
        None => path,
    };
    (!path.is_empty()).then(|| PathBuf::from(path))
}

/// Why a store could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// What was given is wrong, and stays so until somebody changes it: no kind of store, one that
    /// is not compiled in, a bad option, a certificate that is none.
    #[error("{0}")]
    Url(String),
    /// The URL makes sense; the store that it names cannot be used, as it is now.
    #[error(transparent)]
    Store(#[from] StoreError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_told_from_hosts() {
        assert_eq!(directory_of("./leases"), Some("./leases".into()));
        assert_eq!(directory_of("/var/leases"), Some("/var/leases".into()));
        assert_eq!(directory_of("///var/leases"), Some("/var/leases".into()));
        assert_eq!(directory_of("//host/leases"), None);
        assert_eq!(directory_of(""), None);
    }

    #[tokio::test]
    async fn other_urls_are_refused() {
        for url in ["", "nothing", "redis://x", "memory:x", "file:", "file://host/x"] {
            let error = open(url).await.expect_err(url);
            assert!(error.to_string().contains("file:"), "{error}");
            assert!(matches!(error, OpenError::Url(_)), "{error:?}");
        }
    }

    #[tokio::test]
    async fn a_store_that_cannot_be_used_is_told_from_a_wrong_url() {
        let error = open("file:/dev/null/leases").await.expect_err("/dev/null is no directory");
        assert!(matches!(&error, OpenError::Store(error) if error.to_string().contains("null")));
    }
}
