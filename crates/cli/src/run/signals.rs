//! The signals that tell `tenure` to stop.

use std::io;
use std::time::Duration;

use tenure_lease::Moment;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::sys;

/// SIGTERM, SIGINT and SIGHUP, except those that were ignored when we were started: a shell does
/// that for background jobs, and `nohup` for SIGHUP.
pub(crate) struct Signals {
    term: Option<Signal>,
    int: Option<Signal>,
    hup: Option<Signal>,
    /// When the last one came that was told.
    told_at: Option<Moment>,
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
            told_at: None,
        })
    }

    /// The number of the next one. One that comes right behind another is the same one: `timeout`
    /// signals its command, and then the process group of its command. Cancel-safe.
    pub(crate) async fn next(&mut self) -> i32 {
        loop {
            let signal = tokio::select! {
                () = receive(&mut self.term) => libc::SIGTERM,
                () = receive(&mut self.int) => libc::SIGINT,
                () = receive(&mut self.hup) => libc::SIGHUP,
            };
            let now = Moment::now();
            if self.told_at.is_none_or(|at| now.since(at) >= ECHO) {
                self.told_at = Some(now);
                return signal;
            }
        }
    }

    /// Waits for one that is urgent after a first one. Cancel-safe.
    pub(crate) async fn next_urgent(&mut self) {
        while !is_urgent(self.next().await) {}
    }
}

/// Whether this signal after another asks to end at once. A SIGHUP does not: it comes along with
/// SIGTERM when a session ends.
pub(crate) fn is_urgent(signal: i32) -> bool {
    signal != libc::SIGHUP
}

/// Less than it takes a person to press Ctrl-C twice.
const ECHO: Duration = Duration::from_millis(100);

async fn receive(signal: &mut Option<Signal>) {
    if let Some(signal) = signal
        && signal.recv().await.is_some()
    {
        return;
    }
    std::future::pending().await
}
