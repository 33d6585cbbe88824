//! Machines, a store and a job in virtual time. A seed is the whole schedule.
//!
//! The store keeps one record with a term and a note, and accepts a write from the holder of the current term
//! alone. A machine that cannot renew for [`HELD`] has lost its tenure, its command has ended by [`KILLED`],
//! and the record is free at [`TTL`]: that much the lease promises. Everything else may happen: crashes,
//! pauses, signals, a store that is away, requests and answers that get lost, clocks that are stepped.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

use tenure_cron::{
    Job, JobRound, Ledger, Orders, Outlook, RoundEffect, RunEnd, SlotRun, StopCause, WallTime,
    WriteAnswer,
};
use tenure_lease::Moment;

use super::account::Account;
use super::faults::{Fault, Random};

/// Milliseconds of true time.
pub(crate) type Time = i64;

pub(crate) const TTL: Time = 15_000;
const HELD: Time = 10_000;
const KILLED: Time = 13_000;
const LINGER: Time = 15_000;
const PATIENCE: Time = 1_000;

pub(crate) struct World {
    pub(crate) time: Time,
    queue: BinaryHeap<Reverse<(Time, u64, EventBox)>>,
    sequence: u64,
    record: Record,
    pub(super) orders: Orders,
    pub(super) machines: Vec<Machine>,
    pub(super) job: Arc<Job>,
    pub(crate) random: Random,
    /// Of a thousand requests, how many are lost; of a thousand answers likewise.
    loss: u64,
    /// How long runs take at most.
    run_max: Time,
    /// Whether the store checks who writes.
    fenced: bool,
    pub(crate) account: Account,
}

struct Record {
    term: u64,
    holder: Option<(usize, u64)>,
    expires: Time,
    note: Vec<u8>,
    /// What the note says.
    ledger: Option<Ledger>,
}

pub(super) struct Machine {
    pub(super) incarnation: u64,
    pub(super) up: bool,
    pub(super) paused: bool,
    pub(super) reachable: bool,
    /// Whether it can renew.
    is_able: bool,
    /// Differs each time the machine becomes able, or unable, to renew.
    ability: u64,
    /// Milliseconds that its clock is ahead.
    pub(super) offset: Time,
    pub(super) round: Option<Round>,
    /// What came while it was paused.
    pub(super) deferred: Vec<Event>,
    looks: u64,
}

pub(super) struct Round {
    pub(super) core: JobRound,
    pub(super) term: u64,
    lost: bool,
    run: Option<Run>,
}

struct Run {
    natural_end: Time,
    code: i32,
    /// Set if it was stopped: why, if its machine's core said so.
    stop: Option<Option<StopCause>>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    Look { looks: u64 },
    Acquire,
    Wake,
    WriteArrives { term: u64, bytes: Vec<u8> },
    Written { term: u64 },
    Unknown { term: u64 },
    ReadArrives { term: u64 },
    RunEnds { term: u64, end: Time },
    Lost { ability: u64 },
    Resume,
    Reach,
    Restart,
    Fault(Fault),
}

type EventBox = (usize, u64, Event);

impl World {
    pub(crate) fn new(
        job: Job,
        machines: usize,
        start: Time,
        mut random: Random,
        fenced: bool,
    ) -> Self {
        let (loss, run_max) = (random.below(60), [500, 5_000, 90_000][random.below(3) as usize]);
        let account = Account::new(&job);
        let record =
            Record { term: 7, holder: None, expires: Time::MIN, note: Vec::new(), ledger: None };
        let mut world = Self {
            time: start,
            queue: BinaryHeap::new(),
            sequence: 0,
            record,
            orders: Orders::default(),
            machines: Vec::new(),
            job: Arc::new(job),
            random,
            loss,
            run_max,
            fenced,
            account,
        };
        for index in 0..machines {
            let offset = world.random.below(4_000) as Time - 2_000;
            world.machines.push(Machine {
                incarnation: 1,
                up: true,
                paused: false,
                reachable: true,
                is_able: true,
                ability: 0,
                offset,
                round: None,
                deferred: Vec::new(),
                looks: 0,
            });
            world.look_in(index, 0);
        }
        world
    }

    pub(crate) fn plan_fault(&mut self, at: Time, fault: Fault) {
        let machine = self.random.below(self.machines.len() as u64) as usize;
        self.at(at, machine, Event::Fault(fault));
    }

