//! One run: the command under its guardian, as `tenure run` has it.

use std::ffi::OsString;

use tenure_cron::{CurrentRun, RunEnd, SlotRunner};
use tenure_lease::{Settings, Store};
use tokio::sync::watch;

use crate::run::hold::{self, End, HeldCommand, StopSignals};
use crate::run::{environment, sys};

/// Runs a job's command for each slot.
pub(super) struct CommandRunner {
    pub(super) store: Store,
    pub(super) settings: Settings,
    pub(super) command: Vec<OsString>,
    /// Whether the process was told to stop a second time.
    pub(super) hurry: watch::Receiver<bool>,
}

impl SlotRunner for CommandRunner {
    async fn run_slot(&mut self, run: &CurrentRun<'_>) -> RunEnd {
        let tenure = run.tenure();
        let mut environment = environment(tenure);
        environment.push(("TENURE_SLOT", run.slot().to_string()));
        environment.push(("TENURE_ATTEMPT", run.attempt().to_string()));
        let command = HeldCommand { words: &self.command, environment };
        let lifeline = sys::lifeline(&self.store, tenure);
        let mut stops = RunStops { run, hurry: self.hurry.clone(), is_told: false };
        match hold::run(tenure, &self.settings, lifeline, &command, &mut stops).await {
            Ok(End::Exited(code)) => RunEnd::Exited(code.into()),
            Ok(End::Signalled { .. } | End::Lost) => RunEnd::Stopped,
            Err(failure) => {
                failure.tell();
                RunEnd::Exited(failure.code().into())
            }
        }
    }
}

/// Stops a run when it must stop, and kills it when the process is told to stop again.
struct RunStops<'a> {
    run: &'a CurrentRun<'a>,
    hurry: watch::Receiver<bool>,
    is_told: bool,
}

impl StopSignals for RunStops<'_> {
    async fn next_signal(&mut self) -> i32 {
        if self.is_told {
            if self.hurry.wait_for(|hurry| *hurry).await.is_err() {
                std::future::pending::<()>().await;
            }
        } else {
            self.run.stop_requested().await;
            self.is_told = true;
        }
        libc::SIGTERM
    }
}
