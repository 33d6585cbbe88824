//! Operate it: who is in, who holds what, what happened and why, over HTTP, for people, programs and
//! probes; and the few things that an operator changes.
//!
//! ```no_run
//! # async fn example(cluster: tenure_cluster::Cluster) -> Result<(), Box<dyn std::error::Error>> {
//! use tenure_manage::{Manage, Recorder};
//! let recorder = Recorder::install()?; // or keep your own exporter
//! let manage = Manage::new(&cluster)
//!     .listen("127.0.0.1:7480")
//!     .write_token_file("write-token")
//!     .metrics(recorder)
//!     .start()
//!     .await?;
//! println!("{}", manage.url());
//! # Ok(()) }
//! ```
//!
//! On loopback anybody may read, and nobody may change anything without the write token. Beyond
//! loopback it listens only with TLS and credentials: see [`Settings`].
//!
//! ```text
//! manage.rs     what users call
//! settings.rs   where it listens, and who may
//! access.rs     pure: who may do what
//! document.rs   what is served, as JSON
//! board.rs      pure: what is served now, and how it came to be: versions, timeline
//! sight.rs      pure: what a node's view and a lease's record become on the board
//! routes.rs     every route, and what it takes; openapi.rs says the same to programs
//! recorder.rs   metrics, as Prometheus reads them
//! client.rs     the other end, for `tenure cluster`
//! driver/       the listener, TLS, and what watches the node
//! ```

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod access;
pub mod board;
pub mod client;
pub mod document;
mod driver;
mod manage;
mod openapi;
mod recorder;
mod routes;
mod settings;
pub mod sight;

pub use manage::{
    Boxed, Change, Changed, Manage, ManageError, Managed, Refused, Running, serve, serve_metrics,
};
pub use recorder::{InstallError, Recorder};
pub use routes::{ROUTES, Route};
pub use settings::{Settings, Token};