    /// No fault any more, all clocks are right, and runs are short enough to catch up.
    pub(crate) fn heal(&mut self) {
        self.loss = 0;
        self.run_max = 500;
        self.orders.resume(self.job.name());
        for index in 0..self.machines.len() {
            self.machines[index].offset = 0;
            self.look_in(index, 0);
            if let Some(round) = &mut self.machines[index].round {
                round.core.handle_orders(self.orders.clone());
            }
            self.advance(index);
        }
    }

    pub(crate) fn run_until(&mut self, end: Time) {
        while let Some(Reverse((time, ..))) = self.queue.peek()
            && *time <= end
        {
            let Some(Reverse((time, _, (machine, incarnation, event)))) = self.queue.pop() else {
                return;
            };
            self.time = time.max(self.time);
            self.handle(machine, incarnation, event);
            if !self.account.violations.is_empty() {
                return;
            }
        }
        self.time = end.max(self.time);
    }

    pub(crate) fn ledger(&self) -> Option<Ledger> {
        self.record.ledger.clone()
    }

    pub(super) fn at(&mut self, time: Time, machine: usize, event: Event) {
        self.sequence += 1;
        let incarnation = self.machines[machine].incarnation;
        self.queue.push(Reverse((time, self.sequence, (machine, incarnation, event))));
    }

    pub(super) fn look_in(&mut self, machine: usize, delay: Time) {
        self.machines[machine].looks += 1;
        let looks = self.machines[machine].looks;
        self.at(self.time + delay, machine, Event::Look { looks });
    }

    fn wall(&self, machine: usize) -> WallTime {
        WallTime::from_millis(self.time + self.machines[machine].offset)
    }

    fn now(&self) -> Moment {
        Moment::ZERO + Duration::from_millis(self.time.unsigned_abs())
    }

    fn handle(&mut self, index: usize, incarnation: u64, event: Event) {
        let machine = &mut self.machines[index];
        let is_current = machine.incarnation == incarnation;
        match event {
            Event::Fault(fault) => return self.handle_fault(index, fault),
            Event::Restart if !machine.up => {
                machine.up = true;
                self.changed_ability(index);
                return self.look_in(index, 0);
            }
            Event::Lost { ability } if is_current && machine.ability == ability => {
                return self.handle_lost(index);
            }
            Event::Resume if is_current && machine.paused => {
                machine.paused = false;
                self.changed_ability(index);
                let deferred = std::mem::take(&mut self.machines[index].deferred);
                for event in deferred {
                    let incarnation = self.machines[index].incarnation;
                    self.handle(index, incarnation, event);
                }
                self.look_in(index, 10);
                return self.advance(index);
            }
            Event::Reach => {
                machine.reachable = true;
                return self.changed_ability(index);
            }
            // A request that is under way arrives, whatever became of its sender.
            Event::WriteArrives { term, bytes } => {
                return self.handle_write(index, incarnation, term, bytes);
            }
            _ if !is_current || !machine.up => return,
            event if machine.paused => return machine.deferred.push(event),
            Event::Look { looks } if machine.looks == looks => return self.handle_look(index),
            Event::Acquire => return self.handle_acquire(index),
            Event::Wake => return self.advance(index),
            event => self.handle_answer(index, event),
        }
        self.advance(index);
    }

    /// What concerns the round under way.
    fn handle_answer(&mut self, index: usize, event: Event) {
        let (now, wall) = (self.now(), self.wall(index));
        let of = match &event {
            Event::Written { term } | Event::Unknown { term } | Event::ReadArrives { term } => {
                *term
            }
            Event::RunEnds { term, .. } => *term,
            _ => return,
        };
        let is_holder = self.is_holder(index, of) || !self.fenced;
        let reachable = self.machines[index].reachable;
        let Some(round) = self.machines[index].round.as_mut().filter(|round| round.term == of)
        else {
            return;
        };
        match event {
            Event::Written { .. } => round.core.handle_write_answer(WriteAnswer::Written),
            Event::Unknown { .. } => round.core.handle_write_answer(WriteAnswer::Unknown),
            Event::ReadArrives { .. } if !reachable => round.core.handle_read_answer(None),
            Event::ReadArrives { .. } if is_holder => {
                round.core.handle_read_answer(Some(&self.record.note));
            }
            Event::ReadArrives { .. } => self.drop_round(index),
            Event::RunEnds { end, .. } => {
                let Some(run) = round.run.take_if(|run| run.natural_end == end) else {
                    return;
                };
                let failed = match run.stop {
                    None => run.code != 0,
                    Some(cause) => cause == Some(StopCause::Deadline),
                };
                self.account.ended(of, self.time.min(run.natural_end), failed);
                round.core.handle_run_end(now, wall, run_end(&run));
            }
            _ => {}
        }
    }

