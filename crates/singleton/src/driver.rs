//! Gives the cores a clock, a cluster, a lease and something to run.
#![allow(clippy::disallowed_methods)]

mod frame;
mod inbox;
mod instance;
mod manage;
mod post;
mod proxy;

use std::time::Duration;

pub(crate) use instance::Work;
pub(crate) use manage::manage;
pub use post::{Did, Happening, Happenings};
pub(crate) use proxy::proxy;
pub use proxy::{Asking, HandOverError, Proxy, Status};

/// Between two questions to a store that does not answer.
pub(crate) async fn pause() {
    tokio::time::sleep(Duration::from_millis(500)).await;
}

/// How long what is on its way between two nodes is waited for.
const PATIENCE: Duration = Duration::from_secs(2);
