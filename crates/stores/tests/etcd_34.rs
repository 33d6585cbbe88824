//! The etcd store on etcd 3.4: see scripts/servers.
#![cfg(feature = "etcd")]
#![allow(clippy::disallowed_methods)] // Real servers, real time.

mod etcd_support;
#[path = "etcd_support/older_release.rs"]
mod older_release;
mod port;
mod server;

use etcd_support::Release;

const RELEASE: Release = Release { server: "etcd34", ctl: "TENURE_TEST_ETCD34CTL" };
