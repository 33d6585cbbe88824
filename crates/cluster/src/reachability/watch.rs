use std::collections::{BTreeMap, BTreeSet};

use tenure_lease::Moment;

use super::health::Health;
use super::{Detector, ring};
use crate::Node;
use crate::settings::MembershipSettings;

/// The nodes that this one watches.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watch {
    watched: BTreeMap<Node, Watched>,
    health: Health,
    /// The earliest moment at which somebody may have been silent for too long.
    deadline: Option<Moment>,
}

#[derive(Clone, Debug)]
struct Watched {
    detector: Detector,
    unreachable: bool,
}

/// What was found out about somebody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Observed {
    /// It has been silent for too long.
    Unreachable(Node),
    /// It answers again.
    Reachable(Node),
}

impl Watch {
    /// Watches the neighbours among these, and nobody else, except those that do not answer: their
    /// return should be noticed by whoever noticed their silence.
    pub(crate) fn set_members<'a>(
        &mut self,
        me: &Node,
        members: impl Iterator<Item = &'a Node> + Clone,
        is_unreachable: impl Fn(&Node) -> bool,
        settings: &MembershipSettings,
        now: Moment,
    ) {
        let neighbours = ring::neighbours(me, members.clone(), is_unreachable, settings.watched);
        if self.watched.values().any(|watched| watched.unreachable)
            || self.watched.len() != neighbours.len()
            || !neighbours.iter().all(|node| self.watched.contains_key(node))
        {
            let members: BTreeSet<&Node> = members.collect();
            let wanted: BTreeSet<&Node> = neighbours.into_iter().collect();
            self.watched.retain(|node, watched| {
                wanted.contains(node) || watched.unreachable && members.contains(node)
            });
            for node in wanted {
                if !self.watched.contains_key(node) {
                    let detector = Detector::new(settings, now);
                    self.watched.insert(node.clone(), Watched { detector, unreachable: false });
                }
            }
            self.refresh(settings);
        }
    }

    /// Everybody to ask for a sign of life.
    pub(crate) fn watched(&self) -> impl Iterator<Item = &Node> {
        self.watched.keys()
    }

    /// Whether this node has found it unreachable; `None` if it does not watch it.
    pub(crate) fn finds_unreachable(&self, node: &Node) -> Option<bool> {
        self.watched.get(node).map(|watched| watched.unreachable)
    }

    /// Everybody that this node cannot reach.
    pub(crate) fn unreachable(&self) -> impl Iterator<Item = &Node> {
        self.watched.iter().filter(|(_, watched)| watched.unreachable).map(|(node, _)| node)
    }

    /// A sign of life.
    pub(crate) fn answered(
        &mut self,
        node: &Node,
        now: Moment,
        settings: &MembershipSettings,
    ) -> Option<Observed> {
        let watched = self.watched.get_mut(node)?;
        let was_unreachable = std::mem::replace(&mut watched.unreachable, false);
        watched.detector.answered(now, !was_unreachable);
        if was_unreachable {
            self.refresh(settings);
        }
        was_unreachable.then(|| Observed::Reachable(node.clone()))
    }

    /// A timer of this node that was due at `due` fires now.
    pub(crate) fn timer(&mut self, due: Moment, now: Moment, settings: &MembershipSettings) {
        let patience = self.health.patience();
        let pause = self.health.timer(due, now, settings.heartbeat_interval / 2);
        if !pause.is_zero() {
            for watched in self.watched.values_mut() {
                watched.detector.excuse(pause, now);
            }
        }
        if !pause.is_zero() || patience != self.health.patience() {
            self.refresh(settings);
        }
    }

    /// Who has been silent for too long.
    pub(crate) fn silent(&mut self, now: Moment, settings: &MembershipSettings) -> Vec<Observed> {
        if self.deadline.is_none_or(|deadline| now < deadline) {
            return Vec::new();
        }
        let patience = self.health.patience();
        let mut found = Vec::new();
        for (node, watched) in &mut self.watched {
            if !watched.unreachable && watched.detector.deadline(settings, patience) <= now {
                watched.unreachable = true;
                found.push(Observed::Unreachable(node.clone()));
            }
        }
        self.refresh(settings);
        found
    }

    /// When to look again for silence. Answers that come meanwhile make it later; looking too early
    /// does no harm.
    pub(crate) fn deadline(&self) -> Option<Moment> {
        self.deadline
    }

    fn refresh(&mut self, settings: &MembershipSettings) {
        let patience = self.health.patience();
        self.deadline = self
            .watched
            .values()
            .filter(|watched| !watched.unreachable)
            .map(|watched| watched.detector.deadline(settings, patience))
            .min();
    }
}