    fn handle_look(&mut self, index: usize) {
        let machine = &self.machines[index];
        if machine.round.is_some() {
            return;
        }
        if !machine.reachable {
            return self.look_in(index, 5_000);
        }
        match self.job.outlook(self.record.ledger.as_ref(), &self.orders, self.wall(index)) {
            Outlook::Due if self.is_free() => {
                let delay = self.latency();
                self.at(self.time + delay, index, Event::Acquire);
            }
            Outlook::Due => self.look_in(index, 5_000),
            Outlook::NotBefore(Some(at)) => {
                let delay = at.as_millis() - self.wall(index).as_millis();
                let stagger = self.random.below(1_200) as Time;
                self.look_in(index, delay.max(1) + stagger);
            }
            Outlook::NotBefore(None) | Outlook::ClockAhead(_) => self.look_in(index, 60_000),
        }
    }

    fn handle_acquire(&mut self, index: usize) {
        if !self.machines[index].reachable || !self.is_free() || self.chance(self.loss) {
            return self.look_in(index, 1_000);
        }
        self.record.term += 1;
        self.record.holder = Some((index, self.machines[index].incarnation));
        self.record.expires = Time::MAX;
        if self.chance(self.loss) {
            // It was won, and nobody knows: it expires.
            self.record.expires = self.time + TTL;
            return self.look_in(index, 1_000);
        }
        let (term, by) = (self.record.term, format!("machine-{index}"));
        let (orders, wall) = (self.orders.clone(), self.wall(index));
        let core = JobRound::new(Arc::clone(&self.job), by, term, self.ledger(), orders, wall);
        self.machines[index].round = Some(Round { core, term, lost: false, run: None });
        self.advance(index);
    }

    /// Does what the core says, until it says nothing.
    pub(super) fn advance(&mut self, index: usize) {
        loop {
            let (now, wall) = (self.now(), self.wall(index));
            let machine = &mut self.machines[index];
            if machine.paused || !machine.up {
                return;
            }
            let Some(round) = &mut machine.round else { return };
            let is_lost = round.lost && round.run.is_none();
            // A holder that does not look at its own deadline relies on the store to refuse what it writes.
            if is_lost && self.fenced {
                return self.drop_round(index);
            }
            let term = round.term;
            match round.core.poll(now, wall) {
                Some(RoundEffect::WriteLedger(bytes)) => {
                    let delay = self.latency();
                    self.at(self.time + delay, index, Event::WriteArrives { term, bytes });
                }
                Some(RoundEffect::ReadLedger) => {
                    let delay = self.latency();
                    self.at(self.time + delay, index, Event::ReadArrives { term });
                }
                Some(RoundEffect::StartRun(_)) if is_lost => return self.drop_round(index),
                Some(RoundEffect::StartRun(run)) => self.start(index, &run),
                Some(RoundEffect::StopRun(cause)) => self.stop(index, cause),
                Some(RoundEffect::Release) => return self.release(index),
                None => return self.rest(index),
            }
        }
    }

    fn rest(&mut self, index: usize) {
        let wall = self.wall(index);
        let Some(round) = &self.machines[index].round else { return };
        match round.core.rests_until() {
            Some(until) => {
                let delay = until.map_or(Time::MAX, |until| until.as_millis() - wall.as_millis());
                if delay > LINGER {
                    return self.release(index);
                }
                self.at(self.time + delay.max(1), index, Event::Wake);
            }
            None => {
                let wake = round.core.wake_at();
                if wake != Moment::NEVER {
                    let wake = (wake.as_nanos() / 1_000_000) as Time + 1;
                    self.at(wake.max(self.time + 1), index, Event::Wake);
                }
            }
        }
    }

    fn release(&mut self, index: usize) {
        let term = self.machines[index].round.as_ref().map_or(0, |round| round.term);
        if self.is_holder(index, term) && self.machines[index].reachable {
            self.record.holder = None;
        }
        self.drop_round(index);
    }

    fn drop_round(&mut self, index: usize) {
        let machine = &mut self.machines[index];
        if let Some(round) = machine.round.take() {
            if let Some((holder, _)) = self.record.holder
                && holder == index
                && self.record.term == round.term
            {
                self.record.expires = self.record.expires.min(self.time + TTL);
            }
            self.account.abandoned(round.term, self.time);
        }
        self.look_in(index, 1_000);
    }

