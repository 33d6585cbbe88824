//! The process between `tenure` and the command: ends the command in time, whatever happens to
//! `tenure`.
//!
//! It is small and has one thread, and it needs nobody. It
//!
//! * knows the deadlines: if `tenure` is stopped, they are not moved, and the command is stopped at
//!   the first and killed before the second;
//! * hears of `tenure`'s death twice, by a signal and by the end of their connection;
//! * inherits every orphan of the command's descendants, and ends only when none of them is left;
//! * holds the lifeline that the store gave, if it gave one, and hands it to the command: the lease is
//!   free only when this process and every process that inherited the lifeline have ended;
//! * is in no list of those who are killed by name: it has a name of its own, and the command is not
//!   among its arguments. So `pkill -9 tenure` and `pkill -9 -f` with the command's name leave it to do
//!   its work;
//! * has a kernel timer of its own, which kills it at the second deadline in case it is stopped
//!   itself. The command dies with it, and `tenure`, which inherits the orphans then, ends them. A
//!   guardian that has begun to stop the command because `tenure` is gone or silent gets a second more:
//!   on a busy machine it may be late, and nobody else would end what the command has started.
//!
//! It stays in the process group of `tenure` and the command. With a group of its own it would survive a
//! shell's `kill -9 %1`; but then the command has a parent in another group of its session, and when it
//! exits, the kernel sends SIGHUP to the whole group of `tenure` if that is orphaned (a service, a CI
//! job) and anything in it is stopped.
//!
//! If this process and `tenure` are killed in the same moment all the same, the kernel kills the command
//! (`PR_SET_PDEATHSIG`), and nobody is left to end what the command had started. The lifeline is why
//! the lease is not free meanwhile: the kernel kills the command a moment *after* it has closed the
//! guardian's descriptors, and a descendant may outlive both, for up to the ttl.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::process::{Command, ExitCode};
use std::time::Duration;

use tenure_lease::{Moment, Watchdog};

use super::control::{Deadlines, Order, Report, SIZE};
use super::descendants;
use super::sys::{self, BootTimer, Reaped, SignalFd};
use crate::exit::SYSTEM;

/// The hidden subcommand.
pub(crate) const NAME: &str = "__guardian";

/// What `tenure run` starts it with.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The descriptor of the connection to `tenure`.
    #[arg(long)]
    control: i32,
    /// The descriptor of the store's lifeline.
    #[arg(long)]
    lifeline: Option<i32>,
    /// The process id of `tenure`.
    #[arg(long)]
    parent: i32,
    #[arg(long)]
    stop_budget_us: u64,
    /// The descriptor of a file with the command, as [`encode_command`] writes it.
    #[arg(long)]
    command: i32,
}

/// The command and its arguments, each ended by a NUL byte, which none of them can contain.
pub(super) fn encode_command(command: &[OsString]) -> Vec<u8> {
    command.iter().flat_map(|word| [word.as_bytes(), b"\0"]).flatten().copied().collect()
}

fn decode_command(bytes: &[u8]) -> Vec<&OsStr> {
    let words = bytes.strip_suffix(b"\0").unwrap_or(bytes);
    words.split(|&byte| byte == 0).map(OsStr::from_bytes).collect()
}

pub(crate) fn main(args: &Args) -> ExitCode {
    match Guardian::start(args) {
        Ok(Some(guardian)) => {
            guardian.guard();
            ExitCode::SUCCESS
        }
        Ok(None) => ExitCode::SUCCESS,
        Err(_) => ExitCode::from(SYSTEM),
    }
}

struct Guardian {
    control: UnixStream,
    /// Open for as long as this process lives; the command has a copy.
    _lifeline: Option<OwnedFd>,
    /// The lifelines that came later, by number: open until `tenure` says otherwise.
    kept: BTreeMap<u64, OwnedFd>,
    signals: SignalFd,
    timer: BootTimer,
    watchdog: Watchdog,
    parent: i32,
    stop_budget: Duration,
    deadlines: Deadlines,
    command: i32,
    /// The command's wait status, once it has ended.
    status: Option<i32>,
    stop: Option<Stop>,
}

