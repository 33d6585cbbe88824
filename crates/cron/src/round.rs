//! One tenure of a job's lease: claims slots, has them run, settles them. Pure: a driver tells it the time,
//! writes what it says, and tells it what became of that.
//!
//! The order is what the account rests on. A slot is claimed in the ledger, and the claim is known to stand
//! there, before its command starts: whoever holds the lease next sees it. A claim whose answer did not come
//! is read back. A slot is settled after its command has ended. Both writes are renewals of this tenure, so
//! the store refuses them once another holds the lease; then the round is over, and what it left open is
//! settled by its successor.

use std::sync::Arc;
use std::time::Duration;

use tenure_lease::Moment;

use crate::ledger::{Ledger, OpenSlot, OpenState, SettledSlot, SkipReason, SlotId, SlotOutcome};
use crate::plan::{Claim, Job, Plan, Writer, settled};
use crate::settings::{CronRule, Overlap};
use crate::{Interrupted, Orders, Slot, WallTime};

/// What a driver is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RoundEffect {
    /// Write this ledger to the lease's note, and say what became of that.
    WriteLedger(Vec<u8>),
    /// Read the lease's record, and say what its note is.
    ReadLedger,
    /// Start the command of this run, and say how it ended.
    StartRun(SlotRun),
    /// Stop the command, and say how it ended.
    StopRun(StopCause),
    /// Give the lease back: this process was told to stop.
    Release,
}

/// One attempt to run a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotRun {
    /// Which slot.
    pub slot: SlotId,
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// The term of the tenure under which it runs.
    pub term: u64,
}

/// Why a run is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopCause {
    /// It did not end by its deadline.
    Deadline,
    /// The process was told to stop.
    Terminated,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunEnd {
    /// By itself, with this code; 0 is success.
    Exited(i32),
    /// It was stopped.
    Stopped,
}

/// What became of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteAnswer {
    /// It stands in the record.
    Written,
    /// No answer came.
    Unknown,
}

/// Something of the account that now stands in the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RoundEvent {
    /// A slot was claimed.
    Claimed(OpenSlot),
    /// An attempt failed, and another will follow.
    WillRetry(OpenSlot),
    /// A slot, or a range of skipped ones, was settled.
    Settled(SettledSlot),
}

/// One tenure of a job's lease.
#[derive(Debug)]
pub struct JobRound {
    job: Arc<Job>,
    by: String,
    term: u64,
    /// As it stands in the record.
    ledger: Ledger,
    /// Whether the record has it.
    is_new: bool,
    orders: Orders,
    stage: Stage,
    /// Why this process was told to stop, once it was.
    terminated: Option<String>,
    /// When the open slot is tried again.
    retry_at: Option<Moment>,
    events: Vec<RoundEvent>,
}

#[derive(Debug)]
enum Stage {
    /// To be decided.
    Plan,
    /// Nothing is due before this time.
    Rest(Option<WallTime>),
    /// A ledger is being written.
    Write(Box<Pending>),
    Run(Running),
    /// The lease is to be given back.
    Over,
}

#[derive(Debug)]
struct Pending {
    ledger: Ledger,
    /// What follows once it stands in the record.
    then: AfterWrite,
    events: Vec<RoundEvent>,
    request: PendingRequest,
}

#[derive(Debug, PartialEq, Eq)]
enum PendingRequest {
    /// The write has yet to be sent.
    Write,
    /// The write's answer did not come: the record has yet to be read.
    Read,
    /// An answer is awaited.
    Sent,
}

#[derive(Debug)]
enum AfterWrite {
    /// The claimed slot is started; or the claim is withdrawn, by writing this ledger.
    Start {
        slot: SlotId,
        attempt: u32,
        withdrawn: Box<Ledger>,
    },
    Plan,
    Release,
}

#[derive(Debug)]
struct Running {
    run: SlotRun,
    began: Moment,
    started: bool,
    stop: Option<StopCause>,
    stop_sent: bool,
}

impl JobRound {
    /// Begins with what the note said when the lease was won. Without a ledger the account begins now.
    pub fn new(
        job: Arc<Job>,
        by: impl Into<String>,
        term: u64,
        ledger: Option<Ledger>,
        orders: Orders,
        wall: WallTime,
    ) -> Self {
        let is_new = ledger.is_none();
        let ledger = ledger.unwrap_or_else(|| Ledger::new(job.schedule(), wall.second()));
        Self {
            job,
            by: by.into(),
            term,
            ledger,
            is_new,
            orders,
            stage: Stage::Plan,
            terminated: None,
            retry_at: None,
            events: Vec::new(),
        }
    }

