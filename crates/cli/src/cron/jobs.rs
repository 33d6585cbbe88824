//! All jobs of a process: started, stopped, and changed when the file changes. Drives: it waits.
#![allow(clippy::disallowed_methods)]

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use tenure_cron::{CronError, OrdersWatch, StoreSchedule as _};
use tenure_lease::signals::{Signals, is_urgent};
use tenure_lease::{LeaseName, Owner, Settings, Store};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::config::{CronFile, JobSpec};
use super::runner::CommandRunner;
use crate::exit::Failure;
use crate::run::{exit_code_of, tolerate_outage};

/// Where jobs come from.
pub(super) enum Source {
    One(Box<JobSpec>),
    File(CronFile),
}

impl Source {
    /// The store that a file names.
    pub(super) fn store(&self) -> Option<&str> {
        match self {
            Self::One(_) => None,
            Self::File(file) => file.store(),
        }
    }

    fn jobs(&self) -> &[JobSpec] {
        match self {
            Self::One(job) => std::slice::from_ref(job),
            Self::File(file) => file.jobs(),
        }
    }
}

/// What all jobs of a process share.
pub(super) struct Machine {
    pub(super) store: Store,
    pub(super) settings: Settings,
    pub(super) owner: Option<String>,
}

/// A job under way.
struct RunningJob {
    spec: JobSpec,
    /// Says why it is to stop, once it is.
    stop: watch::Sender<Option<String>>,
    task: JoinHandle<Result<(), CronError>>,
}

/// Runs jobs until this process is told to stop.
pub(super) async fn keep(mut source: Source, machine: &Machine) -> Result<ExitCode, Failure> {
    let mut signals = Signals::catch().map_err(|error| Failure::system("signals", &error))?;
    source.jobs().iter().try_for_each(JobSpec::check)?;
    if let Some(first) = source.jobs().first() {
        tokio::select! {
            biased;
            signal = signals.next() => return Ok(ExitCode::from(exit_code_of(signal))),
            checked = machine.store.preflight(first.name.as_str()) => tolerate_outage(checked)?,
        }
    }
    let orders = std::rc::Rc::new(OrdersWatch::start(&machine.store));
    let (hurry, hurry_receiver) = watch::channel(false);
    let mut jobs: BTreeMap<LeaseName, RunningJob> = BTreeMap::new();
    let start = |spec: &JobSpec| machine.start(spec, &orders, &hurry_receiver);
    for spec in source.jobs() {
        jobs.insert(spec.name.clone(), start(spec));
    }
    let mut tick = tokio::time::interval(RELOAD_EVERY);
    let signal = loop {
        tokio::select! {
            biased;
            signal = signals.next() => break signal,
            _ = tick.tick() => {}
        }
        if let Source::File(file) = &mut source {
            match file.reload() {
                Ok(true) => change(&mut jobs, file.jobs(), start).await,
                Ok(false) => {}
                Err(failure) => {
                    tracing::error!("{}; the jobs stay as they are", failure.message());
                }
            }
        }
        if let Some(ended) = ended(&mut jobs).await {
            return Err(ended);
        }
    };
    let why = format!("signal {signal} to {}", machine.owner_name());
    for job in jobs.values() {
        job.stop.send_replace(Some(why.clone()));
    }
    let all_ended = async {
        for (_, job) in std::mem::take(&mut jobs) {
            let _ = job.task.await;
        }
    };
    tokio::pin!(all_ended);
    loop {
        tokio::select! {
            biased;
            () = &mut all_ended => return Ok(ExitCode::from(exit_code_of(signal))),
            again = signals.next() => {
                if is_urgent(again) {
                    tracing::warn!(signal = again, "told to stop again: killing the commands");
                    hurry.send_replace(true);
                }
            }
        }
    }
}

/// Stops what is gone or has changed, and starts what is new or has changed.
async fn change(
    jobs: &mut BTreeMap<LeaseName, RunningJob>,
    specs: &[JobSpec],
    start: impl Fn(&JobSpec) -> RunningJob,
) {
    let is_kept = |job: &RunningJob| specs.contains(&job.spec);
    let stopped: Vec<LeaseName> =
        jobs.iter().filter(|(_, job)| !is_kept(job)).map(|(name, _)| name.clone()).collect();
    for job in stopped.iter().filter_map(|name| jobs.get(name)) {
        job.stop.send_replace(Some("its entry in the file was changed".to_owned()));
    }
    for name in &stopped {
        if let Some(job) = jobs.remove(name) {
            let _ = job.task.await;
        }
    }
    for spec in specs {
        if !jobs.contains_key(&spec.name) {
            tracing::info!(job = %spec.name, at = spec.at, "started, from the file");
            jobs.insert(spec.name.clone(), start(spec));
        }
    }
    tracing::info!(jobs = jobs.len(), "the file was read again");
}

/// A job that ends by itself has met something that does not become right by waiting. The only job of a
/// process ends it; of many, the others go on.
async fn ended(jobs: &mut BTreeMap<LeaseName, RunningJob>) -> Option<Failure> {
    let ended: Vec<LeaseName> = jobs
        .iter()
        .filter(|(_, job)| job.task.is_finished())
        .map(|(name, _)| name.clone())
        .collect();
    for name in ended {
        let Some(job) = jobs.remove(&name) else { continue };
        let message = match job.task.await {
            Ok(Ok(())) => continue,
            Ok(Err(CronError::Lease(error))) => Failure::from(error),
            Ok(Err(error)) => Failure::usage(error.to_string()),
            Err(error) => Failure::new(crate::exit::SYSTEM, error.to_string()),
        };
        if jobs.is_empty() {
            return Some(message);
        }
        tracing::error!(job = %name, "{}; this job is not run any more", message.message());
    }
    None
}

impl Machine {
    fn start(
        &self,
        spec: &JobSpec,
        orders: &std::rc::Rc<OrdersWatch>,
        hurry: &watch::Receiver<bool>,
    ) -> RunningJob {
        let (stop, mut stopped) = watch::channel(None);
        let mut job = self
            .store
            .schedule(spec.name.as_str())
            .at(&spec.at)
            .zone(&spec.zone)
            .policies(spec.policies.clone())
            .settings(self.settings.clone());
        if let Some(owner) = &self.owner {
            job = job.owner(owner);
        }
        let runner = CommandRunner {
            store: self.store.clone(),
            settings: self.settings.clone(),
            command: spec.command.clone(),
            hurry: hurry.clone(),
        };
        let orders = std::rc::Rc::clone(orders);
        let task = tokio::task::spawn_local(async move {
            let stop = async {
                match stopped.wait_for(Option::is_some).await {
                    Ok(why) => why.clone().unwrap_or_default(),
                    Err(_) => "its process ends".to_owned(),
                }
            };
            job.keep(&orders, stop, runner).await
        });
        RunningJob { spec: spec.clone(), stop, task }
    }

    fn owner_name(&self) -> String {
        self.owner.clone().unwrap_or_else(|| Owner::this_process().name)
    }
}

/// How often the file is looked at.
const RELOAD_EVERY: Duration = Duration::from_secs(1);
