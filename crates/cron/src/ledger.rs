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
        while self.size_max() > LEDGER_MAX
            && self.to_bytes().len() > LEDGER_MAX
            && !self.settled.is_empty()
        {
            self.settled.remove(0);
        }
    }

    /// No fewer bytes than [`Ledger::to_bytes`] has, by what is quickly known.
    fn size_max(&self) -> usize {
        // Each character of a text may be escaped.
        let lines = self.settled.iter().map(|line| {
            let why = match &line.outcome {
                SlotOutcome::Interrupted(why) => why.len(),
                _ => 0,
            };
            LINE_SIZE + 2 * (line.by.len() + why)
        });
        let open = self.open.as_ref().map_or(0, |open| {
            let why = match &open.state {
                OpenState::Interrupted(why) => why.len(),
                _ => 0,
            };
            LINE_SIZE + 2 * (open.by.len() + why)
        });
        HEAD_SIZE + 2 * (self.at.len() + self.zone.len()) + open + lines.sum::<usize>()
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
const LISTED_MAX: usize = 32;
/// The most bytes of a ledger without texts, lines and the open slot; and of a line without its texts.
const HEAD_SIZE: usize = 400;
const LINE_SIZE: usize = 240;
/// How many characters of a name or a reason are kept.
const TEXT_MAX: usize = 63;

#[cfg(test)]
mod tests {
    use super::*;

    fn longest() -> SettledSlot {
        SettledSlot {
            slot: SlotId::At(Slot::from_unix(1 << 40)),
            to: Some(Slot::from_unix(1 << 40)),
            count: u64::MAX,
            outcome: SlotOutcome::Interrupted("\"\\".repeat(200)),
            by: "\"\u{1F570}".repeat(200),
            term: u64::MAX,
            began: Slot::from_unix(1 << 40),
            took_ms: Some(u64::MAX),
            attempts: u32::MAX,
            interrupted: u32::MAX,
        }
    }

    #[test]
    fn a_ledger_fits_its_record_and_its_size_is_never_taken_for_less() {
        let schedule = Schedule::parse("*/5 * * * *", "America/Argentina/ComodRivadavia").unwrap();
        let mut ledger = Ledger::new(&schedule, Slot::from_unix(1 << 40));
        let line = longest();
        ledger.open(OpenSlot {
            slot: line.slot,
            attempt: u32::MAX,
            interrupted: u32::MAX,
            term: u64::MAX,
            by: line.by.clone(),
            claimed: line.began,
            state: OpenState::Running,
            behind: true,
        });
        ledger.interrupt_open(&"\"".repeat(200));
        for _ in 0..100 {
            ledger.totals = Totals::default();
            ledger.settle(SettledSlot { count: 1, ..longest() });
            ledger.totals.done = u64::MAX;
            let bytes = ledger.to_bytes();
            assert!(bytes.len() <= LEDGER_MAX, "{}", bytes.len());
            assert!(bytes.len() <= ledger.size_max(), "{} > {}", bytes.len(), ledger.size_max());
            assert_eq!(Ledger::parse(&bytes).unwrap().unwrap(), ledger);
        }
        assert!(ledger.settled.len() > 10, "{}", ledger.settled.len());
        assert!(ledger.open.is_some());
    }

    #[test]
    fn adjacent_skipped_slots_are_one_line_and_all_are_counted() {
        let schedule = Schedule::parse("@every 1m", "UTC").unwrap();
        let mut ledger = Ledger::new(&schedule, Slot::from_unix(0));
        for minute in 1..=5 {
            ledger.settle(SettledSlot {
                slot: SlotId::At(Slot::from_unix(minute * 60)),
                to: None,
                count: 1,
                outcome: SlotOutcome::Skipped(SkipReason::Missed),
                by: "a".into(),
                ..longest()
            });
        }
        assert_eq!(ledger.settled.len(), 1);
        assert_eq!((ledger.settled[0].count, ledger.totals.skipped), (5, 5));
        assert_eq!(ledger.settled[0].to, Some(Slot::from_unix(300)));
    }

    #[test]
    fn what_a_newer_version_wrote_is_not_read_for_something_else() {
        assert_eq!(Ledger::parse(b""), Ok(None));
        for note in [&b"{\"format\":2}"[..], b"{\"cluster\":7}", b"something else"] {
            assert_eq!(Ledger::parse(note), Err(UnreadableLedger));
        }
    }

    /// Ledgers that were written once can be read for ever.
    #[test]
    fn samples_can_be_read() {
        let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("samples/records.txt");
        let schedule = Schedule::parse("0 3 * * *", "UTC").unwrap();
        let mut ledger = Ledger::new(&schedule, Slot::from_unix(1_794_000_000));
        let least = ledger.clone();
        let line =
            SettledSlot { outcome: SlotOutcome::Failed(3), by: "a".into(), count: 1, ..longest() };
        ledger.settle(line.clone());
        let outcomes = [
            SlotOutcome::Done,
            SlotOutcome::Interrupted("b lost the lease".into()),
            SlotOutcome::Skipped(SkipReason::Missed),
            SlotOutcome::Skipped(SkipReason::Overlap),
            SlotOutcome::Skipped(SkipReason::Paused),
            SlotOutcome::Skipped(SkipReason::Rescheduled),
        ];
        for outcome in outcomes {
            ledger.settle(SettledSlot { outcome, ..line.clone() });
        }
        let states =
            [OpenState::Running, OpenState::Failed(7), OpenState::Interrupted("signal 15".into())];
        let mut all = vec![least];
        for state in states {
            let slot = SlotId::Ordered(4);
            let (by, claimed) = ("a".to_owned(), line.began);
            let open = OpenSlot {
                slot,
                attempt: 2,
                interrupted: 1,
                term: 9,
                by,
                claimed,
                state,
                behind: true,
            };
            let mut ledger = ledger.clone();
            ledger.open(open);
            all.push(ledger);
        }
        let current = all.iter().map(|it| ("Ledger".to_owned(), it.to_bytes())).collect();
        tenure_wire::samples::check_bytes(&file, "Ledger", current, |bytes| {
            match Ledger::parse(bytes) {
                Ok(Some(read)) if all.contains(&read) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
    }
}
