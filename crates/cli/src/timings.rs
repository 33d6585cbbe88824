//! `tenure timings`: what follows from a lease's settings.

#[cfg(feature = "cluster")]
mod failover;

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;
use tenure_lease::Settings;
use tenure_lease::backend::StoreInfo;

use crate::duration;
use crate::exit::Failure;
use crate::output;
use crate::store;

/// Show the arithmetic of a lease's timing, and the failover to expect
///
/// What is not given follows from the ttl. With --lease, the failover is that of that store. What
/// a cluster needs besides follows from its size.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How long a tenure lasts after its last renewal
    #[arg(long, value_parser = duration::parse, default_value = "15s", value_name = "DURATION")]
    ttl: Duration,
    /// How often the holder renews [default: ttl/3]
    #[arg(long, value_parser = duration::parse, value_name = "DURATION")]
    renew_interval: Option<Duration>,
    /// How long one request to the store may take [default: ttl/4]
    #[arg(long, value_parser = duration::parse, value_name = "DURATION")]
    operation_timeout: Option<Duration>,
    /// How long the guarded work may take to stop [default: ttl/5, at most 3s]
    #[arg(long, value_parser = duration::parse, value_name = "DURATION")]
    stop_budget: Option<Duration>,
    /// The safety distance for clock rates and short pauses [default: ttl/10]
    #[arg(long, value_parser = duration::parse, value_name = "DURATION")]
    margin: Option<Duration>,
    #[cfg(feature = "cluster")]
    #[command(flatten)]
    cluster: failover::ClusterArgs,
    /// The store whose bounds and failover to show
    #[arg(long = "lease", value_name = "URL", env = "TENURE_LEASE", hide_env_values = true)]
    url: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn main(args: &Args) -> Result<ExitCode, Failure> {
    let settings = args.settings();
    let store = match &args.url {
        Some(url) => Some(info(url)?),
        None => None,
    };
    match &store {
        Some(store) => settings.check_for(store)?,
        None => settings.check()?,
    }
    let timings = Timings::of(args, &settings, store.as_ref());
    if args.json {
        output::json(&timings)?;
    } else {
        output::text(&timings.explain(&settings, store.as_ref()))?;
        #[cfg(feature = "cluster")]
        output::text(&format!("\n{}", timings.in_cluster))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn info(url: &str) -> Result<StoreInfo, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::system("cannot start", &error))?;
    Ok(runtime.block_on(store::look(url))?.info())
}

impl Args {
    fn settings(&self) -> Settings {
        let mut settings = Settings::new(self.ttl);
        let given = [
            (&mut settings.renew_interval, self.renew_interval),
            (&mut settings.operation_timeout, self.operation_timeout),
            (&mut settings.stop_budget, self.stop_budget),
            (&mut settings.margin, self.margin),
        ];
        for (setting, given) in given {
            *setting = given.unwrap_or(*setting);
        }
        settings
    }
}

/// What `--json` prints; its shape is stable.
#[derive(Serialize)]
struct Timings {
    ttl_ms: u64,
    renew_interval_ms: u64,
    operation_timeout_ms: u64,
    stop_budget_ms: u64,
    margin_ms: u64,
    /// The sum that must be less than the ttl.
    sum_ms: u64,
    slack_ms: u64,
    held_for_ms: u64,
    kill_after_ms: u64,
    after_crash: Failover,
    after_release: Failover,
    store_outage: Outage,
    /// What a dead member of a cluster hosted.
    #[cfg(feature = "cluster")]
    in_cluster: failover::InCluster,
}

/// From the event to the next holder's start.
#[derive(Serialize)]
struct Failover {
    at_least_ms: u64,
    at_most_ms: u64,
}

/// How long after the store was last reached.
#[derive(Serialize)]
struct Outage {
    /// One that is no longer than this costs nothing, even at the worst moment.
    survived_ms: u64,
    /// The longest that the holder works on after the store has gone.
    held_ms: u64,
    /// By then what it guards has ended.
    stopped_ms: u64,
}

