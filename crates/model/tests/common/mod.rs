//! What every test of a model asks of it.
//!
//! `cargo test -- --nocapture` shows how many states there were and how long it took, and the
//! traces of what must be found. The largest scenarios stop at a bound unless `TENURE_MODEL_FULL=1`
//! is set; they then take minutes, and a few gigabytes in all.

#![allow(dead_code, reason = "each test file uses some of it")]

use std::env;
use std::fmt::{Debug, Display};
use std::io::{self, Write};

use tenure_model::engine::{Limits, Model, Report, Trace, Verdict, check};

/// The model has exactly so many states: none is wrong, none is a dead end.
#[track_caller]
pub(crate) fn holds<M: Model>(name: &str, model: &M, states: usize)
where
    M::Violation: Display,
{
    let report = explore(model);
    match report.verdict {
        Verdict::Holds => {
            println!("{name}: holds, {} states", report.states);
            assert_eq!(report.states, states, "{name}: the model is another one than it was");
        }
        Verdict::Bounded => {
            // Past the capture of the test harness: whoever runs the tests should know.
            let _ = writeln!(
                io::stderr(),
                "{name}: bounded, no violation in {} states; in full with TENURE_MODEL_FULL=1",
                report.states,
            );
            assert!(report.states <= states, "{name}: the model is another one than it was");
        }
        Verdict::Unsafe { violation, trace } => panic!("{name}: {violation}\n{trace}"),
        Verdict::DeadEnds { count, trace } => panic!("{name}: {count} dead ends\n{trace}"),
    }
}

/// Too large to be explored: nothing is wrong as far as `states_max`, or the usual bound, reaches.
#[track_caller]
pub(crate) fn holds_within<M: Model>(name: &str, model: &M, states_max: usize)
where
    M::Violation: Display,
{
    holds_between(name, model, STATES_MAX, states_max);
}

/// As [`holds_within`], with a bound of its own.
#[track_caller]
pub(crate) fn holds_between<M: Model>(name: &str, model: &M, usual: usize, full: usize)
where
    M::Violation: Display,
{
    let states_max = if is_full() { full } else { usual };
    let report = check(model, Limits { states_max, liveness: false });
    match report.verdict {
        Verdict::Bounded => {
            let _ = writeln!(io::stderr(), "{name}: no violation in {} states", report.states);
        }
        Verdict::Unsafe { violation, trace } => panic!("{name}: {violation}\n{trace}"),
        Verdict::Holds | Verdict::DeadEnds { .. } => {
            panic!("{name}: all of {} states were explored, which can be asserted", report.states)
        }
    }
}

/// `expected` can happen, and so many steps are the fewest that lead to it.
#[track_caller]
pub(crate) fn breaks<M: Model>(name: &str, model: &M, expected: M::Violation, steps: usize) -> Trace
where
    M::Violation: Display + Debug + PartialEq,
{
    let report = explore(model);
    let Verdict::Unsafe { violation, trace } = report.verdict else {
        panic!("{name}: nothing wrong found in {} states", report.states);
    };
    println!("{name}: {violation}, {} states, {} steps\n{trace}", report.states, trace.steps.len());
    assert_eq!(violation, expected, "{name}");
    assert_eq!(trace.steps.len(), steps, "{name}\n{trace}");
    trace
}

/// No state is wrong, but from so many there is no way to a good one.
#[track_caller]
pub(crate) fn strands<M: Model>(name: &str, model: &M, dead_ends: usize) -> Trace
where
    M::Violation: Display,
{
    let report = explore(model);
    match report.verdict {
        Verdict::DeadEnds { count, trace } => {
            println!("{name}: {count} dead ends in {} states\n{trace}", report.states);
            assert_eq!(count, dead_ends, "{name}\n{trace}");
            trace
        }
        Verdict::Unsafe { violation, trace } => panic!("{name}: {violation}\n{trace}"),
        Verdict::Holds | Verdict::Bounded => {
            panic!("{name}: no dead end found in {} states", report.states)
        }
    }
}

fn explore<M: Model>(model: &M) -> Report<M::Violation> {
    let states_max = if is_full() { usize::MAX } else { STATES_MAX };
    check(model, Limits { states_max, liveness: true })
}

fn is_full() -> bool {
    env::var("TENURE_MODEL_FULL").is_ok_and(|value| value == "1")
}

/// The bound by default.
const STATES_MAX: usize = 1_000_000;
