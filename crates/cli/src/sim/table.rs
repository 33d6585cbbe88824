//! `tenure sim --singleton-table`: what downing and a lease are worth.

use std::fmt;
use std::process::ExitCode;

use serde::Serialize;
use tenure_testkit::sim::cluster::{Downing, Row, run_row};

use super::{Args, now};
use crate::exit::Failure;
use crate::output;

/// What `--json` prints; its shape is stable.
#[derive(Serialize)]
struct Table {
    /// How many schedules were run, each under every row.
    seeds: u64,
    rows: Vec<Counted>,
}

#[derive(Default, Serialize)]
struct Counted {
    downing: &'static str,
    lease: bool,
    /// Schedules in which the singleton was active twice at a time.
    schedules_with_two: u64,
    overlaps: u64,
    /// Of these: in a second cluster that was formed beside the first.
    overlaps_in_second_cluster: u64,
    overlap_s: f64,
    stale_effects_accepted: u64,
    /// For how much of the time nobody hosted it.
    empty_percent: f64,
    virtual_s: f64,
}

pub(super) fn main(args: &Args) -> Result<ExitCode, Failure> {
    let began = now();
    let rows = Row::ALL.iter().map(|row| Counted {
        downing: match row.downing {
            Downing::Operators => "operators",
            Downing::KeepMajority => "keep-majority",
            Downing::LeaseMajority => "lease-majority",
        },
        lease: row.lease,
        ..Counted::default()
    });
    let mut table = Table { seeds: 0, rows: rows.collect() };
    for seed in args.wanted() {
        if args.budget.is_some_and(|budget| began.elapsed() >= budget) {
            break;
        }
        table.seeds += 1;
        for (row, counted) in Row::ALL.into_iter().zip(&mut table.rows) {
            counted.add(seed, row);
        }
    }
    output::print(&table, args.json)?;
    let broken = |row: &Counted| row.lease && (row.overlaps > 0 || row.stale_effects_accepted > 0);
    Ok(if table.rows.iter().any(broken) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

impl Counted {
    fn add(&mut self, seed: u64, row: Row) {
        let (measured, _) = run_row(seed, row, false);
        self.schedules_with_two += u64::from(measured.overlaps > 0);
        self.overlaps += measured.overlaps;
        self.overlaps_in_second_cluster += measured.in_other_cluster;
        self.overlap_s += measured.overlap.as_secs_f64();
        self.stale_effects_accepted += measured.stale;
        let empty = self.empty_percent * self.virtual_s / 100.0 + measured.empty.as_secs_f64();
        self.virtual_s += measured.virtual_time.as_secs_f64();
        self.empty_percent = 100.0 * empty / self.virtual_s;
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "| downing | lease | schedules with two | times | in a second cluster | seconds with two | stale effects accepted | without a host |"
        )?;
        writeln!(f, "|---|---|---:|---:|---:|---:|---:|---:|")?;
        for row in &self.rows {
            writeln!(
                f,
                "| {} | {} | {} | {} | {} | {:.0} | {} | {:.1} % |",
                row.downing,
                if row.lease { "yes" } else { "no" },
                row.schedules_with_two,
                row.overlaps,
                row.overlaps_in_second_cluster,
                row.overlap_s,
                row.stale_effects_accepted,
                row.empty_percent,
            )?;
        }
        write!(f, "{} schedules under each", self.seeds)
    }
}
