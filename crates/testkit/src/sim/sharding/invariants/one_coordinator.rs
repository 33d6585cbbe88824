//! With a lease, no two coordinators are active, except one in a process that stood still.

use tenure_cluster::Node;

pub(super) fn check(active: &[&Node]) -> Option<String> {
    (active.len() > 1).then(|| format!("{active:?} are active"))
}
