//! The `tenure` program: runs a command under a lease, looks after leases, does the arithmetic of
//! their timing, measures stores, and runs and looks after the nodes of a cluster.

mod bench;
#[cfg(feature = "cluster")]
mod certs;
#[cfg(feature = "cluster")]
mod cluster;
mod cron;
#[cfg(all(feature = "demo", target_os = "linux"))]
mod demo;
#[cfg(feature = "cluster")]
mod downing;
mod exit;
mod lease;
#[cfg(feature = "cluster")]
mod node;
mod output;
mod own;
mod run;
#[cfg(feature = "cluster")]
mod sim;
#[cfg(any(feature = "cluster", target_os = "linux"))]
mod socket;
mod store;
mod timings;
#[cfg(target_os = "linux")]
mod with;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use tracing_subscriber::EnvFilter;

use exit::Failure;
use tenure_lease::duration;

/// Exactly one of something across many processes: leases with fencing tokens, and clusters.
#[derive(Parser)]
#[command(name = "tenure", version, after_help = exit::HELP)]
struct Cli {
    /// What to log to stderr: error, warn, info, debug or trace, or directives as in RUST_LOG
    /// [default: info for `run`, `cron`, `with` and `node`: one line when something changes; else warn]
    #[arg(long, global = true, value_name = "LEVEL", env = "RUST_LOG")]
    log_level: Option<String>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(run::Args),
    #[cfg(target_os = "linux")]
    #[command(name = run::GUARDIAN, hide = true)]
    Guardian(run::GuardianArgs),
    Cron(cron::Args),
    #[cfg(target_os = "linux")]
    With(with::Args),
    Lease(lease::Args),
    #[cfg(feature = "cluster")]
    Downing(downing::Args),
    Timings(timings::Args),
    Bench(bench::Args),
    #[cfg(feature = "cluster")]
    Node(node::Args),
    #[cfg(feature = "cluster")]
    Cluster(cluster::Args),
    #[cfg(feature = "cluster")]
    Certs(certs::Args),
    #[cfg(feature = "cluster")]
    Sim(sim::Args),
    #[cfg(all(feature = "demo", target_os = "linux"))]
    Demo(demo::Args),
    Completions(own::CompletionsArgs),
    Man(own::ManArgs),
    #[cfg(all(feature = "demo", target_os = "linux"))]
    #[command(name = demo::PROCESS, hide = true)]
    DemoProcess(demo::ProcessArgs),
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return exit::refused(&error),
    };
    #[cfg(target_os = "linux")]
    if let Command::Guardian(args) = cli.command {
        return run::guard(&args);
    }
    let usual = match cli.command {
        Command::Run(_) => "info",
        #[cfg(target_os = "linux")]
        Command::With(_) => "info",
        Command::Cron(ref args) if args.runs_jobs() => "info",
        #[cfg(feature = "cluster")]
        Command::Node(_) => "info",
        #[cfg(all(feature = "demo", target_os = "linux"))]
        Command::DemoProcess(_) => "info",
        _ => "warn",
    };
    let level = cli.log_level.as_deref().filter(|level| !level.is_empty()).unwrap_or(usual);
    let outcome = log_to_stderr(level).and_then(|()| match cli.command {
        Command::Run(args) => run::main(args),
        #[cfg(target_os = "linux")]
        Command::Guardian(_) => unreachable!("the guardian has returned above"),
        Command::Cron(args) => cron::main(args),
        #[cfg(target_os = "linux")]
        Command::With(args) => with::main(args),
        Command::Lease(args) => lease::main(args),
        #[cfg(feature = "cluster")]
        Command::Downing(args) => downing::main(args),
        Command::Timings(args) => timings::main(&args),
        Command::Bench(args) => bench::main(args),
        #[cfg(feature = "cluster")]
        Command::Node(args) => node::main(&args),
        #[cfg(feature = "cluster")]
        Command::Cluster(args) => cluster::main(args),
        #[cfg(feature = "cluster")]
        Command::Certs(args) => certs::main(&args),
        #[cfg(feature = "cluster")]
        Command::Sim(args) => sim::main(&args),
        #[cfg(all(feature = "demo", target_os = "linux"))]
        Command::Demo(args) => demo::main(args),
        Command::Completions(args) => Ok(own::completions(&args, Cli::command())),
        Command::Man(args) => own::man(&args, Cli::command()),
        #[cfg(all(feature = "demo", target_os = "linux"))]
        Command::DemoProcess(args) => demo::process(&args),
    });
    match outcome {
        Ok(code) => code,
        Err(failure) => failure.tell(),
    }
}

fn log_to_stderr(directives: &str) -> Result<(), Failure> {
    let filter = EnvFilter::try_new(directives).map_err(|error| {
        Failure::usage(format!(
            "{directives:?} is no log level ({error}); \"warn\" or \"info,tenure_lease=debug\" is"
        ))
    })?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .init();
    Ok(())
}
