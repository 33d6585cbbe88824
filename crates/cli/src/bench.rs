//! `tenure bench`: what things cost on this machine.

mod counting;
#[cfg(feature = "cluster")]
mod cpu;
#[cfg(feature = "cluster")]
mod downing;
mod lease;
mod samples;
#[cfg(feature = "cluster")]
mod sharding;
#[cfg(feature = "cluster")]
mod singleton;
#[cfg(feature = "cluster")]
mod transport;

use std::process::ExitCode;
use std::time::Duration;

use crate::duration;
use crate::exit::Failure;
use crate::output;
use crate::store::StoreArgs;

/// Measure what leases cost with a store, how long decisions take, how fast nodes talk
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Acquire, renew, hand over, and hold ten thousand leases with one session
    ///
    /// Uses leases of its own, named tenure-bench and tenure-bench-…, and leaves their records
    /// behind, released. The last figure takes three renewal intervals.
    Lease(LeaseArgs),
    /// Decide about splits of a cluster with a thousand members
    #[cfg(feature = "cluster")]
    Downing(DowningArgs),
    /// Send messages to another process over loopback, with mutual TLS, and control frames besides
    #[cfg(feature = "cluster")]
    Transport(TransportArgs),
    /// Talk to a singleton on another process over loopback, with mutual TLS
    #[cfg(feature = "cluster")]
    Singleton(SingletonArgs),
    /// Talk to entities, here and on another process over loopback with mutual TLS; make many
    #[cfg(feature = "cluster")]
    Sharding(ShardingArgs),
}

#[cfg(feature = "cluster")]
#[derive(clap::Args)]
struct DowningArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[cfg(feature = "cluster")]
#[derive(clap::Args)]
struct TransportArgs {
    /// How long messages are sent while control frames are timed; the rest takes half as long
    #[arg(long, value_parser = duration::parse, default_value = "4s", value_name = "DURATION")]
    duration: Duration,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Be the other process
    #[arg(long, hide = true)]
    peer: bool,
}

#[cfg(feature = "cluster")]
#[derive(clap::Args)]
struct SingletonArgs {
    /// How long it is told messages; it is asked for half as long
    #[arg(long, value_parser = duration::parse, default_value = "4s", value_name = "DURATION")]
    duration: Duration,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Be the other process; where to meet
    #[arg(long, hide = true)]
    peer: Option<std::path::PathBuf>,
}

#[cfg(feature = "cluster")]
#[derive(clap::Args)]
struct ShardingArgs {
    /// How long entities are told messages, each way; they are asked for half as long
    #[arg(long, value_parser = duration::parse, default_value = "4s", value_name = "DURATION")]
    duration: Duration,
    /// How many entities of this node are told messages
    #[arg(long, default_value_t = 1000, value_name = "COUNT")]
    entities: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Be the other process; where to meet
    #[arg(long, hide = true)]
    peer: Option<std::path::PathBuf>,
}

#[derive(clap::Args)]
struct LeaseArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// How long each of the measurements may take
    #[arg(long, value_parser = duration::parse, default_value = "10s", value_name = "DURATION")]
    budget: Duration,
    /// The ttl of the leases
    #[arg(long, value_parser = duration::parse, default_value = "15s", value_name = "DURATION")]
    ttl: Duration,
    /// How many leases to attach to one session
    #[arg(long, default_value_t = 10_000, value_name = "COUNT")]
    leases: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn main(args: Args) -> Result<ExitCode, Failure> {
    match args.command {
        Command::Lease(args) => {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .map_err(|error| Failure::system("cannot start", &error))?;
            let figures = runtime.block_on(lease::measure(&args))?;
            output::print(&figures, args.json)?;
        }
        #[cfg(feature = "cluster")]
        Command::Downing(args) => output::print(&downing::measure(), args.json)?,
        #[cfg(feature = "cluster")]
        Command::Transport(args) if args.peer => transport::peer()?,
        #[cfg(feature = "cluster")]
        Command::Transport(args) => output::print(&transport::measure(args.duration)?, args.json)?,
        #[cfg(feature = "cluster")]
        Command::Singleton(args) => match args.peer {
            Some(place) => singleton::peer(&place, args.duration)?,
            None => output::print(&singleton::measure(args.duration)?, args.json)?,
        },
        #[cfg(feature = "cluster")]
        Command::Sharding(args) => match args.peer {
            Some(place) => sharding::peer(&place, args.duration)?,
            None => {
                let entities = args.entities.max(1);
                output::print(&sharding::measure(args.duration, entities)?, args.json)?;
            }
        },
    }
    Ok(ExitCode::SUCCESS)
}