/// A stop that has begun.
#[derive(Clone, Copy)]
struct Stop {
    cause: Cause,
    kill: Moment,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Cause {
    Exited,
    Ordered,
    Deadline,
    Orphaned,
    Signalled,
}

impl Guardian {
    /// Starts the command; `None` if it cannot or must not run any more.
    fn start(args: &Args) -> io::Result<Option<Self>> {
        sys::block_signals()?;
        sys::set_name(c"lease-guardian");
        sys::become_subreaper()?;
        let lifeline = args.lifeline.map(sys::adopt).transpose()?;
        let mut control = UnixStream::from(sys::adopt(args.control)?);
        sys::signal_at_parents_death(PARENT_DIED)?;
        let signals = SignalFd::new(&[libc::SIGCHLD, libc::SIGTERM, PARENT_DIED])?;
        let mut bytes = [0; SIZE];
        control.read_exact(&mut bytes)?;
        let Some(Order::Deadlines(deadlines)) = Order::from_bytes(bytes) else {
            return Err(ErrorKind::InvalidData.into());
        };
        control.set_nonblocking(true)?;
        let watchdog = Watchdog::new();
        watchdog.arm(deadlines.dead);
        let timer = BootTimer::new()?;
        if sys::parent() != args.parent || Moment::now() >= deadlines.stop {
            report(&control, Report::Stopped);
            return Ok(None);
        }
        let mut words = Vec::new();
        File::from(sys::adopt(args.command)?).read_to_end(&mut words)?;
        let words = decode_command(&words);
        let Some((program, arguments)) = words.split_first() else {
            return Err(ErrorKind::InvalidInput.into());
        };
        let mut command = Command::new(program);
        command.args(arguments);
        sys::tie_to_us(&mut command);
        sys::inherit(&mut command, lifeline.iter().map(AsRawFd::as_raw_fd).collect());
        let command = match command.spawn() {
            Ok(child) => i32::try_from(child.id()).map_err(io::Error::other)?,
            Err(error) => {
                report(&control, Report::NotStarted(error.raw_os_error().unwrap_or(libc::EIO)));
                return Ok(None);
            }
        };
        Ok(Some(Self {
            control,
            _lifeline: lifeline,
            kept: BTreeMap::new(),
            signals,
            timer,
            watchdog,
            parent: args.parent,
            stop_budget: Duration::from_micros(args.stop_budget_us),
            deadlines,
            command,
            status: None,
            stop: None,
        }))
    }

    /// Returns when the command has ended and nothing that it started is left.
    fn guard(mut self) {
        loop {
            let mut cause = self.listen();
            match self.reap() {
                Reaped::NoneLeft => break,
                _ if self.status.is_some() => cause = Some(Cause::Exited),
                _ => {}
            }
            let now = Moment::now();
            if now >= self.deadlines.stop {
                cause = cause.or(Some(Cause::Deadline));
            }
            if let (None, Some(cause)) = (self.stop, cause) {
                self.begin_stop(cause, now + self.stop_budget);
            }
            let wake_at = match self.stop {
                Some(Stop { kill, .. }) => kill.min(self.deadlines.kill),
                None => self.deadlines.stop,
            };
            // A timer that cannot be set is as good as one that has fired.
            if self.stop.is_some() && now >= wake_at || self.timer.set(wake_at).is_err() {
                self.kill();
                break;
            }
            sys::wait_readable([
                self.signals.as_raw_fd(),
                self.control.as_raw_fd(),
                self.timer.as_raw_fd(),
            ]);
        }
        self.say_how_it_ended();
    }