impl Timings {
    fn of(args: &Args, settings: &Settings, store: Option<&StoreInfo>) -> Self {
        #[cfg(not(feature = "cluster"))]
        let _ = args;
        let Settings { ttl, renew_interval, operation_timeout, stop_budget, margin, .. } =
            *settings;
        let sum = renew_interval + operation_timeout + stop_budget + margin;
        // A contender polls at about the renew interval, spread by a fifth.
        let poll = renew_interval + renew_interval / 5;
        let detect = if store.is_some_and(|store| store.pushes) { Duration::ZERO } else { poll };
        let ttls = store.map_or(1, |store| store.frees_after_ttls);
        let after_crash = if is_local(store) {
            Failover { at_least_ms: 0, at_most_ms: millis(LOCAL) }
        } else {
            Failover {
                at_least_ms: millis((ttl * ttls).saturating_sub(renew_interval)),
                at_most_ms: millis(ttl * ttls + detect + operation_timeout),
            }
        };
        let after_release = if is_local(store) {
            Failover { at_least_ms: 0, at_most_ms: millis(LOCAL) }
        } else {
            Failover { at_least_ms: 0, at_most_ms: millis(detect + operation_timeout) }
        };
        Self {
            ttl_ms: millis(ttl),
            renew_interval_ms: millis(renew_interval),
            operation_timeout_ms: millis(operation_timeout),
            stop_budget_ms: millis(stop_budget),
            margin_ms: millis(margin),
            sum_ms: millis(sum),
            slack_ms: millis(ttl - sum),
            held_for_ms: millis(settings.held_for()),
            kill_after_ms: millis(settings.kill_after()),
            after_crash,
            after_release,
            store_outage: Outage {
                survived_ms: millis(ttl - sum),
                held_ms: millis(settings.held_for()),
                stopped_ms: millis(settings.kill_after()),
            },
            #[cfg(feature = "cluster")]
            in_cluster: args.cluster.failover(ttl),
        }
    }

    fn explain(&self, settings: &Settings, store: Option<&StoreInfo>) -> String {
        let Settings { ttl, renew_interval, operation_timeout, stop_budget, margin, .. } =
            *settings;
        let shown = |millis| format!("{:?}", Duration::from_millis(millis));
        let mut text = format!(
            "ttl                {ttl:?}\nrenew interval     {renew_interval:?}\n\
             operation timeout  {operation_timeout:?}\nstop budget        {stop_budget:?}\n\
             margin             {margin:?}\n\n{renew_interval:?} + {operation_timeout:?} + \
             {stop_budget:?} + {margin:?} = {} < {ttl:?}: one renewal may time out, the next one \
             has {} of slack.\n\n",
            shown(self.sum_ms),
            shown(self.slack_ms),
        );
        let kind = store.map_or("any", |store| store.kind);
        let crash = if is_local(store) {
            "the kernel frees a dead holder's lock, under `tenure run` when its command has ended too"
                .to_owned()
        } else {
            let frees = store.map_or(1, |store| store.frees_after_ttls);
            format!("the lease must run out ({frees} × ttl after the last renewal), and be noticed")
        };
        let release = match store {
            Some(store) if store.pushes => "the store wakes who waits",
            _ => "a store that pushes wakes who waits; otherwise it is noticed at the next poll",
        };
        let Failover { at_least_ms: crash_min, at_most_ms: crash_max } = self.after_crash;
        let Outage { survived_ms, held_ms, stopped_ms } = self.store_outage;
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "The next holder starts, on {kind} store:\n  \
             after a crash    {} to {}: {crash}.\n  \
             after a release  up to {}, as a rule one round trip: {release}.\n\
             When the store is away:\n  \
             up to {} are always survived: the holder works on, and renews when it is back.\n  \
             {} after its last renewal was sent, the lease counts as lost and the work stops;\n  \
             {} after it, the work has ended or is killed, {} before anybody else can start.",
            shown(crash_min),
            shown(crash_max),
            shown(self.after_release.at_most_ms),
            shown(survived_ms),
            shown(held_ms),
            shown(stopped_ms),
            shown(self.margin_ms),
        );
        text
    }
}

/// Whether the holder's end shows at once, because contenders are on the same machine.
fn is_local(store: Option<&StoreInfo>) -> bool {
    store.is_some_and(|store| store.kind == "file")
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// What waking and starting take on one machine, when it is not overloaded.
const LOCAL: Duration = Duration::from_millis(100);
