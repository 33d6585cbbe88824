//! `tenure lease`: leases, for the people who look after them.

mod change;
mod list;
mod view;
mod watch;

use std::io::{self, BufRead, IsTerminal, Write};
use std::process::ExitCode;

use tenure_lease::{Record, Store};

use crate::exit::{self, Failure};
use crate::output;
use crate::store::{LeaseArgs, StoreArgs};
pub(crate) use view::View;

/// Look at leases and repair them
#[derive(clap::Args)]
#[command(after_help = exit::HELP)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Show who holds a lease, under which token, for how long, and its note
    Show(Target),
    /// Show every lease of a store: who holds it, under which token, for how long
    List(List),
    /// Print the lease now and each time its holder, token or note changes, until interrupted
    Watch(Target),
    /// Give a lease back in its holder's name
    ///
    /// For a holder that is known to be dead: the lease is free at once. If the holder is alive after
    /// all, it learns at its next renewal that it has lost the lease, and until then its work
    /// overlaps that of the next holder. `tenure lease break` is the careful way.
    Release(Target),
    /// Take a lease away from its holder
    ///
    /// The holder's next renewal is refused, so it stops its work. The lease is free when the
    /// holder's ttl is over, because only then has it surely stopped.
    Break(Break),
    /// Repair a store that has lost history, so that the next terms are above a given one
    ///
    /// After a backup was restored, a lease may have lower terms than a fence has seen already
    /// (`token_regressed`). This acquires the lease with a higher term and gives it back; it waits
    /// while somebody holds it.
    Raise(Raise),
}

#[derive(clap::Args)]
struct Target {
    #[command(flatten)]
    lease: LeaseArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct List {
    #[command(flatten)]
    store: StoreArgs,
    /// Print JSON: an array of what `tenure lease show --json` prints of each
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct Break {
    #[command(flatten)]
    target: Target,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    /// Free the lease at once: the old holder may be active until its next renewal
    #[arg(long)]
    now: bool,
}

#[derive(clap::Args)]
struct Raise {
    #[command(flatten)]
    target: Target,
    /// The next term is above this one
    #[arg(long, value_name = "TERM")]
    above: u64,
}

pub(crate) fn main(args: Args) -> Result<ExitCode, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::system("cannot start", &error))?;
    runtime.block_on(async {
        match args.command {
            Command::Show(target) => show(&target).await,
            Command::List(args) => list::list(&args).await,
            Command::Watch(target) => watch::watch(&target).await,
            Command::Release(target) => change::release(&target).await,
            Command::Break(args) => change::break_lease(&args).await,
            Command::Raise(args) => change::raise(&args).await,
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

async fn show(target: &Target) -> Result<(), Failure> {
    let store = target.lease.store.look_shared().await?;
    let record = target.read(&store).await?;
    target.print(&store, record.as_ref())
}

impl Target {
    async fn read(&self, store: &Store) -> Result<Option<Record>, Failure> {
        Ok(store.inspect(self.lease.name.as_str()).await?)
    }

    fn print(&self, store: &Store, record: Option<&Record>) -> Result<(), Failure> {
        let view = View::new(&self.lease.name, &store.info(), record);
        output::print(&view, self.json)
    }
}

/// Asks a question on the terminal.
fn confirmed(question: &str) -> Result<bool, Failure> {
    if !io::stdin().is_terminal() {
        return Err(Failure::usage("nobody is there to confirm it; pass --yes if you are sure"));
    }
    let mut answer = String::new();
    write!(io::stderr(), "{question} [y/N] ")
        .and_then(|()| io::stdin().lock().read_line(&mut answer))
        .map_err(|error| Failure::system("the terminal", &error))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
