//! `tenure cron`: a command at its times, on one machine each time, and every time accounted for.
//!
//! One thread drives all jobs of a process, the main one: guardians are told when the thread that started
//! them ends. Each job looks after itself; what they share is the store, its orders, and the signals.

mod config;
mod jobs;
mod orders;
mod runner;
mod show;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use tenure_cron::{Interrupted, JobSettings, Missed, Overlap};
use tenure_lease::LeaseName;

use crate::duration;
use crate::exit::{self, Failure};
use crate::store::StoreArgs;
use config::{CronFile, JobSpec};

/// Run a command at its times, on one machine each time
///
/// Every machine that may run it runs this; of all of them, one runs each slot (each time that the schedule
/// names), and each slot ends as exactly one of `done`, `failed`, `skipped` or `interrupted`: see `tenure
/// cron history`. The account stands in the record of the job's lease. Nothing is held between slots.
///
/// The command has TENURE_SLOT (the time that it runs for, an idempotency key), TENURE_ATTEMPT (from 1),
/// TENURE_TOKEN (the fencing token's term), TENURE_NAME and TENURE_OWNER in its environment; its output is
/// passed through. When the lease is lost, it is stopped before another machine can run it; SIGTERM, SIGINT
/// or SIGHUP to `tenure` stops it, hands its slot over as interrupted and exits.
///
/// --at takes five fields (minute, hour, day of month, month, day of week), six with seconds before them,
/// @hourly, @daily, @weekly, @monthly, @yearly, or "@every 90s".
#[derive(clap::Args)]
#[command(after_help = exit::HELP, args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: RunArgs,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Show what became of a job's slots
    History(Target),
    /// Show when a job is due next, what it runs now, and whether it is paused
    Next(Next),
    /// Run a job now, on one of the machines that run it
    ///
    /// Waits up to a minute for one to take the order; machines look for orders every 15 seconds.
    RunNow(Target),
    /// Skip the slots of a job from now on
    Pause(Target),
    /// Run the slots of a paused job again
    Resume(Target),
}

#[derive(clap::Args)]
struct Target {
    /// The name of the job
    name: LeaseName,
    #[command(flatten)]
    store: StoreArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct Next {
    #[command(flatten)]
    target: Target,
    /// How many slots to show
    #[arg(long, default_value_t = 5, value_name = "NUMBER")]
    count: usize,
}

#[derive(clap::Args)]
struct RunArgs {
    /// The store that keeps the jobs' records, such as file:./leases
    #[arg(
        long = "lease",
        alias = "store",
        value_name = "URL",
        env = "TENURE_LEASE",
        hide_env_values = true
    )]
    url: Option<String>,
    /// The name of the job and of its lease: lower-case letters, digits, '-' and '.'
    #[arg(long, value_name = "NAME", required_unless_present = "config")]
    name: Option<LeaseName>,
    /// When it is due, such as '0 3 * * *'
    #[arg(long, value_name = "WHEN", required_unless_present = "config")]
    at: Option<String>,
    /// A file with many jobs; it is read again when it changes
    #[arg(long, value_name = "FILE", conflicts_with_all = ["name", "at", "words"])]
    config: Option<PathBuf>,
    #[command(flatten)]
    policies: Policies,
    /// How long the lease lasts after each renewal
    #[arg(long, value_parser = duration::parse, default_value = "15s", value_name = "DURATION")]
    ttl: Duration,
    /// Who runs it, for people [default: POD_NAME, HOSTNAME or the host's name]
    #[arg(long, value_name = "NAME")]
    owner: Option<String>,
    /// How long the command may take to stop [default: ttl/8, at most 3s]
    #[arg(long, value_parser = duration::parse, value_name = "DURATION")]
    stop_budget: Option<Duration>,
    /// Serve metrics for Prometheus at http://ADDRESS/metrics, such as 127.0.0.1:9464, and /alive
    #[cfg(feature = "cluster")]
    #[arg(long, value_parser = crate::run::metrics::parse_address, value_name = "ADDRESS")]
    metrics: Option<std::net::SocketAddr>,
    /// The command and its arguments, after `--`
    #[arg(last = true, required_unless_present = "config", value_name = "CMD")]
    words: Vec<OsString>,
}

