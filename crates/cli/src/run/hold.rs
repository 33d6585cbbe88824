//! One tenure: the command under its guardian, until one of them ends.
//!
//! Drives: it listens to signals, to the keeper and to a ticking clock.
#![allow(clippy::disallowed_methods)]

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use tenure_lease::signals::{Signals, is_urgent};
use tenure_lease::{Moment, Settings, Tenure};

#[cfg(target_os = "linux")]
pub(crate) use super::guarded::Guarded;
#[cfg(not(target_os = "linux"))]
use super::portable::Guarded;

use super::control::{Deadlines, Order, Report, reserve};
use crate::exit::{self, Failure};

/// What is run, and what it knows of its tenure.
pub(crate) struct HeldCommand<'a> {
    pub(crate) words: &'a [OsString],
    pub(crate) environment: Vec<(&'static str, String)>,
}

/// Who tells the command to stop, besides a lost lease: once to stop it, and again, by an urgent signal, to
/// kill it.
pub(crate) trait StopSignals {
    /// The number of the next signal. Cancel-safe.
    async fn next_signal(&mut self) -> i32;
}

impl StopSignals for Signals {
    async fn next_signal(&mut self) -> i32 {
        self.next().await
    }
}

/// How a tenure came to its end. Nothing that the command started is left.
pub(crate) enum End {
    /// The command ended by itself; the exit code to pass on.
    Exited(u8),
    /// `tenure` was told to stop, by this signal; in a hurry, if it was told twice.
    Signalled { signal: i32, hurry: bool },
    /// The lease was lost.
    Lost,
}

/// Where the orders come from that the guardian gets besides those to stop: what becomes of the lease.
pub(crate) trait GuardianOrders {
    /// The next order. [`Order::Stop`] says that the lease was lost. Cancel-safe.
    async fn next_order(&mut self) -> Order;
}

/// Runs the command for as long as the lease is held.
pub(crate) async fn run(
    tenure: &Tenure,
    settings: &Settings,
    lifeline: Option<OwnedFd>,
    command: &HeldCommand<'_>,
    signals: &mut impl StopSignals,
) -> Result<End, Failure> {
    let deadlines = Deadlines::of(tenure, settings);
    let guarded = Guarded::start(deadlines, settings.stop_budget, lifeline, command)
        .map_err(|error| Failure::system("cannot start a process", &error))?;
    // Renewals come every ttl/6, and the deadline leaves far more room than one tick.
    let tick = tokio::time::interval(tick_interval(settings));
    let orders = TenureOrders { tenure, settings, tick, is_lost: false };
    guard(guarded, orders, settings.stop_budget, command, signals).await
}

/// How often renewals are looked for.
pub(crate) fn tick_interval(settings: &Settings) -> Duration {
    (settings.ttl / 40).clamp(Duration::from_millis(5), Duration::from_millis(250))
}

/// The orders that follow from one tenure.
struct TenureOrders<'a> {
    tenure: &'a Tenure,
    settings: &'a Settings,
    tick: tokio::time::Interval,
    is_lost: bool,
}

impl GuardianOrders for TenureOrders<'_> {
    async fn next_order(&mut self) -> Order {
        if self.is_lost {
            return std::future::pending().await;
        }
        tokio::select! {
            biased;
            _ = self.tenure.lost() => {
                self.is_lost = true;
                let stop_budget = self.settings.stop_budget;
                Order::Stop(Moment::now() + (stop_budget - reserve(stop_budget)))
            }
            _ = self.tick.tick() => Order::Deadlines(Deadlines::of(self.tenure, self.settings)),
        }
    }
}

/// Waits for the end of the command, passes orders on to its guardian, and stops it when it is told to.
pub(crate) async fn guard(
    mut guarded: Guarded,
    mut orders: impl GuardianOrders,
    stop_budget: Duration,
    command: &HeldCommand<'_>,
    signals: &mut impl StopSignals,
) -> Result<End, Failure> {
    let mut told: Option<i32> = None;
    let mut hurry = false;
    let mut lost = false;
    let (status, report) = loop {
        tokio::select! {
            biased;
            ended = guarded.ended() => {
                break ended.map_err(|error| Failure::system("cannot wait", &error))?;
            }
            signal = signals.next_signal(), if !hurry => match told {
                None => {
                    told = Some(signal);
                    tracing::info!(signal, "stopping the command; again to kill it");
                    guarded.tell(Order::Stop(Moment::now() + stop_budget));
                }
                Some(_) if is_urgent(signal) => {
                    hurry = true;
                    tracing::warn!(signal, "told to stop again: killing the command");
                    guarded.tell(Order::Stop(Moment::now()));
                }
                Some(_) => {}
            },
            order = orders.next_order() => {
                lost |= matches!(order, Order::Stop(_));
                guarded.tell(order);
            }
        }
    };
    guarded.end_leftovers();
    match (report, told) {
        (Some(Report::Exited(status)), _) => Ok(End::Exited(exit_code(status))),
        (Some(Report::NotStarted(error)), _) => Err(not_started(&command.words[0], error)),
        (_, Some(signal)) => Ok(End::Signalled { signal, hurry }),
        (Some(Report::Stopped | Report::Kept(_)), None) => Ok(End::Lost),
        (Some(Report::Signalled), None) => {
            Ok(End::Signalled { signal: libc::SIGTERM, hurry: false })
        }
        (None, None) if lost => Ok(End::Lost),
        (None, None) => guardian_died(status),
    }
}

fn exit_code(status: i32) -> u8 {
    let status = ExitStatus::from_raw(status);
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    u8::try_from(code).unwrap_or(u8::MAX)
}

fn not_started(program: &OsString, error: i32) -> Failure {
    let code = if error == libc::ENOENT { 127 } else { 126 };
    let error = io::Error::from_raw_os_error(error);
    Failure::new(code, format!("cannot run {}: {error}", program.display()))
}

fn guardian_died(status: ExitStatus) -> Result<End, Failure> {
    match status.signal() {
        Some(signal) => {
            tracing::error!(signal, "the guardian was killed; the command was killed with it");
            Ok(End::Exited(super::exit_code_of(signal)))
        }
        None => Err(Failure::new(exit::SYSTEM, format!("the guardian failed ({status})"))),
    }
}
