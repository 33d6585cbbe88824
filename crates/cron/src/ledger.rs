//! What a job's record says of its slots: the note of the job's lease, as JSON that people can read.
//!
//! The ledger is one value, replaced as a whole by a renewal of the lease, which the store accepts from the
//! holder of the current tenure alone. So its rules are those of a value:
//!
//! * `cursor` only rises. Every slot after `since` and up to `cursor` is settled, or is the open one.
//! * A slot is opened (claimed) before its command starts, and stays open until it is settled: in the open
//!   slot an interrupted run is visible to whoever holds the lease next.
//! * `totals` counts every settled slot; `settled` lists the latest of them. Compaction takes away from
//!   that list, and from nothing else.
//!
//! Most stores write, and some bill, the whole record at each renewal: it has at most [`LEDGER_MAX`] bytes.

use serde::{Deserialize, Serialize};
use std::fmt;

use crate::{Schedule, Slot};

/// The most bytes that a ledger has in its record.
pub const LEDGER_MAX: usize = 8 * 1024;

/// The account of a job's slots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    /// The format of this ledger; a reader refuses a higher one than it knows.
    format: u32,
    /// The cron expression that `cursor` was counted by.
    pub at: String,
    /// The time zone of that expression.
    pub zone: String,
    /// The account begins after this second.
    pub since: Slot,
    /// Every slot up to this second is settled, or is the open one.
    pub cursor: Slot,
    /// The number of the last order to run now that was handled.
    #[serde(default)]
    pub order: u64,
    /// The slot that was claimed and is not settled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open: Option<OpenSlot>,
    /// How many slots were settled since `since`, by outcome.
    pub totals: Totals,
    /// The latest settled slots, oldest first.
    #[serde(default)]
    pub settled: Vec<SettledSlot>,
}

/// Which occurrence of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SlotId {
    /// The scheduled one of this time.
    At(Slot),
    /// The one that an operator ordered, by the number of the order.
    Ordered(u64),
}

impl fmt::Display for SlotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At(slot) => slot.fmt(f),
            Self::Ordered(number) => write!(f, "ordered-{number}"),
        }
    }
}

/// A slot that was claimed and is not settled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenSlot {
    /// Which.
    pub slot: SlotId,
    /// The number of the latest attempt to run it, from 1.
    pub attempt: u32,
    /// How many of its attempts were interrupted.
    #[serde(default)]
    pub interrupted: u32,
    /// The term under which the latest attempt was claimed.
    pub term: u64,
    /// Who claimed it.
    pub by: String,
    /// When the latest attempt was claimed, by the clock of who claimed it.
    pub claimed: Slot,
    /// Where the latest attempt stands.
    pub state: OpenState,
    /// Whether slots that were due before this one was claimed have yet to be decided on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub behind: bool,
}

/// Where the latest attempt of an open slot stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OpenState {
    /// It was claimed, so it may run. Once another term holds the lease, it was interrupted.
    Running,
    /// It failed with this code, and will be retried.
    Failed(i32),
    /// It was stopped, for this reason, and will be run again.
    Interrupted(String),
}

/// A slot, or a range of skipped ones, of which nothing will change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettledSlot {
    /// Which; of a range the first.
    pub slot: SlotId,
    /// The last of a range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Slot>,
    /// How many slots the range has.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub count: u64,
    /// What became of it.
    pub outcome: SlotOutcome,
    /// Who settled it.
    pub by: String,
    /// The term under which it was settled.
    pub term: u64,
    /// When the last attempt was claimed; of a skipped slot, when it was skipped.
    pub began: Slot,
    /// How long the last attempt took, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_ms: Option<u64>,
    /// How many attempts there were.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub attempts: u32,
    /// How many of them were interrupted.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub interrupted: u32,
}

/// What became of a slot, for good.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SlotOutcome {
    /// Its command ended with success.
    Done,
    /// Its command ended with this code: an exit code, 128 and a signal's number, or 124 if it did not end by
    /// its deadline.
    Failed(i32),
    /// It was not run.
    Skipped(SkipReason),
    /// Its command was stopped, or whoever ran it died; the reason.
    Interrupted(String),
}

impl SlotOutcome {
    /// One word: `done`, `failed`, `skipped` or `interrupted`.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed(_) => "failed",
            Self::Skipped(_) => "skipped",
            Self::Interrupted(_) => "interrupted",
        }
    }
}

impl fmt::Display for SlotOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => f.write_str("done"),
            Self::Failed(code) => write!(f, "failed ({code})"),
            Self::Skipped(reason) => write!(f, "skipped ({})", reason.word()),
            Self::Interrupted(why) => write!(f, "interrupted ({why})"),
        }
    }
}

/// Why a slot was not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SkipReason {
    /// Nobody could run it when it was due, and the policy on missed slots runs a later one or none.
    Missed,
    /// The run before it had not ended.
    Overlap,
    /// The job was paused.
    Paused,
    /// The schedule was changed before the slot was handled.
    Rescheduled,
}

impl SkipReason {
    /// One word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Missed => "missed",
            Self::Overlap => "overlap",
            Self::Paused => "paused",
            Self::Rescheduled => "rescheduled",
        }
    }
}

