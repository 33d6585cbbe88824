//! One tenure, step by step: what the core says, and in which order.

use std::sync::Arc;
use std::time::Duration;

use tenure_cron::{
    Interrupted, Job, JobRound, JobSettings, Ledger, Missed, OpenState, Orders, Outlook, Overlap,
    RoundEffect, RunEnd, Schedule, SkipReason, Slot, SlotId, SlotOutcome, SlotRun, StopCause,
    WallTime, WriteAnswer,
};
use tenure_lease::Moment;

const TERM: u64 = 7;

struct Round {
    core: JobRound,
    note: Vec<u8>,
    millis: i64,
}

impl Round {
    /// A job with a slot every minute, whose account began at minute 0.
    fn new(settings: JobSettings, ledger: Option<Ledger>, millis: i64, term: u64) -> Self {
        let job = Arc::new(job(settings));
        let wall = WallTime::from_millis(millis);
        let core = JobRound::new(job, "a", term, ledger, Orders::default(), wall);
        Self { core, note: Vec::new(), millis }
    }

    fn poll(&mut self) -> Option<RoundEffect> {
        self.core.poll(moment(self.millis), WallTime::from_millis(self.millis))
    }

    /// The next effect is a write; it is answered.
    fn write(&mut self) -> Ledger {
        let Some(RoundEffect::WriteLedger(note)) = self.poll() else { panic!("no write") };
        self.core.handle_write_answer(WriteAnswer::Written);
        self.note.clone_from(&note);
        Ledger::parse(&note).unwrap().unwrap()
    }

    fn start(&mut self) -> SlotRun {
        let Some(RoundEffect::StartRun(run)) = self.poll() else { panic!("no start") };
        run
    }

    fn end(&mut self, millis: i64, end: RunEnd) {
        self.millis = millis;
        self.core.handle_run_end(moment(millis), WallTime::from_millis(millis), end);
    }
}

fn moment(millis: i64) -> Moment {
    Moment::ZERO + Duration::from_millis(millis.unsigned_abs())
}

fn job(settings: JobSettings) -> Job {
    Job::new("job", Schedule::parse("@every 1m", "UTC").unwrap(), settings).unwrap()
}

fn ledger() -> Ledger {
    Ledger::new(&Schedule::parse("@every 1m", "UTC").unwrap(), Slot::from_unix(0))
}

fn at(minute: i64) -> SlotId {
    SlotId::At(Slot::from_unix(minute * 60))
}

fn outcomes(ledger: &Ledger) -> Vec<(SlotId, u64, SlotOutcome)> {
    ledger.settled.iter().map(|line| (line.slot, line.count, line.outcome.clone())).collect()
}

#[test]
fn a_slot_is_claimed_started_and_settled_in_this_order() {
    let mut round = Round::new(JobSettings::default(), Some(ledger()), 61_000, TERM);
    let claimed = round.write().open.unwrap();
    assert_eq!((claimed.slot, claimed.attempt, claimed.term), (at(1), 1, TERM));
    assert_eq!(round.start(), SlotRun { slot: at(1), attempt: 1, term: TERM });
    assert_eq!(round.poll(), None);
    round.end(63_000, RunEnd::Exited(0));
    let settled = round.write();
    assert_eq!(
        (settled.open.is_none(), outcomes(&settled)),
        (true, vec![(at(1), 1, SlotOutcome::Done)])
    );
    assert_eq!(round.poll(), None);
    assert_eq!(round.core.rests_until(), Some(Some(WallTime::from_millis(120_000))));
}

