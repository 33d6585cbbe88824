//! `tenure cron pause`, `resume` and `run-now`. Drives: it waits for a machine to take an order.
#![allow(clippy::disallowed_methods)]

use std::fmt;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use tenure_cron::{ChangeOrdersError, Orders, Slot, change_orders};
use tenure_lease::{Moment, Owner, Store};

use super::Target;
use super::show::ledger_of;
use crate::exit::{Failure, HELD};
use crate::output;

/// What `--json` prints; its shape is stable.
#[derive(Serialize)]
struct Ordered {
    name: String,
    /// `paused`, `resumed`, `running`, or `none` if there was nothing to do.
    change: &'static str,
    /// The number of an order to run, and who has taken it.
    #[serde(skip_serializing_if = "Option::is_none")]
    order: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<String>,
}

impl fmt::Display for Ordered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, .. } = self;
        match (self.change, &self.by) {
            ("paused", _) => write!(f, "{name}: paused; a run that is under way goes on"),
            ("resumed", _) => write!(f, "{name}: goes on with its next slot"),
            ("running", Some(by)) => write!(f, "{name}: {by} runs it"),
            ("running", None) => write!(f, "{name}: it was run"),
            _ => write!(f, "{name}: it is so already"),
        }
    }
}

pub(super) async fn pause(target: &Target) -> Result<(), Failure> {
    let by = Owner::this_process().name;
    let changed = target
        .change(|orders| orders.pause(target.name.as_str(), &by, this_second()))
        .await?
        .map_err(|error| Failure::usage(error.to_string()))?;
    target.ordered(if changed { "paused" } else { "none" }, None, None)
}

pub(super) async fn resume(target: &Target) -> Result<(), Failure> {
    let changed = target.change(|orders| orders.resume(target.name.as_str())).await?;
    target.ordered(if changed { "resumed" } else { "none" }, None, None)
}

pub(super) async fn run_now(target: &Target) -> Result<(), Failure> {
    let store = target.open().await?;
    let (name, by) = (target.name.as_str(), Owner::this_process().name);
    let order = change_orders(&store, |orders| orders.run_now(name, &by, this_second()))
        .await
        .map_err(failure)?;
    let begun = Moment::now();
    while Moment::now().since(begun) < PATIENCE {
        if let Some(ledger) = ledger_of(&store, name).await?
            && ledger.order >= order
        {
            let by = ledger.open.map(|open| open.by);
            let by = by.or_else(|| ledger.settled.last().map(|line| line.by.clone()));
            return target.ordered("running", Some(order), by);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Err(Failure::new(
        HELD,
        format!(
            "order {order} stands, and no machine has taken it within {PATIENCE:?}; one that runs {name} will"
        ),
    ))
}

impl Target {
    /// Only a store that somebody has made can have jobs.
    async fn open(&self) -> Result<Store, Failure> {
        let store = self.store.look_shared().await?;
        if ledger_of(&store, self.name.as_str()).await?.is_none() {
            return Err(Failure::usage(format!("there is no job {} in this store", self.name)));
        }
        self.store.open_shared().await
    }

    async fn change<T>(&self, change: impl FnOnce(&mut Orders) -> T) -> Result<T, Failure> {
        change_orders(&self.open().await?, change).await.map_err(failure)
    }

    fn ordered(
        &self,
        change: &'static str,
        order: Option<u64>,
        by: Option<String>,
    ) -> Result<(), Failure> {
        output::print(&Ordered { name: self.name.to_string(), change, order, by }, self.json)
    }
}

fn failure(error: ChangeOrdersError) -> Failure {
    match error {
        ChangeOrdersError::Lease(error) => error.into(),
        ChangeOrdersError::Unreadable(error) => Failure::usage(error.to_string()),
    }
}

fn this_second() -> Slot {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Slot::from_unix(i64::try_from(since.as_secs()).unwrap_or(0))
}

/// How long a person waits for a machine.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(200);
