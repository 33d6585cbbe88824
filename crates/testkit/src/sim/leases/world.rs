mod fault;
mod permission;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use tenure_lease::backend::{Acquire, Acquired, Answer, Renewed, Request, StoreError};
use tenure_lease::{LeaseName, Loss, MemoryRecords, Moment, Nonce, Owner, Token};

use super::process::{Agent, Arrival, Flight, Happened, Process};
use super::{Outcome, Plan};
use crate::history::{Event, History, Violation};
use crate::sim::Random;
use crate::sim::clock::Clock;

/// Runs one schedule: faults first, then none, until somebody must have the lease.
pub fn run(seed: u64, plan: &Plan) -> Outcome {
    let mut world = World::new(seed, plan);
    world.run();
    world.finish()
}

struct World<'a> {
    plan: &'a Plan,
    random: Random,
    now: Moment,
    lease: LeaseName,
    records: MemoryRecords,
    processes: Vec<Process>,
    queue: BinaryHeap<Reverse<(Moment, u64)>>,
    /// The steps in the queue, by their number.
    steps: BTreeMap<u64, Step>,
    step_count: u64,
    /// Until then nobody begins anew who would not know of a record that was deleted.
    nobody_new_until: Moment,
    /// The highest token that the guarded resource has seen.
    fence: Token,
    history: History,
    violations: Vec<Violation>,
    coverage: BTreeMap<&'static str, u64>,
    hasher: DefaultHasher,
    trace: Vec<String>,
}

#[allow(clippy::large_enum_variant)] // Most of them are requests and answers.
enum Step {
    /// A request reaches the store.
    Apply { process: usize, life: u64, flight: Flight, request: Request, fate: Fate, late: bool },
    /// Something reaches a process.
    Arrive { process: usize, life: u64, arrival: Arrival },
    /// A process's timer.
    Wake { process: usize, wakes: u64 },
    /// The work of a tenure touches what it guards.
    Effect { process: usize, token: Token },
    /// Something goes wrong.
    Fault,
    /// A process goes on after a pause.
    Resume { process: usize },
    /// A runtime answers again.
    Respond { process: usize },
    /// A process is allowed to take the lease, or not any more.
    Toggle { process: usize },
    /// The store goes away again.
    CutOff { process: usize },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Answered,
    ReplyLost,
}

impl<'a> World<'a> {
    fn new(seed: u64, plan: &'a Plan) -> Self {
        let mut random = Random::new(seed);
        let records =
            if plan.store_expires { MemoryRecords::expiring() } else { MemoryRecords::observed() };
        let lease = LeaseName::new("guarded").expect("a name");
        let processes = (0..plan.processes)
            .map(|index| {
                // Within the margin: a holder that is 4.8 % slow against a contender that is 4.8 %
                // fast uses up the 10 % that the margin allows for.
                let rate = match plan.beyond_margin {
                    false => random.within(952_000..1_048_000),
                    true => random.within(700_000..1_400_000),
                };
                let mut clock = Clock::new(random.within(0..1 << 50), rate);
                // The first two share an owner, like two guards of one process.
                let owner = Owner { name: "host".into(), incarnation: u64::from(index.max(1)) };
                let local = clock.read(Moment::ZERO);
                let session = session_name(plan, index as usize);
                let settings = &plan.settings;
                let allowed = !plan.standbys || random.percent(50);
                let agent = Agent::new(
                    lease.clone(),
                    owner.clone(),
                    session,
                    settings,
                    random.next(),
                    local,
                    allowed,
                );
                Process {
                    owner,
                    clock,
                    agent,
                    halted: false,
                    halted_until: Moment::ZERO,
                    inbox: VecDeque::new(),
                    active: None,
                    wakes: 0,
                    life: 0,
                    unresponsive: false,
                    cut_until: Moment::ZERO,
                    cut_loses: false,
                    allowed,
                    declines: false,
                    acquiring: None,
                }
            })
            .collect();
        Self {
            plan,
            random,
            now: Moment::ZERO,
            lease,
            records,
            processes,
            queue: BinaryHeap::new(),
            steps: BTreeMap::new(),
            step_count: 0,
            nobody_new_until: Moment::ZERO,
            fence: Token::default(),
            history: History::default(),
            violations: Vec::new(),
            coverage: BTreeMap::new(),
            hasher: DefaultHasher::new(),
            trace: Vec::new(),
        }
    }

