//! Jobs in virtual time: every slot is accounted for, whatever happens.
//!
//! `TENURE_SIM_SEEDS=10000 TENURE_SIM_SLOTS=1000` is the full campaign; `TENURE_SIM_FIRST` is its first seed.
#![cfg(feature = "planted")]

mod simulated {
    pub(crate) mod account;
    pub(crate) mod faults;
    pub(crate) mod world;
}

use std::time::Duration;

use simulated::faults::{Fault, Random};
use simulated::world::{Time, World};
use tenure_cron::{CronRule, Interrupted, Job, JobSettings, Missed, Overlap, Schedule, Slot};

#[derive(Default, Debug)]
struct Sum {
    schedules: u64,
    slots: u64,
    runs: u64,
    interrupted: u64,
    faults: u64,
    bytes_max: usize,
    violations: u64,
}

/// What is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Planted {
    Nothing,
    Rule(CronRule),
    StaleSettle,
}

fn settings(random: &mut Random, planted: Planted) -> JobSettings {
    let pick = |random: &mut Random, of: u64| random.below(of) as usize;
    JobSettings {
        missed: [Missed::Once, Missed::All, Missed::Skip][pick(random, 3)],
        within: [None, None, Some(Duration::from_secs(120))][pick(random, 3)],
        interrupted: [Interrupted::Rerun, Interrupted::Leave][pick(random, 2)],
        overlap: [Overlap::Skip, Overlap::Queue][pick(random, 2)],
        jitter: [Duration::ZERO, Duration::from_secs(5)][pick(random, 2)],
        retries: [0, 0, 2][pick(random, 3)],
        backoff: Duration::from_secs(3),
        deadline: [None, Some(Duration::from_secs(20))][pick(random, 2)],
        without: match planted {
            Planted::Rule(rule) => Some(rule),
            Planted::Nothing | Planted::StaleSettle => None,
        },
    }
}

const AT: &[&str] = &[
    "* * * * *",
    "*/5 * * * *",
    "@every 90s",
    "*/10 * * * * *",
    "0 * * * *",
    "30 2 * * *",
    "15,45 1-3 * * *",
    "0 3 * * mon-fri",
];
const ZONES: &[&str] = &["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"];

/// One schedule, and what must not have happened.
fn simulate(seed: u64, slots: u64, planted: Planted, sum: &mut Sum) -> Vec<String> {
    let mut random = Random(seed.wrapping_mul(0x1234_5678_9abc_def1));
    let at = AT[random.below(AT.len() as u64) as usize];
    let zone = ZONES[random.below(ZONES.len() as u64) as usize];
    let mut settings = settings(&mut random, planted);
    if at.starts_with("*/10") {
        settings.jitter = Duration::ZERO;
    }
    let schedule = Schedule::parse(at, zone).unwrap();
    let job = Job::new("report", schedule.clone(), settings).unwrap();
    // Some hours before clocks are changed, in Europe, America or Lord Howe, in spring or in autumn.
    let changes = [1_774_746_000, 1_792_890_000, 1_772_953_200, 1_793_512_800, 1_775_314_800];
    let change = changes[random.below(changes.len() as u64) as usize];
    let start: Time = (change - 3_600 * (1 + random.below(20) as Time)) * 1000;
    let machines = 1 + random.below(5) as usize;
    let fenced = planted != Planted::StaleSettle;
    let mut world = World::new(job, machines, start, random, fenced);
    let mut slot = Slot::from_unix(start / 1000);
    for _ in 0..slots {
        let Some(next) = schedule.next_after(slot) else { break };
        slot = next;
        while world.random.below(5) == 0 {
            let at = slot.as_unix() * 1000 + world.random.below(70_000) as Time - 10_000;
            let length = 500 + world.random.below(40_000) as Time;
            let step = world.random.below(1_200_000) as Time - 600_000;
            let fault = match world.random.below(16) {
                0..=3 => Fault::Crash,
                4..=6 => Fault::Pause(length),
                7..=9 => Fault::StoreAway(length),
                10..=11 => Fault::ClockStep(step),
                12..=13 => Fault::Terminate,
                14 if world.random.below(4) == 0 => Fault::PauseJob,
                14 => Fault::ResumeJob,
                _ => Fault::RunNow,
            };
            world.plan_fault(at.max(start), fault);
        }
    }
    let end = slot.as_unix() * 1000;
    world.run_until(end);
    world.heal();
    // Clocks that were ahead have settled slots of the next ten minutes already; those that wait are run
    // after each other.
    let quiet = end + 1_200_000 + slots as Time * 10_000;
    world.run_until(quiet);
    // The last slots may be under way: they are not looked at.
    let until = Slot::from_unix(end / 1000);
    match world.ledger() {
        None => world.account.violations.push("there is no ledger".into()),
        Some(ledger) => {
            let mut ledger = ledger;
            ledger
                .open
                .take_if(|open| matches!(open.slot, tenure_cron::SlotId::At(slot) if slot > until));
            world.account.close(&ledger, until);
        }
    }
    sum.schedules += 1;
    sum.slots += world.account.slots();
    sum.runs += world.account.started;
    sum.interrupted += world.account.interrupted;
    sum.faults += world.account.faults;
    sum.bytes_max = sum.bytes_max.max(world.account.bytes_max);
    sum.violations += world.account.violations.len() as u64;
    std::mem::take(&mut world.account.violations)
}

fn from_environment(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |text| text.parse().unwrap())
}

#[test]
fn every_slot_is_accounted_for() {
    let first = from_environment("TENURE_SIM_FIRST", 0);
    let (seeds, slots) =
        (from_environment("TENURE_SIM_SEEDS", 200), from_environment("TENURE_SIM_SLOTS", 50));
    let mut sum = Sum::default();
    for seed in first..first + seeds {
        let violations = simulate(seed, slots, Planted::Nothing, &mut sum);
        assert!(
            violations.is_empty(),
            "seed {seed}: {:#?}",
            &violations[..violations.len().min(5)]
        );
    }
    println!("{sum:?}");
    assert!(sum.interrupted > 0 && sum.faults > seeds && sum.runs > seeds);
}

/// A rule that is left out must be noticed, or the account proves nothing.
#[test]
fn every_planted_defect_is_found() {
    let seeds = from_environment("TENURE_SIM_SEEDS", 300);
    for planted in [
        Planted::Rule(CronRule::ClaimBeforeStart),
        Planted::Rule(CronRule::SlotsFromCursor),
        Planted::Rule(CronRule::KeepOpenSlot),
        Planted::StaleSettle,
    ] {
        let mut sum = Sum::default();
        let found = (0..seeds).find_map(|seed| {
            let violations = simulate(seed, 200, planted, &mut sum);
            violations.into_iter().next().map(|violation| (seed, violation))
        });
        let (seed, violation) =
            found.unwrap_or_else(|| panic!("{planted:?} was not found: {sum:?}"));
        println!("{planted:?}: seed {seed}: {violation}");
    }
}
