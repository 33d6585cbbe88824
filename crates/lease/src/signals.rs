//! The signals that tell a process to end, so that it can hand over before it does.
//!
//! Without this, SIGTERM ends a process at once: to everybody else that is a crash, and its leases have
//! to run out. Kubernetes, systemd and `kill` all send it first.
#![allow(clippy::disallowed_methods, reason = "this is where signals come in")]

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[cfg(unix)]
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Mutex;

use crate::Moment;

/// Waits until this process is told to end: by SIGTERM, SIGINT (Ctrl-C) or SIGHUP.
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = tenure_lease::open("file:./leases").await?;
/// let tenure = store.lease("nightly-report").acquire().await?;
/// tokio::select! {
///     () = work() => {}
///     reason = tenure.lost() => eprintln!("lost: {reason}"),
///     () = tenure_lease::signals::terminated() => {} // the work has ended: it was dropped
/// }
/// tenure.release().await; // so that the next one need not wait
/// # Ok(()) }
/// # async fn work() {}
/// ```
///
/// Signals are caught from the first poll on, and end this process no more. Once it was told to end,
/// this returns at once, however often it is called: it can stand in a loop. [`Signals`] tells a second
/// signal from the first.
///
/// # Panics
/// Outside of a tokio runtime with I/O.
pub async fn terminated() {
    static SIGNALS: OnceLock<Mutex<Signals>> = OnceLock::new();
    static TOLD: AtomicBool = AtomicBool::new(false);
    let signals = match SIGNALS.get() {
        Some(signals) => signals,
        None => match Signals::catch() {
            Ok(signals) => SIGNALS.get_or_init(|| Mutex::new(signals)),
            Err(error) => {
                tracing::error!("signals cannot be caught, and end this process at once: {error}");
                return std::future::pending().await;
            }
        },
    };
    // Kept from one call to the next: a signal that comes between two of them is not missed.
    let mut signals = signals.lock().await;
    if !TOLD.load(Ordering::Acquire) {
        signals.next().await;
        TOLD.store(true, Ordering::Release);
    }
}

/// SIGTERM, SIGINT and SIGHUP, except those that were ignored when this process was started: a shell
/// does that for background jobs, and `nohup` for SIGHUP. Elsewhere than on Unix, Ctrl-C.
#[derive(Debug)]
pub struct Signals {
    #[cfg(unix)]
    term: Option<Signal>,
    #[cfg(unix)]
    int: Option<Signal>,
    #[cfg(unix)]
    hup: Option<Signal>,
    /// When the last one came that was told.
    told_at: Option<Moment>,
}

impl Signals {
    /// Catches them from now on. Call it within a tokio runtime.
    #[cfg(unix)]
    pub fn catch() -> io::Result<Self> {
        let listen = |kind: SignalKind| {
            if is_ignored(kind.as_raw_value()) {
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

    /// Catches them from now on. Call it within a tokio runtime.
    #[cfg(not(unix))]
    pub fn catch() -> io::Result<Self> {
        Ok(Self { told_at: None })
    }

    /// The number of the next one. One that comes right behind another is the same one: `timeout`
    /// signals its command, and then the process group of its command. Cancel-safe.
    pub async fn next(&mut self) -> i32 {
        loop {
            let signal = self.receive().await;
            let now = Moment::now();
            if self.told_at.is_none_or(|at| now.since(at) >= ECHO) {
                self.told_at = Some(now);
                return signal;
            }
        }
    }

    /// Waits for one that is urgent after a first one. Cancel-safe.
    pub async fn next_urgent(&mut self) {
        while !is_urgent(self.next().await) {}
    }

    #[cfg(unix)]
    async fn receive(&mut self) -> i32 {
        tokio::select! {
            () = receive(&mut self.term) => libc::SIGTERM,
            () = receive(&mut self.int) => libc::SIGINT,
            () = receive(&mut self.hup) => libc::SIGHUP,
        }
    }

    #[cfg(not(unix))]
    async fn receive(&mut self) -> i32 {
        match tokio::signal::ctrl_c().await {
            Ok(()) => 2,
            Err(_) => std::future::pending().await,
        }
    }
}

/// Whether this signal after another asks to end at once. A SIGHUP does not: it comes along with
/// SIGTERM when a session ends.
pub fn is_urgent(signal: i32) -> bool {
    const HANGUP: i32 = 1;
    signal != HANGUP
}

#[cfg(unix)]
async fn receive(signal: &mut Option<Signal>) {
    if let Some(signal) = signal
        && signal.recv().await.is_some()
    {
        return;
    }
    std::future::pending().await
}

/// Whether a signal was ignored when this process was started.
#[cfg(unix)]
#[allow(unsafe_code)]
fn is_ignored(signal: i32) -> bool {
    // SAFETY: an all-zero sigaction is a valid place to write one to.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: without a new action this only writes the present one to `action`.
    let result = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) };
    result == 0 && action.sa_sigaction == libc::SIG_IGN
}

/// How long after a signal another is its echo: less than it takes a person to press Ctrl-C twice.
pub const ECHO: Duration = Duration::from_millis(100);
