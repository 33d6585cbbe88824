use std::path::PathBuf;

use crate::{FileStore, MemoryStore, Store};

/// Opens one of the stores that need no feature: `memory:` or `file:DIR`.
///
/// The stores that live on servers are in the crate `tenure-stores`, whose `open` takes these
/// schemes too.
pub async fn open(url: &str) -> Result<Store, OpenError> {
    match url.split_once(':') {
        Some(("memory", "")) => Ok(Store::new(MemoryStore::new())),
        Some(("file", directory)) => {
            let directory = directory_of(directory).ok_or_else(|| {
                OpenError(format!(
                    "{url:?} names no directory of this machine; \"file:./leases\" or \
                     \"file:///var/lib/leases\" does"
                ))
            })?;
            let store = FileStore::open_aside(directory).await;
            store.map(Store::new).map_err(|error| OpenError(error.to_string()))
        }
        // Not the whole of it: it may be the URL of another store, with a password in it.
        _ => Err(OpenError(format!(
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
#[error("{0}")]
pub struct OpenError(pub String);

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
            let error = open(url).await.err().expect(url);
            assert!(error.to_string().contains("file:"), "{error}");
        }
    }
}