#[test]
fn a_claim_without_an_answer_is_read_back_before_anything_starts() {
    let mut round = Round::new(JobSettings::default(), Some(ledger()), 61_000, TERM);
    let Some(RoundEffect::WriteLedger(note)) = round.poll() else { panic!() };
    round.core.handle_write_answer(WriteAnswer::Unknown);
    assert_eq!(round.poll(), Some(RoundEffect::ReadLedger));
    assert_eq!(round.poll(), None);
    // It could not be read: once more. It does not stand there: it is written again. It does: start.
    round.core.handle_read_answer(None);
    assert_eq!(round.poll(), Some(RoundEffect::ReadLedger));
    round.core.handle_read_answer(Some(b"another"));
    assert_eq!(round.poll(), Some(RoundEffect::WriteLedger(note.clone())));
    round.core.handle_write_answer(WriteAnswer::Unknown);
    assert_eq!(round.poll(), Some(RoundEffect::ReadLedger));
    round.core.handle_read_answer(Some(&note));
    assert_eq!(round.start().slot, at(1));
}

#[test]
fn a_claim_that_was_not_started_is_withdrawn_when_the_process_is_told_to_stop() {
    let mut round = Round::new(JobSettings::default(), Some(ledger()), 61_000, TERM);
    round.core.handle_terminate("told");
    assert_eq!(round.poll(), Some(RoundEffect::Release), "nothing was claimed yet");
    let mut round = Round::new(JobSettings::default(), Some(ledger()), 61_000, TERM);
    let Some(RoundEffect::WriteLedger(_)) = round.poll() else { panic!() };
    round.core.handle_terminate("told");
    round.core.handle_write_answer(WriteAnswer::Written);
    let withdrawn = round.write();
    assert_eq!((withdrawn.open, withdrawn.totals.sum()), (None, 0));
    assert_eq!(round.poll(), Some(RoundEffect::Release));
    let job = job(JobSettings::default());
    let ledger = Ledger::parse(&round.note).unwrap();
    let outlook = job.outlook(ledger.as_ref(), &Orders::default(), WallTime::from_millis(62_000));
    assert_eq!(outlook, Outlook::Due, "it is still to be run");
}

#[test]
fn told_to_stop_the_run_is_stopped_handed_over_and_the_lease_given_back() {
    let mut round = Round::new(JobSettings::default(), Some(ledger()), 61_000, TERM);
    round.write();
    round.start();
    round.core.handle_terminate("signal 15");
    assert_eq!(round.poll(), Some(RoundEffect::StopRun(StopCause::Terminated)));
    assert_eq!(round.poll(), None);
    round.end(62_000, RunEnd::Stopped);
    let open = round.write().open.unwrap();
    assert_eq!(open.state, OpenState::Interrupted("signal 15".into()));
    assert_eq!(round.poll(), Some(RoundEffect::Release));
    let left = Ledger::parse(&round.note).unwrap();
    // The next one runs it again; one that must not settles it.
    let mut next = Round::new(JobSettings::default(), left.clone(), 63_000, TERM + 1);
    let open = next.write().open.unwrap();
    assert_eq!((open.slot, open.attempt, open.interrupted, open.term), (at(1), 2, 1, TERM + 1));
    let leave = JobSettings { interrupted: Interrupted::Leave, ..JobSettings::default() };
    let settled = Round::new(leave, left, 63_000, TERM + 1).write();
    assert_eq!(outcomes(&settled), [(at(1), 1, SlotOutcome::Interrupted("signal 15".into()))]);
}

#[test]
fn what_another_term_left_running_was_interrupted() {
    let mut round = Round::new(JobSettings::default(), Some(ledger()), 61_000, TERM);
    round.write();
    let left = Ledger::parse(&round.note).unwrap();
    let leave = JobSettings { interrupted: Interrupted::Leave, ..JobSettings::default() };
    let settled = Round::new(leave, left, 75_000, TERM + 1).write();
    assert_eq!(
        outcomes(&settled),
        [(at(1), 1, SlotOutcome::Interrupted("a lost the lease".into()))]
    );
    assert_eq!(settled.settled[0].interrupted, 1);
}

