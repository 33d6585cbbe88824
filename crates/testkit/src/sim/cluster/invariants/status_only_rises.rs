//! What a process believes of a member only ever rises: its status, its age, the highest age given.
//!
//! Without it: a member that was declared down is up again, because old news came late.

use std::collections::BTreeMap;

use tenure_cluster::{Node, Status};

use super::Looked;

/// What each process believed when it was last looked at.
#[derive(Debug, Default)]
pub(super) struct Memory {
    believed: BTreeMap<u64, Believed>,
}

#[derive(Debug)]
struct Believed {
    cluster: u64,
    highest_up: u64,
    members: BTreeMap<Node, (Status, u64)>,
}

impl Memory {
    pub(super) fn check(&mut self, looked: &[Looked<'_>]) -> Option<String> {
        let mut found = None;
        for one in looked {
            let view = one.view;
            let now = Believed {
                cluster: view.cluster(),
                highest_up: view.highest_up(),
                members: view
                    .members()
                    .map(|(node, member)| (node.clone(), (member.status, member.up_number)))
                    .collect(),
            };
            if let Some(before) = self.believed.insert(one.process, now) {
                found = found.or_else(|| fell(&before, one));
            }
        }
        found
    }
}

fn fell(before: &Believed, one: &Looked<'_>) -> Option<String> {
    let (who, view) = (one.who, one.view);
    if before.cluster != view.cluster() {
        return Some(format!("{who} went from cluster {} to {}", before.cluster, view.cluster()));
    }
    if view.highest_up() < before.highest_up {
        return Some(format!("{who} has forgotten the up-number {}", before.highest_up));
    }
    before.members.iter().find_map(|(node, (status, up_number))| {
        let member = view.member(node)?;
        let fell = member.status < *status || member.up_number < *up_number;
        fell.then(|| format!("{who} believed {node} {status} ({up_number}), now {member:?}"))
    })
}
