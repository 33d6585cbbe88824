//! `tenure run`: a command that runs only while a lease is held.
//!
//! Three processes: `tenure` keeps the lease; a guardian, its child, sees to the command's end; the
//! command is the guardian's child. `tenure` can be killed or stopped at any instant, and then the
//! guardian ends the command and everything that it started before the lease can be another's.
//! See [`guardian`] for how.

pub(crate) mod control;
#[cfg(target_os = "linux")]
pub(crate) mod descendants;
#[cfg(target_os = "linux")]
pub(crate) mod guarded;
#[cfg(target_os = "linux")]
mod guardian;
pub(crate) mod hold;
#[cfg(feature = "cluster")]
pub(crate) mod metrics;
#[cfg(not(target_os = "linux"))]
mod portable;
pub(crate) mod sys;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use tenure_lease::backend::StoreErrorKind;
use tenure_lease::signals::Signals;
use tenure_lease::{Lease, LeaseError, Settings, Store, Tenure};

use crate::duration;
use crate::exit::{self, Failure};
use crate::store::LeaseArgs;

#[cfg(target_os = "linux")]
pub(crate) use guardian::{Args as GuardianArgs, NAME as GUARDIAN, main as guard};

use hold::{End, HeldCommand};
#[cfg(all(feature = "demo", target_os = "linux"))]
pub(crate) use sys::{PidFd, tie_to_us};

/// Run a command while a lease is held
///
/// Waits until the lease is held, then runs the command with TENURE_TERM and TENURE_STEP (the two
/// numbers of the fencing token: compare the term, a number that only ever rises, and then the step,
/// which is 0 here), TENURE_NAME and TENURE_OWNER in its environment; TENURE_TOKEN is the term, too.
/// Of all `tenure run` with the same lease, on any machine that reaches the store, one at a time runs
/// its command.
///
/// One at a time is not once: a cron job's command that ends soon may run on two replicas, one after
/// the other; `tenure cron` is for those. Put a worker behind it that runs for as long as its replica: `tenure run --lease
/// etcd://10.0.0.1:2379/shop --name mailer -- /usr/local/bin/mailer`.
///
/// When the command exits, what it left running is stopped, the lease is given back, and its exit
/// code is passed on. When the lease is lost, everything that the command started gets SIGTERM, and
/// SIGKILL before the stop budget is over; then `tenure` contends again. SIGTERM, SIGINT or SIGHUP to
/// `tenure` stops the command in the same way, gives the lease back and exits; a second SIGTERM or
/// SIGINT kills the command and exits at once. A store that does not answer then is not waited for
/// longer than the stop budget: the lease runs out by itself.
///
/// If `tenure` itself is killed (also with -9) or stopped, the command and all its descendants end
/// before another can hold the lease: its guardian, `lease-guardian` in ps, sees to that. What no
/// unprivileged program can end is a descendant that has become another user (sudo, su); and if
/// `tenure` and the guardian are killed in the same moment, only the command itself dies at once.
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
    /// Exit with code 75 if another holds the lease, and with 69 if the store does not answer
    #[arg(long, overrides_with = "wait")]
    no_wait: bool,
    /// Serve metrics for Prometheus at http://ADDRESS/metrics, such as 127.0.0.1:9464, and /alive
    #[cfg(feature = "cluster")]
    #[arg(long, value_parser = metrics::parse_address, value_name = "ADDRESS")]
    metrics: Option<std::net::SocketAddr>,
    /// The command and its arguments, after `--`
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

