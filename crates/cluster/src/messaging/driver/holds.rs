//! What other nodes have asked this one to hold back: see [`super::overflow`].

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::{Messaging, Node, PATIENCE};

/// The receivers on other nodes whose messages are held back.
#[derive(Debug, Default)]
pub(super) struct Holds {
    /// How many there are: most often none, and nobody needs to look.
    count: AtomicUsize,
    by_node: RwLock<HashMap<Node, HashMap<Arc<str>, Hold>>>,
}

#[derive(Clone, Debug)]
struct Hold {
    /// It ends by itself then.
    until: Instant,
    released: Arc<Notify>,
}

impl Messaging {
    /// Whether messages for a receiver are held back.
    #[inline]
    pub(in super::super) fn is_held(&self, node: &Node, receiver: &str) -> bool {
        self.holds.count.load(Relaxed) > 0 && self.holds.get(node, receiver).is_some()
    }

    /// Waits until messages for a receiver are not held back.
    pub(in super::super) async fn released(&self, node: &Node, receiver: &str) {
        while let Some(Hold { released, .. }) = self.holds.get(node, receiver) {
            let mut woken = std::pin::pin!(released.notified());
            woken.as_mut().enable(); // Before the look, so that nothing is missed after it.
            let same = |hold: Hold| Arc::ptr_eq(&hold.released, &released);
            if self.holds.get(node, receiver).is_some_and(same) {
                woken.await;
            }
        }
    }

    /// A node asks for messages for a receiver of it to be held back.
    pub(super) fn hold(self: &Arc<Self>, node: &Node, receiver: &[u8]) {
        let Ok(receiver) = std::str::from_utf8(receiver) else { return };
        let until = Instant::now() + HOLD;
        let mut by_node = self.holds.write();
        if let Some(held) = by_node.get_mut(node).and_then(|held| held.get_mut(receiver)) {
            held.until = until;
            return;
        }
        let receivers = by_node.entry(node.clone()).or_default();
        if receivers.len() >= HOLDS_MAX {
            return; // It refuses what is too much.
        }
        let (receiver, released) = (Arc::<str>::from(receiver), Arc::<Notify>::default());
        receivers.insert(receiver.clone(), Hold { until, released: released.clone() });
        self.holds.count.fetch_add(1, Relaxed);
        drop(by_node);
        let (messaging, node) = (self.clone(), node.clone());
        self.runtime.spawn(async move { messaging.holds.expire(&node, &receiver, released).await });
    }

    /// A node takes them again.
    pub(super) fn release(&self, node: &Node, receiver: &[u8]) {
        if let Ok(receiver) = std::str::from_utf8(receiver) {
            self.holds.end(node, receiver, |_| true);
        }
    }
}

impl Holds {
    fn get(&self, node: &Node, receiver: &str) -> Option<Hold> {
        self.read().get(node)?.get(receiver).cloned()
    }

    /// Ends a hold when it has not been said again for long.
    async fn expire(&self, node: &Node, receiver: &str, released: Arc<Notify>) {
        let same = |hold: &Hold| Arc::ptr_eq(&hold.released, &released);
        while let Some(Hold { until, .. }) = self.get(node, receiver).filter(same) {
            sleep_until(until).await;
            self.end(node, receiver, |hold| same(hold) && hold.until <= Instant::now());
        }
    }

    fn end(&self, node: &Node, receiver: &str, is_over: impl Fn(&Hold) -> bool) {
        let mut by_node = self.write();
        let Some(receivers) = by_node.get_mut(node) else { return };
        if !receivers.get(receiver).is_some_and(is_over) {
            return;
        }
        let ended = receivers.remove(receiver);
        if receivers.is_empty() {
            by_node.remove(node);
        }
        self.count.fetch_sub(1, Relaxed);
        drop(by_node);
        ended.inspect(|hold| hold.released.notify_waiters());
    }

    fn read(&self) -> RwLockReadGuard<'_, HashMap<Node, HashMap<Arc<str>, Hold>>> {
        self.by_node.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, HashMap<Node, HashMap<Arc<str>, Hold>>> {
        self.by_node.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long messages are held back unless that is said again. It is, each half of [`PATIENCE`].
const HOLD: Duration = Duration::from_millis(2 * PATIENCE.as_millis() as u64);
/// How many receivers of one node are held back at most.
const HOLDS_MAX: usize = 4096;
