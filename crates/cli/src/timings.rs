//! `tenure timings`: what follows from a lease's settings.

#[cfg(feature = "cluster")]
mod failover;

use std::fmt::{self, Write as _};
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
    /// How often the holder renews [default: ttl/6]
    #[arg(long, value_parser = duration::parse, value_name = "DURATION")]
    renew_interval: Option<Duration>,
    /// How long one request to the store may take, except renewals [default: ttl/4]
    #[arg(long, value_parser = duration::parse, value_name = "DURATION")]
    operation_timeout: Option<Duration>,
    /// How long the guarded work may take to stop [default: ttl/8, at most 3s]
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
        output::text(&timings.explain(store.as_ref()))?;
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
    /// How long a renewal has no answer, at most, before the next one is sent.
    hedge_interval_ms: u64,
    /// How often a waiter looks at the record, woken or not.
    look_interval_ms: u64,
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

impl fmt::Display for Failover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at_least_ms, at_most_ms } = *self;
        if at_least_ms == 0 {
            return write!(f, "up to {}", shown(at_most_ms));
        }
        write!(f, "{} to {}", shown(at_least_ms), shown(at_most_ms))
    }
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
        let frees_after = ttl * store.map_or(1, |store| store.frees_after_ttls);
        let is_local = store.is_some_and(StoreInfo::is_local);
        let (after_crash, after_release) = if is_local {
            let at_most_ms = millis(LOCAL);
            (Failover { at_least_ms: 0, at_most_ms }, Failover { at_least_ms: 0, at_most_ms })
        } else {
            let after_crash = Failover {
                at_least_ms: millis(ttl.saturating_sub(renew_interval)),
                at_most_ms: millis(frees_after + NOTICED),
            };
            (after_crash, Failover { at_least_ms: 0, at_most_ms: millis(NOTICED) })
        };
        // A local store has no connections that could hang: a renewal is sent again when it has
        // timed out.
        let (hedge_interval, survived) = if is_local {
            (operation_timeout, ttl - sum)
        } else {
            (settings.hedge_interval(), settings.outage_survived())
        };
        let is_woken = store.is_some_and(|store| store.pushes_renewals);
        let look_interval = if is_woken { renew_interval } else { settings.look_interval() };
        Self {
            ttl_ms: millis(ttl),
            renew_interval_ms: millis(renew_interval),
            operation_timeout_ms: millis(operation_timeout),
            stop_budget_ms: millis(stop_budget),
            margin_ms: millis(margin),
            hedge_interval_ms: millis(hedge_interval),
            look_interval_ms: millis(look_interval),
            sum_ms: millis(sum),
            slack_ms: millis(ttl - sum),
            held_for_ms: millis(settings.held_for()),
            kill_after_ms: millis(settings.kill_after()),
            after_crash,
            after_release,
            store_outage: Outage {
                survived_ms: millis(survived),
                held_ms: millis(settings.held_for()),
                stopped_ms: millis(settings.kill_after()),
            },
            #[cfg(feature = "cluster")]
            in_cluster: args.cluster.failover(ttl),
        }
    }

    fn explain(&self, store: Option<&StoreInfo>) -> String {
        let mut text = String::new();
        for (name, value) in [
            ("ttl", self.ttl_ms),
            ("renew interval", self.renew_interval_ms),
            ("operation timeout", self.operation_timeout_ms),
            ("stop budget", self.stop_budget_ms),
            ("margin", self.margin_ms),
            ("hedge interval", self.hedge_interval_ms),
            ("look interval", self.look_interval_ms),
        ] {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{name:<19}{}", shown(value));
        }
        let _ = writeln!(
            text,
            "\n{} + {} + {} + {} = {} < {}: one request may time out, and {} are left for the \
             next.\n",
            shown(self.renew_interval_ms),
            shown(self.operation_timeout_ms),
            shown(self.stop_budget_ms),
            shown(self.margin_ms),
            shown(self.sum_ms),
            shown(self.ttl_ms),
            shown(self.slack_ms),
        );
        let Outage { survived_ms, held_ms, stopped_ms } = self.store_outage;
        let _ = write!(
            text,
            "The next holder starts, on {} store:\n  \
             after a crash    {}: {}.\n  \
             after a release  {}: {}.\n\
             When the store is away:\n  \
             up to {} are always survived: the holder works on, and renews when it is back.\n  \
             {} after its last renewal was sent, the lease counts as lost and the work stops;\n  \
             {} after it, the work has ended or is killed, {} before anybody else can start.",
            store.map_or("any", |store| store.kind),
            self.after_crash,
            why_after_crash(store),
            self.after_release,
            self.why_after_release(store),
            shown(survived_ms),
            shown(held_ms),
            shown(stopped_ms),
            shown(self.margin_ms),
        );
        text
    }

    fn why_after_release(&self, store: Option<&StoreInfo>) -> String {
        let looks = format!("who waits looks every {}", shown(self.look_interval_ms));
        match store {
            Some(store) if store.pushes => {
                "the store wakes who waits, as a rule in one or two round trips".to_owned()
            }
            Some(_) => format!("{looks}, and the store does not wake it"),
            None => format!("{looks}, unless the store wakes it: then one or two round trips"),
        }
    }
}

fn why_after_crash(store: Option<&StoreInfo>) -> String {
    if store.is_some_and(StoreInfo::is_local) {
        return "the kernel frees a dead holder's lock, under `tenure run` when its command has \
                ended too"
            .to_owned();
    }
    let ttls = store.map_or(1, |store| store.frees_after_ttls);
    format!("the lease must run out ({ttls} × ttl after the last renewal), and be noticed")
}

fn shown(millis: u64) -> String {
    format!("{:?}", Duration::from_millis(millis))
}

/// To the nearest one: a ttl has parts that are fractions of it.
fn millis(duration: Duration) -> u64 {
    u64::try_from((duration.as_micros() + 500) / 1_000).unwrap_or(u64::MAX)
}

/// What it takes to notice that a lease is free: a look interval with its jitter, the pause that
/// keeps many waiters from asking at once, and the round trips of a store that answers promptly.
const NOTICED: Duration = Duration::from_secs(1);
/// What waking and starting take on one machine, when it is not overloaded.
const LOCAL: Duration = Duration::from_millis(100);
