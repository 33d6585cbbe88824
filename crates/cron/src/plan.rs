//! What is to be done about a job now, as a function of its ledger and of the clock: pure, without state.

use std::time::Duration;

use crate::ledger::{Ledger, OpenSlot, OpenState, SettledSlot, SkipReason, SlotId, SlotOutcome};
use crate::settings::{CronRule, Interrupted, JobSettings, Missed};
use crate::{Orders, Schedule, ScheduleError, Slot, WallTime};

/// A job: its name, when it is due, and its policies.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    name: String,
    schedule: Schedule,
    settings: JobSettings,
}

impl Job {
    /// A job. Its jitter must be shorter than the time to the next slot.
    pub fn new(
        name: impl Into<String>,
        schedule: Schedule,
        settings: JobSettings,
    ) -> Result<Self, ScheduleError> {
        let mut slot = schedule.next_after(Slot::from_unix(1_577_836_800));
        for _ in 0..JITTER_CHECKED {
            let next = slot.and_then(|slot| schedule.next_after(slot));
            let (Some(first), Some(second)) = (slot, next) else { break };
            if WallTime::of(second).since(WallTime::of(first)) <= settings.jitter {
                return Err(ScheduleError::new(format!(
                    "a jitter of {:?} is longer than the time between two slots of {:?}",
                    settings.jitter,
                    schedule.text(),
                )));
            }
            slot = next;
        }
        Ok(Self { name: name.into(), schedule, settings })
    }

    /// Its name, which is that of its lease.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// When it is due.
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// Its policies.
    pub fn settings(&self) -> &JobSettings {
        &self.settings
    }

    /// Whether there is something to do now, for whoever holds the lease; otherwise when.
    pub fn outlook(&self, ledger: Option<&Ledger>, orders: &Orders, wall: WallTime) -> Outlook {
        let Some(ledger) = ledger else { return Outlook::Due };
        if let Some(first) = self.unsettled_for_too_long(ledger, wall) {
            return Outlook::ClockAhead(first);
        }
        let observer = Writer { by: "", term: u64::MAX };
        let mut planned = ledger.clone();
        match self.plan(&mut planned, orders, wall, observer) {
            Plan::Claim(_) | Plan::Retry => Outlook::Due,
            Plan::Rest(_) if planned != *ledger => Outlook::Due,
            Plan::Rest(next) => Outlook::NotBefore(next),
        }
    }

    /// When a slot is started, at the earliest.
    pub fn start_of(&self, slot: Slot) -> WallTime {
        let jitter = self.settings.jitter.as_millis();
        let share = u128::from(hash(&self.name, slot.as_unix().unsigned_abs()));
        let delay = jitter * share / u128::from(u64::MAX);
        WallTime::of(slot).after(Duration::from_millis(u64::try_from(delay).unwrap_or(0)))
    }

    /// Brings the ledger up to this time, and says what to do next.
    pub(crate) fn plan(
        &self,
        ledger: &mut Ledger,
        orders: &Orders,
        wall: WallTime,
        writer: Writer<'_>,
    ) -> Plan {
        if self.unsettled_for_too_long(ledger, wall).is_some() {
            return Plan::Rest(None);
        }
        self.follow_schedule(ledger, wall, writer);
        let is_paused = orders.is_paused(&self.name);
        if is_paused && let Some(newest) = self.newest_due(ledger.cursor, wall) {
            self.skip_until(ledger, newest, SkipReason::Paused, wall, writer);
        }
        if let Some(plan) = self.plan_open(ledger, is_paused, wall, writer) {
            return plan;
        }
        if let Some(order) = orders.next_run(&self.name, ledger.order) {
            let behind = self.newest_due(ledger.cursor, wall).is_some();
            return Plan::Claim(Claim { slot: SlotId::Ordered(order.number), behind, again: None });
        }
        match self.settings.missed {
            Missed::All => self.plan_first_due(ledger, wall, writer),
            Missed::Once | Missed::Skip => self.plan_newest_due(ledger, wall, writer),
        }
    }

    /// The first slot that is not settled, if it was due longer ago than [`UNSETTLED_MAX`]. Then the clock is
    /// probably wrong, and what is settled by it stays settled when the clock is right again: the job would not
    /// be due for as long as the clock was ahead.
    pub(crate) fn unsettled_for_too_long(&self, ledger: &Ledger, wall: WallTime) -> Option<Slot> {
        if wall.since(WallTime::of(ledger.cursor)) <= UNSETTLED_MAX {
            return None;
        }
        let first = match ledger.is_of(&self.schedule) {
            true => self.schedule.next_after(ledger.cursor),
            false => Schedule::parse(&ledger.at, &ledger.zone).ok()?.next_after(ledger.cursor),
        };
        first.filter(|first| wall.since(WallTime::of(*first)) > UNSETTLED_MAX)
    }