#[derive(clap::Args)]
struct Policies {
    /// The time zone on whose clock --at is read, such as Europe/Berlin
    #[arg(long, value_name = "ZONE", default_value = "UTC", conflicts_with = "config")]
    tz: String,
    /// Slots that nobody could run when they were due: run the latest of them (once), each (all), or none that
    /// is more than --within late, a minute by default (skip)
    #[arg(long, default_value = "once", value_name = "once|all|skip", conflicts_with = "config")]
    missed: Missed,
    /// How late a slot may be started; later it is skipped
    #[arg(long, value_parser = duration::parse, value_name = "DURATION", conflicts_with = "config")]
    within: Option<Duration>,
    /// A run that was interrupted: run its slot again, or leave it
    #[arg(long, default_value = "rerun", value_name = "rerun|leave", conflicts_with = "config")]
    interrupted: Interrupted,
    /// Slots that are due while a run has not ended: skip them, or run them after it
    #[arg(long, default_value = "skip", value_name = "skip|queue", conflicts_with = "config")]
    overlap: Overlap,
    /// Start each slot up to this much later, by a number that the job's name and the slot determine
    #[arg(long, value_parser = duration::parse, default_value = "0s", value_name = "DURATION", conflicts_with = "config")]
    jitter: Duration,
    /// How often a run that failed is tried again
    #[arg(long, default_value_t = 0, value_name = "NUMBER", conflicts_with = "config")]
    retries: u32,
    /// The pause before the first retry; it doubles with each
    #[arg(long, value_parser = duration::parse, default_value = "10s", value_name = "DURATION", conflicts_with = "config")]
    backoff: Duration,
    /// How long a run may take; then it is stopped, and has failed with code 124
    #[arg(long, value_parser = duration::parse, value_name = "DURATION", conflicts_with = "config")]
    deadline: Option<Duration>,
}

impl Args {
    /// Whether it runs jobs, rather than asking about them.
    pub(crate) fn runs_jobs(&self) -> bool {
        self.command.is_none()
    }
}

pub(crate) fn main(args: Args) -> Result<ExitCode, Failure> {
    // One thread, the process's main one, so that what it spawns has a parent for as long as the process
    // lives.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::system("cannot start", &error))?;
    runtime.block_on(async {
        match args.command {
            None => return tokio::task::LocalSet::new().run_until(run(args.run)).await,
            Some(Command::History(target)) => show::history(&target).await,
            Some(Command::Next(args)) => show::next(&args).await,
            Some(Command::RunNow(target)) => orders::run_now(&target).await,
            Some(Command::Pause(target)) => orders::pause(&target).await,
            Some(Command::Resume(target)) => orders::resume(&target).await,
        }
        .map(|()| ExitCode::SUCCESS)
    })
}

async fn run(args: RunArgs) -> Result<ExitCode, Failure> {
    crate::run::sys::check_requirements()
        .map_err(|error| Failure::system("this system lacks", &error))?;
    let settings = crate::run::settings(args.ttl, args.stop_budget)?;
    #[cfg(feature = "cluster")]
    let _metrics = match args.metrics {
        Some(address) => {
            let running = crate::run::metrics::serve(address).await?;
            tenure_cron::telemetry::METRICS.iter().for_each(|metric| metric.describe());
            Some(running)
        }
        None => None,
    };
    let source = match (args.config, args.name, args.at) {
        (Some(path), ..) => jobs::Source::File(CronFile::open(path)?),
        (None, Some(name), Some(at)) => jobs::Source::One(Box::new(JobSpec {
            name,
            at,
            zone: args.policies.tz.clone(),
            policies: args.policies.settings(),
            command: args.words,
        })),
        (None, ..) => return Err(Failure::usage("--name and --at, or --config, are needed")),
    };
    let url = args.url.or_else(|| source.store().map(str::to_owned)).ok_or_else(|| {
        Failure::usage("no store is named: --lease, TENURE_LEASE, or `lease` in the file")
    })?;
    let store = StoreArgs::from(url.as_str()).open_shared().await?;
    settings.check_for(&store.info())?;
    jobs::keep(source, &jobs::Machine { store, settings, owner: args.owner }).await
}

impl Policies {
    fn settings(&self) -> JobSettings {
        JobSettings {
            missed: self.missed,
            within: self.within,
            interrupted: self.interrupted,
            overlap: self.overlap,
            jitter: self.jitter,
            retries: self.retries,
            backoff: self.backoff,
            deadline: self.deadline,
            ..JobSettings::default()
        }
    }
}
