//! `tenure with`: a command of which any process can hold leases.
//!
//! As in `tenure run` there is a guardian between this process and the command. Here the command starts at
//! once, and its processes ask for leases over a socket. A lease belongs to a process; if it is lost, that
//! process must stop, and is killed if it does not. If this process cannot see to that, because it was stopped or
//! killed, the guardian ends the whole command.

mod api;
mod holder;
mod peer;
mod refusal;
mod server;
mod table;

use std::convert::Infallible;
use std::ffi::OsString;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use tenure_lease::signals::Signals;
use tenure_lease::{Nonce, Settings};

use crate::duration;
use crate::exit::{self, Failure, SYSTEM};
use crate::run::control::{Deadlines, Order};
use crate::run::hold::{self, End, Guarded, GuardianOrders, HeldCommand};
use crate::run::{HURRY, exit_code_of, settings, sys};
use crate::socket::PrivateSocket;
use crate::store::StoreArgs;
use holder::LeaseHolder;

/// Run a command whose processes can hold leases
///
/// Starts the command at once, with TENURE_SOCKET in its environment: a Unix socket at which every process below
/// the command can ask for leases, by HTTP and JSON: `curl --unix-socket $TENURE_SOCKET
/// http://tenure/v1/openapi.json` shows how. So one worker of a web server can lead, whatever language it is
/// written in.
///
/// A lease belongs to the process that asked for it. It is given back when that process says so or has ended,
/// never because a connection broke. A process whose lease is lost is told so, and is killed, with its
/// descendants, if it has neither given the lease back nor ended before the stop budget is over.
///
/// When the command exits, what it left running is stopped, all leases are given back, and its exit code is
/// passed on. SIGTERM, SIGINT or SIGHUP to `tenure` stops the command; a second SIGTERM or SIGINT kills it.
/// If `tenure` itself is killed (also with -9), the whole command ends before a lease of its processes can be
/// another's; so it does if `tenure` is stopped for so long that a lease cannot be renewed.
#[derive(clap::Args)]
#[command(after_help = exit::HELP)]
pub(crate) struct Args {
    #[command(flatten)]
    store: StoreArgs,
    /// Where to listen [default: a directory of its own in XDG_RUNTIME_DIR or the directory for temporary files]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// How long a lease lasts after each renewal; `tenure timings` shows what follows from it
    #[arg(long, value_parser = duration::parse, default_value = "15s", value_name = "DURATION")]
    ttl: Duration,
    /// Who holds the leases, for people [default: POD_NAME, HOSTNAME or the host's name]
    #[arg(long, value_name = "NAME")]
    owner: Option<String>,
    /// How long a process may take to stop [default: ttl/8, at most 3s]
    #[arg(long, value_parser = duration::parse, value_name = "DURATION")]
    stop_budget: Option<Duration>,
    /// Serve metrics for Prometheus at http://ADDRESS/metrics, such as 127.0.0.1:9464, and /alive
    #[cfg(feature = "cluster")]
    #[arg(long, value_parser = crate::run::metrics::parse_address, value_name = "ADDRESS")]
    metrics: Option<std::net::SocketAddr>,
    /// The command and its arguments, after `--`
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

pub(crate) fn main(args: Args) -> Result<ExitCode, Failure> {
    let settings = settings(args.ttl, args.stop_budget)?;
    sys::check_requirements().map_err(|error| Failure::system("this system lacks", &error))?;
    // One thread, the process's main one: the guardian is told when the thread that started it ends.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::system("cannot start", &error))?;
    runtime.block_on(run(args, settings)).map(ExitCode::from)
}

async fn run(args: Args, settings: Settings) -> Result<u8, Failure> {
    let mut signals = Signals::catch().map_err(|error| Failure::system("signals", &error))?;
    #[cfg(feature = "cluster")]
    let _metrics = match args.metrics {
        Some(address) => Some(crate::run::metrics::serve(address).await?),
        None => None,
    };
    let store = args.store.open_shared().await?;
    settings.check_for(&store.info())?;
    let place = SocketPlace::choose(args.socket.as_deref())?;
    let socket = PrivateSocket::bind(&place.path, "socket", "choose another path")?;
    let path =
        std::path::absolute(&place.path).map_err(|error| Failure::system("socket", &error))?;
    let environment = vec![("TENURE_SOCKET", path.display().to_string())];
    let command = HeldCommand { words: &args.command, environment };
    let guarded = Guarded::start(Deadlines::NEVER, settings.stop_budget, None, &command)
        .map_err(|error| Failure::system("cannot start a process", &error))?;
    let holder = LeaseHolder::new(store, settings.clone(), args.owner, guarded.line());
    let end = {
        let guarding = hold::guard(guarded, NoOrders, settings.stop_budget, &command, &mut signals);
        tokio::select! {
            end = guarding => end,
            never = server::serve(&socket, &holder) => match never {},
            error = holder.kill_overdue() => return Err(Failure::system("no timer", &error)),
        }
    };
    let patience = match &end {
        Ok(End::Signalled { hurry: true, .. }) => HURRY,
        _ => settings.stop_budget.max(HURRY),
    };
    holder.release_all(patience).await;
    match end? {
        End::Exited(code) => Ok(code),
        End::Signalled { signal, .. } => Ok(exit_code_of(signal)),
        End::Lost => Err(Failure::new(
            SYSTEM,
            "the guardian ended the command: tenure stood still until a lease of it could not be renewed",
        )),
    }
}

/// Whoever holds leases tells the guardian directly what follows from them.
struct NoOrders;

impl GuardianOrders for NoOrders {
    async fn next_order(&mut self) -> Order {
        match std::future::pending::<Infallible>().await {}
    }
}

/// Where the socket is; a directory that was made for it is removed with it.
struct SocketPlace {
    path: PathBuf,
    directory: Option<PathBuf>,
}

impl SocketPlace {
    fn choose(path: Option<&Path>) -> Result<Self, Failure> {
        if let Some(path) = path {
            return Ok(Self { path: path.into(), directory: None });
        }
        let parent = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let parent = parent.filter(|it| it.is_dir()).unwrap_or_else(std::env::temp_dir);
        let directory = parent.join(format!("tenure-with-{}", Nonce::random()));
        // Nobody else can have made it before, or reach into it.
        DirBuilder::new().mode(0o700).create(&directory).map_err(|error| {
            Failure::system(&format!("cannot make {}", directory.display()), &error)
        })?;
        Ok(Self { path: directory.join("socket"), directory: Some(directory) })
    }
}

impl Drop for SocketPlace {
    fn drop(&mut self) {
        if let Some(directory) = &self.directory {
            let _ = std::fs::remove_dir_all(directory);
        }
    }
}
