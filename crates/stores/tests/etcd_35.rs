//! The etcd store on etcd 3.5: see scripts/servers.
#![cfg(feature = "etcd")]
#![allow(clippy::disallowed_methods)] // Real servers, real time.

mod etcd_support;
mod port;
mod server;

use etcd_support::{Release, checks};

const RELEASE: Release = Release { server: "etcd35", ctl: "TENURE_TEST_ETCD35CTL" };

#[test]
fn conformance() {
    checks::conformance(RELEASE);
}

#[test]
fn operator() {
    checks::operator(RELEASE);
}

#[test]
fn revoked_etcd_leases() {
    checks::revoked_etcd_leases(RELEASE);
}

#[test]
fn behind_the_holders_back() {
    checks::behind_the_holders_back(RELEASE);
}

#[test]
fn crash() {
    checks::crash(RELEASE);
}

#[test]
fn reads_propose_nothing() {
    checks::reads_propose_nothing(RELEASE);
}

#[test]
fn many_watches() {
    checks::many_watches(RELEASE);
}

#[test]
fn silent_connections() {
    checks::silent_connections(RELEASE);
}

#[test]
fn list() {
    checks::list(RELEASE);
}

#[test]
fn passwords() {
    checks::passwords(RELEASE);
}

#[test]
fn a_refused_watch() {
    checks::a_refused_watch(RELEASE);
}
