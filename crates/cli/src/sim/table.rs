//! `tenure sim --singleton-table`: what downing and a lease are worth.

use std::fmt;
use std::process::ExitCode;

use serde::Serialize;
use tenure_testkit::sim::cluster::{Downing, Measured, Row, run_row};

use super::{Args, parallel};
use crate::exit::Failure;
use crate::output;

/// What `--json` prints; its shape is stable.
#[derive(Serialize)]
struct Table {
    /// How many schedules were run, each under every row.
    seeds: u64,
    rows: Vec<Counted>,
}

#[derive(Serialize)]
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
    /// For how long nobody hosted it.
    empty_s: f64,
    virtual_s: f64,
}

pub(super) fn main(args: &Args) -> Result<ExitCode, Failure> {
    let (mut seeds, mut totals) = (0, [(0, Measured::default()); Row::ALL.len()]);
    let run = |seed| Row::ALL.map(|row| run_row(seed, row, false).0);
    parallel::each(args, run, |rows| {
        seeds += 1;
        for (measured, (with_two, total)) in rows.into_iter().zip(&mut totals) {
            *with_two += u64::from(measured.overlaps > 0);
            *total += measured;
        }
    });
    let rows = Row::ALL.into_iter().zip(totals).map(|(row, (with_two, total))| Counted {
        downing: match row.downing {
            Downing::Operators => "operators",
            Downing::KeepMajority => "keep-majority",
            Downing::LeaseMajority => "lease-majority",
        },
        lease: row.lease,
        schedules_with_two: with_two,
        overlaps: total.overlaps,
        overlaps_in_second_cluster: total.in_other_cluster,
        overlap_s: total.overlap.as_secs_f64(),
        stale_effects_accepted: total.stale,
        empty_s: total.empty.as_secs_f64(),
        virtual_s: total.virtual_time.as_secs_f64(),
    });
    let table = Table { seeds, rows: rows.collect() };
    output::print(&table, args.json)?;
    let broken = |row: &Counted| row.lease && (row.overlaps > 0 || row.stale_effects_accepted > 0);
    Ok(if table.rows.iter().any(broken) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "| downing | lease | schedules with two | times | in a second cluster | seconds with two \
             | stale effects accepted | without a host |"
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
                100.0 * row.empty_s / row.virtual_s.max(1e-9),
            )?;
        }
        write!(f, "{} schedules under each", self.seeds)
    }
}