    fn run(&mut self) {
        if self.plan.beyond_margin {
            for process in 0..self.plan.processes {
                self.history.push(self.now, Event::Impaired { process });
            }
        }
        for process in 0..self.processes.len() {
            self.attend(process);
        }
        self.schedule_fault();
        self.begin_toggling();
        let faults_end = Moment::ZERO + self.plan.faults_for;
        // Then every pause is over and every ttl run out; whoever wants the lease must have it.
        let end = faults_end + self.plan.settings.ttl * 10;
        while let Some(Reverse((at, number))) = self.queue.pop() {
            if at > end {
                break;
            }
            self.now = at;
            let step = self.steps.remove(&number).expect("every number has its step");
            self.step(step);
        }
        self.now = end;
    }

    /// The checked history, and whether the lease found a holder once the faults were over.
    fn finish(self) -> Outcome {
        let mut violations = self.history.violations();
        violations.extend(self.violations);
        if self.processes.iter().all(|process| process.active.is_none()) {
            violations.push(Violation {
                invariant: "somebody has it in the end",
                at: self.now,
                story: "ten ttls after the last fault nobody holds the lease".to_owned(),
            });
        }
        Outcome {
            violations,
            tenures: self.history.tenures(),
            virtual_time: self.now.since(Moment::ZERO),
            coverage: self.coverage,
            hash: self.hasher.finish(),
            trace: self.trace,
        }
    }

    fn has_faults(&self) -> bool {
        self.now < Moment::ZERO + self.plan.faults_for
    }

    fn at(&mut self, at: Moment, step: Step) {
        self.step_count += 1;
        self.steps.insert(self.step_count, step);
        self.queue.push(Reverse((at.max(self.now), self.step_count)));
    }

    fn trace(&mut self, line: impl FnOnce() -> String) {
        if self.plan.trace {
            self.trace.push(format!("{:?} {}", self.now, line()));
        }
    }

