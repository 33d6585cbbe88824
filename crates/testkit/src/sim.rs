//! Simulations in virtual time, each from one seed.
//!
//! The pure cores run here as they run in production; the clock, the network, the store and every
//! fault come from a seed. The same seed gives the same history.

mod clock;
pub mod cluster;
pub mod leases;
mod random;
pub mod sharding;

pub use random::Random;
