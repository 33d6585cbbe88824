//! Who holds which lease, and who must be killed when: pure.
//!
//! A row is there from the moment a process asks until it gives the lease back or has ended. A process that was
//! told that a lease is lost, and has neither given it back nor ended in time, is killed. The stop budget is spent
//! like this:
//!
//! ```text
//! lost                     kill                    guardian                dead
//!  |- half: the process ----|- a quarter: tenure ---|- a quarter: guardian -|
//!  |  stops by itself       |  kills its tree       |  ends the command     |
//! ```
//!
//! The guardian, which acts when it would in `tenure run`, has nothing to do unless this process cannot kill. At
//! `dead` nothing may be left, and a margin later the lease can be another's.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tenure_lease::{LeaseName, Loss, Moment, Token};

use super::refusal::Refusal;
use crate::run::control::{Deadlines, reserve};

/// A process; the start time tells it from a later one with its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ProcessId {
    pub(super) pid: i32,
    pub(super) start: u64,
}

/// The leases that processes hold or wait for, by the number that is the lease's id.
#[derive(Debug)]
pub(super) struct LeaseTable {
    stop_budget: Duration,
    margin: Duration,
    rows: BTreeMap<u64, LeaseRow>,
    last: u64,
}

/// A lease that a process holds or waits for.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LeaseRow {
    pub(super) process: ProcessId,
    pub(super) name: LeaseName,
    /// By which the process finds it again, if an answer got lost.
    key: Option<String>,
    /// `None` while it is waited for.
    pub(super) held: Option<HeldLease>,
}

/// A lease that was won.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct HeldLease {
    pub(super) token: Token,
    /// When it counts as lost unless it is renewed before.
    pub(super) deadline: Moment,
    /// When its process is killed if it has neither given the lease back nor ended.
    pub(super) kill: Moment,
    /// When nothing of the process may be left.
    dead: Moment,
    pub(super) loss: Option<Loss>,
    is_killed: bool,
}

/// What a process that asks gets.
#[derive(Debug, PartialEq)]
pub(super) enum Asked {
    /// A new row.
    New(u64),
    /// What it has asked for with the same key before, and holds.
    Known(u64),
}

impl LeaseTable {
    pub(super) fn new(stop_budget: Duration, margin: Duration) -> Self {
        Self { stop_budget, margin, rows: BTreeMap::new(), last: 0 }
    }

    /// A process wants a lease.
    pub(super) fn ask(
        &mut self,
        process: ProcessId,
        name: LeaseName,
        key: Option<String>,
    ) -> Result<Asked, Refusal> {
        let mut own = self.rows.iter().filter(|(_, row)| row.process == process);
        if key.is_some()
            && let Some((number, row)) = own.clone().find(|(_, row)| row.key == key)
        {
            return match &row.held {
                Some(_) if row.name == name => Ok(Asked::Known(*number)),
                Some(_) => Err(Refusal::key_taken(&row.name)),
                None => Err(Refusal::already_waiting(&row.name)),
            };
        }
        if own.nth(LEASES_PER_PROCESS_MAX - 1).is_some() {
            return Err(Refusal::too_many("this process", LEASES_PER_PROCESS_MAX));
        }
        if self.rows.len() >= LEASES_MAX {
            return Err(Refusal::too_many("the command", LEASES_MAX));
        }
        self.last += 1;
        self.rows.insert(self.last, LeaseRow { process, name, key, held: None });
        Ok(Asked::New(self.last))
    }

    /// The lease was won.
    pub(super) fn won(&mut self, number: u64, token: Token, deadline: Moment, dead: Moment) {
        let kill = dead - self.time_to_kill();
        if let Some(row) = self.rows.get_mut(&number) {
            row.held =
                Some(HeldLease { token, deadline, kill, dead, loss: None, is_killed: false });
        }
    }

    /// The lease was renewed, perhaps; whether that is news.
    pub(super) fn renewed(&mut self, number: u64, deadline: Moment, dead: Moment) -> bool {
        let kill = dead - self.time_to_kill();
        match self.held(number) {
            Some(held) if held.loss.is_none() && held.dead != dead => {
                (held.deadline, held.kill, held.dead) = (deadline, kill, dead);
                true
            }
            _ => false,
        }
    }

    /// The lease was lost: its process must give it back, or end, within the stop budget.
    pub(super) fn lost(&mut self, now: Moment, number: u64, loss: Loss) {
        let patience = self.stop_budget - self.time_to_kill();
        if let Some(held) = self.held(number) {
            held.kill = held.kill.min(now + patience);
            held.loss = Some(loss);
        }
    }

