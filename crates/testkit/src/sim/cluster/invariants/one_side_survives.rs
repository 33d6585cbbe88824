//! Of one cluster there is never more than one side that has settled without the other.
//!
//! A side has settled when all whom it still counts live and count just the same, and no verdict is
//! to come before the rest are removed. Two such sides would each start whatever the other still
//! runs.

use std::collections::BTreeMap;

use tenure_cluster::{Node, Status, View};

use super::super::truth::Truth;
use super::Looked;

pub(super) fn check(truth: &Truth, looked: &[Looked<'_>]) -> Option<String> {
    if truth.twins_decided {
        return None;
    }
    let views: BTreeMap<&Node, &View> = looked.iter().map(|one| (one.who, one.view)).collect();
    let mut settled: Vec<(u64, Vec<&Node>)> = Vec::new();
    for one in looked {
        if one.owes_verdict {
            continue;
        }
        let side = counted(one.view);
        let cluster = one.view.cluster();
        if side.is_empty() || settled.iter().any(|(_, known)| *known == side) {
            continue;
        }
        let agrees = |node: &&Node| {
            views.get(*node).is_some_and(|view| view.cluster() == cluster && counted(view) == side)
        };
        if side.contains(&one.who) && side.iter().all(agrees) {
            let disjoint = |(other, known): &&(u64, Vec<&Node>)| {
                *other == cluster && known.iter().all(|node| !side.contains(node))
            };
            if let Some((_, other)) = settled.iter().find(disjoint) {
                return Some(format!("{side:?} and {other:?} go on without each other"));
            }
            settled.push((cluster, side));
        }
    }
    None
}

fn counted(view: &View) -> Vec<&Node> {
    let counts = |status| (Status::Up..Status::Down).contains(&status);
    view.members().filter(|(_, member)| counts(member.status)).map(|(node, _)| node).collect()
}
