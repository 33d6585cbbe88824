//! What programs call: `store.schedule("report").at("0 3 * * *").run(async |run| …)`.

use std::fmt::Display;
use std::future::Future;
use std::time::Duration;

use tenure_lease::{Lease, LeaseError, Owner, Settings, Store};

use crate::driver::{CurrentRun, OrdersWatch, keep_schedule};
use crate::{
    Interrupted, Job, JobSettings, Missed, Overlap, RunEnd, Schedule, ScheduleError,
    UnreadableLedger,
};

/// Schedules on a store.
pub trait StoreSchedule {
    /// A job of this name, which is due at no time before it is told [when](ScheduledJob::at).
    fn schedule(&self, name: &str) -> ScheduledJob;
}

impl StoreSchedule for Store {
    fn schedule(&self, name: &str) -> ScheduledJob {
        ScheduledJob {
            lease: self.lease(name),
            owner: Owner::this_process(),
            name: name.to_owned(),
            at: String::new(),
            zone: "UTC".to_owned(),
            settings: JobSettings::default(),
        }
    }
}

/// A job that may be run.
#[derive(Clone, Debug)]
#[must_use = "a job is not run before `run` is called"]
pub struct ScheduledJob {
    lease: Lease,
    owner: Owner,
    name: String,
    at: String,
    zone: String,
    settings: JobSettings,
}

impl ScheduledJob {
    /// When it is due: a cron expression, `@daily`, `@every 90s`.
    pub fn at(self, at: &str) -> Self {
        Self { at: at.to_owned(), ..self }
    }

    /// The time zone on whose clock the expression is read, such as `Europe/Berlin`; `UTC` if none is given.
    pub fn zone(self, zone: &str) -> Self {
        Self { zone: zone.to_owned(), ..self }
    }

    /// What becomes of slots that nobody could run when they were due.
    pub fn missed(mut self, missed: Missed) -> Self {
        self.settings.missed = missed;
        self
    }

    /// How late a slot may be started.
    pub fn within(mut self, within: Duration) -> Self {
        self.settings.within = Some(within);
        self
    }

    /// What becomes of a run that was interrupted.
    pub fn interrupted(mut self, interrupted: Interrupted) -> Self {
        self.settings.interrupted = interrupted;
        self
    }

    /// What becomes of slots that are due while a run has not ended.
    pub fn overlap(mut self, overlap: Overlap) -> Self {
        self.settings.overlap = overlap;
        self
    }

    /// Starts each slot up to this much later: see [`JobSettings::jitter`].
    pub fn jitter(mut self, jitter: Duration) -> Self {
        self.settings.jitter = jitter;
        self
    }

    /// Tries a run that failed again so many times, after this pause, which doubles each time.
    pub fn retries(mut self, retries: u32, backoff: Duration) -> Self {
        self.settings.retries = retries;
        self.settings.backoff = backoff;
        self
    }

    /// Stops a run that takes longer; it has failed then.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.settings.deadline = Some(deadline);
        self
    }

    /// All policies at once.
    pub fn policies(self, settings: JobSettings) -> Self {
        Self { settings, ..self }
    }

    /// The timing of the job's lease.
    pub fn settings(self, settings: Settings) -> Self {
        Self { lease: self.lease.settings(settings), ..self }
    }

    /// Names who runs it, instead of `POD_NAME`, `HOSTNAME` or the host's name.
    pub fn owner(self, name: impl Into<String>) -> Self {
        let owner = Owner::named(name);
        Self { lease: self.lease.owner(owner.name.clone()), owner, ..self }
    }

    /// Checks what can be checked without asking the store.
    pub fn check(&self) -> Result<Job, CronError> {
        self.lease.check()?;
        let schedule = Schedule::parse(&self.at, &self.zone)?;
        Ok(Job::new(&self.name, schedule, self.settings.clone())?)
    }

    /// Runs the closure for each slot that is this process's to run, for ever. Every process that may run the
    /// job calls this; of all of them, one runs each slot.
    ///
    /// A closure that returns an error has failed. At a lost lease, a deadline or a stop it is dropped where
    /// it awaits.
    pub async fn run<E, F>(&self, work: F) -> Result<(), CronError>
    where
        F: AsyncFnMut(&CurrentRun<'_>) -> Result<(), E>,
        E: Display,
    {
        self.run_until(std::future::pending(), work).await
    }

    /// As [`run`](Self::run), until `stop` resolves: then the closure is dropped where it awaits, its slot is
    /// handed over as interrupted, and this returns.
    pub async fn run_until<E, F>(
        &self,
        stop: impl Future<Output = ()>,
        work: F,
    ) -> Result<(), CronError>
    where
        F: AsyncFnMut(&CurrentRun<'_>) -> Result<(), E>,
        E: Display,
    {
        let orders = OrdersWatch::start(&self.lease.store());
        let stop = async {
            stop.await;
            "its process was told to stop".to_owned()
        };
        self.keep(&orders, stop, ClosureRunner { job: self.name.clone(), work }).await
    }

    /// As [`run_until`](Self::run_until), for who stops its runs by itself. `stop` says why.
    pub async fn keep<R: SlotRunner>(
        &self,
        orders: &OrdersWatch,
        stop: impl Future<Output = String>,
        runner: R,
    ) -> Result<(), CronError> {
        let lease = (self.lease.clone(), self.owner.clone());
        keep_schedule(self.check()?, lease, orders, stop, runner).await
    }
}

/// What runs slots.
pub trait SlotRunner {
    /// Runs a slot to its end, which comes soon after [`CurrentRun::stop_requested`]; how it ended.
    fn run_slot(&mut self, run: &CurrentRun<'_>) -> impl Future<Output = RunEnd>;
}

/// Runs a closure, and drops it where it awaits if it must stop.
struct ClosureRunner<F> {
    job: String,
    work: F,
}

impl<E, F> SlotRunner for ClosureRunner<F>
where
    F: AsyncFnMut(&CurrentRun<'_>) -> Result<(), E>,
    E: Display,
{
    async fn run_slot(&mut self, run: &CurrentRun<'_>) -> RunEnd {
        let Self { job, work } = self;
        let outcome = tokio::select! {
            biased;
            outcome = work(run) => outcome,
            () = run.stop_requested() => return RunEnd::Stopped,
        };
        match outcome {
            Ok(()) => RunEnd::Exited(0),
            Err(error) => {
                tracing::error!(job, slot = %run.slot(), %error, "the run failed");
                RunEnd::Exited(1)
            }
        }
    }
}

/// Why a job cannot be run, or not any longer.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CronError {
    /// The schedule is none.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// The lease cannot be had: its name or its timing is wrong, or the store refuses it.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// The note of the job's lease is no ledger that this version reads.
    #[error(transparent)]
    Ledger(#[from] UnreadableLedger),
}