    /// Takes in what `tenure` and the kernel say; a reason to stop, if there is one.
    fn listen(&mut self) -> Option<Cause> {
        let mut cause = None;
        while let Some(signal) = self.signals.next() {
            if signal == libc::SIGTERM {
                cause = Some(Cause::Signalled);
            }
        }
        loop {
            let mut bytes = [0; SIZE];
            match sys::receive(&self.control, &mut bytes) {
                Ok((SIZE, descriptor)) => match Order::from_bytes(bytes) {
                    Some(Order::Deadlines(deadlines)) => {
                        self.deadlines = deadlines;
                        self.arm_watchdog();
                    }
                    Some(Order::Stop(kill)) => match &mut self.stop {
                        // A stop that has begun may end earlier, and never later.
                        Some(stop) => stop.kill = stop.kill.min(kill),
                        None => self.begin_stop(Cause::Ordered, kill),
                    },
                    Some(Order::Keep(number)) => {
                        self.kept.extend(descriptor.map(|descriptor| (number, descriptor)));
                        report(&self.control, Report::Kept(number));
                    }
                    Some(Order::LetGo(number)) => drop(self.kept.remove(&number)),
                    None => cause = Some(Cause::Orphaned),
                },
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The end of the connection, or one that has lost its order.
                Ok(_) | Err(_) => {
                    cause = Some(Cause::Orphaned);
                    break;
                }
            }
        }
        if sys::parent() != self.parent {
            cause = Some(Cause::Orphaned);
        }
        cause
    }

    fn reap(&mut self) -> Reaped {
        loop {
            match sys::reap() {
                Reaped::Ended(pid, status) if pid == self.command => self.status = Some(status),
                Reaped::Ended(..) => {}
                other => return other,
            }
        }
    }

    fn begin_stop(&mut self, cause: Cause, kill: Moment) {
        self.stop = Some(Stop { cause, kill });
        self.arm_watchdog();
        descendants::terminate_all();
    }

    fn arm_watchdog(&self) {
        let is_alone = |stop: &Stop| matches!(stop.cause, Cause::Deadline | Cause::Orphaned);
        let late = self.stop.filter(is_alone).map(|stop| stop.kill + STOPPED);
        self.watchdog.arm(late.unwrap_or(self.deadlines.dead).max(self.deadlines.dead));
    }

    fn kill(&mut self) {
        let Self { deadlines, watchdog, .. } = self;
        // As long as it makes progress it must go on: what it leaves would be left for good.
        descendants::end_all(|| watchdog.arm(deadlines.dead.max(Moment::now() + STOPPED)));
    }

    fn say_how_it_ended(&self) {
        let cause = self.stop.map(|stop| stop.cause);
        report(
            &self.control,
            match (cause, self.status) {
                (None | Some(Cause::Exited), Some(status)) => Report::Exited(status),
                (Some(Cause::Signalled), _) => Report::Signalled,
                _ => Report::Stopped,
            },
        );
        let why = match cause {
            Some(Cause::Orphaned) => "tenure has died",
            Some(Cause::Deadline) => "the lease was not renewed in time",
            _ => return,
        };
        // This process must end, so it writes only where a write cannot block.
        let mut stderr = io::stderr();
        if sys::is_writable(stderr.as_fd()) {
            let _ = writeln!(stderr, "tenure: {why}; the command was stopped");
        }
    }
}

/// Nobody may be left to hear it.
fn report(mut control: &UnixStream, report: Report) {
    let _ = control.write(&report.to_bytes());
}

/// Nobody else sends it to this process; if somebody does, it asks for a look and no more.
const PARENT_DIED: i32 = libc::SIGUSR1;
/// A guardian that stands still for so long while it kills is stopped.
const STOPPED: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_arrives_as_it_was_given() {
        for command in [&["true"][..], &["sh", "-c", "", "two words", "\n"], &[""]] {
            let command: Vec<OsString> = command.iter().map(OsString::from).collect();
            assert_eq!(decode_command(&encode_command(&command)), command);
        }
    }
}
