//! What comes back to a proxy from a node that hosts the singleton no more.

use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::timeout;

use tenure_cluster::Node;
use tenure_cluster::messaging::{Lost, Message};
use tenure_lease::planted::{self, GlueBug};

use super::super::PATIENCE;
use super::super::frame::{Frame, Raw};
use super::super::post::AnyProxy;
use super::{Shared, lock};

impl<M: Message> Shared<M> {
    /// Waits until a former host has everything that was sent to it, and asks for what comes back.
    async fn send_mark(&self, former: &Node) -> bool {
        while self.sending.load(Ordering::SeqCst) > 0 {
            tokio::time::sleep(BRIEFLY).await;
        }
        let mark = Frame::<Raw>::Mark { proxy: self.number };
        self.cluster.to::<Frame<Raw>>(former, &self.inbox).tell(mark).await.is_ok()
    }

    /// Waits until this is so.
    async fn until(&self, is_so: impl Fn() -> bool) {
        loop {
            let mut settled = pin!(self.settled.notified());
            settled.as_mut().enable(); // Before the look, so that nothing is missed after it.
            if is_so() {
                return;
            }
            settled.await;
        }
    }

    /// A former host has returned everything, or is not waited for any longer.
    fn set_marked(&self, former: &Node) {
        self.update(|finder| {
            finder.marked(former);
            false
        });
        self.settled.notify_waiters();
        let _ = self.wake.try_send(()); // It is awake already, or it is all over.
    }
}

/// Sends a mark to a former host, and waits until everything is back, though not for ever.
pub(super) async fn mark<M: Message>(proxy: Weak<Shared<M>>, former: Node) {
    let Some(shared) = proxy.upgrade() else { return };
    let back = async {
        if shared.send_mark(&former).await {
            shared.until(|| !lock(&shared.finder).is_returning(&former)).await;
        }
    };
    if timeout(PATIENCE, back).await.is_err() {
        tracing::debug!(singleton = %shared.name, node = %former, "messages may be lost there");
    }
    shared.set_marked(&former);
}

impl<M: Message> AnyProxy for Shared<M> {
    fn returned(&self, from: &Node, bytes: Bytes) {
        if planted::has(GlueBug::SingletonReturnsLost) {
            return;
        }
        let (length, mut late) = (bytes.len(), false);
        self.update(|finder| {
            let was_host = finder.host().is_some();
            late = finder.returned(from, bytes, length).is_err();
            was_host != finder.host().is_some()
        });
        if late {
            self.lost(from, 1, Lost::Late);
        }
    }

    fn marked(&self, from: &Node) {
        self.set_marked(from);
    }

    fn let_go(self: Arc<Self>, node: Node) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.update(|finder| finder.not_there(&node));
        Box::pin(async move {
            let is_gone = || {
                let finder = lock(&self.finder);
                let is_host = finder.host().is_some_and(|host| host.node == node);
                !is_host && !finder.is_returning(&node)
            };
            self.until(is_gone).await;
        })
    }
}

/// A message that is about to be on the way to a host.
pub(super) struct Sending<'a>(pub(super) &'a AtomicUsize);

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Before looking again whether everything is on its way: that takes as long as a lane is full.
const BRIEFLY: Duration = Duration::from_millis(1);
