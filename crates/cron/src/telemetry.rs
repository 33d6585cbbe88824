//! The names of all metrics of jobs. The label `lease` is the job's name, which is that of its lease.

use metrics::{counter, gauge, histogram};
use tenure_lease::telemetry::Metric;

use crate::{SettledSlot, SlotOutcome};

/// All metrics of this crate.
pub const METRICS: &[Metric] = &[
    Metric::counter(
        SLOTS,
        &["lease", "outcome"],
        "Slots of the job that this process settled, by outcome",
    ),
    Metric::histogram(RUN, &["lease"], "How long the job's last attempts took"),
    Metric::gauge(
        LATENESS,
        &["lease"],
        "How late the job's last slot was claimed here, in seconds",
    ),
    Metric::gauge(
        OVERDUE,
        &["lease"],
        "For how many seconds a slot of the job is due that nobody has claimed",
    ),
    Metric::gauge(
        RUNNING,
        &["lease"],
        "For how many seconds the job's run in this process is under way",
    ),
];

/// Counter, by `lease` and `outcome`: `done`, `failed`, `interrupted`, or why a slot was skipped: `missed`,
/// `overlap`, `paused`, `rescheduled`.
pub const SLOTS: &str = "tenure_cron_slots_total";
/// Histogram, seconds, by `lease`: how long the last attempts of settled slots took.
pub const RUN: &str = "tenure_cron_run_seconds";
/// Gauge, seconds, by `lease`: how late the last slot was claimed by this process.
pub const LATENESS: &str = "tenure_cron_lateness_seconds";
/// Gauge, seconds, by `lease`: since when a slot is due that nobody has claimed.
pub const OVERDUE: &str = "tenure_cron_overdue_seconds";
/// Gauge, seconds, by `lease`: since when a run of this process is under way; 0 if none is.
pub const RUNNING: &str = "tenure_cron_running_seconds";

pub(crate) fn settled(job: &str, line: &SettledSlot) {
    let outcome = match &line.outcome {
        SlotOutcome::Skipped(reason) => reason.word(),
        outcome => outcome.word(),
    };
    counter!(SLOTS, "lease" => job.to_owned(), "outcome" => outcome).increment(line.count);
    if let Some(took) = line.took_ms {
        histogram!(RUN, "lease" => job.to_owned()).record(took as f64 / 1000.0);
    }
}

pub(crate) fn late(job: &str, seconds: f64) {
    gauge!(LATENESS, "lease" => job.to_owned()).set(seconds);
}

pub(crate) fn overdue(job: &str, seconds: f64) {
    gauge!(OVERDUE, "lease" => job.to_owned()).set(seconds);
}

pub(crate) fn running(job: &str, seconds: f64) {
    gauge!(RUNNING, "lease" => job.to_owned()).set(seconds);
}
