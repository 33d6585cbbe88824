//! The guardian, as `tenure` sees it.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::control::{Deadlines, Order, Report, SIZE};
use super::hold::HeldCommand;
use super::{descendants, guardian, sys};

/// The command and its guardian, under way.
pub(crate) struct Guarded {
    guardian: tokio::process::Child,
    pid: i32,
    line: Arc<GuardianLine>,
}

impl Guarded {
    /// Starts the guardian, which starts the command. To be called on the main thread: the guardian
    /// is told when the thread that started it ends.
    pub(crate) fn start(
        deadlines: Deadlines,
        stop_budget: Duration,
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
            .arg(format!("--stop-budget-us={}", stop_budget.as_micros()))
            .arg(format!("--command={}", text.as_raw_fd()))
            .args(lifeline.iter().map(|fd| format!("--lifeline={}", fd.as_raw_fd())))
            .envs(command.environment.iter().map(|(key, value)| (*key, value)));
        let mut inherited = vec![theirs.as_raw_fd(), text.as_raw_fd()];
        inherited.extend(lifeline.iter().map(AsRawFd::as_raw_fd));
        sys::inherit(&mut guardian, inherited);
        let guardian = tokio::process::Command::from(guardian).spawn()?;
        let pid = guardian.id().and_then(|pid| i32::try_from(pid).ok()).unwrap_or(0);
        descendants::add_guardian(pid);
        let line = Arc::new(GuardianLine { control, inbox: Mutex::default() });
        let guarded = Self { guardian, pid, line };
        guarded.tell(Order::Deadlines(deadlines));
        Ok(guarded)
    }

    pub(crate) fn tell(&self, order: Order) {
        self.line.tell(order);
    }

    /// The way to the guardian, for those who have orders of their own.
    pub(crate) fn line(&self) -> Arc<GuardianLine> {
        self.line.clone()
    }

    /// Waits until the guardian has ended, and with it everything that it could reach; its last
    /// word, if it had one. Cancel-safe.
    pub(crate) async fn ended(&mut self) -> io::Result<(ExitStatus, Option<Report>)> {
        let status = self.guardian.wait().await?;
        descendants::remove_guardian(self.pid);
        self.line.receive();
        let report = self.line.inbox().last_word;
        Ok((status, report))
    }

    /// If the guardian was killed, what it guarded is ours now.
    pub(crate) fn end_leftovers(&self) {
        descendants::remove_guardian(self.pid);
        descendants::end_orphans();
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        descendants::remove_guardian(self.pid);
    }
}

/// The connection between `tenure` and the guardian, from the side of `tenure`.
pub(crate) struct GuardianLine {
    control: UnixStream,
    inbox: Mutex<Inbox>,
}

/// What the guardian has said.
#[derive(Default)]
struct Inbox {
    /// The number of the latest [`Order::Keep`].
    sent: u64,
    /// The highest number of [`Report::Kept`].
    kept: u64,
    last_word: Option<Report>,
    /// The connection has ended.
    is_over: bool,
}

impl GuardianLine {
    /// Never waits. A guardian that is gone will be noticed as such, and one that does not read is
    /// stopped, and will be killed by its timer.
    pub(crate) fn tell(&self, order: Order) {
        let _ = (&self.control).write(&order.to_bytes());
    }

    /// Hands over a lifeline, if there is one; the number to wait for by [`kept`](Self::kept). Never waits.
    pub(crate) fn keep(&self, lifeline: Option<OwnedFd>) -> io::Result<u64> {
        let mut inbox = self.inbox();
        inbox.sent += 1;
        let order = Order::Keep(inbox.sent).to_bytes();
        match lifeline {
            Some(lifeline) => sys::send(&self.control, &order, lifeline.as_fd())?,
            None => (&self.control).write_all(&order)?,
        }
        Ok(inbox.sent)
    }

    /// Waits until the guardian has what was handed over under this number, and has carried out every order
    /// before.
    pub(crate) async fn kept(&self, number: u64) -> io::Result<()> {
        let readable = sys::watch(self.control.try_clone()?)?;
        loop {
            self.receive();
            {
                let inbox = self.inbox();
                if inbox.kept >= number {
                    return Ok(());
                }
                if inbox.last_word.is_some() || inbox.is_over {
                    return Err(io::ErrorKind::BrokenPipe.into());
                }
            }
            let mut ready = readable.readable().await?;
            ready.clear_ready();
        }
    }

    /// Takes in what the guardian has said so far.
    fn receive(&self) {
        let mut inbox = self.inbox();
        loop {
            let mut bytes = [0; SIZE];
            match (&self.control).read(&mut bytes) {
                Ok(SIZE) => match Report::from_bytes(bytes) {
                    Some(Report::Kept(number)) => inbox.kept = inbox.kept.max(number),
                    report => inbox.last_word = report,
                },
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Ok(_) | Err(_) => {
                    inbox.is_over = true;
                    return;
                }
            }
        }
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
