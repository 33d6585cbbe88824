//! Scheduled jobs of which every occurrence is accounted for.
//!
//! A job has a name, and a lease of that name in a store that all machines reach. In the note of the lease's
//! record stands the job's [`Ledger`]: which slots are settled, as *done*, *failed*, *skipped* or
//! *interrupted*, and which one is open. Whoever has something to do about the job takes the lease, claims the
//! slot in the ledger, runs it, and settles it; the lease's token fences both writes.
//!
//! The cores are pure: [`Schedule`] says which slots there are, [`Job`] what is to be done about a ledger now,
//! and [`JobRound`] carries one tenure from claim to settlement.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod driver;
mod expression;
mod ledger;
mod orders;
mod plan;
mod round;
mod schedule;
mod scheduled;
mod settings;
pub mod telemetry;
mod time;

pub use driver::{ChangeOrdersError, CurrentRun, OrdersWatch, change_orders};
pub use ledger::{
    LEDGER_MAX, Ledger, OpenSlot, OpenState, SettledSlot, SkipReason, SlotId, SlotOutcome, Totals,
    UnreadableLedger,
};
pub use orders::{ORDERS, Orders, OrdersFull, PausedJob, RunOrder, UnreadableOrders};
pub use plan::{Job, Outlook};
pub use round::{JobRound, RoundEffect, RoundEvent, RunEnd, SlotRun, StopCause, WriteAnswer};
pub use schedule::{Schedule, ScheduleError, Slot};
pub use scheduled::{CronError, ScheduledJob, SlotRunner, StoreSchedule};
#[cfg(feature = "planted")]
pub use settings::CronRule;
pub use settings::{Interrupted, JobSettings, Missed, Overlap};
pub use time::WallTime;
