//! What went wrong with a file, in words that help.

use std::io;
use std::path::Path;

use crate::backend::{StoreError, StoreErrorKind};

/// An operation on a file failed.
pub(super) fn failed(what: &str, path: &Path, error: &io::Error) -> StoreError {
    let path = path.display();
    let (kind, hint) = match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => (
            StoreErrorKind::Unsuitable,
            "the disk is full; make room there (held leases can still be renewed and released)",
        ),
        Some(libc::EROFS | libc::EACCES | libc::EPERM) => (
            StoreErrorKind::Denied,
            "this process must be able to read and write this directory and all that is in it",
        ),
        Some(libc::ENOTDIR | libc::EEXIST | libc::EISDIR | libc::ELOOP | libc::ENAMETOOLONG) => {
            (StoreErrorKind::Unsuitable, "this is not a directory in which leases are kept")
        }
        Some(libc::EMFILE | libc::ENFILE) => {
            (StoreErrorKind::Unavailable, "raise the limit of open files (ulimit -n)")
        }
        _ => (StoreErrorKind::Unavailable, "the file system did not do what was asked"),
    };
    StoreError::new(kind, format!("cannot {what} {path}: {error}: {hint}"))
}

/// A file cannot be what it should be.
pub(super) fn damaged(lease: &Path, path: &Path, what: &str) -> StoreError {
    StoreError::new(
        StoreErrorKind::Damaged,
        format!(
            "{} is damaged: {what}; nobody can hold this lease until it is repaired: restore the \
             file, or make sure that no holder is running and remove {}",
            path.display(),
            lease.display()
        ),
    )
}

/// A newer release wrote a file.
pub(super) fn newer(path: &Path, format: u32) -> StoreError {
    StoreError::new(
        StoreErrorKind::NewerFormat,
        format!(
            "{} has format {format}, which a newer release wrote; use that release, or another \
             directory",
            path.display()
        ),
    )
}

/// Others were faster again and again.
pub(super) fn busy(lease: &Path) -> StoreError {
    StoreError::unavailable(format!("{} changes all the time", lease.display()))
}
