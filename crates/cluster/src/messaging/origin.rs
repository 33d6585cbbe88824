use std::sync::Arc;

use crate::Node;
use crate::transport::SenderAccount;

/// The node that told a message. The default is this one.
///
/// Until it is settled or given back, the message counts as *unsettled* on the node that told it, also when
/// this is dropped: if this process dies, it becomes a dead letter there, with
/// [`Lost::Unknown`](super::Lost::Unknown).
#[derive(Debug, Default)]
pub struct Origin(Option<Arc<SenderAccount>>);

impl Origin {
    #[inline]
    pub(super) fn new(account: &Arc<SenderAccount>) -> Self {
        Self(Some(account.clone()))
    }

    /// Who told it; `None` if that is this node.
    #[inline]
    pub fn node(&self) -> Option<&Node> {
        self.0.as_ref().map(|account| account.node())
    }

    /// The message is handled.
    #[inline]
    pub fn settle(self) {
        if let Some(account) = &self.0 {
            account.settle(1);
        }
    }

    /// The message is refused, or goes back: the node that told it settles it when it hears of that.
    pub fn give_back(self) {
        if let Some(account) = &self.0 {
            account.give_back(1);
        }
    }
}