    fn met(&mut self, what: &'static str) {
        *self.coverage.entry(what).or_insert(0) += 1;
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Apply { process, life, flight, request, fate, late } => {
                self.apply(process, life, flight, request, fate, late);
            }
            Step::Arrive { process, life, arrival } => {
                if self.processes[process].life == life {
                    self.processes[process].inbox.push_back(arrival);
                    self.attend(process);
                }
            }
            Step::Wake { process, wakes } => {
                if self.processes[process].wakes == wakes {
                    self.attend(process);
                }
            }
            Step::Effect { process, token } => self.effect(process, token),
            Step::Fault => self.fault(),
            Step::Resume { process } => {
                if self.now >= self.processes[process].halted_until {
                    self.processes[process].halted = false;
                    self.processes[process].clock.freeze(self.now, false);
                    self.attend(process);
                }
            }
            Step::Toggle { process } => self.toggle(process),
            Step::CutOff { process } => {
                let length = self.random.up_to(self.plan.settings.ttl);
                self.cut_off(process, length);
            }
            Step::Respond { process } => {
                self.processes[process].unresponsive = false;
                self.arrive_soon(process, Arrival::Pong);
            }
        }
    }

    /// Lets a process do whatever it can do now.
    fn attend(&mut self, index: usize) {
        loop {
            if self.processes[index].halted {
                return;
            }
            let now = self.processes[index].clock.read(self.now);
            if let Some(arrival) = self.processes[index].inbox.pop_front() {
                match arrival {
                    Arrival::WorkEnds(token) => self.work_ends(index, token),
                    arrival => {
                        self.note_permission(index, &arrival);
                        self.processes[index].agent.arrive(now, arrival);
                    }
                }
            }
            let fresh = Nonce::from_bits(
                u128::from(self.random.next()) << 64 | u128::from(self.random.next()),
            );
            if let Some((flight, request)) = self.processes[index].agent.poll(now, fresh) {
                self.send(index, flight, request);
                continue;
            }
            if let Some(happened) = self.processes[index].agent.next_event(now) {
                self.happened(index, now, happened);
                continue;
            }
            if std::mem::take(&mut self.processes[index].declines) {
                self.decline(index, now);
                continue;
            }
            if self.processes[index].inbox.is_empty() {
                break;
            }
        }
        let process = &mut self.processes[index];
        process.wakes += 1;
        let (wakes, next) = (process.wakes, process.agent.next_at());
        if next != Moment::NEVER {
            let at = process.clock.when(self.now, next);
            self.at(at, Step::Wake { process: index, wakes });
        }
    }

    fn happened(&mut self, index: usize, now: Moment, happened: Happened) {
        match happened {
            Happened::Won(token) if self.is_declined(index) => {
                self.trace(|| format!("process {index} will decline token {token}"));
            }
            Happened::Won(token) => {
                self.trace(|| format!("process {index} starts its work with token {token}"));
                (index, token.term).hash(&mut self.hasher);
                self.processes[index].active = Some(token);
                let (lease, process) = (self.lease.clone(), index as u32);
                self.history.push(self.now, Event::Started { lease, token, process });
                if self.plan.beyond_margin {
                    // Whose clock runs wrong may always overlap; the fence is what counts.
                    self.history.push(self.now, Event::Impaired { process });
                }
                self.effect(index, token);
            }
            Happened::Lost(loss) => {
                self.trace(|| format!("process {index} has lost it: {loss}"));
                self.check_thief(index, &loss);
                self.met(match loss {
                    Loss::Expired => "lost: expired",
                    Loss::Stolen { .. } => "lost: stolen",
                    Loss::Deleted => "lost: deleted",
                    Loss::Paused => "lost: paused",
                    Loss::Unresponsive => "lost: unresponsive",
                    _ => "lost otherwise",
                });
                match self.processes[index].active {
                    Some(token) => self.stop_work(index, now, token),
                    None if self.processes[index].declines => {}
                    None => self.processes[index].agent.work_ended(now),
                }
            }
            Happened::Ping => {
                if !self.processes[index].unresponsive {
                    self.arrive_soon(index, Arrival::Pong);
                }
            }
            Happened::Done => self.begin_anew(index, now),
        }
    }

    /// Nobody loses a tenure to itself: while the record is still this tenure's, no refusal may have
    /// ended it. (An attached record stays when its session is lost.)
    fn check_thief(&mut self, index: usize, loss: &Loss) {
        let Some(token) = self.processes[index].active.filter(|_| !self.plan.sessions) else {
            return;
        };
        let record = self.records.read(self.now, &self.lease);
        let is_ours = record.is_some_and(|record| record.holder.is_some() && record.token == token);
        if is_ours && matches!(loss, Loss::Stolen { .. } | Loss::Deleted) {
            self.violations.push(Violation {
                invariant: "nobody loses a tenure to itself",
                at: self.now,
                story: format!("process {index}, whose record has token {token}: {loss}"),
            });
        }
    }

    /// A process wants the lease anew.
    fn begin_anew(&mut self, index: usize, now: Moment) {
        let process = &mut self.processes[index];
        process.life += 1;
        process.declines = false;
        process.acquiring = None;
        // What was asked in the former life is answered to nobody.
        process.inbox.retain(|arrival| !matches!(arrival, Arrival::Answer(..)));
        process.agent = Agent::new(
            self.lease.clone(),
            process.owner.clone(),
            session_name(self.plan, index),
            &self.plan.settings,
            self.random.next(),
            now,
            process.allowed,
        );
        self.hold_back(index);
    }

    /// Lets a process that has just begun wait while it would know less than it must: see
    /// [`World::delete`].
    fn hold_back(&mut self, index: usize) {
        if self.now < self.nobody_new_until {
            self.halt(index, self.nobody_new_until);
        }
    }

    /// The work takes what it is allowed to end: up to the whole stop budget.
    fn stop_work(&mut self, index: usize, now: Moment, token: Token) {
        let budget = self.plan.settings.stop_budget;
        let takes = if self.random.percent(50) { budget } else { self.random.up_to(budget) };
        let at = self.processes[index].clock.when(self.now, now + takes);
        let life = self.processes[index].life;
        self.at(at, Step::Arrive { process: index, life, arrival: Arrival::WorkEnds(token) });
    }

    fn work_ends(&mut self, index: usize, token: Token) {
        if self.processes[index].active == Some(token) {
            self.processes[index].active = None;
            self.trace(|| format!("process {index} has ended its work with token {token}"));
            let (lease, process) = (self.lease.clone(), index as u32);
            self.history.push(self.now, Event::Ended { lease, token, process });
            let now = self.processes[index].clock.read(self.now);
            self.processes[index].agent.work_ended(now);
            self.processes[index].agent.want_again(now);
        }
    }

    /// The work touches its resource, behind a fence that was raised before the first read.
    fn effect(&mut self, index: usize, token: Token) {
        let process = &self.processes[index];
        if process.active != Some(token) {
            return;
        }
        if !process.halted && token >= self.fence {
            self.fence = token;
            self.history.push(self.now, Event::Effect { resource: self.lease.clone(), token });
        }
        let pause = self.random.up_to(self.plan.settings.ttl / 4);
        self.at(self.now + pause, Step::Effect { process: index, token });
    }

    fn send(&mut self, process: usize, flight: Flight, request: Request) {
        let faults = self.has_faults();
        let life = self.processes[process].life;
        self.trace(|| format!("process {process} sends {request:?}"));
        self.check_permission(process, flight, &request);
        let timeout = match &request {
            // Others follow it meanwhile.
            Request::Renew(_) => self.plan.settings.held_for(),
            _ => self.plan.settings.operation_timeout,
        };
        if matches!(&request, Request::Renew(renew) if renew.fresh_connection) {
            self.met("renewal hedged");
        }
        let local = self.processes[process].clock.read(self.now);
        let timeout_at = self.processes[process].clock.when(self.now, local + timeout);
        let error = StoreError::unavailable("no answer");
        let arrival = Arrival::Answer(flight, request.unanswered(error));
        self.at(timeout_at, Step::Arrive { process, life, arrival });
        let chance = if faults { self.random.within(0..100) } else { 100 };
        let (takes, fate) = match chance {
            _ if self.now < self.processes[process].cut_until => {
                match self.sent_while_cut_off(process) {
                    Some(takes) => (takes, Fate::Answered),
                    None => return,
                }
            }
            // Never arrives.
            0..5 => return,
            5..11 => (self.random.up_to(timeout), Fate::ReplyLost),
            // Arrives at any time, perhaps long after anybody waits for it.
            11..17 => (self.random.up_to(self.plan.settings.ttl * 3), Fate::Answered),
            17..27 => (self.random.up_to(timeout), Fate::Answered),
            _ => (self.random.up_to(Duration::from_millis(5)), Fate::Answered),
        };
        let late = takes > timeout;
        if chance == 30 {
            self.met("request duplicated");
            let again = self.random.up_to(self.plan.settings.ttl);
            let (request, fate) = (request.clone(), Fate::ReplyLost);
            let step = Step::Apply { process, life, flight, request, fate, late: false };
            self.at(self.now + again, step);
        }
        let step = Step::Apply { process, life, flight, request, fate, late };
        self.at(self.now + takes, step);
    }

    fn apply(
        &mut self,
        process: usize,
        life: u64,
        flight: Flight,
        request: Request,
        fate: Fate,
        late: bool,
    ) {
        let takeover = matches!(&request, Request::Acquire(Acquire { takeover: Some(_), .. }));
        let of_session = matches!(
            &request,
            Request::Acquire(Acquire { name, session: None, .. }) if *name != self.lease
        );
        let name = match &request {
            Request::Acquire(request) => request.name.clone(),
            _ => self.lease.clone(),
        };
        let answer = self.records.apply(self.now, request);
        self.trace(|| format!("the store answers process {process}: {answer:?}"));
        let won = matches!(answer, Answer::Acquire(Ok(Acquired::Won { .. })));
        let granted = won && name == self.lease;
        if let Answer::Acquire(Ok(Acquired::Won { token, .. })) = &answer {
            self.history.push(self.now, Event::Granted { lease: name, token: *token });
        }
        let changed = won || matches!(answer, Answer::Release(Ok(_)));
        if granted && !self.processes[process].allowed {
            self.met("granted after the permission was withdrawn");
        }
        if won && late {
            self.met("request applied after its time-out");
        }
        if won && takeover {
            self.met(if of_session { "session taken over" } else { "taken over by observation" });
        }
        if matches!(answer, Answer::Renew(Ok(Renewed::Refused(_)))) {
            self.met("renewal refused");
        }
        if fate == Fate::ReplyLost {
            match answer {
                _ if won => self.met("acquire applied, reply lost"),
                Answer::Acquire(_) => self.met("acquire unanswered"),
                Answer::Renew(_) => self.met("renewal unanswered"),
                _ => {}
            }
        } else {
            let slow = self.has_faults() && self.random.percent(10);
            let timeout = self.plan.settings.operation_timeout;
            let most = if slow { timeout } else { Duration::from_millis(5) };
            let takes = self.held_back(process, &answer) + self.random.up_to(most);
            let arrival = Arrival::Answer(flight, answer);
            self.at(self.now + takes, Step::Arrive { process, life, arrival });
        }
        if changed {
            self.notify();
        }
    }

    /// The store pushes a change to whoever waits; pushes get lost.
    fn notify(&mut self) {
        for process in 0..self.processes.len() {
            for name in self.processes[process].agent.watched() {
                if self.random.percent(70) {
                    self.arrive_soon(process, Arrival::Changed(name));
                }
            }
        }
    }

    fn arrive_soon(&mut self, process: usize, arrival: Arrival) {
        let takes = self.random.up_to(Duration::from_millis(5));
        let life = self.processes[process].life;
        self.at(self.now + takes, Step::Arrive { process, life, arrival });
    }
}

fn session_name(plan: &Plan, index: usize) -> Option<LeaseName> {
    plan.sessions.then(|| LeaseName::new(&format!("session-{index}")).expect("a name"))
}