pub(crate) fn main(args: Args) -> Result<ExitCode, Failure> {
    let settings = settings(args.ttl, args.stop_budget)?;
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

/// The timing of a lease that a command runs under.
pub(crate) fn settings(ttl: Duration, stop_budget: Option<Duration>) -> Result<Settings, Failure> {
    let mut settings = Settings::new(ttl);
    if let Some(stop_budget) = stop_budget {
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
    let mut signals = Signals::catch().map_err(|error| Failure::system("signals", &error))?;
    #[cfg(feature = "cluster")]
    let _metrics = match args.metrics {
        Some(address) => Some(metrics::serve(address).await?),
        None => None,
    };
    let store = args.lease.store.open_shared().await?;
    settings.check_for(&store.info())?;
    let lease = lease(&store, &args, &settings);
    tokio::select! {
        biased;
        signal = signals.next() => return Ok(exit_code_of(signal)),
        checked = store.preflight(args.lease.name.as_str()) => match args.no_wait {
            true => checked?,
            false => tolerate_outage(checked)?,
        },
    }
    loop {
        let tenure = tokio::select! {
            biased;
            signal = signals.next() => return Ok(exit_code_of(signal)),
            tenure = contend(&lease, args.no_wait) => tenure?,
        };
        let lifeline = sys::lifeline(&store, &tenure);
        let command = HeldCommand { words: &args.command, environment: environment(&tenure) };
        let end = hold::run(&tenure, &settings, lifeline, &command, &mut signals).await;
        let told = give_back(tenure, &settings, &end, &mut signals).await;
        match (end?, told) {
            (End::Exited(code), _) => return Ok(code),
            (End::Signalled { signal, .. }, _) | (End::Lost, Some(signal)) => {
                return Ok(exit_code_of(signal));
            }
            (End::Lost, None) => {}
        }
    }
}

/// Gives the lease back, unless the store does not answer for a stop budget or a signal comes, which
/// it returns. A lease that is not given back runs out by itself.
#[allow(clippy::disallowed_methods)] // It waits for the store, and not for ever.
async fn give_back(
    tenure: Tenure,
    settings: &Settings,
    end: &Result<End, Failure>,
    signals: &mut Signals,
) -> Option<i32> {
    let name = tenure.name().clone();
    let (told, patience) = match end {
        Ok(End::Signalled { signal, hurry: true }) => (Some(*signal), HURRY),
        Ok(End::Signalled { signal, .. }) => (Some(*signal), settings.stop_budget.max(HURRY)),
        _ => (None, settings.stop_budget.max(HURRY)),
    };
    let next_signal = async {
        match told {
            Some(signal) => {
                signals.next_urgent().await;
                signal
            }
            None => signals.next().await,
        }
    };
    let told = tokio::select! {
        biased;
        () = tenure.release() => return told,
        signal = next_signal => Some(signal),
        () = tokio::time::sleep(patience) => told,
    };
    tracing::warn!(lease = %name, "not given back: the store does not answer; it runs out by itself");
    told
}

fn lease(store: &Store, args: &Args, settings: &Settings) -> Lease {
    let mut lease = store.lease(args.lease.name.as_str()).settings(settings.clone());
    // To process 1 of a container the kernel delivers no SIGKILL of a timer. The guardian, which is
    // another process, ends the command in time wherever `tenure` runs.
    if std::process::id() != 1 {
        lease = lease.watchdog();
    }
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
pub(crate) fn tolerate_outage(checked: Result<(), LeaseError>) -> Result<(), Failure> {
    match checked {
        Err(LeaseError::Store(error)) if error.kind() == StoreErrorKind::Unavailable => {
            tracing::warn!(%error, "the store does not answer yet");
            Ok(())
        }
        checked => Ok(checked?),
    }
}

pub(crate) fn exit_code_of(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}

/// What the command knows of its tenure.
pub(crate) fn environment(tenure: &Tenure) -> Vec<(&'static str, String)> {
    let token = tenure.token();
    vec![
        ("TENURE_TOKEN", token.term.to_string()),
        ("TENURE_TERM", token.term.to_string()),
        ("TENURE_STEP", token.step.to_string()),
        ("TENURE_NAME", tenure.name().to_string()),
        ("TENURE_OWNER", tenure.owner().name.clone()),
    ]
}

/// How long a store that answers needs to be told that the lease is given back.
pub(crate) const HURRY: Duration = Duration::from_millis(200);
/// Less leaves no time for the kernel to end a handful of processes on a busy machine.
const STOP_BUDGET_MIN: Duration = Duration::from_millis(20);
