//! Nodes on loopback, as the tests of this crate set them up.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::net::TcpListener;

use tenure::cluster::{Address, Settings};
use tenure::{Lease, Store};

/// An address that nobody listens at.
pub(crate) fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

/// The lease that guards the formation of a cluster.
pub(crate) fn formation(store: &Store, cluster: &str) -> Lease {
    store.lease(&format!("{cluster}.formation"))
}

/// A node of this name, without any protection.
pub(crate) fn settings(cluster: &str, name: &str, address: &str, formation: Lease) -> Settings {
    let address = Address::new(address).unwrap();
    let mut settings = Settings::new(cluster).name(name).address(address).formation(formation);
    settings.plaintext_without_any_protection = true;
    settings
}
