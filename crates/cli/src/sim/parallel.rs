//! Runs schedules on all cores.

use std::num::NonZero;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;

use super::{Args, now};

/// Runs each seed that is wanted, and takes in what came of it, in any order: whatever is made of it must
/// not depend on that. Says on the standard error how far it is.
pub(super) fn each<T: Send>(args: &Args, run: impl Fn(u64) -> T + Sync, mut take: impl FnMut(T)) {
    let began = now();
    let seeds = args.wanted();
    let next = AtomicU64::new(seeds.start);
    let (done, results) = mpsc::sync_channel(QUEUE);
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    thread::scope(|scope| {
        for _ in 0..cores {
            let (done, seeds, next, run) = (done.clone(), &seeds, &next, &run);
            scope.spawn(move || {
                loop {
                    // One after the other, so that a budget that is used up leaves no gaps.
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let late = args.budget.is_some_and(|budget| began.elapsed() >= budget);
                    if seed >= seeds.end || late || done.send(run(seed)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(done);
        let all = seeds.end - seeds.start;
        for (count, result) in (1..=all).zip(results) {
            take(result);
            if count.is_multiple_of(REPORT) {
                eprintln!("{count} of {all} schedules, {:.0} s", began.elapsed().as_secs_f64());
            }
        }
    });
}

/// How many results wait to be taken in.
const QUEUE: usize = 64;
/// After so many it says how far it is.
const REPORT: u64 = 500;