#[test]
fn of_missed_slots_the_policy_runs_one_all_or_none() {
    let with = |missed, within| JobSettings { missed, within, ..JobSettings::default() };
    let missed = SlotOutcome::Skipped(SkipReason::Missed);
    let hour = Some(Duration::from_secs(100));
    // Ten slots are due, the last of them 30 s ago.
    for (settings, claimed, skipped) in [
        (with(Missed::Once, None), Some(at(10)), 9),
        (with(Missed::All, None), Some(at(1)), 0),
        (with(Missed::All, hour), Some(at(9)), 8),
        (with(Missed::Skip, None), Some(at(10)), 9),
        (with(Missed::Skip, Some(Duration::from_secs(20))), None, 10),
        (with(Missed::Once, Some(Duration::from_secs(20))), None, 10),
    ] {
        let written = Round::new(settings.clone(), Some(ledger()), 630_000, TERM).write();
        assert_eq!(written.open.map(|open| open.slot), claimed, "{settings:?}");
        assert_eq!(written.totals.skipped, skipped, "{settings:?}");
        assert!(written.settled.iter().all(|line| line.outcome == missed), "{settings:?}");
        assert!(written.settled.len() <= 1, "a range is a line");
    }
}

#[test]
fn slots_during_a_run_are_skipped_or_wait() {
    for (overlap, next, skipped) in [(Overlap::Skip, None, 2), (Overlap::Queue, Some(at(3)), 1)] {
        let settings = JobSettings { overlap, ..JobSettings::default() };
        let mut round = Round::new(settings, Some(ledger()), 61_000, TERM);
        round.write();
        round.start();
        round.end(185_000, RunEnd::Exited(0));
        let written = round.write();
        assert_eq!(written.open.map(|open| open.slot), next, "{overlap:?}");
        assert_eq!((written.totals.done, written.totals.skipped), (1, skipped), "{overlap:?}");
    }
}

#[test]
fn a_clock_that_is_set_back_makes_nothing_due_again() {
    let mut round = Round::new(JobSettings::default(), Some(ledger()), 661_000, TERM);
    round.write();
    round.start();
    round.end(662_000, RunEnd::Exited(0));
    let settled = round.write();
    let job = job(JobSettings::default());
    for back in [61_000, 361_000, 661_000] {
        let outlook = job.outlook(Some(&settled), &Orders::default(), WallTime::from_millis(back));
        assert_eq!(outlook, Outlook::NotBefore(Some(WallTime::from_millis(720_000))));
    }
}

#[test]
fn a_clock_that_is_years_ahead_settles_nothing() {
    let year = 365 * 86_400_000;
    let job = job(JobSettings::default());
    let outlook = |ledger: &Ledger, millis| {
        job.outlook(Some(ledger), &Orders::default(), WallTime::from_millis(millis))
    };
    let first = Slot::from_unix(60);
    assert_eq!(outlook(&ledger(), year), Outlook::Due, "machines may have been off for months");
    assert_eq!(outlook(&ledger(), 2 * year), Outlook::ClockAhead(first));
    for settings in [Missed::Once, Missed::All, Missed::Skip]
        .map(|missed| JobSettings { missed, ..JobSettings::default() })
    {
        let mut round = Round::new(settings, Some(ledger()), 2 * year, TERM);
        assert_eq!((round.poll(), round.core.rests_until()), (None, Some(None)));
    }
    // The schedule was changed, too.
    let hourly = Schedule::parse("@hourly", "UTC").unwrap();
    let hourly = Job::new("job", hourly, JobSettings::default()).unwrap();
    let wall = WallTime::from_millis(2 * year);
    let outlook = hourly.outlook(Some(&ledger()), &Orders::default(), wall);
    assert_eq!(outlook, Outlook::ClockAhead(first));
}

/// A yearly job is due a year after its last slot, and one for leap days after eight.
#[test]
fn rare_slots_are_due_however_long_ago_the_last_one_was() {
    let leap = Schedule::parse("0 3 29 2 *", "UTC").unwrap();
    let job = Job::new("job", leap.clone(), JobSettings::default()).unwrap();
    // From 2096 to 2104: 2100 is no leap year.
    let last = leap.next_after(Slot::from_unix(3_976_214_400)).unwrap();
    let next = leap.next_after(last).unwrap();
    assert!(next.as_unix() - last.as_unix() > 8 * 365 * 86_400);
    let ledger = Ledger::new(&leap, last);
    let outlook = job.outlook(Some(&ledger), &Orders::default(), WallTime::of(next));
    assert_eq!(outlook, Outlook::Due);
}

