//! The cluster: nodes find each other, agree on who is in and how old each is, notice who cannot be
//! reached, get over it, and talk.
//!
//! Nothing here removes anybody on its own: *unreachable* is an observation that heals.

pub mod downing;
pub mod formation;
pub mod membership;
pub mod message;
mod node;
mod reachability;
pub mod settings;
pub mod view;

pub use membership::{Effect, Ending, Event, Membership};
pub use node::{Address, AddressError, Incarnation, Node};
pub use settings::{MembershipSettings, SettingsError};
pub use view::{Member, Role, Roles, Status, View};
