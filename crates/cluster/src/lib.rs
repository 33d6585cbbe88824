//! The cluster: nodes find each other, agree on who is in and how old each is, notice who cannot be
//! reached, get over it, and talk.
//!
//! Nothing here removes anybody on its own: *unreachable* is an observation that heals.
//!
//! ```text
//! cluster.rs        what users call
//! view/             pure: what one node believes; merging
//! reachability/     pure: who answers whom
//! membership/       pure: joining, gossip, leading, leaving
//! downing/          pure: what each strategy decides; resolver.rs: when, by whom, and the verdict
//! formation/        pure: exactly one cluster, of however many nodes start at once
//! messaging/        messages to named receivers; reliable ones
//! client/           talks to singletons and entities from outside; clients/: what members do for that
//! transport/        mutual TLS, frames, a lane for control and one for data
//! driver/           the thread that gives the cores a clock, a network and a store
//! ```

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "certs")]
pub mod certs;
pub mod client;
pub mod clients;
mod cluster;
mod discovery;
pub mod downing;
mod driver;
pub mod formation;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod humane;
pub mod membership;
pub mod messaging;
mod node;
mod reachability;
pub mod resolver;
pub mod settings;
pub mod telemetry;
pub mod transport;
pub mod view;
pub mod wire;

pub use cluster::{Cluster, Events, JoinError, NotReady, Views};
pub use discovery::{
    BoxError, Discover, Discovery, DiscoveryError, KubernetesService, ServicePort, SrvName,
};
pub use driver::Question;
pub use membership::{Decided, Effect, Ending, Event, Membership};
pub use node::{Address, AddressError, Incarnation, Node};
pub use settings::{MembershipSettings, Settings, SettingsError};
pub use view::{Member, Role, Roles, Status, View};
