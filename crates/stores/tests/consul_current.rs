//! Consul 1.16, the newest under a free licence, against a real server: see scripts/servers.
#![cfg(feature = "consul")]

mod consul_suite;
mod port;
mod server;
mod silence;

/// What scripts/servers calls it.
const SERVER: &str = "consul116";
/// Ports that this version would open besides, unless it is told not to.
const PORTS: &str = "grpc_tls = -1";