    /// The lease was given back, or its process has ended; or it is not waited for any more.
    pub(super) fn remove(&mut self, number: u64) -> Option<LeaseRow> {
        self.rows.remove(&number)
    }

    /// Who must be killed now. Each is named once.
    pub(super) fn poll(&mut self, now: Moment) -> Vec<ProcessId> {
        let due = |row: &LeaseRow| {
            row.held.as_ref().is_some_and(|held| !held.is_killed && now >= held.kill)
        };
        let due: BTreeSet<ProcessId> =
            self.rows.values().filter(|row| due(row)).map(|row| row.process).collect();
        for row in self.rows.values_mut().filter(|row| due.contains(&row.process)) {
            if let Some(held) = &mut row.held {
                held.is_killed = true;
            }
        }
        due.into_iter().collect()
    }

    /// When to poll next, unless something happens before.
    pub(super) fn wake_at(&self) -> Moment {
        let held = self.rows.values().filter_map(|row| row.held.as_ref());
        held.filter(|held| !held.is_killed).map(|held| held.kill).min().unwrap_or(Moment::NEVER)
    }

    /// What the guardian must know: it ends the whole command if `tenure` does not kill who must be killed, for
    /// whatever reason. Its own timer leaves it half of the margin more: it must not be killed at work.
    pub(super) fn guardian_deadlines(&self) -> Deadlines {
        let held = self.rows.values().filter_map(|row| row.held.as_ref());
        let Some(dead) = held.map(|held| held.dead).min() else { return Deadlines::NEVER };
        let kill = dead - reserve(self.stop_budget);
        Deadlines { stop: kill, kill, dead: dead + self.margin / 2 }
    }

    /// How long before the moment when nothing may be left a process is killed: as long as the guardian takes
    /// for itself, and as long again.
    fn time_to_kill(&self) -> Duration {
        reserve(self.stop_budget) * 2
    }

    /// The lease with this number, if it belongs to one of these: a process and its ancestors.
    pub(super) fn find(&self, number: u64, line: &[ProcessId]) -> Option<&LeaseRow> {
        self.rows.get(&number).filter(|row| line.contains(&row.process))
    }

    /// The leases that these hold.
    pub(super) fn held_by(&self, line: &[ProcessId]) -> Vec<u64> {
        let own = |row: &LeaseRow| row.held.is_some() && line.contains(&row.process);
        self.rows.iter().filter(|(_, row)| own(row)).map(|(number, _)| *number).collect()
    }

    /// A lease, whosever it is.
    pub(super) fn row(&self, number: u64) -> Option<&LeaseRow> {
        self.rows.get(&number)
    }

    /// The process that holds the lease of this name under this token.
    pub(super) fn holder_of(&self, name: &LeaseName, token: Token) -> Option<ProcessId> {
        let is_it = |row: &&LeaseRow| {
            row.name == *name && row.held.as_ref().is_some_and(|held| held.token == token)
        };
        self.rows.values().find(is_it).map(|row| row.process)
    }

    fn held(&mut self, number: u64) -> Option<&mut HeldLease> {
        self.rows.get_mut(&number)?.held.as_mut()
    }
}

