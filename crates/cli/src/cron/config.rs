//! `tenure cron --config`: a file with many jobs.
//!
//! ```toml
//! lease = "etcd://10.0.0.1:2379/shop"
//!
//! [jobs.report]
//! at = "0 3 * * *"
//! tz = "Europe/Berlin"
//! within = "2h"
//! command = ["/usr/local/bin/report", "--daily"]
//! ```

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use tenure_cron::{Job, JobSettings, Schedule};
use tenure_lease::{LeaseName, duration};

use crate::exit::Failure;

/// A job, as somebody described it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct JobSpec {
    pub(super) name: LeaseName,
    pub(super) at: String,
    pub(super) zone: String,
    pub(super) policies: JobSettings,
    pub(super) command: Vec<OsString>,
}

impl JobSpec {
    /// What is wrong with it, if something is.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let wrong =
            |error: &dyn std::fmt::Display| Failure::usage(format!("{}: {error}", self.name));
        let schedule = Schedule::parse(&self.at, &self.zone).map_err(|error| wrong(&error))?;
        Job::new(self.name.as_str(), schedule, self.policies.clone())
            .map_err(|error| wrong(&error))?;
        if self.command.is_empty() {
            return Err(wrong(&"it has no command"));
        }
        Ok(())
    }
}

/// A file with jobs, as it was read last.
pub(super) struct CronFile {
    path: PathBuf,
    /// What stood in it.
    text: String,
    lease: Option<String>,
    jobs: Vec<JobSpec>,
}

impl CronFile {
    pub(super) fn open(path: PathBuf) -> Result<Self, Failure> {
        let text = read(&path)?;
        let (lease, jobs) = parse(&path, &text)?;
        Ok(Self { path, text, lease, jobs })
    }

    /// The store that it names.
    pub(super) fn store(&self) -> Option<&str> {
        self.lease.as_deref()
    }

    pub(super) fn jobs(&self) -> &[JobSpec] {
        &self.jobs
    }

    /// Reads it again; `false` if it has not changed. What is wrong with it is said once, and the jobs stay
    /// as they are.
    pub(super) fn reload(&mut self) -> Result<bool, Failure> {
        let text = read(&self.path)?;
        if text == self.text {
            return Ok(false);
        }
        self.text = text;
        let (_, jobs) = parse(&self.path, &self.text)?;
        self.jobs = jobs;
        Ok(true)
    }
}

fn read(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path)
        .map_err(|error| Failure::usage(format!("{}: {error}", path.display())))
}

fn parse(path: &Path, text: &str) -> Result<(Option<String>, Vec<JobSpec>), Failure> {
    let within =
        |error: Failure| Failure::usage(format!("{}: {}", path.display(), error.message()));
    let file: FileText =
        toml::from_str(text).map_err(|error| within(Failure::usage(error.to_string())))?;
    let mut jobs = Vec::new();
    for (name, job) in file.jobs {
        let spec = job.spec(&name).map_err(within)?;
        spec.check().map_err(within)?;
        jobs.push(spec);
    }
    if jobs.len() > JOBS_MAX {
        return Err(within(Failure::usage(format!("more than {JOBS_MAX} jobs"))));
    }
    Ok((file.lease, jobs))
}

/// The file, word for word.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileText {
    #[serde(alias = "store")]
    lease: Option<String>,
    #[serde(default)]
    jobs: BTreeMap<String, JobText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JobText {
    at: String,
    tz: Option<String>,
    missed: Option<String>,
    within: Option<String>,
    interrupted: Option<String>,
    overlap: Option<String>,
    jitter: Option<String>,
    retries: Option<u32>,
    backoff: Option<String>,
    deadline: Option<String>,
    command: Vec<String>,
}

impl JobText {
    fn spec(self, name: &str) -> Result<JobSpec, Failure> {
        let wrong = |error: String| Failure::usage(format!("{name}: {error}"));
        let time = |text: Option<String>| -> Result<Option<Duration>, Failure> {
            text.map(|text| duration::parse(&text).map_err(wrong)).transpose()
        };
        let usual = JobSettings::default();
        let policies = JobSettings {
            missed: word(self.missed).map_err(wrong)?,
            within: time(self.within)?,
            interrupted: word(self.interrupted).map_err(wrong)?,
            overlap: word(self.overlap).map_err(wrong)?,
            jitter: time(self.jitter)?.unwrap_or(usual.jitter),
            retries: self.retries.unwrap_or(usual.retries),
            backoff: time(self.backoff)?.unwrap_or(usual.backoff),
            deadline: time(self.deadline)?,
            ..usual
        };
        Ok(JobSpec {
            name: LeaseName::new(name)?,
            at: self.at,
            zone: self.tz.unwrap_or_else(|| "UTC".to_owned()),
            policies,
            command: self.command.into_iter().map(OsString::from).collect(),
        })
    }
}

fn word<P: std::str::FromStr<Err = String> + Default>(text: Option<String>) -> Result<P, String> {
    text.map_or(Ok(P::default()), |text| text.parse())
}

/// How many jobs a process runs at most.
const JOBS_MAX: usize = 2_000;
