//! Drives jobs: reads clocks, sleeps, asks the store, calls what is to be run.
//!
//! A lease is not held between slots: a thousand jobs that are due at night cost nothing by day. Who runs a
//! job looks at its record when a slot is due, and takes the lease if there is something to do. Whoever ran
//! the last slot looks first, so that as a rule the others find the slot claimed, and need one read for it.
//! While the next slot is less than a ttl away, the lease is held.
#![allow(clippy::disallowed_methods)]

mod look;
mod orders;
mod round;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tenure_lease::{Lease, LeaseError, Moment, Owner, Tenure, Token};
use tokio::sync::watch;

use crate::plan::Job;
use crate::scheduled::{CronError, SlotRunner};
use crate::{SlotId, SlotRun, WallTime};

use look::{Look, Looker};
pub use orders::{ChangeOrdersError, OrdersWatch, change_orders};
use round::{RoundOver, keep_round};

/// A run that is under way.
#[derive(Debug)]
pub struct CurrentRun<'a> {
    tenure: &'a Tenure,
    run: SlotRun,
    stop: watch::Receiver<bool>,
}

impl CurrentRun<'_> {
    /// Which slot it is for. An attempt after an interruption, or a retry, has the same: use it as an
    /// idempotency key.
    pub fn slot(&self) -> SlotId {
        self.run.slot
    }

    /// The number of the attempt, from 1.
    pub fn attempt(&self) -> u32 {
        self.run.attempt
    }

    /// The tenure under which it runs; raise a [`fence`](tenure_lease::fence) with it.
    pub fn tenure(&self) -> &Tenure {
        self.tenure
    }

    /// The fencing token.
    pub fn token(&self) -> Token {
        self.tenure.token()
    }

    /// Waits until the run must stop: the lease was lost, its deadline is over, or its process is told to
    /// stop.
    pub async fn stop_requested(&self) {
        let mut stop = self.stop.clone();
        if stop.wait_for(|stop| *stop).await.is_err() {
            // Whoever would say so is gone, and with it the run.
            std::future::pending::<()>().await;
        }
    }
}

/// Runs a job until `stop` says why it is to stop.
pub(crate) async fn keep_schedule<R: SlotRunner>(
    job: Job,
    (lease, owner): (Lease, Owner),
    orders: &OrdersWatch,
    stop: impl Future<Output = String>,
    mut runner: R,
) -> Result<(), CronError> {
    let job = Arc::new(job);
    let mut stop = pin!(stop);
    let mut orders = orders.subscribe();
    let store = lease.store();
    let mut looker = Looker::new(Arc::clone(&job), lease.clone(), &owner);
    loop {
        let look = tokio::select! {
            biased;
            _ = &mut stop => return Ok(()),
            look = looker.look(&mut orders) => look?,
        };
        let Look::Won { tenure, read_orders } = look else { continue };
        let context =
            round::Context { job: &job, tenure: &tenure, store: &store, timing: lease.timing() };
        let over =
            keep_round(context, read_orders, &mut orders, stop.as_mut(), &mut runner).await?;
        match over {
            RoundOver::Stopped => {
                give_back(*tenure, &lease).await;
                return Ok(());
            }
            RoundOver::Rested(next) => {
                looker.rest_after(tenure.token().term, next);
                give_back(*tenure, &lease).await;
            }
            RoundOver::Lost => {
                tracing::warn!(job = job.name(), "the lease was lost");
                tenure.release().await;
            }
        }
    }
}

/// A store that does not answer is not waited for: the lease expires by itself.
async fn give_back(tenure: Tenure, lease: &Lease) {
    let patience = lease.timing().stop_budget.max(Duration::from_millis(200));
    let _ = tokio::time::timeout(patience, tenure.release()).await;
}

/// What the wall clock says.
pub(crate) fn wall_clock() -> WallTime {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let millis = since.map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX));
    WallTime::from_millis(millis)
}

/// Sleeps until the wall clock shows this time, or for a while: a clock that was stepped is looked at again.
async fn sleep_until_wall(at: Option<WallTime>) {
    let left = at.map_or(NAP, |at| at.since(wall_clock()));
    tokio::time::sleep(left.min(NAP)).await;
}

async fn sleep_until(moment: Moment) {
    if moment == Moment::NEVER {
        return std::future::pending().await;
    }
    tokio::time::sleep(moment.since(Moment::now())).await;
}

fn is_permanent(error: &LeaseError) -> bool {
    !matches!(error, LeaseError::Store(_) | LeaseError::Unexpected(_) | LeaseError::Over(_))
}

/// How long to sleep before the wall clock is looked at again.
const NAP: Duration = Duration::from_secs(10);
