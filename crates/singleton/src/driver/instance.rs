//! One run of the singleton on this node.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use tenure_cluster::Cluster;
use tenure_cluster::messaging::Received;
use tenure_lease::{Tenure, Token};

use crate::hosted::inbox;
use crate::{Actor, BoxError, Hosted, StopReason};

/// What to run.
pub(crate) struct Work(Arc<dyn Fn(Hosted) -> Running + Send + Sync>);

type Running = Pin<Box<dyn Future<Output = Result<(), BoxError>> + Send>>;

impl Work {
    pub(crate) fn function<F, R>(work: F) -> Self
    where
        F: Fn(Hosted) -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), BoxError>> + Send + 'static,
    {
        Self(Arc::new(move |hosted| Box::pin(work(hosted))))
    }

    pub(crate) fn actor<A: Actor>(
        name: Arc<str>,
        make: impl Fn() -> A + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(move |hosted| {
            let (actor, name) = (make(), inbox(&name));
            Box::pin(act(actor, name, hosted))
        }))
    }
}

/// Runs an actor until it has to stop.
async fn act<A: Actor>(mut actor: A, name: String, hosted: Hosted) -> Result<(), BoxError> {
    actor.started(&hosted).await?;
    let mut inbox = hosted.cluster().receiver::<A::Message>(&name)?;
    let mut received = Vec::new();
    loop {
        let reason = tokio::select! {
            biased;
            reason = hosted.stopping() => reason,
            count = inbox.recv_many(&mut received, BATCH) => {
                if count == 0 {
                    hosted.stopping().await // This node is out of the cluster.
                } else {
                    match handle(&mut actor, &mut received, &hosted).await? {
                        None => continue,
                        Some(reason) => reason,
                    }
                }
            }
        };
        if !matches!(reason, StopReason::LeaseLost(_)) {
            // What had come before is done here; what comes now is refused, or waits at its proxy.
            while let Some(last) = inbox.try_recv() {
                received.push(last);
            }
            drop(inbox);
            for message in received.drain(..) {
                actor.receive(message, &hosted).await?;
            }
        }
        actor.stopped(reason).await;
        return Ok(());
    }
}

/// Has them received one by one; the reason if it has to stop.
async fn handle<A: Actor>(
    actor: &mut A,
    received: &mut Vec<Received<A::Message>>,
    hosted: &Hosted,
) -> Result<Option<StopReason>, BoxError> {
    let mut rest = std::mem::take(received).into_iter();
    while let Some(message) = rest.next() {
        let handling = actor.receive(message, hosted);
        tokio::pin!(handling);
        let stop = tokio::select! {
            biased;
            handled = &mut handling => {
                handled?;
                continue;
            }
            reason = hosted.stopping() => reason,
        };
        if !matches!(stop, StopReason::LeaseLost(_)) {
            handling.await?;
            received.extend(rest);
        }
        return Ok(Some(stop));
    }
    Ok(None)
}

/// A run that has begun.
pub(super) struct Instance {
    task: JoinHandle<Result<(), BoxError>>,
    stop: watch::Sender<Option<StopReason>>,
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
    ) -> Self {
        let (stop, stopped) = watch::channel(None);
        let hosted = Hosted::new(cluster.clone(), name.clone(), token, tenure, stopped);
        // The work is made inside, so that a panic there is caught as well.
        let work = work.0.clone();
        let task = tokio::spawn(async move { work(hosted).await });
        Self { task, stop, drop_at: None }
    }

    /// Tells it to stop, within this time.
    pub(super) fn stop(&mut self, reason: StopReason, within: Duration) {
        let at = Instant::now() + within;
        self.drop_at = Some(self.drop_at.map_or(at, |before| before.min(at)));
        self.stop.send_replace(Some(reason));
    }

    /// Waits until it has ended: returned, failed, or dropped because its time was over. It can be
    /// called again.
    pub(super) async fn ended(&mut self) -> Result<(), BoxError> {
        let drop_at = self.drop_at;
        let overdue = async {
            match drop_at {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let ended = tokio::select! {
            biased;
            ended = &mut self.task => ended,
            () = overdue => {
                self.task.abort();
                (&mut self.task).await
            }
        };
        match ended {
            Ok(ended) => ended,
            Err(error) if error.is_panic() => Err("it panicked".into()),
            Err(_) => Err("it did not stop in time, and was dropped".into()),
        }
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.task.abort(); // Its manager is gone: the runtime is being shut down.
    }
}

/// How many messages are taken at a time.
const BATCH: usize = 256;
