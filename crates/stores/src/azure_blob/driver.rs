//! What needs a clock: waiting, and the date that each request carries.
#![allow(clippy::disallowed_methods)] // It waits, and reads the wall clock to sign requests.

use std::time::{Duration, SystemTime};

/// Waits a moment before the next look.
pub(super) async fn pause(length: Duration) {
    tokio::time::sleep(length).await;
}

/// Gives up on what takes longer.
pub(super) async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(limit, future).await.ok()
}

/// The time that a request carries; Azure refuses a signature that is a quarter of an hour off.
/// Nothing else depends on it.
pub(super) fn now() -> String {
    httpdate::fmt_http_date(SystemTime::now())
}
