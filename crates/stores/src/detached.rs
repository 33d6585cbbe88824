//! Work that goes on when nobody waits for it any more.
#![allow(clippy::disallowed_methods)] // It starts tasks.

use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use tenure_lease::backend::StoreError;

/// At most one search for credentials at a time. A search may take longer than one request may, and
/// the next request is to find its result: so it runs to its end, whoever is dropped meanwhile.
#[derive(Default)]
pub(crate) struct DetachedSearch {
    running: Mutex<Option<JoinHandle<Result<(), StoreError>>>>,
}

impl DetachedSearch {
    /// Waits for the search that is running, or else starts this one, which looks first whether its
    /// result is there already.
    pub(crate) async fn finish(
        &self,
        search: impl Future<Output = Result<(), StoreError>> + Send + 'static,
    ) -> Result<(), StoreError> {
        let mut running = self.running.lock().await;
        let task = match running.take_if(|task| !task.is_finished()) {
            Some(task) => task,
            None => tokio::spawn(search),
        };
        let ended = running.insert(task).await;
        *running = None;
        ended.unwrap_or_else(|error| {
            Err(StoreError::unavailable(format!("the search for credentials ended: {error}")))
        })
    }

    /// Starts this one, unless one is running; nobody waits for it.
    pub(crate) fn begin(
        &self,
        search: impl Future<Output = Result<(), StoreError>> + Send + 'static,
    ) {
        if let Ok(mut running) = self.running.try_lock()
            && running.as_ref().is_none_or(JoinHandle::is_finished)
        {
            *running = Some(tokio::spawn(search));
        }
    }
}
