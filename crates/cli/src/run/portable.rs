//! The command without a guardian, where the system has no subreapers: only the command itself is
//! stopped, and if `tenure` is killed with -9 the command runs on. Drives: it waits.
#![allow(clippy::disallowed_methods)]

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use tenure_lease::Moment;

use super::control::{Deadlines, Order, Report};
use super::hold::HeldCommand;
use super::sys;

/// The command, under way.
pub(crate) struct Guarded {
    command: tokio::process::Child,
    stopped: bool,
    kill: Moment,
}

impl Guarded {
    pub(crate) fn start(
        deadlines: Deadlines,
        _stop_budget: Duration,
        _lifeline: Option<OwnedFd>,
        command: &HeldCommand<'_>,
    ) -> io::Result<Self> {
        tracing::warn!(
            "this system has no guardian: what the command starts is not stopped with it, and \
             neither is the command if tenure is killed with -9; Linux has one"
        );
        let command = tokio::process::Command::new(&command.words[0])
            .args(&command.words[1..])
            .envs(command.environment.iter().map(|(key, value)| (*key, value)))
            .spawn()?;
        Ok(Self { command, stopped: false, kill: deadlines.kill })
    }

    pub(crate) fn tell(&mut self, order: Order) {
        match order {
            Order::Deadlines(deadlines) => self.kill = deadlines.kill,
            Order::Stop(kill) => {
                self.kill = kill.min(self.kill);
                self.stopped = true;
                self.signal(libc::SIGTERM);
            }
            // Only a guardian keeps lifelines.
            Order::Keep(_) | Order::LetGo(_) => {}
        }
    }

    /// Cancel-safe.
    pub(crate) async fn ended(&mut self) -> io::Result<(ExitStatus, Option<Report>)> {
        let status = if self.stopped {
            let time = self.kill.since(Moment::now());
            match tokio::time::timeout(time, self.command.wait()).await {
                Ok(status) => status?,
                Err(_) => {
                    self.signal(libc::SIGKILL);
                    self.command.wait().await?
                }
            }
        } else {
            self.command.wait().await?
        };
        let report = if self.stopped { Report::Stopped } else { Report::Exited(status.into_raw()) };
        Ok((status, Some(report)))
    }

    pub(crate) fn end_leftovers(&self) {}

    fn signal(&self, signal: i32) {
        if let Some(pid) = self.command.id().and_then(|pid| i32::try_from(pid).ok()) {
            sys::kill(pid, signal);
        }
    }
}
