//! Questions of this node that wait for their answers: it leaves when it has them.

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

    /// This node is in a cluster again.
    pub(super) fn reopen(&self) {
        self.closed.store(false, SeqCst);
    }

    /// Lets none begin any more, and waits for the others, for a while.
    pub(super) async fn end(&self) {
        self.closed.store(true, SeqCst);
        let answered = async {
            while self.open.load(SeqCst) > 0 {
                self.answered.notified().await;
            }
        };
        if tokio::time::timeout(PATIENCE, answered).await.is_err() {
            let open = self.open.load(SeqCst);
            tracing::warn!(
                open,
                "this node leaves before it has all answers: questions wait for longer than {PATIENCE:?}"
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
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_has_begun_is_waited_for_and_nothing_begins_any_more() {
        let (questions, began) = (Arc::<Questions>::default(), Instant::now());
        let first = questions.begin().unwrap();
        let ended = tokio::spawn({
            let questions = questions.clone();
            async move { questions.end().await }
        });
        tokio::time::sleep(PATIENCE / 2).await;
        assert!(!ended.is_finished());
        assert!(matches!(questions.begin(), Err(NotDone::Closed(_))));
        drop(first);
        ended.await.unwrap();
        assert_eq!(began.elapsed(), PATIENCE / 2);
        questions.reopen();
        let _kept = questions.begin().unwrap();
        questions.end().await;
        assert_eq!(began.elapsed(), PATIENCE / 2 + PATIENCE, "not for ever");
    }
}
