//! Clearing up behind an answer.
#![allow(clippy::disallowed_methods)] // It starts tasks.

use std::sync::Arc;
use std::time::Duration;

use super::api::Api;

/// Destroys a session that nothing depends on any more, without keeping anybody waiting. If it
/// fails, the session ends by its ttl.
pub(super) fn destroy(api: &Arc<Api>, session: String) {
    let api = Arc::clone(api);
    tokio::spawn(async move {
        // Nobody is left to tell.
        let _ = tokio::time::timeout(DESTROY_TIMEOUT, api.destroy_session(&session)).await;
    });
}

const DESTROY_TIMEOUT: Duration = Duration::from_secs(10);
