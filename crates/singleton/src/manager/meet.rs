//! Which members have a manager of this singleton.

use tenure_cluster::Node;
use tenure_lease::Moment;

use super::{Effect, Manager, Peer, Phase};
use crate::Word;

impl Manager {
    /// There is no manager on that node.
    pub fn absent(&mut self, now: Moment, node: &Node) {
        if let Some(peer) = self.peers.get_mut(node).filter(|peer| !peer.managed) {
            peer.absent = true;
        }
        self.act(now);
    }

    /// Says how this node is.
    pub(super) fn answer(&mut self, to: &Node) {
        let word = match self.phase {
            Phase::Over => Word::HandedOver { token: self.last },
            _ => self.word(),
        };
        self.effects.push_back(Effect::Tell(to.clone(), word));
    }

    /// There is a manager on that node; whether that is new.
    pub(super) fn meet(&mut self, node: &Node) -> bool {
        let Some(peer) = self.peers.get_mut(node) else { return false };
        peer.absent = false;
        !std::mem::replace(&mut peer.managed, true)
    }

    /// Those that may have a manager, and have not said anything.
    pub(super) fn unknown(&self) -> impl Iterator<Item = (&Node, &Peer)> {
        self.peers.iter().filter(|(_, peer)| peer.is_unknown())
    }

    /// Tells those that there is a manager here. Without a lease nothing goes on before it is known
    /// whether they host it: one that has not answered is asked.
    pub(super) fn introduce(&mut self) {
        let word = self.word();
        for (node, peer) in self.peers.iter_mut().filter(|(_, peer)| peer.is_unknown()) {
            let again = std::mem::replace(&mut peer.asked, true);
            self.effects.push_back(match again && !self.guarded {
                true => Effect::Ask(node.clone(), word.clone()),
                false => Effect::Tell(node.clone(), word.clone()),
            });
        }
    }
}
