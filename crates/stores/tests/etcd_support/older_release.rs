//! What older releases of etcd are tried with.

use super::RELEASE;
use super::etcd_support::checks;

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