#[test]
fn a_clock_that_is_set_years_ahead_during_a_run_settles_that_run_alone() {
    let mut round = Round::new(JobSettings::default(), Some(ledger()), 61_000, TERM);
    round.write();
    round.start();
    round.end(2 * 365 * 86_400_000, RunEnd::Exited(0));
    let written = round.write();
    assert_eq!(outcomes(&written), [(at(1), 1, SlotOutcome::Done)]);
    assert_eq!(written.cursor, Slot::from_unix(60));
    assert_eq!((round.poll(), round.core.rests_until()), (None, Some(None)));
}

#[test]
fn a_failure_is_retried_after_a_pause_that_doubles() {
    let settings =
        JobSettings { retries: 2, backoff: Duration::from_secs(5), ..JobSettings::default() };
    let mut round = Round::new(settings, Some(ledger()), 61_000, TERM);
    round.write();
    let mut millis = 61_000;
    for (attempt, pause) in [(1, 5_000), (2, 10_000)] {
        assert_eq!(round.start().attempt, attempt);
        round.end(millis, RunEnd::Exited(3));
        assert_eq!(round.write().open.unwrap().state, OpenState::Failed(3));
        assert_eq!((round.poll(), round.core.wake_at()), (None, moment(millis + pause)));
        millis += pause;
        round.millis = millis;
        assert_eq!(round.write().open.unwrap().attempt, attempt + 1);
    }
    assert_eq!(round.start().attempt, 3);
    round.end(millis, RunEnd::Exited(3));
    let settled = round.write();
    assert_eq!(outcomes(&settled), [(at(1), 1, SlotOutcome::Failed(3))]);
    assert_eq!(settled.settled[0].attempts, 3);
}

#[test]
fn a_schedule_that_was_changed_settles_the_slots_of_the_old_one() {
    let hourly = Schedule::parse("@hourly", "UTC").unwrap();
    let job = Arc::new(Job::new("job", hourly, JobSettings::default()).unwrap());
    let wall = WallTime::from_millis(630_000);
    let mut core = JobRound::new(job, "a", TERM, Some(ledger()), Orders::default(), wall);
    let Some(RoundEffect::WriteLedger(note)) = core.poll(moment(0), wall) else { panic!() };
    let ledger = Ledger::parse(&note).unwrap().unwrap();
    let rescheduled = SlotOutcome::Skipped(SkipReason::Rescheduled);
    assert_eq!(outcomes(&ledger), [(at(1), 10, rescheduled)]);
    assert_eq!((ledger.at.as_str(), ledger.cursor), ("@hourly", Slot::from_unix(630)));
}

#[test]
fn orders_are_run_once_also_while_the_job_is_paused() {
    let mut orders = Orders::default();
    orders.pause("job", "me", Slot::from_unix(0)).unwrap();
    orders.run_now("job", "me", Slot::from_unix(1));
    orders.run_now("another", "me", Slot::from_unix(1));
    let mut round = Round::new(JobSettings::default(), Some(ledger()), 61_000, TERM);
    round.core.handle_orders(orders.clone());
    let claimed = round.write();
    assert_eq!(claimed.open.as_ref().map(|open| open.slot), Some(SlotId::Ordered(1)));
    assert_eq!(outcomes(&claimed), [(at(1), 1, SlotOutcome::Skipped(SkipReason::Paused))]);
    round.start();
    round.end(62_000, RunEnd::Exited(0));
    let settled = round.write();
    assert_eq!((settled.order, settled.totals.done, settled.open), (1, 1, None));
    assert_eq!(round.poll(), None, "the order of another job is not for this one");
}
