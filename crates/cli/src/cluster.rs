//! `tenure cluster`: a running node, for the people who look after it.

mod protocol;
mod remote;
mod shards;
mod status;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use crate::exit::{self, Failure};
use crate::output;
use remote::Remote;

pub(crate) use protocol::{Answer, Change, Changed, REQUEST_MAX, Request};
pub(crate) use status::Status;

/// Look at a running node's cluster, and change it
///
/// Asks a `tenure node` on this machine, through the socket that its setting `admin` names; or any
/// node with a management API, by its URL.
#[derive(clap::Args)]
#[command(after_help = exit::HELP)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Show the cluster as the node sees it: who is in, who leads, who cannot reach whom
    Status(Target),
    /// Have a node leave in order: the one that is asked, or another
    Leave(Leave),
    /// Declare a node down
    ///
    /// For a node that is dead and will not come back at its address. The others go on without it;
    /// if it is alive after all, it ends as soon as it hears of it. Make sure that it has stopped
    /// before you say so: nobody waits for it any more.
    Down(Down),
    /// Have a node that hosts a singleton hand it over
    HandOver(HandOver),
    /// Show where shards are: who coordinates, and how much each node has
    ///
    /// Every node is asked what it has; one that does not answer within two seconds is shown without it.
    Shards(Shards),
    /// Have shards of a kind moved to where fewer are
    Rebalance(Rebalance),
}

#[derive(clap::Args)]
struct Target {
    /// The admin socket of a node on this machine
    #[arg(long, value_name = "PATH", required_unless_present = "url", conflicts_with = "url")]
    admin: Option<PathBuf>,
    #[command(flatten)]
    remote: Remote,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct Leave {
    #[command(flatten)]
    target: Target,
    /// Which node, as `status` shows it: host:port, or host:port#incarnation [default: the one
    /// that is asked]
    node: Option<String>,
}

#[derive(clap::Args)]
struct Down {
    #[command(flatten)]
    target: Target,
    /// Which node, as `status` shows it: host:port, or host:port#incarnation
    node: String,
}

#[derive(clap::Args)]
struct HandOver {
    #[command(flatten)]
    target: Target,
    /// Which singleton, as the node's page shows it
    singleton: String,
}

#[derive(clap::Args)]
struct Shards {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    which: shards::Which,
}

#[derive(clap::Args)]
struct Rebalance {
    #[command(flatten)]
    target: Target,
    /// Which kind, as the node's page shows it
    kind: String,
}

pub(crate) fn main(args: Args) -> Result<ExitCode, Failure> {
    let (target, request) = match args.command {
        Command::Status(target) => (target, Request::Status),
        Command::Leave(args) => (args.target, Request::Leave { node: args.node }),
        Command::Down(args) => (args.target, Request::Down { node: args.node }),
        Command::HandOver(args) => {
            let changed = args.target.remote.hand_over(&args.singleton)?;
            output::print(&changed, args.target.json)?;
            return Ok(ExitCode::SUCCESS);
        }
        Command::Shards(args) => {
            let (kinds, said) = args.target.remote.shards()?;
            output::print(&args.which.of(&kinds, &said)?, args.target.json)?;
            return Ok(ExitCode::SUCCESS);
        }
        Command::Rebalance(args) => {
            let changed = args.target.remote.rebalance(&args.kind)?;
            output::print(&changed, args.target.json)?;
            return Ok(ExitCode::SUCCESS);
        }
    };
    match target.ask(&request)? {
        Answer::Status(status) => output::print(&*status, target.json)?,
        Answer::Changed(changed) => output::print(&changed, target.json)?,
        Answer::Refused(why) => return Err(Failure::usage(why)),
    }
    Ok(ExitCode::SUCCESS)
}

impl Target {
    fn ask(&self, request: &Request) -> Result<Answer, Failure> {
        match &self.admin {
            Some(admin) => ask_socket(admin, request),
            None => self.remote.ask(request),
        }
    }
}

fn ask_socket(admin: &Path, request: &Request) -> Result<Answer, Failure> {
    let failed = |error: std::io::Error| {
        Failure::new(
            exit::UNAVAILABLE,
            format!("no node answers at {}: {error}; does it run?", admin.display()),
        )
    };
    let mut stream = UnixStream::connect(admin).map_err(failed)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    let mut line = serde_json::to_vec(request).expect("a request is JSON");
    line.push(b'\n');
    stream.write_all(&line).map_err(failed)?;
    let mut answer = Vec::new();
    let mut reading = BufReader::new(stream).take(ANSWER_MAX);
    reading.read_until(b'\n', &mut answer).map_err(failed)?;
    serde_json::from_slice(&answer).map_err(|error| failed(error.into()))
}

const PATIENCE: Duration = Duration::from_secs(10);
/// More than ten thousand members take.
const ANSWER_MAX: u64 = 64 << 20;
