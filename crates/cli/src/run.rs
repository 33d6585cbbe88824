//! `tenure run`: a command that runs only while a lease is held.
//!
//! Three processes: `tenure` keeps the lease; a guardian, its child, sees to the command's end; the
//! command is the guardian's child. `tenure` can be killed or stopped at any instant, and then the
//! guardian ends the command and everything that it started before the lease can be another's.
//! See [`guardian`] for how.

mod control;
#[cfg(target_os = "linux")]
mod descendants;
#[cfg(target_os = "linux")]
mod guarded;
#[cfg(target_os = "linux")]
mod guardian;
mod hold;
#[cfg(not(target_os = "linux"))]
mod portable;
mod signals;
mod sys;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use tenure_lease::backend::StoreErrorKind;
use tenure_lease::{Lease, LeaseError, Settings, Store, Tenure};

use crate::duration;
use crate::exit::{self, Failure};
use crate::store::LeaseArgs;

#[cfg(target_os = "linux")]
pub(crate) use guardian::{Args as GuardianArgs, NAME as GUARDIAN, main as guard};

use hold::End;
pub(crate) use signals::Signals;
#[cfg(all(feature = "demo", target_os = "linux"))]
pub(crate) use sys::{PidFd, tie_to_us};

/// Run a command while a lease is held
///
/// Waits until the lease is held, then runs the command with TENURE_TOKEN (the term of the tenure:
/// a number that only ever rises), TENURE_NAME and TENURE_OWNER in its environment. Of all `tenure
/// run` with the same lease, on any machine that reaches the store, one at a time runs its command.
///
/// When the command exits, what it left running is stopped, the lease is given back, and its exit
/// code is passed on. When the lease is lost, everything that the command started gets SIGTERM, and
/// SIGKILL before the stop budget is over; then `tenure` contends again. SIGTERM, SIGINT or SIGHUP to
/// `tenure` stops the command in the same way, gives the lease back and exits.
///
/// If `tenure` itself is killed (also with -9) or stopped, the command and all its descendants end
/// before another can hold the lease. What no unprivileged program can end is a descendant that has
/// become another user (sudo, su).
#[derive(clap::Args)]
#[command(after_help = exit::HELP)]
pub(crate) struct Args {
    #[command(flatten)]
    lease: LeaseArgs,
    /// How long the lease lasts after each renewal; `tenure timings` shows what follows from it
    #[arg(long, value_parser = duration::parse, default_value = "15s", value_name = "DURATION")]
    ttl: Duration,
    /// Who holds the lease, for people [default: POD_NAME, HOSTNAME or the host's name]
    #[arg(long, value_name = "NAME")]
    owner: Option<String>,
    /// How long the command may take to stop [default: ttl/8, at most 3s]
    #[arg(long, value_parser = duration::parse, value_name = "DURATION")]
    stop_budget: Option<Duration>,
    /// Wait while another holds the lease (the default)
    #[arg(long, overrides_with = "no_wait")]
    wait: bool,
    /// Exit with code 75 if another holds the lease
    #[arg(long, overrides_with = "wait")]
    no_wait: bool,
    /// The command and its arguments, after `--`
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

pub(crate) fn main(args: Args) -> Result<ExitCode, Failure> {
    let settings = settings(&args)?;
    sys::check_requirements().map_err(|error| Failure::system("this system lacks", &error))?;
    // One thread, the process's main one, so that what it spawns has a parent for as long as the
    // process lives.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::system("cannot start", &error))?;
    let code = runtime.block_on(run(args, settings))?;
    Ok(ExitCode::from(code))
}

fn settings(args: &Args) -> Result<Settings, Failure> {
    let mut settings = Settings::new(args.ttl);
    if let Some(stop_budget) = args.stop_budget {
        settings.stop_budget = stop_budget;
    }
    if settings.stop_budget < STOP_BUDGET_MIN {
        return Err(Failure::usage(format!(
            "a stop budget of {:?} is too short to stop a process in; at least \
             {STOP_BUDGET_MIN:?} is needed",
            settings.stop_budget
        )));
    }
    settings.check()?;
    Ok(settings)
}

async fn run(args: Args, settings: Settings) -> Result<u8, Failure> {
    let mut signals = Signals::new().map_err(|error| Failure::system("signals", &error))?;
    let store = args.lease.store.open().await?;
    settings.check_for(&store.info())?;
    let lease = lease(&store, &args, &settings);
    tokio::select! {
        biased;
        signal = signals.next() => return Ok(exit_code_of(signal)),
        checked = store.preflight(args.lease.name.as_str()) => tolerate_outage(checked)?,
    }
    loop {
        let tenure = tokio::select! {
            biased;
            signal = signals.next() => return Ok(exit_code_of(signal)),
            tenure = contend(&lease, args.no_wait) => tenure?,
        };
        let lifeline = sys::lifeline(&store, &tenure);
        let end = hold::run(&tenure, &settings, lifeline, &args.command, &mut signals).await;
        tenure.release().await;
        match end? {
            End::Exited(code) => return Ok(code),
            End::Signalled(signal) => return Ok(exit_code_of(signal)),
            End::Lost => {}
        }
    }
}

fn lease(store: &Store, args: &Args, settings: &Settings) -> Lease {
    let lease = store.lease(args.lease.name.as_str()).settings(settings.clone()).watchdog();
    match &args.owner {
        Some(owner) => lease.owner(owner),
        None => lease,
    }
}

async fn contend(lease: &Lease, no_wait: bool) -> Result<Tenure, Failure> {
    if !no_wait {
        return Ok(lease.acquire().await?);
    }
    lease
        .try_acquire()
        .await?
        .ok_or_else(|| Failure::new(exit::HELD, "another holds the lease (--no-wait)"))
}

/// What cannot become right by waiting is said at once; a store that is away may come back.
fn tolerate_outage(checked: Result<(), LeaseError>) -> Result<(), Failure> {
    match checked {
        Err(LeaseError::Store(error)) if error.kind() == StoreErrorKind::Unavailable => {
            tracing::warn!(%error, "the store does not answer yet");
            Ok(())
        }
        checked => Ok(checked?),
    }
}

fn exit_code_of(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}

/// Less leaves no time for the kernel to end a handful of processes on a busy machine.
const STOP_BUDGET_MIN: Duration = Duration::from_millis(20);
