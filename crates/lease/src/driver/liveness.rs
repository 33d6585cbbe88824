//! Asks the guarded side for a sign of life.
//!
//! What a user wrote for it may block: it runs on a thread of its own, one call at a time, so that it
//! holds up neither the keepers' thread nor its own tenure's deadline. A call that has not answered
//! in time has not answered; its future is dropped, and if it blocks, it is left alone until it
//! returns, and meanwhile every further question goes unanswered.
#![allow(clippy::disallowed_methods)]

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::wait_until;
use crate::clock::Moment;

/// Whom a tenure asks.
pub(crate) struct Liveness {
    /// The runtime that the lease was acquired from, if it was one of tokio's.
    runtime: Option<Handle>,
    /// Asked instead of the runtime.
    call: Option<Arc<Call>>,
}

/// What a user wrote.
pub(crate) struct Call {
    ask: Box<dyn Fn() -> Pin<Box<dyn Future<Output = bool> + Send>> + Send + Sync>,
    /// It has not returned yet.
    busy: AtomicBool,
}

impl Call {
    pub(crate) fn new<F>(ask: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = bool> + Send + 'static,
    {
        Self { ask: Box::new(move || Box::pin(ask())), busy: false.into() }
    }
}

impl Liveness {
    /// By this call; without one, by a tick through the runtime that the caller is on.
    pub(crate) fn here(call: Option<Arc<Call>>) -> Self {
        Self { runtime: Handle::try_current().ok(), call }
    }

    /// Asks; [`Ping::answer`] waits no longer than `timeout` from now.
    pub(super) fn ask(&self, timeout: Duration) -> Ping {
        let (answer, receiver) = oneshot::channel();
        let (wanted, unwanted) = oneshot::channel();
        match (&self.call, &self.runtime) {
            (Some(call), runtime) => {
                let handle = runtime.clone().unwrap_or_else(super::runtime);
                on_its_own_thread(Arc::clone(call), handle, answer, unwanted);
            }
            (None, Some(runtime)) => {
                runtime.spawn(async { answer.send(true) });
            }
            // Nothing to ask: the tenure was not acquired from a tokio runtime.
            (None, None) => drop(answer.send(true)),
        }
        let until = Moment::now() + timeout;
        Ping(Some(Asked { answer: receiver, until, _wanted: wanted }))
    }
}

/// If there cannot be a thread, `answer` is dropped, which is none.
fn on_its_own_thread(
    call: Arc<Call>,
    runtime: Handle,
    answer: oneshot::Sender<bool>,
    unwanted: oneshot::Receiver<()>,
) {
    struct Busy(Arc<Call>);
    impl Drop for Busy {
        fn drop(&mut self) {
            self.0.busy.store(false, Ordering::Release);
        }
    }
    if call.busy.swap(true, Ordering::AcqRel) {
        return;
    }
    let busy = Busy(call);
    let asking = async move {
        let alive = tokio::select! {
            biased;
            _ = unwanted => false,
            alive = async { (busy.0.ask)().await } => alive,
        };
        drop(busy);
        let _ = answer.send(alive);
    };
    #[cfg(feature = "simulation")]
    if crate::world::here().is_some() {
        // A simulated process has one thread.
        return drop(runtime.spawn(asking));
    }
    let work = move || runtime.block_on(asking);
    // An error drops the work, and with it what it owns.
    let _ = std::thread::Builder::new().name("tenure-liveness".into()).spawn(work);
}

/// A question under way, if there is one.
#[derive(Default)]
pub(super) struct Ping(Option<Asked>);

struct Asked {
    answer: oneshot::Receiver<bool>,
    until: Moment,
    /// Dropped when the answer is not wanted any more.
    _wanted: oneshot::Sender<()>,
}

impl Ping {
    /// Waits for the answer; for ever, if nothing was asked. `false`: not now, or not in time.
    pub(super) async fn answer(&mut self) -> bool {
        let Some(asked) = &mut self.0 else { return std::future::pending().await };
        let alive = loop {
            tokio::select! {
                biased;
                alive = &mut asked.answer => break alive.unwrap_or(false),
                () = wait_until(asked.until) => if Moment::now() >= asked.until { break false },
            }
        };
        self.0 = None;
        alive
    }
}
