//! The signals that tell `tenure` to stop.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::sys;

/// SIGTERM, SIGINT and SIGHUP, except those that were ignored when we were started: a shell does
/// that for background jobs, and `nohup` for SIGHUP.
pub(crate) struct Signals {
    term: Option<Signal>,
    int: Option<Signal>,
    hup: Option<Signal>,
}

impl Signals {
    pub(crate) fn new() -> io::Result<Self> {
        let listen = |kind: SignalKind| {
            if sys::is_ignored(kind.as_raw_value()) {
                return Ok(None);
            }
            signal(kind).map(Some)
        };
        Ok(Self {
            term: listen(SignalKind::terminate())?,
            int: listen(SignalKind::interrupt())?,
            hup: listen(SignalKind::hangup())?,
        })
    }

    /// The number of the next one. Cancel-safe.
    pub(crate) async fn next(&mut self) -> i32 {
        tokio::select! {
            () = receive(&mut self.term) => libc::SIGTERM,
            () = receive(&mut self.int) => libc::SIGINT,
            () = receive(&mut self.hup) => libc::SIGHUP,
        }
    }
}

async fn receive(signal: &mut Option<Signal>) {
    if let Some(signal) = signal
        && signal.recv().await.is_some()
    {
        return;
    }
    std::future::pending().await
}
