//! Processes that may take the lease at some times and not at others.

use tenure_lease::Moment;
use tenure_lease::backend::Request;

use super::super::process::{Arrival, Flight};
use super::{Step, World, session_name};
use crate::history::Violation;

impl World<'_> {
    pub(super) fn begin_toggling(&mut self) {
        if self.plan.standbys {
            for process in 0..self.processes.len() {
                self.toggle_later(process);
            }
        }
    }

    fn toggle_later(&mut self, process: usize) {
        let pause = self.random.up_to(self.plan.settings.ttl * 2);
        self.at(self.now + pause, Step::Toggle { process });
    }

    /// Once the faults are over, everybody is allowed.
    pub(super) fn toggle(&mut self, index: usize) {
        let yes = !self.has_faults() || !self.processes[index].allowed;
        if self.has_faults() {
            self.toggle_later(index);
        }
        self.processes[index].inbox.push_back(Arrival::Allow(yes));
        self.attend(index);
    }

    /// Keeps what a process knows of its permission, and what it has under way.
    pub(super) fn note_permission(&mut self, index: usize, arrival: &Arrival) {
        match arrival {
            Arrival::Allow(yes) => {
                self.trace(|| format!("process {index} is allowed: {yes}"));
                let process = &mut self.processes[index];
                let withdrawn = std::mem::replace(&mut process.allowed, *yes) && !yes;
                let acquiring = process.acquiring.is_some();
                if withdrawn {
                    self.met("permission withdrawn");
                }
                if withdrawn && acquiring {
                    self.met("permission withdrawn while an acquisition was under way");
                }
            }
            Arrival::Answer(flight, _) => {
                self.processes[index].acquiring.take_if(|acquiring| acquiring == flight);
            }
            _ => {}
        }
    }

    /// Whether what was just won is declined: the permission ends before anybody has taken it.
    pub(super) fn is_declined(&mut self, index: usize) -> bool {
        if !self.processes[index].allowed {
            self.violate(index, "nobody wins what it may not take");
        }
        let declines = self.plan.standbys && self.has_faults() && self.random.percent(5);
        self.processes[index].declines = declines;
        declines
    }

    pub(super) fn decline(&mut self, index: usize, now: Moment) {
        self.met("won and declined");
        let arrival = Arrival::Allow(false);
        self.note_permission(index, &arrival);
        let agent = &mut self.processes[index].agent;
        agent.arrive(now, arrival);
        if !agent.decline(now) {
            agent.work_ended(now);
        }
    }

    /// Who may not take the lease takes neither it nor another's session.
    pub(super) fn check_permission(&mut self, index: usize, flight: Flight, request: &Request) {
        let Request::Acquire(request) = request else { return };
        if session_name(self.plan, index).as_ref() == Some(&request.name) {
            return;
        }
        self.processes[index].acquiring = Some(flight);
        if !self.processes[index].allowed {
            self.violate(index, "who may not take the lease only looks");
        }
    }

    fn violate(&mut self, index: usize, invariant: &'static str) {
        let story = format!("process {index} was not allowed");
        self.violations.push(Violation { invariant, at: self.now, story });
    }
}
