//! Whether those that this node watches answer.

use std::collections::BTreeSet;
use std::sync::Arc;

use tenure_lease::Moment;

use super::{Effect, Membership};
use crate::Node;
use crate::reachability::Observed;
use crate::settings::Rule;
use crate::view::{Row, Status};
use crate::wire::Control;

impl Membership {
    pub(super) fn heartbeat(&mut self, now: Moment) {
        let Some(cluster) = self.cluster() else { return };
        self.heartbeat_at = now + self.random.around(self.settings.heartbeat_interval);
        for node in self.watch.watched() {
            self.effects.push(Effect::Send(node.clone(), Control::Ping { cluster }));
        }
    }

    pub(super) fn receive_ping(&mut self, from: &Node, cluster: u64) {
        let Some(ours) = self.cluster() else { return };
        if cluster > ours {
            return self.give_way(from, cluster);
        }
        let removed = self.view().is_some_and(|view| view.is_removed(from));
        let answer = if removed && cluster == ours {
            Control::Removed { cluster: ours }
        } else {
            // Also to a cluster with a lower id: that is how it learns of this one.
            Control::Pong { cluster: ours }
        };
        self.effects.push(Effect::Send(from.clone(), answer));
    }

    pub(super) fn receive_pong(&mut self, from: &Node, cluster: u64, now: Moment) {
        let Some(ours) = self.cluster() else { return };
        if cluster > ours {
            return self.give_way(from, cluster);
        }
        if cluster == ours
            && let Some(observed) = self.watch.answered(from, now, &self.settings)
        {
            self.observed(vec![observed], now);
            // It may have missed a lot, and so may this node.
            self.send_summary(from);
        }
    }

    /// Whether this node's row says what it has not found out: a twin wrote it, while this process
    /// ran twice. Nobody else would ever correct it.
    pub(super) fn has_foreign_row(&self) -> bool {
        let Some(view) = self.view() else { return false };
        let Some(row) = view.row(&self.me) else { return false };
        let counts = |node: &&Node| view.member(node).is_some_and(|m| m.status < Status::Down);
        !row.unreachable.iter().filter(counts).eq(self.watch.unreachable().filter(counts))
    }

    /// Writes what was found out into this node's row of the table.
    pub(super) fn observed(&mut self, observed: Vec<Observed>, now: Moment) {
        let me = self.me.clone();
        let Some(view) = self.view_mut() else { return };
        let version = view.row(&me).map_or(0, |row| row.version) + 1;
        let unreachable: BTreeSet<Node> = self.watch.unreachable().cloned().collect();
        let Some(view) = self.view_mut() else { return };
        view.set_row(&me, Row { version, unreachable: Arc::new(unreachable) });
        self.changed(now);
        if !self.settings.obeys(Rule::DetectorRemovesNobody) {
            for found in observed {
                if let Observed::Unreachable(node) = found {
                    self.raise(&node, Status::Down, now);
                }
            }
        }
    }
}
