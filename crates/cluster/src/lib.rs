//! The cluster: nodes find each other, agree on who is in and how old each is, notice who cannot be
//! reached, get over it, and talk.
//!
//! Nothing here removes anybody on its own: *unreachable* is an observation that heals.

#[cfg(feature = "certs")]
pub mod certs;
mod node;
pub mod transport;

pub use node::{Address, AddressError, Incarnation, Node};