    /// The ledger, as it stands in the record.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// What was claimed and settled since the last call, and stands in the record.
    pub fn take_events(&mut self) -> Vec<RoundEvent> {
        std::mem::take(&mut self.events)
    }

    /// What to do now, if anything. To be called until there is nothing, after each event and at
    /// [`JobRound::wake_at`].
    pub fn poll(&mut self, now: Moment, wall: WallTime) -> Option<RoundEffect> {
        loop {
            match &mut self.stage {
                Stage::Plan if self.terminated.is_some() => self.stage = Stage::Over,
                Stage::Plan => {
                    if !self.plan(now, wall) {
                        return None;
                    }
                }
                Stage::Rest(_) if self.terminated.is_some() => self.stage = Stage::Over,
                Stage::Rest(Some(until)) if *until <= wall => self.stage = Stage::Plan,
                Stage::Rest(_) => return None,
                Stage::Write(pending) => {
                    match std::mem::replace(&mut pending.request, PendingRequest::Sent) {
                        PendingRequest::Write => {
                            return Some(RoundEffect::WriteLedger(pending.ledger.to_bytes()));
                        }
                        PendingRequest::Read => return Some(RoundEffect::ReadLedger),
                        PendingRequest::Sent => return None,
                    }
                }
                Stage::Run(running) => {
                    return running.poll(now, &self.job, self.terminated.is_some());
                }
                Stage::Over => return Some(RoundEffect::Release),
            }
        }
    }

    /// When something is due on the boot clock: the deadline of a run, or a retry.
    pub fn wake_at(&self) -> Moment {
        match &self.stage {
            Stage::Run(Running { began, stop: None, .. }) => {
                self.job.settings().deadline.map_or(Moment::NEVER, |deadline| *began + deadline)
            }
            Stage::Plan => self.retry_at.unwrap_or(Moment::NEVER),
            _ => Moment::NEVER,
        }
    }

    /// While nothing is to be done: until when, by the wall clock. The outer `None`: something is.
    pub fn rests_until(&self) -> Option<Option<WallTime>> {
        match &self.stage {
            Stage::Rest(until) => Some(*until),
            _ => None,
        }
    }

    /// What became of [`RoundEffect::WriteLedger`].
    pub fn handle_write_answer(&mut self, answer: WriteAnswer) {
        let Stage::Write(pending) = &mut self.stage else { return };
        match answer {
            WriteAnswer::Written => self.handle_written(),
            WriteAnswer::Unknown => pending.request = PendingRequest::Read,
        }
    }

    /// What [`RoundEffect::ReadLedger`] found in the record of this tenure; `None` if that could not be
    /// read.
    pub fn handle_read_answer(&mut self, note: Option<&[u8]>) {
        let Stage::Write(pending) = &mut self.stage else { return };
        match note {
            Some(note) if note == pending.ledger.to_bytes() => self.handle_written(),
            Some(_) => pending.request = PendingRequest::Write,
            None => pending.request = PendingRequest::Read,
        }
    }

    /// What operators want was read again.
    pub fn handle_orders(&mut self, orders: Orders) {
        if orders != self.orders {
            self.orders = orders;
            if matches!(self.stage, Stage::Rest(_)) {
                self.stage = Stage::Plan;
            }
        }
    }

    /// The process was told to stop: what runs is stopped, settled as interrupted, and handed over.
    pub fn handle_terminate(&mut self, why: impl Into<String>) {
        self.terminated.get_or_insert(why.into());
    }

    /// How the command of [`RoundEffect::StartRun`] ended.
    pub fn handle_run_end(&mut self, now: Moment, wall: WallTime, end: RunEnd) {
        let Stage::Run(running) = &self.stage else { return };
        let (stop, took) = (running.stop, now.since(running.began));
        let mut ledger = self.ledger.clone();
        let mut events = Vec::new();
        let is_retried = self.settle_run(&mut ledger, wall, (end, stop), took, &mut events);
        if is_retried {
            let failures = ledger.open.as_ref().map_or(1, |open| open.attempt - open.interrupted);
            self.retry_at = Some(now + backoff(self.job.settings().backoff, failures));
        }
        let then = match self.terminated {
            Some(_) => AfterWrite::Release,
            None => AfterWrite::Plan,
        };
        if !is_retried
            && self.terminated.is_none()
            && let Plan::Claim(claim) = self.plan_on(&mut ledger, wall, &mut events)
        {
            self.write_claim(claim, ledger, wall, events);
            return;
        }
        self.write(ledger, then, events);
    }

