//! How stores that speak HTTP open connections and keep them.

use std::time::Duration;

use hyper_util::client::legacy::Builder;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};

/// Opens TCP connections.
pub(crate) fn tcp() -> HttpConnector {
    let mut tcp = HttpConnector::new();
    // The first request on a new connection follows the client's last word of the TLS handshake,
    // and would be held back until that is acknowledged: 40 ms, for each watch.
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
    // A peer that went without a word is noticed within a minute, also by who only listens.
    tcp.set_keepalive(Some(KEEPALIVE));
    tcp.set_keepalive_interval(Some(KEEPALIVE));
    tcp.set_keepalive_retries(Some(3));
    tcp.enforce_http(false);
    tcp
}

/// Keeps them for the next request.
pub(crate) fn pool() -> Builder {
    let mut pool = Builder::new(TokioExecutor::new());
    pool.pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE_TIMEOUT)
        .pool_max_idle_per_host(IDLE_MAX);
    pool
}

/// The keeper's own time-out is usually shorter.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const KEEPALIVE: Duration = Duration::from_secs(15);
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// As many as stores ask at once: a burst would else open and close connections all the time.
const IDLE_MAX: usize = 32;
