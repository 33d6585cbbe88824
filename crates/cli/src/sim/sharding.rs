//! `tenure sim --sharding-table`: what a lease and sessions are worth to shards.

use std::fmt;
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;
use tenure_testkit::sim::sharding::{Plan, Setup, Tally, run};

use super::{Args, parallel};
use crate::exit::Failure;
use crate::output;

/// What `--json` prints; its shape is stable.
#[derive(Serialize)]
struct Table {
    /// How many schedules were run, each with every setup.
    seeds: u64,
    rows: Vec<Counted>,
}

#[derive(Serialize)]
struct Counted {
    setup: &'static str,
    /// Schedules with a violation of what this setup promises.
    violations: u64,
    started: u64,
    /// Schedules in which a shard was active twice at a time.
    schedules_with_two: u64,
    active_twice: u64,
    /// Besides these: one of the two was in a process that had stood still.
    active_besides_stale: u64,
    writes: u64,
    refused: u64,
    lost_fenced: u64,
    lost_unfenced: u64,
    /// From the end of the last fault until every shard was served.
    recovery_s_median: f64,
    recovery_s_p99: f64,
    recovery_s_max: f64,
}

#[derive(Default)]
struct Total {
    violations: u64,
    with_two: u64,
    tally: Tally,
    recoveries: Vec<Duration>,
}

pub(super) fn main(args: &Args) -> Result<ExitCode, Failure> {
    let (mut seeds, mut totals) = (0, SETUPS.map(|_| Total::default()));
    let run = |seed| SETUPS.map(|(_, setup)| run(seed, &Plan::of(seed, setup)));
    parallel::each(args, run, |outcomes| {
        seeds += 1;
        for (outcome, total) in outcomes.into_iter().zip(&mut totals) {
            total.violations += u64::from(!outcome.violations.is_empty());
            total.with_two += u64::from(outcome.tally.active_twice > 0);
            total.tally.add(&outcome.tally);
            total.recoveries.extend(outcome.recovery);
        }
    });
    let rows = SETUPS.into_iter().zip(totals).map(|((setup, _), total)| total.counted(setup));
    let table = Table { seeds, rows: rows.collect() };
    output::print(&table, args.json)?;
    let broken = table.rows.iter().any(|row| row.violations > 0);
    Ok(if broken { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

impl Total {
    fn counted(mut self, setup: &'static str) -> Counted {
        self.recoveries.sort();
        let at = |percent: usize| {
            let index = self.recoveries.len().saturating_sub(1) * percent / 100;
            self.recoveries.get(index).map_or(0.0, Duration::as_secs_f64)
        };
        Counted {
            setup,
            violations: self.violations,
            started: self.tally.started,
            schedules_with_two: self.with_two,
            active_twice: self.tally.active_twice,
            active_besides_stale: self.tally.active_stale,
            writes: self.tally.writes,
            refused: self.tally.refused,
            lost_fenced: self.tally.lost_fenced,
            lost_unfenced: self.tally.lost_unfenced,
            recovery_s_median: at(50),
            recovery_s_p99: at(99),
            recovery_s_max: at(100),
        }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "| setup | starts | schedules with two | active twice | besides one that stood still \
             | writes | refused by the fence | lost with a fence | lost without \
             | served again, median | 99 of 100 | longest |"
        )?;
        writeln!(f, "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|")?;
        for row in &self.rows {
            writeln!(
                f,
                "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {:.0} s | {:.0} s | {:.0} s |",
                row.setup,
                row.started,
                row.schedules_with_two,
                row.active_twice,
                row.active_besides_stale,
                row.writes,
                row.refused,
                row.lost_fenced,
                row.lost_unfenced,
                row.recovery_s_median,
                row.recovery_s_p99,
                row.recovery_s_max,
            )?;
        }
        for row in self.rows.iter().filter(|row| row.violations > 0) {
            writeln!(f, "{}: {} schedules with a violation", row.setup, row.violations)?;
        }
        write!(f, "{} schedules with each", self.seeds)
    }
}

const SETUPS: [(&str, Setup); 3] =
    [("gossip", Setup::Gossip), ("lease", Setup::Lease), ("sessions", Setup::Sessions)];
