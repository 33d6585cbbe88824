//! The guardian, as `tenure` sees it.

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus};

use tenure_lease::{Settings, Tenure};

use super::control::{Deadlines, Order, Report, SIZE};
use super::hold::HeldCommand;
use super::{descendants, guardian, sys};

/// The command and its guardian, under way.
pub(super) struct Guarded {
    guardian: tokio::process::Child,
    pid: i32,
    control: UnixStream,
}

impl Guarded {
    /// Starts the guardian, which starts the command. To be called on the main thread: the guardian
    /// is told when the thread that started it ends.
    pub(super) fn start(
        tenure: &Tenure,
        settings: &Settings,
        lifeline: Option<OwnedFd>,
        command: &HeldCommand<'_>,
    ) -> io::Result<Self> {
        let (control, theirs) = UnixStream::pair()?;
        control.set_nonblocking(true)?;
        let text = sys::in_memory(&guardian::encode_command(command.words))?;
        // This very program, also if its file has been replaced since.
        let mut guardian = Command::new("/proc/self/exe");
        guardian
            .arg0("lease-guardian")
            .arg(guardian::NAME)
            .arg(format!("--control={}", theirs.as_raw_fd()))
            .arg(format!("--parent={}", std::process::id()))
            .arg(format!("--stop-budget-us={}", settings.stop_budget.as_micros()))
            .arg(format!("--command={}", text.as_raw_fd()))
            .args(lifeline.iter().map(|fd| format!("--lifeline={}", fd.as_raw_fd())))
            .envs(command.environment.iter().map(|(key, value)| (*key, value)));
        let mut inherited = vec![theirs.as_raw_fd(), text.as_raw_fd()];
        inherited.extend(lifeline.iter().map(AsRawFd::as_raw_fd));
        sys::inherit(&mut guardian, inherited);
        let guardian = tokio::process::Command::from(guardian).spawn()?;
        let pid = guardian.id().and_then(|pid| i32::try_from(pid).ok()).unwrap_or(0);
        descendants::add_guardian(pid);
        let guarded = Self { guardian, pid, control };
        guarded.tell(Order::Deadlines(Deadlines::of(tenure, settings)));
        Ok(guarded)
    }

    /// Never waits. A guardian that is gone will be noticed as such, and one that does not read is
    /// stopped, and will be killed by its timer.
    pub(super) fn tell(&self, order: Order) {
        let _ = (&self.control).write(&order.to_bytes());
    }

    /// Waits until the guardian has ended, and with it everything that it could reach; its last
    /// word, if it had one. Cancel-safe.
    pub(super) async fn ended(&mut self) -> io::Result<(ExitStatus, Option<Report>)> {
        let status = self.guardian.wait().await?;
        descendants::remove_guardian(self.pid);
        let mut bytes = [0; SIZE];
        let report = match (&self.control).read_exact(&mut bytes) {
            Ok(()) => Report::from_bytes(bytes),
            Err(_) => None,
        };
        Ok((status, report))
    }

    /// If the guardian was killed, what it guarded is ours now.
    pub(super) fn end_leftovers(&self) {
        descendants::remove_guardian(self.pid);
        descendants::end_orphans();
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        descendants::remove_guardian(self.pid);
    }
}
