//! What is wrong although this node does its part, and what nobody would notice before a split:
//! said in the log, in the status, and by a metric.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tenure_lease::Moment;

use crate::downing::Strategy;
use crate::transport::Transport;
use crate::view::{Status, View};
use crate::{Address, telemetry};

/// The warnings of one node.
#[derive(Default)]
pub(super) struct Warnings {
    /// Why the verdict in the arbitration lease's record cannot be read, if it cannot.
    pub(super) unreadable_verdict: Option<String>,
    /// When to look again.
    next_look: Moment,
    /// Since when the role that downing counts is nobody's.
    role_missing_since: Option<Moment>,
    /// What there is to warn of, and when it was last logged.
    current: BTreeMap<Warning, (String, Moment)>,
}

/// What a warning is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Warning {
    /// No member has the role that downing counts.
    RoleMissing,
    /// The arbitration lease's record has a verdict that this version cannot read.
    VerdictUnreadable,
    /// Nothing gets through to a member that counts as reachable.
    LaneStuck(Address, &'static str),
}

impl Warning {
    fn kind(&self) -> &'static str {
        match self {
            Self::RoleMissing => "role_missing",
            Self::VerdictUnreadable => "verdict_unreadable",
            Self::LaneStuck(..) => "lane_stuck",
        }
    }
}

impl Warnings {
    /// Looks every few seconds. The sentences for the status, if there are others than before.
    pub(super) fn look(
        &mut self,
        now: Moment,
        view: &View,
        strategy: Option<&Strategy>,
        transport: &Transport,
    ) -> Option<Arc<[String]>> {
        if now < self.next_look {
            return None;
        }
        self.next_look = now + EVERY;
        let mut found = BTreeMap::new();
        if let Some(role) = strategy.and_then(Strategy::role)
            && self.is_role_missing(role, view, now)
        {
            let text = format!(
                "no member has the role {role:?}, and downing counts no other: nobody would decide \
                 in a split. Is downing.role misspelt, or missing from the roles of the nodes?"
            );
            found.insert(Warning::RoleMissing, text);
        }
        if let Some(why) = &self.unreadable_verdict {
            let text = format!(
                "the arbitration lease's record holds {why}. Nothing is decided before this node \
                 runs the version that wrote it; if there is none, delete the record"
            );
            found.insert(Warning::VerdictUnreadable, text);
        }
        for stuck in transport.stuck_lanes() {
            let is_member = view.members().any(|(node, member)| {
                node.address == stuck.address
                    && member.status < Status::Down
                    && !view.is_unreachable(node)
            });
            if is_member {
                let (address, lane) = (stuck.address, stuck.lane.word());
                let text = format!(
                    "nothing gets through to {address} on the {lane} lane, although it counts as \
                     reachable: {}",
                    stuck.why
                );
                found.insert(Warning::LaneStuck(address, lane), text);
            }
        }
        self.take_in(found, now)
    }

    /// Nodes with the role may be slower to start than those without.
    fn is_role_missing(&mut self, role: &str, view: &View, now: Moment) -> bool {
        let counts = Status::Up..Status::Down;
        let mut members = view.members().filter(|(_, member)| counts.contains(&member.status));
        let has_role = members.any(|(_, member)| member.roles.contains(role));
        if has_role {
            self.role_missing_since = None;
            return false;
        }
        now.since(*self.role_missing_since.get_or_insert(now)) >= ROLE_PATIENCE
    }

    fn take_in(&mut self, found: BTreeMap<Warning, String>, now: Moment) -> Option<Arc<[String]>> {
        let before: Vec<String> = self.current.values().map(|(text, _)| text.clone()).collect();
        self.current.retain(|warning, (text, _)| {
            let stays = found.contains_key(warning);
            if !stays {
                tracing::info!("no longer so: {text}");
            }
            stays
        });
        for (warning, text) in found {
            match self.current.get_mut(&warning) {
                Some((said, at)) if now.since(*at) < SAY_AGAIN => *said = text,
                _ => {
                    tracing::warn!(kind = warning.kind(), "{text}");
                    self.current.insert(warning, (text, now));
                }
            }
        }
        for kind in telemetry::WARNING_KINDS {
            let count = self.current.keys().filter(|it| it.kind() == kind).count();
            telemetry::warnings(kind, count);
        }
        let after: Vec<String> = self.current.values().map(|(text, _)| text.clone()).collect();
        (before != after).then(|| after.into())
    }
}

const EVERY: Duration = Duration::from_secs(2);
const ROLE_PATIENCE: Duration = Duration::from_secs(10);
/// How often the same warning is logged.
const SAY_AGAIN: Duration = Duration::from_secs(600);
