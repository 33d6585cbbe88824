//! Consul 1.8, the oldest that is tested, against a real server: see scripts/servers.
#![cfg(feature = "consul")]

mod consul_suite;
mod port;
mod server;
mod silence;

/// What scripts/servers calls it.
const SERVER: &str = "consul";
/// Ports that this version would open besides, unless it is told not to.
const PORTS: &str = "";
