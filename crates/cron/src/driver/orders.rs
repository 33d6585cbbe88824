//! What operators want, read every now and then; once per process, however many jobs it has.
#![allow(clippy::disallowed_methods)]

use std::sync::Arc;
use std::time::Duration;

use tenure_lease::{LeaseError, Record, Store};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::orders::{ORDERS, Orders};

/// Reads the orders of a store every 15 seconds, until it is dropped.
#[derive(Debug)]
pub struct OrdersWatch {
    latest: watch::Receiver<Arc<Orders>>,
    task: JoinHandle<()>,
}

impl OrdersWatch {
    /// Begins to read. Call it within a tokio runtime.
    pub fn start(store: &Store) -> Self {
        let (sender, latest) = watch::channel(Arc::new(Orders::default()));
        let store = store.clone();
        let task = tokio::spawn(async move {
            loop {
                tokio::time::sleep(LOOK_EVERY).await;
                match store.inspect(ORDERS).await.map(|record| parse(record.as_ref())) {
                    Ok(Some(orders)) => {
                        sender.send_if_modified(|latest| {
                            let is_new = **latest != orders;
                            if is_new {
                                *latest = Arc::new(orders);
                            }
                            is_new
                        });
                    }
                    Ok(None) => {}
                    Err(error) => tracing::debug!(%error, "the orders cannot be read"),
                }
            }
        });
        Self { latest, task }
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Arc<Orders>> {
        self.latest.clone()
    }
}

impl Drop for OrdersWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The orders in a record. What cannot be read is none, and says so: jobs go on without.
pub(super) fn parse(record: Option<&Record>) -> Option<Orders> {
    match Orders::parse(record.map_or(&[], |record| &record.note)) {
        Ok(orders) => Some(orders),
        Err(error) => {
            tracing::error!("{error}");
            None
        }
    }
}

/// Replaces the orders, as an operator: acquires their lease for a moment.
pub async fn change_orders<T>(
    store: &Store,
    change: impl FnOnce(&mut Orders) -> T,
) -> Result<T, ChangeOrdersError> {
    let tenure = store.lease(ORDERS).acquire().await?;
    let mut orders = Orders::parse(tenure.note())?;
    let done = change(&mut orders);
    tenure.write_note(orders.to_bytes()).await?;
    tenure.release().await;
    Ok(done)
}

/// Why orders could not be changed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ChangeOrdersError {
    /// The store.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// What stands there is none that this version reads.
    #[error(transparent)]
    Unreadable(#[from] crate::UnreadableOrders),
}

const LOOK_EVERY: Duration = Duration::from_secs(15);
