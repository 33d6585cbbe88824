//! Whose word counts.
//!
//! A certificate lets its owner talk to nodes; it makes nobody a member. Words that end a membership,
//! or begin one, count only of members and of those that this node was told to look for: otherwise
//! one key that leaked could throw out every node, one frame each.

use super::{Effect, Ending, Membership};
use crate::Node;
use crate::wire::Control;

impl Membership {
    /// Whether this node is among the members, whatever its status.
    pub fn is_member(&self, node: &Node) -> bool {
        self.view().is_some_and(|view| view.member(node).is_some())
    }

    /// Whether a message may be believed only if its sender was found at its address by dialing it:
    /// who is no member could claim the address of a contact.
    pub fn needs_proof(&self, from: &Node, message: &Control) -> bool {
        let newer = |cluster: u64| self.cluster().is_some_and(|ours| cluster > ours);
        let counts = match message {
            Control::Join(_) | Control::Posted(_) => false,
            Control::Ping { cluster } | Control::Pong { cluster } => newer(*cluster),
            Control::Summary(summary) => newer(summary.cluster),
            Control::State(state) => newer(state.view.cluster()),
            Control::Welcome(..)
            | Control::Refused(_)
            | Control::Prove(_)
            | Control::Removed { .. } => true,
        };
        counts && !self.is_member(from)
    }

    /// Whether this node was told to look for a cluster there.
    pub(super) fn is_contact(&self, node: &Node) -> bool {
        let contacts = &self.contacts;
        contacts.asked.contains(&node.address) || contacts.met.contains(&node.address)
    }

    /// Somebody says that there is a newer cluster of the same name. The other members would not
    /// believe it of somebody whom only this node was told to look for; so this node tells them.
    pub(super) fn give_way(&mut self, from: &Node, cluster: u64) {
        if self.is_member(from) || self.is_contact(from) {
            let others = self.view().into_iter().flat_map(|view| view.members());
            let others = others.map(|(node, _)| node).filter(|node| **node != self.me);
            for node in others.cloned().collect::<Vec<_>>() {
                self.effects.push(Effect::Send(node, Control::Ping { cluster }));
            }
            self.end(Ending::OtherCluster(cluster));
        }
    }
}
