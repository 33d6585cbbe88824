//! Sharding: many entities, grouped into shards, and each shard in one place.
//!
//! A *region* runs on every node and hosts shards; the *coordinator* says which. There is one
//! coordinator that is active, on the node that holds its lease. It gives a shard to a region with
//! *Allocate* and takes it back with *HandOff*; both, and the answers, carry the shard's token: the
//! coordinator's term and a number that rises with every allocation. Entities fence what they
//! write with that token.
//!
//! What is promised depends on what is there to build on ([`Setup`]):
//!
//! | setup | coordinator | a shard is active twice | while the store is away |
//! |---|---|---|---|
//! | [`Gossip`](Setup::Gossip) | whoever is the oldest, by its own view | possible while nodes disagree | – |
//! | [`Lease`](Setup::Lease) | one | possible while a removed node has not noticed; the fence refuses what it writes | shards go on |
//! | [`Sessions`](Setup::Sessions) | one | never, except on a process that was stopped for longer than its margin; the fence refuses what it writes | shards stop within the ttl |
//!
//! The protocol is model-checked in `crates/model` (`coordinator.rs` there says what each rule is
//! for), and these cores run in `tenure-testkit`'s simulation.
//!
//! ```text
//! host.rs           who hosts: a node, and its session
//! settings.rs       the setup, timing, limits
//! message.rs        what coordinator and regions tell each other
//! roster.rs         who was ever given an order, in the note of the coordinator's lease
//! coordinator/      pure: is it me, recovery, allocation, hand-off, rebalancing
//! region/           pure: whom to obey, what to host, where to send, what to buffer
//! id.rs             which shard an entity belongs to
//! strategy.rs       which region a shard goes to; version.rs: of the application
//! remember.rs       which entities there are, in a database
//! daemon.rs         workers that always run
//! entity.rs         what users write; builder.rs: how they start it
//! driver/           gives the cores a clock, a cluster, leases and something to run
//! ```

#![cfg_attr(docsrs, feature(doc_cfg))]

mod builder;
pub mod coordinator;
mod daemon;
mod driver;
mod entity;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod host;
mod hosted_guard;
mod id;
mod key;

pub mod region;
mod remember;
mod roster;
mod settings;
mod status;
mod strategy;
pub mod telemetry;
#[cfg(test)]
mod testing;
mod version;
pub mod wire;

pub use builder::{Builder, Shardings, StartError};
pub use coordinator::Coordinator;
pub use daemon::{Daemon, Daemons};
pub use driver::{Asking, EntityRef, NotCoordinator, RegionStats, Reliable, Sharding};
pub use entity::{BoxError, Entity, Hosted, StopReason};
pub use host::{Host, Shard};
pub use hosted_guard::HostedGuard;
pub use id::shard_of;
pub use key::ShardKey;
pub use region::Region;
#[cfg(feature = "postgres")]
pub use remember::PostgresRemember;
#[cfg(feature = "sqlite")]
pub use remember::SqliteRemember;
pub use remember::{Place, Remember, RememberError, Remembering};
pub use roster::{Roster, RosterEntry, RosterError};
pub use settings::{Rule, Settings, SettingsError, Setup};
pub use status::Status;
pub use strategy::{Load, Placement, Strategy};
pub use version::{Version, VersionError};
pub use wire::Message;
