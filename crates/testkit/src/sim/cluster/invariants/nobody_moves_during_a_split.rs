//! Nobody becomes up, exiting or removed by a leader that knows of somebody who cannot be reached
//! and is not down.
//!
//! Without it: a pair of newcomers turns one half of a split into a majority of which the other half
//! knows nothing.

use std::collections::BTreeSet;

use tenure_cluster::{Event, Node, Status};

use super::Told;

/// What each member has become already, in which cluster: whoever tells it first has decided it.
#[derive(Debug, Default)]
pub(super) struct Memory {
    moved: BTreeSet<(u64, Node, Option<Status>)>,
}

impl Memory {
    pub(super) fn check(&mut self, told: &Told<'_>) -> Option<String> {
        let (node, became) = match told.event {
            Event::Up(node) => (node, Some(Status::Up)),
            Event::Exiting(node) => (node, Some(Status::Exiting)),
            Event::Removed(node) => (node, None),
            _ => return None,
        };
        let first = self.moved.insert((told.view.cluster(), node.clone(), became));
        let (observer, subject) = told.view.observations().next()?;
        // What one of two twins decided, nobody tells who could be held to it.
        (first && !told.truth.twins_decided).then(|| {
            format!("{} told {:?} while {observer} cannot reach {subject}", told.who, told.event)
        })
    }
}
