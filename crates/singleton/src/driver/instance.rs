//! One run of the singleton on this node.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use tenure_cluster::Cluster;
use tenure_lease::planted::{self, GlueBug};
use tenure_lease::{Tenure, Token};

use super::inbox::{AnyInbox, Handling, Inbox, Next, OpenInbox, Place};
use crate::{Actor, BoxError, Hosted, StopReason};

/// What to run, and what is sent to it.
pub(crate) struct Work {
    run: Arc<dyn Fn(Hosted) -> Running + Send + Sync>,
    pub(super) inbox: Option<Arc<dyn AnyInbox>>,
}

type Running = Pin<Box<dyn Future<Output = Result<(), BoxError>> + Send>>;

impl Work {
    pub(crate) fn function<F, R>(work: F) -> Self
    where
        F: Fn(Hosted) -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), BoxError>> + Send + 'static,
    {
        Self { run: Arc::new(move |hosted| Box::pin(work(hosted))), inbox: None }
    }

    pub(crate) fn actor<A: Actor>(
        name: Arc<str>,
        make: impl Fn() -> A + Send + Sync + 'static,
    ) -> Self {
        let inbox = Arc::new(Inbox::<A::Message>::new(name));
        let of_runs = inbox.clone();
        let run = move |hosted| -> Running {
            let (actor, inbox) = (make(), of_runs.clone());
            Box::pin(async move { act(actor, &inbox, hosted).await })
        };
        Self { run: Arc::new(run), inbox: Some(inbox) }
    }

    /// Says whether the singleton is here, or about to start again.
    pub(super) fn set_place(&self, place: Place) {
        self.inbox.iter().for_each(|inbox| inbox.set_place(place));
    }

    /// No more messages come, and another inbox of this name can be opened.
    pub(super) async fn close_inbox(&self) {
        if let Some(inbox) = &self.inbox {
            inbox.set_place(Place::Closed);
            inbox.place().closed().await;
        }
    }
}

/// Runs an actor until it has to stop, or fails. What it has not begun with by then stays in the
/// inbox: for its next run, or to go back.
async fn act<A: Actor>(
    mut actor: A,
    inbox: &Inbox<A::Message>,
    hosted: Hosted,
) -> Result<(), BoxError> {
    let mut open = inbox.lock().await;
    actor.started(&hosted).await?;
    if planted::has(GlueBug::TellsLostWhileStarting) {
        lose_all(inbox, &mut open, &hosted).await;
    }
    let reason = loop {
        tokio::select! {
            biased;
            reason = hosted.stopping() => break reason,
            filled = open.fill() => if !filled {
                break hosted.stopping().await; // This node is out of the cluster.
            }
        }
        let handled = handle(&mut actor, inbox, &mut open, &hosted).await;
        if handled.is_err() && planted::has(GlueBug::BatchLostAtError) {
            lose_all(inbox, &mut open, &hosted).await;
        }
        if let Some(reason) = handled? {
            break reason;
        }
    };
    if !matches!(reason, StopReason::LeaseLost(_)) {
        // What had come before is done here; what comes now goes back to its proxy.
        open.take_all();
        while let Some(mut received) = inbox.next(hosted.cluster(), &mut open).await {
            let handling = Handling::begin(hosted.cluster(), inbox.name(), &mut received);
            actor.receive(received, &hosted).await?;
            handling.finish();
        }
    }
    actor.stopped(reason).await;
    Ok(())
}

/// Takes all that waits for handled: what a planted defect does.
async fn lose_all<M: tenure_cluster::messaging::Message>(
    inbox: &Inbox<M>,
    open: &mut OpenInbox<M>,
    hosted: &Hosted,
) {
    open.take_all();
    while let Some(mut received) = inbox.next(hosted.cluster(), open).await {
        Handling::begin(hosted.cluster(), inbox.name(), &mut received).finish();
    }
}

