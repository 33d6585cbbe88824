//! `tenure certs`: certificates to start with, and to go on with.

mod directory;

use std::path::PathBuf;
use std::process::ExitCode;

use tenure_cluster::certs::CertsError;

use self::directory::CertsDirectory;
use crate::exit::{self, Failure};
use crate::output;

/// Make, renew and revoke certificates for the nodes of a cluster
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
    /// is an authority already, it makes certificates for more nodes, or for clients. Whoever has DIR/ca/ca.key
    /// can make members of the cluster: keep it where the nodes are not.
    New(New),
    /// Make new certificates and keys for nodes that have one, before theirs expire
    ///
    /// Of the same authority and with the same hosts. The nodes take up the new files while they run.
    Renew(Renew),
    /// Revoke every certificate that was made for a node so far
    ///
    /// Writes crl.pem into the directory of each node. Copied to the nodes, it closes the links of
    /// whoever has one of those certificates, and lets nobody in with one. If the node is to stay,
    /// `tenure certs renew` makes another certificate for it afterwards.
    Revoke(Named),
    /// Replace the authority
    ///
    /// Makes another one, and writes both into each node's ca.pem. Copy ca.pem to all nodes; then
    /// `tenure certs renew`, and copy everything; then `tenure certs roll --finish`, and copy ca.pem.
    Roll(Roll),
}

#[derive(clap::Args)]
struct Place {
    /// Where the certificates are
    #[arg(long, value_name = "DIR", default_value = "certs")]
    dir: PathBuf,
}

#[derive(clap::Args)]
struct New {
    /// The cluster's name
    #[arg(long, value_name = "NAME")]
    cluster: String,
    /// Where to write
    #[arg(long, value_name = "DIR", default_value = "certs")]
    dir: PathBuf,
    /// A DNS name or an IP address under which other programs reach the nodes, for the management
    /// API; may be repeated, and `*.shop.svc` is one
    #[arg(long = "host", value_name = "HOST")]
    hosts: Vec<String>,
    /// Make new ones for nodes that have one (the authority stays)
    #[arg(long)]
    force: bool,
    /// A client's name: makes a certificate for a program that is no member, in DIR/client/CLIENT;
    /// may be repeated
    #[arg(long = "client", value_name = "CLIENT")]
    clients: Vec<String>,
    /// The nodes' names: each node's setting `name`; `*` is for a certificate that all nodes share,
    /// in DIR/all
    #[arg(required_unless_present = "clients", value_name = "NODE")]
    nodes: Vec<String>,
}

#[derive(clap::Args)]
struct Renew {
    #[command(flatten)]
    place: Place,
    /// Other hosts than before: see `new`
    #[arg(long = "host", value_name = "HOST")]
    hosts: Vec<String>,
    /// Which nodes; all of them if none is named
    #[arg(value_name = "NODE")]
    nodes: Vec<String>,
}

#[derive(clap::Args)]
struct Named {
    #[command(flatten)]
    place: Place,
    /// Which nodes
    #[arg(required = true, value_name = "NODE")]
    nodes: Vec<String>,
}

#[derive(clap::Args)]
struct Roll {
    #[command(flatten)]
    place: Place,
    /// All nodes have certificates of the new authority: takes the former one out of ca.pem
    #[arg(long)]
    finish: bool,
}

pub(crate) fn main(args: &Args) -> Result<ExitCode, Failure> {
    let said = match &args.command {
        Command::New(args) => args.make()?,
        Command::Renew(args) => {
            let directory = CertsDirectory::open(&args.place.dir)?;
            let nodes = directory.select(&args.nodes)?;
            for node in &nodes {
                directory.renew(node, &args.hosts)?;
            }
            format!(
                "Renewed, good for a year:\n{}\nCopy each directory to its node; it takes the new \
                 files up while it runs.",
                directory.list(&nodes)
            )
        }
        Command::Revoke(args) => {
            let directory = CertsDirectory::open(&args.place.dir)?;
            let count = directory.revoke(&args.nodes)?;
            format!(
                "Revoked {count} certificates. Copy crl.pem to every node:\n{}\nNodes that are to \
                 stay need another certificate: tenure certs renew {}",
                directory.list(&directory.nodes()?),
                args.nodes.join(" ")
            )
        }
        Command::Roll(args) => {
            let directory = CertsDirectory::open(&args.place.dir)?;
            let next = if args.finish {
                directory.finish_roll()?;
                "The former authority is not trusted any more. Copy ca.pem to every node:"
            } else {
                directory.roll()?;
                "Both authorities are trusted. Copy ca.pem to every node; then tenure certs renew, \
                 and copy everything; then tenure certs roll --finish. The files:"
            };
            format!("{next}\n{}", directory.list(&directory.nodes()?))
        }
    };
    output::text(&said)?;
    Ok(ExitCode::SUCCESS)
}

impl New {
    fn make(&self) -> Result<String, Failure> {
        let clients = self.clients.iter().map(|name| directory::client(name));
        let names: Vec<String> = self.nodes.iter().cloned().chain(clients).collect();
        // Before anything is written.
        for node in &names {
            CertsDirectory::check_name(node)?;
            let path = self.dir.join(directory::place(node));
            let there = ["node.pem", "node.key"].map(|file| path.join(file));
            if let Some(path) = there.iter().find(|path| path.exists())
                && !self.force
            {
                return Err(Failure::usage(format!(
                    "{} is there already; --force replaces it",
                    path.display()
                )));
            }
        }
        let directory = CertsDirectory::open_or_make(&self.dir, &self.cluster)?;
        for node in &names {
            directory.issue(node, &self.hosts)?;
        }
        let Some(first) = self.nodes.first() else {
            return Ok(format!(
                "Made, good for a year:\n{}\nCopy each directory to its client, and give it as the \
                 client's identity.",
                directory.list(&names)
            ));
        };
        // A name of its own, also if the certificate is for all.
        let name = if first == "*" { "shop-0" } else { first };
        Ok(format!(
            "Made, good for a year:\n{}\nCopy each directory to its node, and in the node's file \
             set:\n  cluster = {:?}\n  name = {name:?}\n  identity = \"{}\"\nKeep {} where the nodes \
             are not; it makes more.",
            directory.list(&names),
            self.cluster,
            self.dir.join(directory::place(first)).display(),
            self.dir.join("ca").join("ca.key").display(),
        ))
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