    fn start(&mut self, index: usize, run: &SlotRun) {
        let natural_end = self.time + 1 + self.random.below(self.run_max as u64) as Time;
        let code = i32::from(self.chance(200));
        let ledger = self.ledger();
        self.account.started(run, self.time, ledger.as_ref());
        let term = run.term;
        if let Some(round) = &mut self.machines[index].round {
            round.run = Some(Run { natural_end, code, stop: None });
        }
        self.at(natural_end, index, Event::RunEnds { term, end: natural_end });
    }

    fn stop(&mut self, index: usize, cause: StopCause) {
        let delay = self.random.below(2_000) as Time;
        self.end_run(index, self.time + delay, Some(cause));
    }

    /// The command ends by this time, unless it has ended by itself.
    fn end_run(&mut self, index: usize, by: Time, cause: Option<StopCause>) {
        let Some(round) = &mut self.machines[index].round else { return };
        let term = round.term;
        if let Some(run) = &mut round.run
            && run.natural_end > by
        {
            run.stop.get_or_insert(cause);
            run.natural_end = by;
            self.at(by, index, Event::RunEnds { term, end: by });
        }
    }

    fn handle_write(&mut self, index: usize, incarnation: u64, term: u64, bytes: Vec<u8>) {
        let is_alive = self.machines[index].incarnation == incarnation;
        if !self.machines[index].reachable || self.chance(self.loss) {
            if is_alive {
                self.at(self.time + PATIENCE, index, Event::Unknown { term });
            }
            return;
        }
        let is_holder = self.record.term == term
            && self.record.holder == Some((index, incarnation))
            && self.time < self.record.expires;
        if !is_holder && self.fenced {
            if is_alive
                && self.machines[index].round.as_ref().is_some_and(|round| round.term == term)
            {
                self.drop_round(index);
            }
            return;
        }
        let after = Ledger::parse(&bytes).unwrap();
        self.account.written(self.record.ledger.as_ref(), after.as_ref(), bytes.len());
        self.record.note = bytes;
        self.record.ledger = after;
        if is_alive {
            let delay = self.latency();
            match self.chance(self.loss) {
                true => self.at(self.time + PATIENCE, index, Event::Unknown { term }),
                false => self.at(self.time + delay, index, Event::Written { term }),
            }
        }
    }

    /// A machine became able, or unable, to renew.
    pub(super) fn changed_ability(&mut self, index: usize) {
        let machine = &mut self.machines[index];
        let is_able = machine.up && !machine.paused && machine.reachable;
        if is_able == machine.is_able {
            return;
        }
        machine.is_able = is_able;
        machine.ability += 1;
        let ability = machine.ability;
        let term = machine.round.as_ref().filter(|round| !round.lost).map(|round| round.term);
        let holds = self.record.holder.is_some_and(|(holder, _)| holder == index);
        if !holds {
            return;
        }
        match term {
            Some(term)
                if is_able && term == self.record.term && self.time < self.record.expires =>
            {
                self.record.expires = Time::MAX;
            }
            _ if self.record.expires == Time::MAX => {
                self.record.expires = self.time + TTL;
                self.at(self.time + HELD, index, Event::Lost { ability });
            }
            _ => {}
        }
    }

    fn handle_lost(&mut self, index: usize) {
        let killed = self.time + self.random.below((KILLED - HELD) as u64) as Time;
        if let Some(round) = &mut self.machines[index].round {
            round.lost = true;
            let term = round.term;
            self.end_run(index, killed, None);
            self.account.dead_by(term, killed);
        }
        self.advance(index);
    }

    fn is_free(&self) -> bool {
        self.record.holder.is_none() || self.time >= self.record.expires
    }

    fn is_holder(&self, index: usize, term: u64) -> bool {
        let holder = Some((index, self.machines[index].incarnation));
        self.record.term == term && self.record.holder == holder && self.time < self.record.expires
    }

    fn latency(&mut self) -> Time {
        1 + self.random.below(50) as Time
    }

    fn chance(&mut self, of_thousand: u64) -> bool {
        self.random.below(1_000) < of_thousand
    }
}

fn run_end(run: &Run) -> RunEnd {
    if run.stop.is_some() { RunEnd::Stopped } else { RunEnd::Exited(run.code) }
}
