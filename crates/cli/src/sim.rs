//! `tenure sim`: whole clusters in virtual time, thousands of schedules of faults, each from a seed.

mod parallel;
mod sharding;
mod table;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde::Serialize;
use tenure_testkit::sim::cluster::{COVERAGE, Fault, Plan, Sim, SimSettings, run};

use crate::duration;
use crate::exit::Failure;
use crate::output;

/// Simulate clusters under random faults, and check that they keep their promises
///
/// Each seed is one schedule: a minute or two in which nodes are cut off, crash, restart, stand
/// still, leave and join; then all is mended, and they must agree again within a minute. Ends with 1
/// if something happened that must not, and says at which seed.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Which seeds: A..B, without B
    #[arg(long, value_parser = range, default_value = "0..1000", value_name = "A..B")]
    seeds: Range<u64>,
    /// One seed alone
    #[arg(long, conflicts_with = "seeds", value_name = "SEED")]
    seed: Option<u64>,
    /// How many nodes there are
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(2..=100))]
    nodes: u64,
    /// Which faults may happen, with commas between them [default: all, as the seed chooses]
    #[arg(long, value_parser = fault, value_delimiter = ',', value_name = "LIST")]
    faults: Vec<Fault>,
    /// When to stop early
    #[arg(long, value_parser = duration::parse, value_name = "DURATION")]
    budget: Option<Duration>,
    /// Print what happens, line by line; with --seed
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Only measure how fast an idle cluster is simulated
    #[arg(long, conflicts_with_all = ["seed", "seeds", "faults", "trace"])]
    bench: bool,
    /// Only run the same splits with and without downing, with and without a lease, and count how often
    /// a singleton was active twice
    #[arg(long, conflicts_with_all = ["bench", "faults", "trace", "nodes"])]
    singleton_table: bool,
    /// Only run schedules with sharding, without a lease, with one, and with sessions, and count how often
    /// a shard was active twice
    #[arg(long, conflicts_with_all = ["bench", "faults", "trace", "nodes", "singleton_table"])]
    sharding_table: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    fn wanted(&self) -> Range<u64> {
        self.seed.map_or(self.seeds.clone(), |seed| seed..seed.saturating_add(1))
    }
}

