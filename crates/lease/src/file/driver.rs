//! The threads that may block, the clock on the wall.
#![allow(clippy::disallowed_methods)]

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::backend::StoreError;

/// Runs work that may block on the store's threads, from whatever runtime.
pub(super) async fn on_disk<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    match crate::driver::runtime().spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => Err(StoreError::unavailable("this process is shutting down")),
    }
}

/// Runs work that may block, and waits for nothing.
pub(super) fn aside(work: impl FnOnce() + Send + 'static) {
    crate::driver::runtime().spawn_blocking(work);
}

/// Blocks the thread.
#[cfg(target_os = "linux")]
pub(super) fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// Microseconds since 1970: the first term of a lease that has no record, because that is above any
/// term that a deleted record may have had. It decides nothing else.
pub(super) fn wall_micros() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