    /// Slots of a schedule that was replaced are settled: they are not due by the one that replaced it.
    fn follow_schedule(&self, ledger: &mut Ledger, wall: WallTime, writer: Writer<'_>) {
        if ledger.is_of(&self.schedule) {
            return;
        }
        if let Ok(former) = Schedule::parse(&ledger.at, &ledger.zone)
            && let Some(newest) = former.last_between(ledger.cursor, wall.second())
        {
            let former = Self { schedule: former, ..self.clone() };
            former.skip_until(ledger, newest, SkipReason::Rescheduled, wall, writer);
        }
        ledger.cursor = ledger.cursor.max(wall.second());
        self.schedule.text().clone_into(&mut ledger.at);
        self.schedule.zone().clone_into(&mut ledger.zone);
    }

    /// What to do about the open slot; `None` if there is none any more.
    fn plan_open(
        &self,
        ledger: &mut Ledger,
        is_paused: bool,
        wall: WallTime,
        writer: Writer<'_>,
    ) -> Option<Plan> {
        let open = ledger.open.as_ref()?;
        if open.state == OpenState::Running && open.term != writer.term {
            // Whoever ran it does not hold the lease any more, and has not settled it.
            let why = format!("{} lost the lease", open.by);
            ledger.interrupt_open(&why);
        }
        let open = ledger.open.clone()?;
        let is_late = match open.slot {
            SlotId::At(slot) => self.is_too_late(slot, wall),
            SlotId::Ordered(_) => false,
        };
        let claim = |interrupted| Claim {
            slot: open.slot,
            behind: self.newest_due(ledger.cursor, wall).is_some(),
            again: Some(Again { attempt: open.attempt + 1, interrupted }),
        };
        match &open.state {
            OpenState::Running => Some(Plan::Rest(None)),
            _ if is_paused => Some(self.rest(ledger)),
            OpenState::Failed(_) => Some(Plan::Retry),
            OpenState::Interrupted(why) => {
                let reruns = self.settings.interrupted == Interrupted::Rerun
                    && open.interrupted < INTERRUPTED_MAX
                    && !is_late;
                if reruns {
                    return Some(Plan::Claim(claim(open.interrupted + 1)));
                }
                let outcome = SlotOutcome::Interrupted(why.clone());
                let interrupted = open.interrupted + 1;
                ledger.open = None;
                ledger.settle(settled(
                    &OpenSlot { interrupted, ..open.clone() },
                    outcome,
                    None,
                    writer,
                ));
                None
            }
        }
    }

    /// The attempt that follows one that failed.
    pub(crate) fn retry(&self, ledger: &Ledger, wall: WallTime) -> Option<Claim> {
        let open = ledger.open.as_ref()?;
        Some(Claim {
            slot: open.slot,
            behind: self.newest_due(ledger.cursor, wall).is_some(),
            again: Some(Again { attempt: open.attempt + 1, interrupted: open.interrupted }),
        })
    }

    fn plan_newest_due(&self, ledger: &mut Ledger, wall: WallTime, writer: Writer<'_>) -> Plan {
        let mut cursor = ledger.cursor;
        if !self.settings.obeys(CronRule::SlotsFromCursor) {
            // What a scheduler without a ledger does: whatever the clock says was due last.
            let hour_ago = Slot::from_unix(wall.second().as_unix() - 3600).max(ledger.since);
            let last = ledger.settled.last().map(|last| last.slot);
            let newest = self.newest_due(hour_ago, wall);
            if newest.is_some_and(|newest| Some(SlotId::At(newest)) != last) {
                cursor = hour_ago;
            }
        }
        let Some(newest) = self.newest_due(cursor, wall) else { return self.rest(ledger) };
        if self.is_too_late(newest, wall) {
            self.skip_until(ledger, newest, SkipReason::Missed, wall, writer);
            return self.rest(ledger);
        }
        if let Some(before) =
            self.schedule.last_between(cursor, Slot::from_unix(newest.as_unix() - 1))
        {
            self.skip_until(ledger, before, SkipReason::Missed, wall, writer);
        }
        ledger.cursor = newest;
        Plan::Claim(Claim { slot: SlotId::At(newest), behind: false, again: None })
    }

