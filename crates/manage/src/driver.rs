//! Where it meets the world: clocks, sockets, tasks.
#![allow(clippy::disallowed_methods, reason = "this is where clocks, tasks and sockets come in")]

mod call;
mod connections;
mod feed;
mod listen;
mod node;
mod tls;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::{Body, Bytes};
use http_body_util::{BodyExt as _, Limited};
use tenure_lease::Moment;
use tokio::task::AbortHandle;

use crate::manage::Now;

pub(crate) use call::{client_tls, exchange};
pub(crate) use feed::feed;
pub(crate) use listen::{Place, Shown, listen, listen_for_scrapes};
pub(crate) use node::watch;

/// Who is at the other end of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    /// The certificate that it showed, if it did and that was verified.
    pub(crate) certificate: Option<Shown>,
    pub(crate) place: Arc<Place>,
}

/// Tasks that end when this is dropped.
#[derive(Debug, Default)]
pub(crate) struct Stop(Vec<AbortHandle>);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.iter().for_each(AbortHandle::abort);
    }
}

/// When somebody last looked at leases: stores are read often only while somebody does.
#[derive(Clone, Debug, Default)]
pub(crate) struct Looked(Arc<AtomicU64>);

impl Looked {
    pub(crate) fn now(&self) {
        self.0.store(Moment::now().as_nanos(), Ordering::Relaxed);
    }

    fn lately(&self) -> bool {
        let last = self.0.load(Ordering::Relaxed);
        last > 0 && Moment::now().since(Moment::from_nanos(last)) < LATELY
    }
}

pub(crate) fn now() -> Now {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
    Now { moment: Moment::now(), ms }
}

/// Reads a body, if it is not too long and comes soon.
pub(crate) async fn read(body: Body, most: usize) -> Result<Bytes, String> {
    let read = Limited::new(body, most).collect();
    match tokio::time::timeout(PATIENCE, read).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("the body did not come".into()),
    }
}

/// What comes of it, if that does not take too long.
pub(crate) async fn in_time<T>(future: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(REQUEST, future).await.ok()
}

/// How long other nodes may take to say what they have.
pub(crate) const ASKED: Duration = Duration::from_secs(2);
const LATELY: Duration = Duration::from_secs(10);
/// How long a request may take, once it was read.
pub(crate) const REQUEST: Duration = Duration::from_secs(30);
/// How long to wait for a request that was begun; and how long a stranger may be connected.
const PATIENCE: Duration = Duration::from_secs(10);
