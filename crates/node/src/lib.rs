//! A node's settings from a file, as `tenure node` reads it, for programs of your own: who the node is,
//! where it finds the others, which store its leases are in, where its management API listens.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use tenure_cluster::Cluster;
//! use tenure_manage::Manage;
//! use tenure_node::NodeFile;
//!
//! let file = NodeFile::load("node.toml")?;
//! let cluster = Cluster::start(file.settings().await?)?;
//! // Before the node is in: probes ask.
//! let _managed = match file.manage()? {
//!     Some(settings) => Some(Manage::new(&cluster).settings(settings).start().await?),
//!     None => None,
//! };
//! cluster.up().await?;
//! let store = file.store().await?; // for leases of your own
//! // … start singletons and shards …
//! cluster.leave_when_terminated().await?;
//! # Ok(()) }
//! ```
//!
//! `docs/cluster.md` has every setting. Whatever is wrong is said with the line and the name of the
//! setting. A program that is configured in another way sets the same in code:
//! [`tenure_cluster::Settings`], [`tenure_manage::Settings`].

#![cfg_attr(docsrs, feature(doc_cfg))]

mod file;
mod place;

pub use file::{NodeFile, NodeFileError};