    /// Records the end of the running slot; whether it will be retried.
    fn settle_run(
        &self,
        ledger: &mut Ledger,
        wall: WallTime,
        (end, stop): (RunEnd, Option<StopCause>),
        took: Duration,
        events: &mut Vec<RoundEvent>,
    ) -> bool {
        let writer = Writer { by: &self.by, term: self.term };
        // A run was claimed; the claim is in the ledger until it is settled here.
        let Some(open) = ledger.open.clone() else { return false };
        let code = match (end, stop) {
            (RunEnd::Exited(code), _) => code,
            (RunEnd::Stopped, Some(StopCause::Deadline)) => DEADLINE_CODE,
            (RunEnd::Stopped, _) => {
                let why = self.terminated.clone().unwrap_or_else(|| "it was stopped".into());
                ledger.interrupt_open(&why);
                if self.job.settings().interrupted == Interrupted::Leave {
                    let open = OpenSlot { interrupted: open.interrupted + 1, ..open };
                    ledger.open = None;
                    let line = settled(&open, SlotOutcome::Interrupted(why), Some(took), writer);
                    self.settle(ledger, line, events);
                }
                return false;
            }
        };
        let failures = open.attempt.saturating_sub(open.interrupted);
        if code != 0 && failures <= self.job.settings().retries {
            if let Some(open) = &mut ledger.open {
                open.state = OpenState::Failed(code);
                events.push(RoundEvent::WillRetry(open.clone()));
            }
            return true;
        }
        let outcome = if code == 0 { SlotOutcome::Done } else { SlotOutcome::Failed(code) };
        ledger.open = None;
        self.settle(ledger, settled(&open, outcome, Some(took), writer), events);
        if self.job.settings().overlap == Overlap::Skip
            && !open.behind
            && self.job.unsettled_for_too_long(ledger, wall).is_none()
            && let Some(newest) = self.job.newest_due(ledger.cursor, wall)
        {
            self.observed(ledger, events, |job, ledger| {
                job.skip_until(ledger, newest, SkipReason::Overlap, wall, writer);
            });
        }
        false
    }

    fn settle(&self, ledger: &mut Ledger, line: SettledSlot, events: &mut Vec<RoundEvent>) {
        events.push(RoundEvent::Settled(line.clone()));
        ledger.settle(line);
    }

    /// Decides what is next; `false` if that is to wait.
    fn plan(&mut self, now: Moment, wall: WallTime) -> bool {
        let mut ledger = self.ledger.clone();
        let mut events = Vec::new();
        match self.plan_on(&mut ledger, wall, &mut events) {
            Plan::Claim(claim) => self.write_claim(claim, ledger, wall, events),
            Plan::Retry => {
                let backoff = self.job.settings().backoff;
                let at = *self.retry_at.get_or_insert(now + backoff);
                if now < at {
                    return false;
                }
                self.retry_at = None;
                let Some(claim) = self.job.retry(&ledger, wall) else { return false };
                self.write_claim(claim, ledger, wall, events);
            }
            Plan::Rest(_) if ledger != self.ledger || self.is_new => {
                self.write(ledger, AfterWrite::Plan, events);
            }
            Plan::Rest(until) => self.stage = Stage::Rest(until),
        }
        true
    }

    fn plan_on(&self, ledger: &mut Ledger, wall: WallTime, events: &mut Vec<RoundEvent>) -> Plan {
        let writer = Writer { by: &self.by, term: self.term };
        self.observed(ledger, events, |job, ledger| job.plan(ledger, &self.orders, wall, writer))
    }

    /// Notes what a change settles.
    fn observed<T>(
        &self,
        ledger: &mut Ledger,
        events: &mut Vec<RoundEvent>,
        change: impl FnOnce(&Job, &mut Ledger) -> T,
    ) -> T {
        let before = std::mem::take(&mut ledger.settled);
        let done = change(&self.job, ledger);
        events.extend(ledger.settled.iter().cloned().map(RoundEvent::Settled));
        let new = std::mem::replace(&mut ledger.settled, before);
        ledger.append_settled(new);
        done
    }

