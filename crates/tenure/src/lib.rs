//! Exactly one of something across many machines.
//!
//! ```no_run
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = tenure::open("file:./leases").await?;
//! store
//!     .lease("nightly-report")
//!     .run(async |tenure| {
//!         while tenure.is_held() {
//!             // one batch of the work that only one of us may do
//! #           break;
//!         }
//!         Ok::<_, tenure::LeaseError>(())
//!     })
//!     .await?;
//! # Ok(()) }
//! ```
//!
//! With the feature `cron`, jobs at their times, each time on one machine: `tenure::cron`. With the feature `cluster`, nodes that find each other, agree on who is in, and talk:
//! `tenure::cluster`, and the way in for programs that are no nodes: `tenure::client`; with `singleton`, one worker in that cluster, found by everybody:
//! `tenure::singleton`; with `sharding`, many entities, each in one place: `tenure::sharding`; with
//! `manage`, probes, metrics and an API: `tenure::manage`; with `node`, all of its settings from a file:
//! `tenure::node`. All are off by default, so that whoever needs leases alone compiles no more.
//!
//! A process that is told to end hands over first: [`signals`].

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "cluster")]
pub use tenure_cluster as cluster;
#[cfg(feature = "cluster")]
pub use tenure_cluster::client;
#[cfg(feature = "cron")]
pub use tenure_cron as cron;
pub use tenure_lease::*;
#[cfg(feature = "manage")]
pub use tenure_manage as manage;
#[cfg(feature = "node")]
pub use tenure_node as node;
#[cfg(feature = "sharding")]
pub use tenure_sharding as sharding;
#[cfg(feature = "singleton")]
pub use tenure_singleton as singleton;
pub use tenure_stores as stores;

/// Opens a store from its URL: `file:DIR` for all processes of one machine, `memory:` for this one,
/// and, with its feature, any of those that live on servers: see [`stores`].
pub async fn open(url: &str) -> Result<Store, OpenError> {
    stores::open(url).await
}

/// The examples of the README and of the guide are compiled with the documentation tests; `scripts/guide
/// build` sees that no page with an example is missing. (They are no part of a published crate.)
#[cfg(doctest)]
mod guide {
    #[cfg(feature = "cluster")]
    #[doc = include_str!("../../../docs/clients.md")]
    struct Clients;

    #[doc = include_str!("../../../docs/concepts.md")]
    struct Concepts;

    #[cfg(feature = "cron")]
    #[doc = include_str!("../../../docs/cron.md")]
    struct Cron;

    #[cfg(feature = "all-stores")]
    #[doc = include_str!("../../../docs/stores/etcd.md")]
    struct Etcd;

    #[cfg(feature = "singleton")]
    #[doc = include_str!("../../../docs/management.md")]
    struct Management;

    #[doc = include_str!("../../../docs/migrating.md")]
    struct Migrating;

    #[cfg(feature = "all-stores")]
    #[doc = include_str!("../../../docs/stores/postgres.md")]
    struct Postgres;

    #[cfg(all(feature = "node", feature = "singleton", feature = "sharding"))]
    #[doc = include_str!("../../../docs/production.md")]
    struct Production;

    #[cfg(feature = "sqlite")]
    #[doc = include_str!("../../../README.md")]
    struct Readme;

    #[cfg(feature = "sharding")]
    #[doc = include_str!("../../../docs/sharding.md")]
    struct Sharding;

    #[cfg(feature = "singleton")]
    #[doc = include_str!("../../../docs/singleton.md")]
    struct Singleton;

    #[doc = include_str!("../../../docs/start.md")]
    struct Start;

    #[cfg(feature = "singleton")]
    #[doc = include_str!("../../../docs/testing.md")]
    struct Testing;

    #[doc = include_str!("../../../docs/upgrading.md")]
    struct Upgrading;
}
