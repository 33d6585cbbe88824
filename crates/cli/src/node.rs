//! `tenure node`: one node of a cluster, from a file.

mod admin;

use std::path::PathBuf;
use std::process::ExitCode;

use tenure_cluster::transport::TransportError;
use tenure_cluster::{Cluster, Ending, JoinError};
use tenure_lease::signals::Signals;
use tenure_manage::{Manage, ManageError, Recorder};
use tenure_node::{NodeFile, NodeFileError};

use crate::exit::{self, Failure};
use admin::Admin;

/// Run one node of a cluster
///
/// Joins the cluster that the file names, or forms it, and stays in it until it is told to leave:
/// by SIGTERM, SIGINT or SIGHUP, or by `tenure cluster leave`. It leaves in order then; a second
/// signal ends it at once. What happens in the cluster goes to the log.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Args {
    /// The node's settings, as TOML; docs/cluster.md has them all
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

const HELP: &str = "\
Exit codes:
  0     it left in order
  64    a setting is wrong, or its certificate cannot be used: restarting is no use
  69    the store cannot be used, or refuses the node's leases
  71    the operating system refused something that is needed, such as the port
  77    the cluster does not let it in: a setting differs that must agree
  79    it was declared down, or removed: start it again, and it joins as a new incarnation
  128+n a second signal, n, ended it before it had left";

pub(crate) fn main(args: &Args) -> Result<ExitCode, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::system("cannot start", &error))?;
    let outcome = runtime.block_on(run(args));
    // Whatever still waits for a store or a peer is not waited for.
    runtime.shutdown_background();
    outcome
}

async fn run(args: &Args) -> Result<ExitCode, Failure> {
    let mut signals = Signals::catch().map_err(|error| Failure::system("signals", &error))?;
    let file = NodeFile::load(&args.config)?;
    let admin = file.admin().map(Admin::bind).transpose()?;
    let manage = file.manage()?;
    // Before anything is measured.
    let recorder = manage.as_ref().and_then(|_| Recorder::install().ok());
    let settings = file.settings().await?;
    let (name, cluster_name) = (settings.name.clone(), settings.cluster.clone());
    let cluster = Cluster::start(settings).map_err(|error| not_started(&file, &error))?;
    tracing::info!(node = %cluster.me(), name, cluster = cluster_name, "looking for the cluster");
    let _managed = match (manage, recorder) {
        (Some(settings), Some(recorder)) => {
            let manage = Manage::new(&cluster).settings(settings).metrics(recorder);
            let running = manage.start().await.map_err(|error| not_managed(&file, &error))?;
            tracing::info!(url = running.url(), "management");
            Some(running)
        }
        _ => None,
    };
    let serve = async {
        match &admin {
            Some(admin) => admin.serve(&cluster, &name, &cluster_name).await,
            None => std::future::pending().await,
        }
    };
    let live = async {
        tokio::select! {
            ending = cluster.ended() => return out(&cluster, &ending),
            signal = signals.next() => tracing::info!(signal, "leaving; again to end at once"),
        }
        tokio::select! {
            () = cluster.leave() => out(&cluster, &cluster.ended().await),
            signal = signals.next() => {
                tracing::warn!(signal, "ended before it had left");
                Ok(ExitCode::from(u8::try_from(128 + signal).unwrap_or(u8::MAX)))
            }
        }
    };
    tokio::select! {
        outcome = live => outcome,
        () = serve => unreachable!("it serves for ever"),
    }
}

fn out(cluster: &Cluster, ending: &Ending) -> Result<ExitCode, Failure> {
    if let Some(why) = cluster.failure() {
        let code = match why {
            JoinError::Lease(_) => exit::UNAVAILABLE,
            _ => exit::SYSTEM,
        };
        return Err(Failure::new(code, why.to_string()));
    }
    match ending {
        Ending::Left => Ok(ExitCode::SUCCESS),
        Ending::Refused(_) => Err(Failure::new(REFUSED, ending.to_string())),
        Ending::Failed(_) => Err(Failure::new(exit::SYSTEM, ending.to_string())),
        Ending::Downed | Ending::Removed | Ending::LostWhileJoining | Ending::OtherCluster(_) => {
            Err(Failure::new(DOWN, format!("out of the cluster: {ending}; start it again")))
        }
    }
}

fn not_started(file: &NodeFile, error: &JoinError) -> Failure {
    match error {
        JoinError::Transport(TransportError::Listen { .. }) | JoinError::Failed(_) => {
            Failure::new(exit::SYSTEM, error.to_string())
        }
        JoinError::Identity(_) => file.wrong_at("identity", &error.to_string()).into(),
        _ => file.wrong(&error.to_string()).into(),
    }
}

fn not_managed(file: &NodeFile, error: &ManageError) -> Failure {
    match error {
        ManageError::Listen { .. } => Failure::new(exit::SYSTEM, format!("manage: {error}")),
        _ => file.wrong(&format!("manage: {error}")).into(),
    }
}

impl From<NodeFileError> for Failure {
    fn from(error: NodeFileError) -> Self {
        match error {
            NodeFileError::Wrong(wrong) => Self::usage(wrong),
            NodeFileError::Store(trouble) => trouble.into(),
        }
    }
}

/// The cluster does not let the node in.
const REFUSED: u8 = 77;
/// The node was declared down.
const DOWN: u8 = 79;

#[cfg(test)]
mod tests {
    use super::*;

    /// `Restart=on-failure` starts it again.
    #[tokio::test]
    async fn a_panic_of_the_nodes_thread_is_a_failure() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let store = tenure_lease::Store::new(tenure_lease::MemoryStore::new());
        let mut settings = tenure_cluster::Settings::new("shop")
            .name("shop-0")
            .address(free.to_string().parse().unwrap())
            .formation(store.lease("shop.formation"));
        settings.plaintext_without_any_protection = true;
        let cluster = Cluster::join(settings).await.unwrap();
        cluster.panic().await;
        let ending = cluster.ended().await;
        let failure = format!("{:?}", out(&cluster, &ending).unwrap_err());
        assert!(failure.contains("code: 71") && failure.contains("panicked: planted"), "{failure}");
    }
}
