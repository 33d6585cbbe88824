//! What a node says while it is in no cluster: what it waits for, and whom it cannot reach.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tenure_lease::Moment;

use crate::Address;
use crate::formation::{Formation, FormationObstacle};
use crate::transport::{self, Direction, Lane};
use crate::wire::Control;

/// What became of the attempts to reach each contact, and what was said about it.
#[derive(Debug, Default)]
pub(super) struct Outside {
    contacts: BTreeMap<Address, Contact>,
    since: Option<Moment>,
    /// When the log was last told, and what.
    warned: Option<(Moment, Arc<str>)>,
}

#[derive(Debug)]
enum Contact {
    /// No link to it could be opened, for this reason.
    Failed(String),
    /// There is a link to it. What it answers comes by a link that it opens itself.
    Linked,
    /// It answered.
    Answered,
}

impl Outside {
    /// Takes note of what the transport says about contacts.
    pub(super) fn transport_event(&mut self, event: &transport::Event) {
        match event {
            transport::Event::Failed { address, lane: Lane::Control, refusal } => {
                self.set(address, Contact::Failed(refusal.to_string()));
            }
            transport::Event::Up(link)
                if link.lane == Lane::Control
                    && link.direction == Direction::Outgoing
                    && !matches!(
                        self.contacts.get(&link.peer.node.address),
                        Some(Contact::Answered)
                    ) =>
            {
                self.set(&link.peer.node.address, Contact::Linked);
            }
            _ => {}
        }
    }

    /// Takes note of what contacts answer to a request to join.
    pub(super) fn received(&mut self, from: &Address, message: &Control) {
        if matches!(message, Control::Prove(_) | Control::Welcome(..) | Control::Refused(_)) {
            self.set(from, Contact::Answered);
        }
    }

    fn set(&mut self, address: &Address, contact: Contact) {
        if self.contacts.len() < MOST || self.contacts.contains_key(address) {
            self.contacts.insert(address.clone(), contact);
        }
    }

    /// Why this node is in no cluster, in a sentence; also told to the log, once it has lasted, and
    /// again once in a while.
    pub(super) fn explain(
        &mut self,
        formation: &Formation,
        own: &Address,
        now: Moment,
    ) -> Option<Arc<str>> {
        let since = *self.since.get_or_insert(now);
        let why: Arc<str> = match formation.obstacle(own, now)? {
            FormationObstacle::ClusterLives(_) => format!(
                "a cluster lives that this node cannot reach: {}; it forms nothing",
                self.unreached(formation.contacts(), own)
            ),
            FormationObstacle::Asking(cluster) => format!(
                "it asks for the cluster {cluster} before it forms another: {}",
                self.unreached(formation.contacts(), own)
            ),
            FormationObstacle::Unreadable(error) => format!("{error}; it forms nothing"),
            FormationObstacle::TooFewContacts { known, required } => format!(
                "{known} contact points are known, and contacts_min asks for {required}: see \
                 discover; it forms nothing"
            ),
        }
        .into();
        let again = self.warned.as_ref().is_none_or(|(at, said)| {
            let wait = if *said == why { WARN_AGAIN } else { WARN_CHANGED };
            now.since(*at) >= wait
        });
        if again && now.since(since) >= WARN_AFTER {
            tracing::warn!("in no cluster: {why}");
            self.warned = Some((now, why.clone()));
        }
        Some(why)
    }

    /// The contacts that did not answer, and why not.
    fn unreached(&self, contacts: &[Address], own: &Address) -> String {
        let silent: Vec<String> = contacts
            .iter()
            .filter_map(|address| match self.contacts.get(address) {
                Some(Contact::Failed(why)) => Some(format!("{address}: {why}")),
                Some(Contact::Linked) => Some(format!(
                    "{address}: it does not answer; it must be able to reach this node's address, \
                     {own}"
                )),
                Some(Contact::Answered) => None,
                None => Some(format!("{address}: no answer yet")),
            })
            .collect();
        match &silent[..] {
            [] if contacts.is_empty() => "no other contact point is known".into(),
            [] => "the contact points that answer are in no cluster".into(),
            [some @ .., _] if some.len() >= SHOWN => {
                format!("{} and {} more", silent[..SHOWN].join(", "), silent.len() - SHOWN)
            }
            all => all.join(", "),
        }
    }
}

/// How many contacts are remembered; more than anybody asks.
const MOST: usize = 256;
/// How many contacts are named.
const SHOWN: usize = 3;
/// Nodes that start together are outside for some seconds.
const WARN_AFTER: Duration = Duration::from_secs(5);
/// How often the log is told the same.
const WARN_AGAIN: Duration = Duration::from_secs(60);
/// How often the log is told something else.
const WARN_CHANGED: Duration = Duration::from_secs(10);
