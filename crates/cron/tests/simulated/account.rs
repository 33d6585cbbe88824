//! The account of all slots, kept beside the ledger from what really happened: each accepted write and each
//! start is compared with it.

use std::collections::BTreeMap;

use tenure_cron::{Job, LEDGER_MAX, Ledger, OpenState, Schedule, Slot, SlotId, SlotRun};

use super::world::Time;

pub(crate) struct Account {
    schedule: Schedule,
    /// How often each slot was settled.
    settled: BTreeMap<SlotId, u32>,
    /// The runs of each slot that is not settled.
    runs: BTreeMap<SlotId, Vec<RunSeen>>,
    /// The term under which something runs now, and since when.
    active: Option<(u64, Time)>,
    /// The terms whose commands are dead after this time.
    dead: BTreeMap<u64, Time>,
    orders: u64,
    pub(crate) started: u64,
    pub(crate) interrupted: u64,
    pub(crate) faults: u64,
    pub(crate) bytes_max: usize,
    /// What must not happen.
    pub(crate) violations: Vec<String>,
}

struct RunSeen {
    attempt: u32,
    /// Whether whoever ran it saw it fail.
    failed: bool,
    term: u64,
}

impl Account {
    pub(crate) fn new(job: &Job) -> Self {
        Self {
            schedule: job.schedule().clone(),
            settled: BTreeMap::new(),
            runs: BTreeMap::new(),
            active: None,
            dead: BTreeMap::new(),
            orders: 0,
            started: 0,
            interrupted: 0,
            faults: 0,
            bytes_max: 0,
            violations: Vec::new(),
        }
    }

    pub(crate) fn ordered(&mut self, number: u64) {
        self.orders = number;
    }

    /// A write was accepted.
    pub(crate) fn written(
        &mut self,
        before: Option<&Ledger>,
        after: Option<&Ledger>,
        bytes: usize,
    ) {
        self.bytes_max = self.bytes_max.max(bytes);
        if bytes > LEDGER_MAX {
            self.violations.push(format!("a ledger of {bytes} bytes"));
        }
        let Some(after) = after else { return };
        let Some(before) = before else { return };
        if before == after {
            return;
        }
        let open_before = before.open.as_ref().map(|open| open.slot);
        let open_after = after.open.as_ref().map(|open| open.slot);
        let mut newly = Vec::new();
        if after.cursor < before.cursor {
            // A claim that was withdrawn: nothing else moves the cursor back.
            let is_withdrawn = open_after.is_none()
                && open_before.is_some_and(|slot| !self.runs.contains_key(&slot))
                && self.schedule.count_between(after.cursor, before.cursor) == 1;
            if !is_withdrawn {
                self.violations.push(format!("the cursor went back to {:?}", after.cursor));
            }
        } else {
            if let Some(slot) = open_before.filter(|slot| open_after != Some(*slot)) {
                let is_withdrawn = matches!(slot, SlotId::Ordered(number) if after.order < number);
                if !is_withdrawn {
                    newly.push(slot);
                }
            }
            let mut slot = before.cursor;
            while let Some(next) =
                self.schedule.next_after(slot).filter(|next| *next <= after.cursor)
            {
                if open_after != Some(SlotId::At(next)) {
                    newly.push(SlotId::At(next));
                }
                slot = next;
            }
        }
        let counted = after.totals.sum().checked_sub(before.totals.sum());
        if counted != Some(newly.len() as u64) {
            self.violations.push(format!(
                "{} slots were settled, and {counted:?} were counted: {newly:?}",
                newly.len()
            ));
        }
        self.interrupted += after.totals.interrupted.saturating_sub(before.totals.interrupted);
        for slot in newly {
            self.runs.remove(&slot);
            let times = self.settled.entry(slot).or_default();
            *times += 1;
            if *times > 1 {
                self.violations.push(format!("{slot} was settled twice"));
            }
        }
    }

    pub(crate) fn started(&mut self, run: &SlotRun, time: Time, ledger: Option<&Ledger>) {
        self.started += 1;
        let SlotRun { slot, attempt, term } = *run;
        let open = ledger.and_then(|ledger| ledger.open.as_ref());
        let is_claimed = open.is_some_and(|open| {
            (open.slot, open.attempt, open.term) == (slot, attempt, term)
                && open.state == OpenState::Running
        });
        if !is_claimed {
            self.violations.push(format!("{slot} was started, and its claim is not in the ledger"));
        }
        if self.settled.contains_key(&slot) {
            self.violations.push(format!("{slot} was started after it was settled"));
        }
        if let Some((other, since)) = self.active
            && self.dead.get(&other).is_none_or(|dead| *dead > time)
        {
            self.violations
                .push(format!("{slot} was started while term {other} runs since {since}"));
        }
        let runs = self.runs.entry(slot).or_default();
        let failed = runs.iter().filter(|run| run.failed).count();
        let interrupted = open.map_or(0, |open| open.interrupted as usize);
        if runs.len() > failed + interrupted || runs.iter().any(|run| run.attempt >= attempt) {
            self.violations
                .push(format!("{slot} was run twice, and {interrupted} were interrupted"));
        }
        runs.push(RunSeen { attempt, failed: false, term });
        self.active = Some((term, time));
    }

    /// The run of this term ended.
    pub(crate) fn ended(&mut self, term: u64, time: Time, failed: bool) {
        let of_term = |run: &&mut RunSeen| run.term == term;
        if let Some(run) =
            self.runs.values_mut().flatten().filter(of_term).max_by_key(|run| run.attempt)
        {
            run.failed = failed;
        }
        self.dead.insert(term, time);
        self.active.take_if(|(active, _)| *active == term);
    }

    /// The command of this term is dead by then.
    pub(crate) fn dead_by(&mut self, term: u64, time: Time) {
        self.dead.entry(term).or_insert(time);
    }

    pub(crate) fn abandoned(&mut self, term: u64, time: Time) {
        self.dead_by(term, time);
        if self.dead.len() > 100
            && let Some((oldest, _)) = self.dead.pop_first()
        {
            self.active.take_if(|(active, _)| *active == oldest);
        }
    }

    /// Everything that was due until then is settled, and each slot once.
    pub(crate) fn close(&mut self, ledger: &Ledger, until: Slot) {
        if let Some(open) = &ledger.open {
            self.violations.push(format!("{} is open at the end", open.slot));
        }
        let mut slot = ledger.since;
        let mut due = 0;
        while let Some(next) = self.schedule.next_after(slot).filter(|next| *next <= until) {
            if !self.settled.contains_key(&SlotId::At(next)) {
                self.violations.push(format!("{next} is unaccounted for"));
            }
            due += 1;
            slot = next;
        }
        let ordered = (1..=self.orders)
            .filter(|number| !self.settled.contains_key(&SlotId::Ordered(*number)));
        let lost: Vec<u64> = ordered.collect();
        if !lost.is_empty() {
            self.violations.push(format!("orders {lost:?} are unaccounted for"));
        }
        let counted = ledger.totals.sum();
        let settled = self.settled.len() as u64;
        if counted != settled || settled < due {
            self.violations.push(format!("{counted} in the ledger, {settled} settled, {due} due"));
        }
    }

    pub(crate) fn slots(&self) -> u64 {
        self.settled.len() as u64
    }
}
