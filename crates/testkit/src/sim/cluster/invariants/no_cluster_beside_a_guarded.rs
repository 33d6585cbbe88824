//! Nobody forms a cluster while the leader of another one lives and could hold the formation lease.
//! Whoever does not reach that leader stays outside.

use std::time::Duration;

use tenure_cluster::Node;
use tenure_lease::Moment;

pub(super) fn check(at: Moment, formed: u64, guards: &[(Node, u64, Moment)]) -> Option<String> {
    let guard = guards
        .iter()
        .find(|(_, cluster, since)| *cluster != formed && at.since(*since) > TAKES_LEASE)?;
    let (node, cluster, since) = guard;
    let since = at.since(*since);
    Some(format!("{formed} is formed though {node} has led {cluster} for {since:?}"))
}

/// In this time a leader that reaches the store has taken the lease, and everybody has seen it.
const TAKES_LEASE: Duration = Duration::from_millis(1500);
