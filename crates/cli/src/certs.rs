//! `tenure certs`: certificates to start with.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tenure_cluster::certs::{Authority, CertsError};

use crate::exit::{self, Failure};
use crate::output;

/// Make certificates for the nodes of a cluster
#[derive(clap::Args)]
#[command(after_help = exit::HELP)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Make an authority for a cluster, and a certificate for each of some nodes
    ///
    /// DIR/ca has the authority; DIR/NODE what a node needs: ca.pem, node.pem and node.key. If there
    /// is an authority already, it makes certificates for more nodes. Whoever has DIR/ca/ca.key
    /// can make members of the cluster: keep it where the nodes are not.
    New(New),
}

#[derive(clap::Args)]
struct New {
    /// The cluster's name
    #[arg(long, value_name = "NAME")]
    cluster: String,
    /// Where to write
    #[arg(long, value_name = "DIR", default_value = "certs")]
    dir: PathBuf,
    /// Make new ones for nodes that have one (the authority stays)
    #[arg(long)]
    force: bool,
    /// The nodes' names: each node's setting `name`
    #[arg(required = true, value_name = "NODE")]
    nodes: Vec<String>,
}

pub(crate) fn main(args: &Args) -> Result<ExitCode, Failure> {
    let Command::New(args) = &args.command;
    args.check()?;
    let authority = args.authority()?;
    for node in &args.nodes {
        authority.issue(node, &[])?.save(args.dir.join(node))?;
    }
    output::text(&args.next())?;
    Ok(ExitCode::SUCCESS)
}

impl New {
    /// Before anything is written.
    fn check(&self) -> Result<(), Failure> {
        for node in &self.nodes {
            // They become directories, beside the authority's.
            let fits = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
            if node.starts_with('.') || node == AUTHORITY || !node.chars().all(fits) {
                return Err(Failure::usage(format!(
                    "{node:?} cannot name a node here: letters, digits, '-', '.' and '_', not \
                     beginning with '.', and not \"{AUTHORITY}\""
                )));
            }
            let there = ["node.pem", "node.key"].map(|file| self.dir.join(node).join(file));
            if let Some(path) = there.iter().find(|path| path.exists())
                && !self.force
            {
                return Err(Failure::usage(format!(
                    "{} is there already; --force replaces it",
                    path.display()
                )));
            }
        }
        Ok(())
    }

    fn authority(&self) -> Result<Authority, Failure> {
        let dir = self.dir.join(AUTHORITY);
        if !dir.join("ca.key").exists() && !dir.join("ca.pem").exists() {
            let authority = Authority::new(&self.cluster)?;
            authority.save(&dir)?;
            return Ok(authority);
        }
        let authority = Authority::load(&dir)?;
        if authority.cluster() != self.cluster {
            return Err(Failure::usage(format!(
                "{} is the authority of the cluster {:?}; choose another --dir for {:?}",
                dir.display(),
                authority.cluster(),
                self.cluster
            )));
        }
        Ok(authority)
    }

    fn next(&self) -> String {
        let shown = |path: &Path| path.display().to_string();
        let first = &self.nodes[0];
        let made: Vec<String> =
            self.nodes.iter().map(|node| format!("  {}", shown(&self.dir.join(node)))).collect();
        format!(
            "Made, good for a year:\n{}\nCopy each directory to its node, and in the node's file \
             set:\n  cluster = {:?}\n  name = {first:?}\n  identity = \"{}\"\nKeep {} where the nodes \
             are not; it makes more.",
            made.join("\n"),
            self.cluster,
            shown(&self.dir.join(first)),
            shown(&self.dir.join(AUTHORITY).join("ca.key")),
        )
    }
}

impl From<CertsError> for Failure {
    fn from(error: CertsError) -> Self {
        match error {
            CertsError::File { .. } => Self::new(exit::SYSTEM, error.to_string()),
            _ => Self::usage(error.to_string()),
        }
    }
}

const AUTHORITY: &str = "ca";