    /// Writes a claim: the ledger, with the slot opened.
    fn write_claim(
        &mut self,
        claim: Claim,
        mut ledger: Ledger,
        wall: WallTime,
        mut events: Vec<RoundEvent>,
    ) {
        // Every slot before the claimed one is settled in it, and the claimed one is not.
        let mut withdrawn = Box::new(ledger.clone());
        match claim.slot {
            SlotId::At(slot) if claim.again.is_none() => {
                withdrawn.cursor = Slot::from_unix(slot.as_unix() - 1);
            }
            SlotId::At(_) => {}
            SlotId::Ordered(number) => ledger.order = number,
        }
        let (attempt, interrupted) =
            claim.again.map_or((1, 0), |again| (again.attempt, again.interrupted));
        let open = OpenSlot {
            slot: claim.slot,
            attempt,
            interrupted,
            term: self.term,
            by: self.by.clone(),
            claimed: wall.second(),
            state: OpenState::Running,
            behind: claim.behind,
        };
        events.push(RoundEvent::Claimed(open.clone()));
        ledger.open(open.clone());
        if !self.job.settings().obeys(CronRule::KeepOpenSlot) && ledger.is_full() {
            ledger.open = None;
        }
        if !self.job.settings().obeys(CronRule::ClaimBeforeStart) {
            self.ledger = ledger;
            self.events.extend(events);
            self.start(open.slot, attempt);
            return;
        }
        self.write(ledger, AfterWrite::Start { slot: open.slot, attempt, withdrawn }, events);
    }

    fn write(&mut self, ledger: Ledger, then: AfterWrite, events: Vec<RoundEvent>) {
        self.stage = Stage::Write(Box::new(Pending {
            ledger,
            then,
            events,
            request: PendingRequest::Write,
        }));
    }

    fn handle_written(&mut self) {
        let Stage::Write(pending) = std::mem::replace(&mut self.stage, Stage::Plan) else { return };
        let Pending { ledger, then, events, .. } = *pending;
        self.ledger = ledger;
        self.is_new = false;
        match then {
            AfterWrite::Plan => {}
            AfterWrite::Release => self.stage = Stage::Over,
            // It was not started, so its claim need not be settled.
            AfterWrite::Start { withdrawn, .. } if self.terminated.is_some() => {
                let settled = events.into_iter();
                self.events
                    .extend(settled.filter(|event| !matches!(event, RoundEvent::Claimed(_))));
                self.write(*withdrawn, AfterWrite::Release, Vec::new());
                return;
            }
            AfterWrite::Start { slot, attempt, .. } => self.start(slot, attempt),
        }
        self.events.extend(events);
    }

    fn start(&mut self, slot: SlotId, attempt: u32) {
        let run = SlotRun { slot, attempt, term: self.term };
        self.stage = Stage::Run(Running {
            run,
            began: Moment::ZERO,
            started: false,
            stop: None,
            stop_sent: false,
        });
    }
}

impl Running {
    fn poll(&mut self, now: Moment, job: &Job, is_terminated: bool) -> Option<RoundEffect> {
        if !self.started {
            self.started = true;
            self.began = now;
            return Some(RoundEffect::StartRun(self.run.clone()));
        }
        let is_overdue =
            job.settings().deadline.is_some_and(|deadline| now >= self.began + deadline);
        if self.stop.is_none() && is_overdue {
            self.stop = Some(StopCause::Deadline);
        }
        if self.stop.is_none() && is_terminated {
            self.stop = Some(StopCause::Terminated);
        }
        let cause = self.stop?;
        (!std::mem::replace(&mut self.stop_sent, true)).then_some(RoundEffect::StopRun(cause))
    }
}

/// How long to wait after so many failures.
fn backoff(first: Duration, failures: u32) -> Duration {
    let doubled = first.saturating_mul(1 << failures.saturating_sub(1).min(16));
    doubled.min(BACKOFF_MAX.max(first))
}

/// What a run that did not end by its deadline has failed with, as `timeout` has it.
const DEADLINE_CODE: i32 = 124;
/// The longest pause between two attempts, unless the first is longer.
const BACKOFF_MAX: Duration = Duration::from_secs(3600);