pub(crate) fn main(args: &Args) -> Result<ExitCode, Failure> {
    if args.bench {
        return bench(args);
    }
    if args.singleton_table {
        return table::main(args);
    }
    if args.sharding_table {
        return sharding::main(args);
    }
    let report = Report::of(args)?;
    output::print(&report, args.json)?;
    Ok(if report.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What `--json` prints; its shape is stable.
#[derive(Serialize)]
struct Report {
    /// How many were run.
    seeds: u64,
    nodes: u64,
    virtual_s: f64,
    violations: Vec<Found>,
    seeds_per_s: f64,
    virtual_s_per_wall_s: f64,
    /// The longest time to agree again after the last fault.
    recovery_s_max: f64,
    /// How often each thing worth meeting was met; those that must be met are listed also with 0.
    coverage: BTreeMap<&'static str, u64>,
}

#[derive(Serialize)]
struct Found {
    seed: u64,
    at_s: f64,
    invariant: &'static str,
    what: String,
}

impl Report {
    fn of(args: &Args) -> Result<Self, Failure> {
        let began = now();
        let mut report = Self {
            seeds: 0,
            nodes: args.nodes,
            virtual_s: 0.0,
            violations: Vec::new(),
            seeds_per_s: 0.0,
            virtual_s_per_wall_s: 0.0,
            recovery_s_max: 0.0,
            coverage: COVERAGE.iter().map(|word| (*word, 0)).collect(),
        };
        for seed in args.wanted() {
            if args.budget.is_some_and(|budget| began.elapsed() >= budget) {
                break;
            }
            report.run(seed, args)?;
        }
        let wall = began.elapsed().as_secs_f64().max(1e-9);
        report.seeds_per_s = report.seeds as f64 / wall;
        report.virtual_s_per_wall_s = report.virtual_s / wall;
        Ok(report)
    }

    fn run(&mut self, seed: u64, args: &Args) -> Result<(), Failure> {
        let mut plan = Plan { trace: args.trace, ..Plan::of(seed, args.nodes as usize) };
        if !args.faults.is_empty() {
            plan.faults.clone_from(&args.faults);
        }
        let outcome = run(seed, &plan);
        for line in &outcome.trace {
            output::text(line)?;
        }
        self.seeds += 1;
        self.virtual_s += outcome.virtual_time.as_secs_f64();
        let recovery = outcome.recovery.unwrap_or_default().as_secs_f64();
        self.recovery_s_max = self.recovery_s_max.max(recovery);
        for (what, count) in outcome.coverage {
            *self.coverage.entry(what).or_default() += count;
        }
        self.violations.extend(outcome.violations.into_iter().take(1).map(|violation| Found {
            seed,
            at_s: violation.at.as_nanos() as f64 / 1e9,
            invariant: violation.invariant,
            what: violation.what,
        }));
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for found in &self.violations {
            let Found { seed, at_s, invariant, what } = found;
            writeln!(f, "seed {seed}, {at_s:.3} s: {invariant}: {what}")?;
            writeln!(f, "  tenure sim --nodes {} --seed {seed} --trace", self.nodes)?;
        }
        for (what, count) in &self.coverage {
            writeln!(f, "{count:>9} {what}")?;
        }
        write!(
            f,
            "{} seeds of {} nodes, {:.0} virtual s ({:.0} seeds/s, {:.0} virtual s/s), all agreed \
             again within {:.0} s; {} with a violation",
            self.seeds,
            self.nodes,
            self.virtual_s,
            self.seeds_per_s,
            self.virtual_s_per_wall_s,
            self.recovery_s_max,
            self.violations.len(),
        )
    }
}

/// How fast nothing happens.
fn bench(args: &Args) -> Result<ExitCode, Failure> {
    let mut sim = Sim::new(1, SimSettings::nodes(args.nodes as usize));
    sim.start_all();
    sim.run_until(Duration::from_secs(60), Sim::agrees);
    let began = now();
    let budget = args.budget.unwrap_or(Duration::from_secs(3));
    let mut virtual_s = 0.0;
    while began.elapsed() < budget {
        sim.run_for(Duration::from_secs(100));
        virtual_s += 100.0;
    }
    let virtual_s_per_wall_s = virtual_s / began.elapsed().as_secs_f64();
    output::print(&Bench { nodes: args.nodes, virtual_s_per_wall_s }, args.json)?;
    Ok(ExitCode::SUCCESS)
}

#[derive(Serialize)]
struct Bench {
    nodes: u64,
    virtual_s_per_wall_s: f64,
}

impl fmt::Display for Bench {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} idle nodes: {:.0} virtual s per s", self.nodes, self.virtual_s_per_wall_s)
    }
}

#[allow(clippy::disallowed_methods, reason = "how long the simulation itself takes")]
fn now() -> Instant {
    Instant::now()
}

fn range(text: &str) -> Result<Range<u64>, String> {
    let wrong = || format!("{text:?} is no range of seeds; \"0..1000\" is");
    let (from, to) = text.split_once("..").ok_or_else(wrong)?;
    let range = from.parse().map_err(|_| wrong())?..to.parse().map_err(|_| wrong())?;
    if range.is_empty() { Err(wrong()) } else { Ok(range) }
}

fn fault(text: &str) -> Result<Fault, String> {
    let known = Fault::ALL.iter().find(|(name, _)| *name == text);
    known.map(|(_, fault)| *fault).ok_or_else(|| {
        let names: Vec<&str> = Fault::ALL.iter().map(|(name, _)| *name).collect();
        format!("{text:?} is no fault; these are: {}", names.join(", "))
    })
}
