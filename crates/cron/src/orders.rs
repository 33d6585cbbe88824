//! What operators want of jobs: pause, resume, run now. One record per store, besides those of the jobs.
//!
//! Only its holder can write a lease's note, and a job's lease is held while the job runs. So orders have a
//! record of their own, [`ORDERS`]: an operator acquires that lease for a moment and replaces its note.
//! Every process that runs jobs reads it, and each job's ledger says which orders it has handled.

use serde::{Deserialize, Serialize};

use crate::Slot;

/// The name of the lease whose note has the orders.
pub const ORDERS: &str = "tenure-cron-orders";

/// What operators want of the jobs of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Orders {
    /// The format of this note; a reader refuses a higher one than it knows.
    #[serde(default)]
    format: u32,
    /// The number of the last order.
    #[serde(default)]
    pub number: u64,
    /// The jobs that are paused.
    #[serde(default)]
    pub paused: Vec<PausedJob>,
    /// The latest orders to run a job now, oldest first.
    #[serde(default)]
    pub runs: Vec<RunOrder>,
}

/// A job that is paused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PausedJob {
    /// The name of the job.
    pub job: String,
    /// Who paused it.
    pub by: String,
    /// When.
    pub since: Slot,
}

/// An order to run a job now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunOrder {
    /// The number of the order.
    pub number: u64,
    /// The name of the job.
    pub job: String,
    /// Who ordered it.
    pub by: String,
    /// When.
    pub at: Slot,
}

impl Orders {
    /// Reads the note; an empty one has no orders.
    pub fn parse(note: &[u8]) -> Result<Self, UnreadableOrders> {
        if note.is_empty() {
            return Ok(Self::default());
        }
        let orders: Self = serde_json::from_slice(note).map_err(|_| UnreadableOrders)?;
        if orders.format > FORMAT { Err(UnreadableOrders) } else { Ok(orders) }
    }

    /// For the record.
    pub fn to_bytes(&self) -> Vec<u8> {
        // Numbers and strings always serialise.
        serde_json::to_vec(&Self { format: FORMAT, ..self.clone() }).unwrap_or_default()
    }

    /// Whether a job is paused.
    pub fn is_paused(&self, job: &str) -> bool {
        self.paused.iter().any(|paused| paused.job == job)
    }

    /// The first order to run this job that its ledger has not handled.
    pub fn next_run(&self, job: &str, handled: u64) -> Option<&RunOrder> {
        self.runs.iter().find(|run| run.job == job && run.number > handled)
    }

    /// Pauses a job; `false` if it is paused already.
    pub fn pause(&mut self, job: &str, by: &str, since: Slot) -> Result<bool, OrdersFull> {
        if self.is_paused(job) {
            return Ok(false);
        }
        if self.paused.len() >= PAUSED_MAX {
            return Err(OrdersFull);
        }
        let job = job.to_owned();
        self.paused.push(PausedJob { job, by: shortened(by), since });
        Ok(true)
    }

    /// Lets a paused job go on; `false` if it is not paused.
    pub fn resume(&mut self, job: &str) -> bool {
        let before = self.paused.len();
        self.paused.retain(|paused| paused.job != job);
        self.paused.len() < before
    }

    /// Orders a run; returns the number of the order. The oldest of many orders is dropped.
    pub fn run_now(&mut self, job: &str, by: &str, at: Slot) -> u64 {
        self.number += 1;
        if self.runs.len() >= RUNS_MAX {
            self.runs.remove(0);
        }
        let (job, number) = (job.to_owned(), self.number);
        self.runs.push(RunOrder { number, job, by: shortened(by), at });
        number
    }
}

fn shortened(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(63).collect()
}

/// The note with the orders is none that this version reads; it is left as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the note of the lease {ORDERS} cannot be read: a newer version of Tenure, or somebody else, wrote it"
)]
pub struct UnreadableOrders;

/// Too many jobs are paused for one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{PAUSED_MAX} jobs are paused, and the record has no room for more; resume one, or stop a job's processes"
)]
pub struct OrdersFull;

const FORMAT: u32 = 1;
/// How many jobs can be paused at once.
const PAUSED_MAX: usize = 100;
/// How many orders to run are kept.
const RUNS_MAX: usize = 50;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_numbered_and_bounded() {
        let mut orders = Orders::default();
        for number in 1..=200 {
            assert_eq!(orders.run_now("job", "me", Slot::from_unix(0)), number);
        }
        assert_eq!(orders.runs.len(), RUNS_MAX);
        assert_eq!(orders.next_run("job", 0).map(|run| run.number), Some(151));
        assert_eq!(orders.next_run("job", 200), None);
        for number in 0..PAUSED_MAX {
            assert_eq!(orders.pause(&number.to_string(), "me", Slot::from_unix(0)), Ok(true));
        }
        assert_eq!(orders.pause("one-more", "me", Slot::from_unix(0)), Err(OrdersFull));
        assert_eq!(orders.pause("0", "me", Slot::from_unix(0)), Ok(false));
        assert!(orders.resume("0") && !orders.resume("0"));
        assert!(orders.to_bytes().len() < tenure_lease::record::NOTE_MAX);
    }

    /// Orders that were written once can be read for ever.
    #[test]
    fn samples_can_be_read() {
        let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("samples/records.txt");
        let mut orders = Orders { format: FORMAT, ..Orders::default() };
        orders.run_now("report", "ops", Slot::from_unix(1_794_000_000));
        assert_eq!(orders.pause("sync", "ops", Slot::from_unix(1_794_000_001)), Ok(true));
        let current = vec![("Orders".to_owned(), orders.to_bytes())];
        tenure_wire::samples::check_bytes(&file, "Orders", current, |bytes| {
            match Orders::parse(bytes) {
                Ok(read) if read == orders => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
        assert_eq!(Orders::parse(b"{\"format\":2}"), Err(UnreadableOrders));
    }
}
