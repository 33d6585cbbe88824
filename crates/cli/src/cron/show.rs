//! `tenure cron history` and `next`: what the record of a job says.

use std::fmt;

use serde::Serialize;
use tenure_cron::{
    Ledger, ORDERS, OpenSlot, OpenState, Orders, Schedule, SettledSlot, Slot, SlotId, Totals,
};
use tenure_lease::{LeaseName, Store};

use super::{Next, Target};
use crate::exit::{Failure, UNAVAILABLE};
use crate::output;

pub(super) async fn ledger_of(store: &Store, name: &str) -> Result<Option<Ledger>, Failure> {
    let record = store.inspect(name).await?;
    let note = record.map(|record| record.note).unwrap_or_default();
    Ledger::parse(&note).map_err(|error| Failure::new(UNAVAILABLE, error.to_string()))
}

async fn known(store: &Store, name: &LeaseName) -> Result<Ledger, Failure> {
    let ledger = ledger_of(store, name.as_str()).await?;
    ledger.ok_or_else(|| Failure::usage(format!("there is no job {name} in this store")))
}

/// What `history --json` prints; its shape is stable.
#[derive(Serialize)]
struct History {
    name: String,
    since: Slot,
    totals: Totals,
    settled: Vec<SettledSlot>,
    open: Option<OpenSlot>,
}

pub(super) async fn history(target: &Target) -> Result<(), Failure> {
    let store = target.store.look_shared().await?;
    let Ledger { since, totals, settled, open, .. } = known(&store, &target.name).await?;
    let name = target.name.to_string();
    output::print(&History { name, since, totals, settled, open }, target.json)
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heading = ["SLOT", "OUTCOME", "BY", "TERM", "ATTEMPTS", "TOOK"].map(str::to_owned);
        let mut rows = vec![heading];
        rows.extend(self.settled.iter().map(settled_row));
        rows.extend(self.open.iter().map(open_row));
        let widths: [usize; 5] = std::array::from_fn(|column| {
            rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)
        });
        for [slot, outcome, by, term, attempts, took] in &rows {
            let [slots, outcomes, names, terms, numbers] = widths;
            let line = format!(
                "{slot:slots$}  {outcome:outcomes$}  {by:names$}  {term:terms$}  {attempts:numbers$}  {took}"
            );
            writeln!(f, "{}", line.trim_end())?;
        }
        let Totals { done, failed, skipped, interrupted } = self.totals;
        write!(
            f,
            "since {}: {done} done, {failed} failed, {skipped} skipped, {interrupted} interrupted",
            self.since
        )
    }
}

fn settled_row(line: &SettledSlot) -> [String; 6] {
    let slot = match (line.slot, line.to) {
        (SlotId::At(from), Some(to)) => format!("{from} to {to} ({})", line.count),
        (slot, _) => slot.to_string(),
    };
    let number = |count: u32| if count == 0 { String::new() } else { count.to_string() };
    let took = line.took_ms.map_or(String::new(), |took| format!("{:.1}s", took as f64 / 1000.0));
    [
        slot,
        line.outcome.to_string(),
        line.by.clone(),
        line.term.to_string(),
        number(line.attempts),
        took,
    ]
}

fn open_row(open: &OpenSlot) -> [String; 6] {
    let state = match &open.state {
        OpenState::Running => "running".to_owned(),
        OpenState::Failed(code) => format!("failed ({code}), will be retried"),
        OpenState::Interrupted(why) => format!("interrupted ({why}), will be run again"),
    };
    let (slot, term) = (open.slot.to_string(), open.term.to_string());
    [slot, state, open.by.clone(), term, open.attempt.to_string(), String::new()]
}

/// What `next --json` prints; its shape is stable.
#[derive(Serialize)]
struct Upcoming {
    name: String,
    at: String,
    tz: String,
    paused: bool,
    open: Option<OpenSlot>,
    next: Vec<Slot>,
}

pub(super) async fn next(args: &Next) -> Result<(), Failure> {
    let Next { target, count } = args;
    let store = target.store.look_shared().await?;
    let Ledger { at, zone, cursor, open, .. } = known(&store, &target.name).await?;
    let schedule =
        Schedule::parse(&at, &zone).map_err(|error| Failure::usage(error.to_string()))?;
    let orders = store.inspect(ORDERS).await?.map(|record| record.note).unwrap_or_default();
    let orders =
        Orders::parse(&orders).map_err(|error| Failure::new(UNAVAILABLE, error.to_string()))?;
    let next =
        std::iter::successors(schedule.next_after(cursor), |slot| schedule.next_after(*slot));
    let upcoming = Upcoming {
        name: target.name.to_string(),
        at,
        tz: zone,
        paused: orders.is_paused(target.name.as_str()),
        open,
        next: next.take(*count).collect(),
    };
    output::print(&upcoming, target.json)
}

impl fmt::Display for Upcoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "job   {} ({} {})", self.name, self.at, self.tz)?;
        if self.paused {
            f.write_str("\nstate paused: its slots are skipped")?;
        }
        if let Some(open) = &self.open {
            let [slot, state, by, ..] = open_row(open);
            write!(f, "\nopen  {slot} {state}, by {by}")?;
        }
        for slot in &self.next {
            write!(f, "\nnext  {slot}")?;
        }
        Ok(())
    }
}
