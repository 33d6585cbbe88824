//! Questions of this node, and of its clients, that wait for their answers: it leaves when it has them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use tokio::sync::Notify;

use crate::messaging::NotDone;
use crate::transport::Closed;

#[derive(Debug, Default)]
pub(crate) struct Questions {
    open: AtomicUsize,
    /// This node is about to go.
    closed: AtomicBool,
    answered: Notify,
}

impl Questions {
    /// One more, unless this node is about to go.
    pub(crate) fn begin(self: &Arc<Self>) -> Result<Question, NotDone> {
        self.open.fetch_add(1, SeqCst);
        let question = Question(Arc::clone(self));
        match self.closed.load(SeqCst) {
            true => Err(NotDone::Closed(Arc::new(Closed::Transport))),
            false => Ok(question),
        }
    }

    /// A client's connection: its questions are answered before this node goes, and it goes elsewhere with
    /// what comes next.
    pub(crate) fn connection(self: &Arc<Self>) -> Question {
        self.open.fetch_add(1, SeqCst);
        Question(Arc::clone(self))
    }

    /// This node is in a cluster again.
    pub(super) fn reopen(&self) {
        self.closed.store(false, SeqCst);
    }

    /// Lets none begin any more, and waits for the others, for a while.
    pub(super) async fn end(&self) {
        self.end_within(PATIENCE).await;
    }

    async fn end_within(&self, patience: Duration) {
        self.closed.store(true, SeqCst);
        let answered = async {
            while self.open.load(SeqCst) > 0 {
                self.answered.notified().await;
            }
        };
        if tokio::time::timeout(patience, answered).await.is_err() {
            let open = self.open.load(SeqCst);
            tracing::warn!(
                open,
                "this node leaves before it has all answers: questions wait for longer than {patience:?}"
            );
        }
    }
}

/// A question that is under way: see [`Cluster::question`](crate::Cluster::question).
#[derive(Debug)]
#[must_use = "nobody waits for it any more as soon as it is dropped"]
pub struct Question(Arc<Questions>);

impl Drop for Question {
    fn drop(&mut self) {
        if self.0.open.fetch_sub(1, SeqCst) == 1 {
            self.0.answered.notify_one();
        }
    }
}

/// How long a node that has handed over everything waits for its last answers.
const PATIENCE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;

    use super::*;

    #[tokio::test]
    async fn what_has_begun_is_waited_for_and_nothing_begins_any_more() {
        let questions = Arc::<Questions>::default();
        let (first, second) = (questions.begin().unwrap(), questions.begin().unwrap());
        let mut end = pin!(questions.end());
        drop(first);
        let polled = poll_fn(|context| Poll::Ready(end.as_mut().poll(context))).await;
        assert!(polled.is_pending(), "one is left");
        assert!(matches!(questions.begin(), Err(NotDone::Closed(_))));
        drop(second);
        end.await;
        questions.reopen();
        let kept = questions.begin().unwrap();
        questions.end_within(Duration::from_millis(10)).await;
        drop(kept); // It was not waited for any longer.
    }
}
