//! Who is at the other end of a connection: a process, not a number.

use std::io;
use std::os::fd::AsFd;

use hyper::StatusCode;
use tenure_lease::Moment;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;

use super::refusal::Refusal;
use super::table::ProcessId;
use crate::run::descendants::Process;
use crate::run::sys::{self, PidFd};

/// The process that opened a connection.
pub(super) struct Peer {
    pub(super) id: ProcessId,
    handle: AsyncFd<PidFd>,
}

impl Peer {
    /// Who opened this connection, which was accepted before `accepted`, if it is a process of this user.
    pub(super) fn of(stream: &UnixStream, accepted: Moment, uid: u32) -> Result<Self, Refusal> {
        let unknown = |error: io::Error| {
            forbidden("unknown_process", format!("who asks cannot be told: {error}"))
        };
        let credentials = stream.peer_cred().map_err(unknown)?;
        if credentials.uid() != uid {
            return Err(forbidden(
                "wrong_user",
                format!("user {} asks, and this tenure serves user {uid} alone", credentials.uid()),
            ));
        }
        let Some(pid) = credentials.pid().filter(|&pid| pid > 0) else {
            return Err(forbidden(
                "unknown_process",
                "the process that asks has no number here: it is in a PID \
                namespace that this tenure does not see"
                    .to_owned(),
            ));
        };
        let (handle, is_exact) = match PidFd::of_peer(stream.as_fd()) {
            Ok(handle) => (handle, true),
            // A kernel before 6.5; or the process has ended, which the next call finds out.
            Err(_) => (PidFd::open(pid).map_err(|_| Refusal::ended(pid))?, false),
        };
        let process = Process::read(pid).ok_or_else(|| Refusal::ended(pid))?;
        // While the process has not ended, its number is no other's.
        handle.can_be_signalled().map_err(|error| refuse_signal(pid, &error))?;
        // Whoever was started after the connection was accepted did not open it.
        if !is_exact && start_of(&process) > accepted {
            return Err(Refusal::ended(pid));
        }
        let handle = sys::watch(handle).map_err(unknown)?;
        Ok(Self { id: ProcessId { pid, start: process.start }, handle })
    }

    /// Waits until the process has ended. Cancel-safe.
    pub(super) async fn ended(&self) {
        // What cannot be waited for has not ended, as far as is known here.
        if self.handle.readable().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Whether it can be killed if it has to be, now.
    pub(super) fn check_signal(&self) -> Result<(), Refusal> {
        let checked = self.handle.get_ref().can_be_signalled();
        checked.map_err(|error| refuse_signal(self.id.pid, &error))
    }

    /// The process and its ancestors, up to this program. An error if it is not below it: then nobody would end
    /// it if `tenure` were killed.
    pub(super) fn line(&self) -> Result<Vec<ProcessId>, Refusal> {
        let outside = || {
            forbidden(
                "not_below",
                format!(
                    "the process {} was not started by the command of this tenure, whose guardian could not end \
                 it in time: only processes below the command can hold leases",
                    self.id.pid
                ),
            )
        };
        let us = i32::try_from(std::process::id()).unwrap_or(0);
        let mut line = Vec::new();
        let mut pid = self.id.pid;
        while pid != us {
            let process = Process::read(pid).ok_or_else(outside)?;
            line.push(ProcessId { pid, start: process.start });
            if process.parent <= 0 || line.len() > GENERATIONS_MAX {
                return Err(outside());
            }
            pid = process.parent;
        }
        match line.first() {
            Some(first) if *first == self.id => Ok(line),
            _ => Err(Refusal::ended(self.id.pid)),
        }
    }
}

fn start_of(process: &Process) -> Moment {
    Moment::from_nanos(process.start.saturating_mul(TICK_NANOS))
}

fn refuse_signal(pid: i32, error: &io::Error) -> Refusal {
    if error.raw_os_error() == Some(libc::EPERM) {
        return forbidden(
            "not_killable",
            format!(
                "tenure may not send signals to the process {pid}, and could not end it when a lease is lost"
            ),
        );
    }
    Refusal::ended(pid)
}

fn forbidden(code: &'static str, message: String) -> Refusal {
    Refusal::new(StatusCode::FORBIDDEN, code, message)
}

/// The kernel shows start times in hundredths of a second, on every architecture that Rust's Linux targets have.
const TICK_NANOS: u64 = 10_000_000;
/// More generations than any command has.
const GENERATIONS_MAX: usize = 1000;
