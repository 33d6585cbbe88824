//! What becomes of messages after they have arrived, counted at both ends of a data lane.
//!
//! A message that has arrived is *settled* when whoever received it is done with it. The receiving
//! node reports how many are. It does not settle what it refuses or gives back: of that the sending
//! node hears by a message, and counts it when that arrives. So what the sending node has not counted
//! is in the memory of the other, or on its way back from there; when that process is gone, nobody
//! knows what became of it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::Node;

/// What one peer sent to this node, on all of its connections.
#[derive(Debug)]
pub struct SenderAccount {
    node: Node,
    arrived: AtomicU64,
    settled: AtomicU64,
    given_back: AtomicU64,
}

impl SenderAccount {
    pub(crate) fn new(node: Node) -> Self {
        let zero = || AtomicU64::new(0);
        Self { node, arrived: zero(), settled: zero(), given_back: zero() }
    }

    /// Who sent them.
    #[inline]
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// So many messages are done with. The peer is told soon.
    #[inline]
    pub fn settle(&self, count: u64) {
        self.settled.fetch_add(count, Relaxed);
    }

    /// So many messages are refused or given back: the peer settles them itself when it hears of that.
    pub fn give_back(&self, count: u64) {
        self.given_back.fetch_add(count, Relaxed);
    }

    pub(crate) fn arrive(&self, count: u64) {
        self.arrived.fetch_add(count, Relaxed);
    }

    pub(crate) fn settled(&self) -> u64 {
        self.settled.load(Relaxed)
    }

    /// Whether none of what has arrived is in this node's hands any more.
    pub(crate) fn is_closed(&self) -> bool {
        let done = self.settled() + self.given_back.load(Relaxed);
        done >= self.arrived.load(Relaxed)
    }
}

/// What this node sent to one process, on all connections to it.
#[derive(Debug, Default)]
pub(crate) struct ReceiverAccount {
    arrived: AtomicU64,
    /// As that process reports.
    settled: AtomicU64,
    /// Refused, or given back, as this node has heard by messages.
    returned: AtomicU64,
}

impl ReceiverAccount {
    /// So many more have arrived, and so many of all are settled. Reports of several connections may
    /// overtake each other.
    pub(crate) fn report(&self, arrived: u64, settled: u64) {
        self.arrived.fetch_add(arrived, Relaxed);
        self.settled.fetch_max(settled, Relaxed);
    }

    pub(crate) fn take_back(&self, count: u64) {
        self.returned.fetch_add(count, Relaxed);
    }

    /// How many have arrived, and are not known to be done with.
    pub(crate) fn unsettled(&self) -> u64 {
        let settled = self.settled.load(Relaxed).saturating_add(self.returned.load(Relaxed));
        self.arrived.load(Relaxed).saturating_sub(settled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_neither_settled_nor_returned_is_unsettled() {
        let account = ReceiverAccount::default();
        account.report(10, 3);
        account.take_back(2);
        assert_eq!(account.unsettled(), 5);
        // An older report that comes late takes nothing back.
        account.report(0, 1);
        assert_eq!(account.unsettled(), 5);
        // A peer that reports more than there was is not believed.
        account.report(0, u64::MAX);
        assert_eq!(account.unsettled(), 0);
    }
}