/// How many slots were settled, by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Commands that ended with success.
    pub done: u64,
    /// Commands that ended otherwise.
    pub failed: u64,
    /// Slots that were not run.
    pub skipped: u64,
    /// Slots whose last run was interrupted.
    pub interrupted: u64,
}

impl Totals {
    /// All of them.
    pub fn sum(&self) -> u64 {
        self.done + self.failed + self.skipped + self.interrupted
    }

    fn add(&mut self, outcome: &SlotOutcome, count: u64) {
        let total = match outcome {
            SlotOutcome::Done => &mut self.done,
            SlotOutcome::Failed(_) => &mut self.failed,
            SlotOutcome::Skipped(_) => &mut self.skipped,
            SlotOutcome::Interrupted(_) => &mut self.interrupted,
        };
        *total += count;
    }
}

impl Ledger {
    /// An account that begins now: no slot up to this second is due.
    pub fn new(schedule: &Schedule, since: Slot) -> Self {
        Self {
            format: FORMAT,
            at: schedule.text().to_owned(),
            zone: schedule.zone().to_owned(),
            since,
            cursor: since,
            order: 0,
            open: None,
            totals: Totals::default(),
            settled: Vec::new(),
        }
    }

    /// Reads a note; an empty one says nothing.
    pub fn parse(note: &[u8]) -> Result<Option<Self>, UnreadableLedger> {
        if note.is_empty() {
            return Ok(None);
        }
        let unreadable = |_| UnreadableLedger;
        let LedgerFormat { format } = serde_json::from_slice(note).map_err(unreadable)?;
        if format > FORMAT {
            return Err(UnreadableLedger);
        }
        serde_json::from_slice(note).map(Some).map_err(unreadable)
    }

    /// For the record: at most [`LEDGER_MAX`] bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        // Numbers and strings always serialise.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Whether the cursor was counted by this schedule.
    pub fn is_of(&self, schedule: &Schedule) -> bool {
        self.at == schedule.text() && self.zone == schedule.zone()
    }

    /// Settles a slot, or a range of skipped ones.
    pub(crate) fn settle(&mut self, mut entry: SettledSlot) {
        entry.by = shortened(&entry.by);
        if let SlotOutcome::Interrupted(why) = &mut entry.outcome {
            *why = shortened(why);
        }
        self.totals.add(&entry.outcome, entry.count);
        self.list(entry);
        self.compact();
    }

    /// Lists slots that are settled.
    pub(crate) fn append_settled(&mut self, entries: Vec<SettledSlot>) {
        entries.into_iter().for_each(|entry| self.list(entry));
        self.compact();
    }

    fn list(&mut self, entry: SettledSlot) {
        match self.settled.last_mut() {
            Some(last) if last.absorbs(&entry) => {
                last.to = entry.to.or(match entry.slot {
                    SlotId::At(slot) => Some(slot),
                    SlotId::Ordered(_) => None,
                });
                last.count += entry.count;
                last.term = entry.term;
            }
            _ => self.settled.push(entry),
        }
    }

    /// Whether the list of settled slots has as many as it may.
    pub(crate) fn is_full(&self) -> bool {
        self.settled.len() >= LISTED_MAX
    }

    /// Opens a slot, or another attempt of the open one.
    pub(crate) fn open(&mut self, mut open: OpenSlot) {
        open.by = shortened(&open.by);
        self.open = Some(open);
        self.compact();
    }

    pub(crate) fn interrupt_open(&mut self, why: &str) {
        if let Some(open) = &mut self.open {
            open.state = OpenState::Interrupted(shortened(why));
        }
    }

    /// Forgets the oldest settled slots until the ledger fits its record. An open slot is never forgotten.
    fn compact(&mut self) {
        if self.settled.len() > LISTED_MAX {
            self.settled.drain(..self.settled.len() - LISTED_MAX);
        }
        // A line has at most some 600 bytes: its names and reasons are short.
        while self.settled.len() > LEDGER_MAX / 1024 && self.to_bytes().len() > LEDGER_MAX {
            self.settled.remove(0);
        }
    }
}

impl SettledSlot {
    /// Whether a skipped slot that follows this one can be told of in the same line.
    fn absorbs(&self, next: &Self) -> bool {
        let is_skipped = matches!(self.outcome, SlotOutcome::Skipped(_));
        let are_scheduled = matches!((self.slot, next.slot), (SlotId::At(_), SlotId::At(_)));
        is_skipped && are_scheduled && self.outcome == next.outcome && self.by == next.by
    }
}

/// A name or a reason, cut to what a ledger keeps of it.
fn shortened(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(TEXT_MAX).collect()
}

/// All that is known about a ledger in another format.
#[derive(Deserialize)]
struct LedgerFormat {
    format: u32,
}

/// The note of the job's lease is no ledger that this version reads. It must not be taken for none, nor be
/// replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the note of this job's lease is no ledger that this version can read: a newer version of Tenure wrote \
     it, or the lease is used for something else. Run that version, or give the job a name of its own"
)]
pub struct UnreadableLedger;

fn one() -> u64 {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_one(count: &u64) -> bool {
    *count == 1
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

const FORMAT: u32 = 1;
/// How many settled slots, or ranges, are listed at most.
const LISTED_MAX: usize = 40;
/// How many characters of a name or a reason are kept.
const TEXT_MAX: usize = 63;
