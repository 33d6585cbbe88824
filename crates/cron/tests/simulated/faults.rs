//! What goes wrong in a simulated world, and the random numbers that decide when.

use tenure_cron::Slot;

use super::world::{Event, Time, World};

/// What goes wrong, or what an operator does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    Crash,
    Pause(Time),
    StoreAway(Time),
    ClockStep(Time),
    Terminate,
    PauseJob,
    ResumeJob,
    RunNow,
}

impl World {
    pub(super) fn handle_fault(&mut self, index: usize, fault: Fault) {
        self.account.faults += 1;
        let machine = &mut self.machines[index];
        match fault {
            Fault::Crash if machine.up => {
                // Its guardian ends the command.
                let term = machine.round.as_ref().map(|round| round.term);
                machine.up = false;
                machine.paused = false;
                machine.deferred.clear();
                machine.round = None;
                machine.incarnation += 1;
                if let Some(term) = term {
                    let dead = self.time + self.random.below(2_000) as Time;
                    self.account.abandoned(term, dead);
                }
                self.changed_ability(index);
                let back = self.time + 1_000 + self.random.below(120_000) as Time;
                self.at(back, index, Event::Restart);
            }
            Fault::Pause(length) if machine.up && !machine.paused => {
                machine.paused = true;
                self.changed_ability(index);
                self.at(self.time + length, index, Event::Resume);
            }
            Fault::StoreAway(length) => {
                let all = self.random.below(2) == 0;
                for other in 0..self.machines.len() {
                    if (all || other == index) && self.machines[other].reachable {
                        self.machines[other].reachable = false;
                        self.changed_ability(other);
                        self.at(self.time + length, other, Event::Reach);
                    }
                }
            }
            Fault::ClockStep(step) => {
                machine.offset = (machine.offset + step).clamp(-600_000, 600_000);
                if machine.up && !machine.paused {
                    self.look_in(index, 0);
                    self.advance(index);
                }
            }
            Fault::Terminate => {
                if let Some(round) = machine.round.as_mut().filter(|_| machine.up) {
                    round.core.handle_terminate("told to stop");
                    self.advance(index);
                }
            }
            Fault::PauseJob => {
                let since = Slot::from_unix(self.time / 1000);
                self.orders.pause(self.job.name(), "operator", since).unwrap();
                self.tell_orders();
            }
            Fault::ResumeJob => {
                self.orders.resume(self.job.name());
                self.tell_orders();
            }
            Fault::RunNow => {
                self.orders.run_now(self.job.name(), "operator", Slot::from_unix(self.time / 1000));
                self.account.ordered(self.orders.number);
                self.tell_orders();
            }
            Fault::Crash | Fault::Pause(_) => {}
        }
    }

    fn tell_orders(&mut self) {
        for index in 0..self.machines.len() {
            if self.machines[index].up && !self.machines[index].paused {
                if let Some(round) = &mut self.machines[index].round {
                    round.core.handle_orders(self.orders.clone());
                }
                self.look_in(index, 0);
                self.advance(index);
            }
        }
    }
}

/// `SplitMix64`.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound.max(1)
    }
}
