//! What goes wrong.

use std::time::Duration;

use tenure_lease::Moment;
use tenure_lease::backend::{Answer, Request};

use super::super::process::Arrival;
use super::{Step, World, session_name};
use crate::history::Event;

impl World<'_> {
    pub(super) fn schedule_fault(&mut self) {
        let pause = self.random.up_to(self.plan.settings.ttl);
        if self.now + pause < Moment::ZERO + self.plan.faults_for {
            self.at(self.now + pause, Step::Fault);
        }
    }

    pub(super) fn fault(&mut self) {
        self.schedule_fault();
        let index = self.random.within(0..self.processes.len() as u64) as usize;
        match self.random.within(0..12) {
            0..4 => self.pause(index),
            4..6 => self.crash(index),
            6 => self.finish_work(index),
            7 => self.stop_responding(index),
            8..10 => self.delete(),
            _ => self.take_store_away(index),
        }
    }

    /// The store answers one process, or nobody, for a while; now and then again right after that.
    fn take_store_away(&mut self, index: usize) {
        let from = if self.random.percent(50) { index..index + 1 } else { 0..self.processes.len() };
        let length = self.random.up_to(self.plan.settings.ttl);
        self.trace(|| format!("the store is away for {length:?}, from processes {from:?}"));
        self.met("store away");
        for index in from {
            self.cut_off(index, length);
        }
    }

    pub(super) fn cut_off(&mut self, index: usize, length: Duration) {
        let process = &mut self.processes[index];
        process.cut_until = process.cut_until.max(self.now + length);
        process.cut_loses = self.random.percent(50);
        let again_at = process.cut_until + self.random.up_to(Duration::from_millis(2));
        // Answers that were held back come out in between.
        if self.random.percent(50) && again_at < Moment::ZERO + self.plan.faults_for {
            self.at(again_at, Step::CutOff { process: index });
        }
    }

    /// How long a request takes that is sent while the store is away, if it is not lost.
    pub(super) fn sent_while_cut_off(&mut self, index: usize) -> Option<Duration> {
        let process = &self.processes[index];
        let back = process.cut_until.since(self.now);
        let is_lost = process.cut_loses;
        (!is_lost).then(|| back + self.random.up_to(Duration::from_millis(100)))
    }

    /// How much longer an answer takes because the store goes away before it has left.
    pub(super) fn held_back(&mut self, index: usize, answer: &Answer) -> Duration {
        let goes_away = matches!(answer, Answer::Renew(_)) && self.random.percent(1);
        if goes_away && self.has_faults() {
            let length = self.random.up_to(self.plan.settings.ttl);
            self.cut_off(index, length);
        }
        self.processes[index].cut_until.since(self.now)
    }

    fn pause(&mut self, index: usize) {
        if self.processes[index].halted {
            return;
        }
        let active = self.processes[index].active.is_some();
        let settings = &self.plan.settings;
        // Clock rates have used up most of the margin already.
        let most =
            if self.plan.beyond_margin { settings.ttl * 3 } else { Duration::from_millis(10) };
        let pause = self.random.up_to(most);
        self.trace(|| format!("process {index} stands still for {pause:?}"));
        if self.plan.beyond_margin {
            self.history.push(self.now, Event::Impaired { process: index as u32 });
            if self.random.percent(50) {
                self.processes[index].clock.freeze(self.now, true);
                self.met("clock stood still");
            }
        }
        if active {
            self.met("pause while active");
        }
        self.halt(index, self.now + pause);
    }

    /// The process dies, and another takes its place at once.
    fn crash(&mut self, index: usize) {
        let now = self.processes[index].clock.read(self.now);
        self.trace(|| format!("process {index} dies, and another takes its place"));
        if self.processes[index].active.is_some() {
            self.met("crash while active");
        }
        if let Some(token) = self.processes[index].active.take() {
            let (lease, process) = (self.lease.clone(), index as u32);
            self.history.push(self.now, Event::Ended { lease, token, process });
        }
        let process = &mut self.processes[index];
        process.inbox.clear();
        // The first two stay one owner: they are guards of one process, and only one was dropped.
        process.owner.incarnation += if index < 2 { 0 } else { 1_000 };
        self.begin_anew(index, now);
        self.attend(index);
    }

    /// The work ends by itself, and its process wants the lease again.
    pub(super) fn finish_work(&mut self, index: usize) {
        if let Some(token) = self.processes[index].active {
            self.arrive_soon(index, Arrival::WorkEnds(token));
        }
    }

    pub(super) fn halt(&mut self, index: usize, until: Moment) {
        let process = &mut self.processes[index];
        process.halted = true;
        process.halted_until = process.halted_until.max(until);
        let until = process.halted_until;
        self.at(until, Step::Resume { process: index });
    }

    fn stop_responding(&mut self, index: usize) {
        self.processes[index].unresponsive = true;
        self.trace(|| format!("process {index} stops answering liveness calls"));
        let pause = self.random.up_to(self.plan.settings.ttl * 2);
        self.at(self.now + pause, Step::Respond { process: index });
    }

    /// An operator deletes a record. Nothing can keep somebody who does not know of the tenure that
    /// it ends from taking the lease at once; so it is left alone if there is anybody like that,
    /// and nobody new comes until it is over.
    fn delete(&mut self) {
        let session = session_name(self.plan, self.random.within(0..2) as usize);
        let name = match session {
            Some(session) if self.random.percent(50) => session,
            _ => self.lease.clone(),
        };
        let token = self.records.read(self.now, &name).map(|record| record.token);
        let known = self.processes.iter().all(|process| process.agent.sees() == token);
        // Nor can anything stop a request on its way that was sent when there was no record.
        let coming = self.steps.values().any(|step| {
            matches!(
                step,
                Step::Apply { request: Request::Acquire(request), .. }
                    if request.create && request.name == name
            )
        });
        if coming || name == self.lease && !known {
            return;
        }
        let settings = &self.plan.settings;
        let wait = (settings.ttl + settings.proof_interval) * 2;
        if self.now >= self.nobody_new_until && self.records.delete(&name) {
            self.nobody_new_until = self.now + wait;
            self.trace(|| format!("an operator deletes the record of {name}"));
            self.met("record deleted");
        }
    }
}