/// Has what was taken received one by one; the reason if it has to stop.
async fn handle<A: Actor>(
    actor: &mut A,
    inbox: &Inbox<A::Message>,
    open: &mut OpenInbox<A::Message>,
    hosted: &Hosted,
) -> Result<Option<StopReason>, BoxError> {
    while let Some(next) = open.next() {
        let mut received = match next {
            Next::Message(received) => received,
            Next::Mark(from, proxy) => {
                inbox.answer_mark(hosted.cluster(), &from, proxy).await;
                continue;
            }
        };
        let handling = Handling::begin(hosted.cluster(), inbox.name(), &mut received);
        let mut handled = pin!(actor.receive(received, hosted));
        // Most are done at once: then there is nothing to wait for beside them.
        let done = match poll_fn(|context| Poll::Ready(handled.as_mut().poll(context))).await {
            Poll::Ready(done) => Ok(done),
            Poll::Pending => tokio::select! {
                biased;
                done = &mut handled => Ok(done),
                reason = hosted.stopping() => Err(reason),
            },
        };
        let stop = match done {
            Ok(done) => {
                done?;
                handling.finish();
                continue;
            }
            Err(reason) => reason,
        };
        if !matches!(stop, StopReason::LeaseLost(_)) {
            handled.await?;
            handling.finish();
        }
        return Ok(Some(stop));
    }
    Ok(None)
}

/// A run that has begun.
pub(super) struct Instance {
    task: JoinHandle<Result<(), BoxError>>,
    /// How the task has ended, if it has.
    result: Option<Result<(), BoxError>>,
    /// Closed when nothing keeps a guard any more.
    kept: mpsc::Receiver<Infallible>,
    stop: watch::Sender<Option<StopReason>>,
    /// How long it may take to stop when it has ended by itself.
    stop_within: Duration,
    /// When it is dropped, if it has been told to stop.
    drop_at: Option<Instant>,
}

impl Instance {
    pub(super) fn start(
        work: &Work,
        cluster: &Cluster,
        name: &Arc<str>,
        token: Token,
        tenure: Option<Arc<Tenure>>,
        stop_within: Duration,
    ) -> Self {
        let (stop, stopped) = watch::channel(None);
        let (keep, kept) = mpsc::channel(1);
        let hosted = Hosted::new(cluster.clone(), name.clone(), token, tenure, stopped, keep);
        work.set_place(Place::Here);
        // The work is made inside, so that a panic there is caught as well.
        let work = work.run.clone();
        let task = tokio::spawn(async move { work(hosted).await });
        Self { task, result: None, kept, stop, stop_within, drop_at: None }
    }

    /// Tells it to stop, within this time.
    pub(super) fn stop(&mut self, reason: StopReason, within: Duration) {
        let at = Instant::now() + within;
        let is_lost = matches!(reason, StopReason::LeaseLost(_));
        if !(is_lost && planted::has(GlueBug::StopBudgetIgnored)) {
            self.drop_at = Some(self.drop_at.map_or(at, |before| before.min(at)));
        }
        self.stop.send_replace(Some(reason));
    }

    /// Waits until it has ended: returned, failed, or dropped because its time was over; and until
    /// whatever it started has dropped its guard, or has no more time for that. It can be called again.
    pub(super) async fn ended(&mut self) -> Result<(), BoxError> {
        if self.result.is_none() {
            let overdue = overdue(self.drop_at);
            let ended = tokio::select! {
                biased;
                ended = &mut self.task => ended,
                () = overdue => {
                    self.task.abort();
                    (&mut self.task).await
                }
            };
            self.result = Some(match ended {
                Ok(ended) => ended,
                Err(error) if error.is_panic() => Err("it panicked".into()),
                Err(_) => Err("it did not stop in time, and was dropped".into()),
            });
        }
        if self.drop_at.is_none() {
            self.stop(StopReason::Ended, self.stop_within);
        }
        tokio::select! {
            biased;
            _ = self.kept.recv() => {}
            () = overdue(self.drop_at) => {
                tracing::error!("work that the singleton started keeps its guard, and has no more time to stop");
            }
        }
        self.result.take().unwrap_or(Ok(()))
    }
}

/// Never, if it was not told to stop.
async fn overdue(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.task.abort(); // Its manager is gone: the runtime is being shut down.
    }
}