    fn plan_first_due(&self, ledger: &mut Ledger, wall: WallTime, writer: Writer<'_>) -> Plan {
        if let Some(within) = self.settings.within {
            let too_late = WallTime::from_millis(wall.as_millis() - 1)
                .as_millis()
                .saturating_sub(i64::try_from(within.as_millis()).unwrap_or(i64::MAX));
            let too_late = WallTime::from_millis(too_late).second();
            if let Some(newest) = self.schedule.last_between(ledger.cursor, too_late) {
                self.skip_until(ledger, newest, SkipReason::Missed, wall, writer);
            }
        }
        let first = self.schedule.next_after(ledger.cursor);
        let Some(first) = first.filter(|first| self.start_of(*first) <= wall) else {
            return self.rest(ledger);
        };
        ledger.cursor = first;
        let behind = self.newest_due(first, wall).is_some();
        Plan::Claim(Claim { slot: SlotId::At(first), behind, again: None })
    }

    fn rest(&self, ledger: &Ledger) -> Plan {
        Plan::Rest(self.schedule.next_after(ledger.cursor).map(|next| self.start_of(next)))
    }

    /// The latest slot after this one that may have been started by now.
    pub(crate) fn newest_due(&self, after: Slot, wall: WallTime) -> Option<Slot> {
        let mut newest = self.schedule.last_between(after, wall.second())?;
        while self.start_of(newest) > wall {
            let before = Slot::from_unix(newest.as_unix() - 1);
            newest = self.schedule.last_between(after, before)?;
        }
        Some(newest)
    }

    fn is_too_late(&self, slot: Slot, wall: WallTime) -> bool {
        let lateness = wall.since(self.start_of(slot));
        self.settings.lateness_max().is_some_and(|most| lateness > most)
    }

    /// Settles all slots after the cursor, up to this one, as skipped.
    pub(crate) fn skip_until(
        &self,
        ledger: &mut Ledger,
        last: Slot,
        reason: SkipReason,
        wall: WallTime,
        writer: Writer<'_>,
    ) {
        let Some(first) = self.schedule.next_after(ledger.cursor).filter(|first| *first <= last)
        else {
            return;
        };
        let count = self.schedule.count_between(ledger.cursor, last);
        ledger.settle(SettledSlot {
            slot: SlotId::At(first),
            to: (count > 1).then_some(last),
            count,
            outcome: SlotOutcome::Skipped(reason),
            by: writer.by.to_owned(),
            term: writer.term,
            began: wall.second(),
            took_ms: None,
            attempts: 0,
            interrupted: 0,
        });
        ledger.cursor = last;
    }
}

/// Whether there is something to do about a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outlook {
    /// Now.
    Due,
    /// At this time of the wall clock; `None`: never, unless there is an order.
    NotBefore(Option<WallTime>),
    /// Nothing by this clock: it is more than a year after this slot, the first that is not settled.
    ClockAhead(Slot),
}

/// Who writes a ledger.
#[derive(Clone, Copy)]
pub(crate) struct Writer<'a> {
    pub(crate) by: &'a str,
    /// The term of its tenure.
    pub(crate) term: u64,
}

/// What to do next about a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    /// Claim a slot, and run it.
    Claim(Claim),
    /// Try the open slot again after a pause.
    Retry,
    /// Nothing before this time.
    Rest(Option<WallTime>),
}

/// A slot to be claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) slot: SlotId,
    /// Whether slots that are due already wait behind it.
    pub(crate) behind: bool,
    /// Set if the slot is open: another attempt.
    pub(crate) again: Option<Again>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Again {
    pub(crate) attempt: u32,
    /// How many of the earlier ones were interrupted.
    pub(crate) interrupted: u32,
}

/// The line of an open slot, once it is settled.
pub(crate) fn settled(
    open: &OpenSlot,
    outcome: SlotOutcome,
    took: Option<Duration>,
    writer: Writer<'_>,
) -> SettledSlot {
    SettledSlot {
        slot: open.slot,
        to: None,
        count: 1,
        outcome,
        by: open.by.clone(),
        term: writer.term,
        began: open.claimed,
        took_ms: took.map(|took| u64::try_from(took.as_millis()).unwrap_or(u64::MAX)),
        attempts: open.attempt,
        interrupted: open.interrupted,
    }
}

/// A number that a name and another number determine, the same in every version and on every machine:
/// FNV-1a, and a round of mixing, since short names leave its high bits alone.
pub(crate) fn hash(name: &str, number: u64) -> u64 {
    let bytes = name.bytes().chain(number.to_le_bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mixed = (hash ^ (hash >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed ^ (mixed >> 32)
}

/// How often an interrupted run of one slot is begun again. A command that takes its machine down would
/// otherwise take down one after the other, for ever.
const INTERRUPTED_MAX: u32 = 10;
/// How far the clock may be after the first slot that is not settled. Machines that were off for months are no
/// error; clocks that are wrong by themselves are wrong by years.
const UNSETTLED_MAX: Duration = Duration::from_secs(366 * 86_400);
/// How many pairs of slots the jitter is compared with.
const JITTER_CHECKED: u32 = 50;