/// How many leases a process may hold and wait for.
pub(super) const LEASES_PER_PROCESS_MAX: usize = 64;
/// How many all processes of the command may.
pub(super) const LEASES_MAX: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    const WORKER: ProcessId = ProcessId { pid: 7, start: 1 };
    const OTHER: ProcessId = ProcessId { pid: 8, start: 1 };
    const BUDGET: Duration = Duration::from_millis(400);
    const MARGIN: Duration = Duration::from_millis(100);

    fn at(millis: u64) -> Moment {
        Moment::ZERO + Duration::from_millis(millis)
    }

    fn name(text: &str) -> LeaseName {
        LeaseName::new(text).unwrap()
    }

    fn ask(table: &mut LeaseTable, process: ProcessId) -> u64 {
        match table.ask(process, name("x"), None) {
            Ok(Asked::New(number)) => number,
            other => panic!("{other:?}"),
        }
    }

    /// Held until 1000 ms; nothing may be left at 1400 ms.
    fn holding() -> (LeaseTable, u64) {
        let mut table = LeaseTable::new(BUDGET, MARGIN);
        let number = ask(&mut table, WORKER);
        table.won(number, Token::new(3, 0), at(1000), at(1400));
        (table, number)
    }

    #[test]
    fn who_is_alive_after_the_stop_budget_is_killed_once() {
        let (mut table, number) = holding();
        table.lost(at(1000), number, Loss::Expired);
        assert_eq!(table.poll(at(1199)), []);
        assert_eq!(table.wake_at(), at(1200));
        assert_eq!(table.poll(at(1200)), [WORKER]);
        assert_eq!(table.poll(at(1201)), []);
        assert_eq!(table.wake_at(), Moment::NEVER);
        // It has not ended: the guardian still has to see to it.
        let guardian = Deadlines { stop: at(1300), kill: at(1300), dead: at(1450) };
        assert_eq!(table.guardian_deadlines(), guardian);
        table.remove(number);
        assert_eq!(table.guardian_deadlines(), Deadlines::NEVER);
    }

    #[test]
    fn who_gives_back_in_time_is_left_alone() {
        let (mut table, number) = holding();
        table.lost(at(1000), number, Loss::Expired);
        assert!(table.remove(number).is_some());
        assert_eq!(table.poll(at(5000)), []);
        assert_eq!(table.remove(number), None);
    }

    #[test]
    fn a_lease_that_was_stolen_early_leaves_the_stop_budget_and_no_more() {
        let (mut table, number) = holding();
        table.lost(at(500), number, Loss::Deleted);
        assert_eq!(table.wake_at(), at(700));
        // The renewal of a lost lease changes nothing.
        assert!(!table.renewed(number, at(9000), at(9400)));
        assert_eq!(table.poll(at(700)), [WORKER]);
    }

    #[test]
    fn who_is_never_told_is_killed_in_time_all_the_same() {
        let (mut table, number) = holding();
        assert!(table.renewed(number, at(2000), at(2400)));
        assert!(!table.renewed(number, at(2000), at(2400)), "that is no news");
        assert_eq!(table.poll(at(2199)), []);
        assert_eq!(table.poll(at(2200)), [WORKER]);
    }

    #[test]
    fn one_process_is_killed_once_for_all_of_its_leases_and_others_are_not() {
        let (mut table, _) = holding();
        let second = ask(&mut table, WORKER);
        table.won(second, Token::new(4, 0), at(1000), at(1400));
        let others = ask(&mut table, OTHER);
        table.won(others, Token::new(5, 0), at(3000), at(3400));
        assert_eq!(table.poll(at(1400)), [WORKER]);
        assert_eq!(table.wake_at(), at(3200));
        assert_eq!(table.guardian_deadlines().kill, at(1300), "the earliest of all");
    }

    #[test]
    fn a_lease_is_found_by_its_process_and_those_below_it() {
        let (table, number) = holding();
        assert!(table.find(number, &[OTHER, WORKER]).is_some(), "a child of the worker");
        assert!(table.find(number, &[OTHER]).is_none());
        // A process with the same number that was started later.
        let later = ProcessId { start: 2, ..WORKER };
        assert!(table.find(number, &[later]).is_none());
        assert_eq!(table.held_by(&[WORKER]), [number]);
        assert!(table.held_by(&[later]).is_empty());
        assert_eq!(table.holder_of(&name("x"), Token::new(3, 0)), Some(WORKER));
        assert_eq!(table.holder_of(&name("x"), Token::new(4, 0)), None);
    }

    #[test]
    fn who_asks_again_with_the_same_key_gets_what_it_has() {
        let mut table = LeaseTable::new(BUDGET, MARGIN);
        let key = || Some("k".to_owned());
        assert_eq!(table.ask(WORKER, name("x"), key()), Ok(Asked::New(1)));
        assert!(table.ask(WORKER, name("x"), key()).is_err(), "it waits already");
        table.won(1, Token::new(1, 0), at(1000), at(1400));
        assert_eq!(table.ask(WORKER, name("x"), key()), Ok(Asked::Known(1)));
        assert!(table.ask(WORKER, name("y"), key()).is_err(), "another lease");
        assert_eq!(table.ask(OTHER, name("x"), key()), Ok(Asked::New(2)), "another process");
    }

    #[test]
    fn there_are_bounds() {
        let mut table = LeaseTable::new(BUDGET, MARGIN);
        for _ in 0..LEASES_PER_PROCESS_MAX {
            ask(&mut table, WORKER);
        }
        assert!(table.ask(WORKER, name("x"), None).is_err());
        for pid in 100.. {
            let process = ProcessId { pid, start: 1 };
            match table.ask(process, name("x"), None) {
                Ok(_) => {}
                Err(_) => break,
            }
        }
        assert_eq!(table.rows.len(), LEASES_MAX);
    }
}
