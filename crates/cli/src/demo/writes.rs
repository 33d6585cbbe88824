//! The client's writes: numbered for each counter, at a rate, to random counters, each again and again
//! until it is acknowledged.
#![allow(clippy::disallowed_methods, reason = "processes of a demonstration run in real time")]

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure_cluster::Cluster;
use tenure_sharding::{EntityRef, Shardings as _, StartError};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::counter::{KEYS, SHARDS, Write, id};
use super::wire::{Report, now, say};
use super::{COUNTERS, WORKER};

/// Writes until it is told to finish, then until all that was sent is acknowledged.
pub(super) async fn run(cluster: &Cluster, rate: u32, mut finish: watch::Receiver<bool>) {
    if let Err(error) = cluster.up().await {
        return say(&Report::Trouble(error.to_string()));
    }
    let progress = Arc::new(Progress::default());
    let keys = match open(cluster, &progress) {
        Ok(keys) => keys,
        Err(error) => return say(&Report::Trouble(error.to_string())),
    };
    let telling = async {
        let mut ticks = interval(TELL);
        for tick in 0u32.. {
            ticks.tick().await;
            progress.tell(false);
            if tick % TELL_EACH == 0 {
                progress.tell_each();
            }
        }
    };
    let sending = async {
        tokio::select! {
            _ = finish.wait_for(|finish| *finish) => {}
            () = send(&keys, rate, &progress) => {}
        }
        while progress.acknowledged() < progress.sent.load(Relaxed) {
            sleep(TELL).await;
        }
    };
    tokio::select! {
        () = sending => {}
        () = telling => {}
    }
    progress.tell_each();
    progress.tell(true);
    std::future::pending().await
}

/// The queue of each counter: when its next writes were due.
type Queue = mpsc::Sender<u64>;

fn open(cluster: &Cluster, progress: &Arc<Progress>) -> Result<Vec<Queue>, StartError> {
    let counters = cluster.sharding(COUNTERS).shards(SHARDS).role(WORKER).proxy::<Write>()?;
    let queue = |key| {
        let (queue, due) = mpsc::channel(QUEUE);
        tokio::spawn(write(counters.entity(&id(key)), key, due, progress.clone()));
        queue
    };
    Ok((0..KEYS).map(queue).collect())
}

/// One counter's writes, one after the other.
async fn write(
    counter: EntityRef<Write>,
    key: u32,
    mut due: mpsc::Receiver<u64>,
    progress: Arc<Progress>,
) {
    let mut number = 0;
    while let Some(due) = due.recv().await {
        number += 1;
        // Whether it was done or not, if that is unknown: a number is not done twice.
        while let Err(error) = counter.ask(Write { number }).within(PATIENCE).await {
            tracing::debug!(key, number, "not acknowledged: {error}");
            sleep(AGAIN).await;
        }
        progress.each[key as usize].store(number, Relaxed);
        progress.waited(counter.shard().0, due, now());
    }
}

/// So many a second; one whose counter is too far behind is left out.
async fn send(keys: &[Queue], rate: u32, progress: &Progress) {
    let mut ticks = interval(PACE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (began, mut done, mut random) = (Instant::now(), 0, 0);
    loop {
        ticks.tick().await;
        let due = (began.elapsed().as_secs_f64() * f64::from(rate)) as u64;
        // Not all at once what could not be sent while this process stood still.
        for _ in done.max(due.saturating_sub(u64::from(rate)))..due {
            random = next(random);
            if keys[(random >> 33) as usize % keys.len()].try_send(now()).is_ok() {
                progress.sent.fetch_add(1, Relaxed);
            }
        }
        done = due;
    }
}

/// A linear congruential generator: chance need not be better than that here, and is the same in
/// each run.
fn next(random: u64) -> u64 {
    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407)
}

/// How far it is.
struct Progress {
    sent: AtomicU64,
    /// How many of each counter are acknowledged.
    each: Vec<AtomicU64>,
    /// The longest wait of late for each shard, from and to when.
    waits: Mutex<Vec<Option<(u64, u64)>>>,
}

impl Default for Progress {
    fn default() -> Self {
        Self {
            sent: AtomicU64::new(0),
            each: (0..KEYS).map(|_| AtomicU64::new(0)).collect(),
            waits: Mutex::new(vec![None; SHARDS as usize]),
        }
    }
}

impl Progress {
    fn acknowledged(&self) -> u64 {
        self.each.iter().map(|each| each.load(Relaxed)).sum()
    }

    /// Notes how long a write took. Of those that overlap, the longest is told.
    fn waited(&self, shard: u32, from: u64, to: u64) {
        if to - from < WAIT {
            return;
        }
        let mut waits = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = &mut waits[shard as usize];
        *wait = match *wait {
            Some(known) if from <= known.1 => {
                Some(if to - from > known.1 - known.0 { (from, to) } else { known })
            }
            Some(known) => {
                say(&Report::Waited { shard, from: known.0, to: known.1 });
                Some((from, to))
            }
            None => Some((from, to)),
        };
    }

    fn tell(&self, finished: bool) {
        let (sent, acknowledged) = (self.sent.load(Relaxed), self.acknowledged());
        let mut waits = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
        for (shard, wait) in (0..).zip(&mut *waits) {
            let is_over = |wait: &mut (u64, u64)| finished || wait.1 + WAIT_OVER < now();
            if let Some((from, to)) = wait.take_if(is_over) {
                say(&Report::Waited { shard, from, to });
            }
        }
        say(&Report::Writes { sent, acknowledged, finished });
    }

    fn tell_each(&self) {
        say(&Report::Acknowledged(self.each.iter().map(|each| each.load(Relaxed)).collect()));
    }
}

const PACE: Duration = Duration::from_millis(5);
/// How many writes to one counter may wait.
const QUEUE: usize = 128;
/// How long to wait for an acknowledgement before the write is sent again.
const PATIENCE: Duration = Duration::from_millis(500);
const AGAIN: Duration = Duration::from_millis(5);
/// Longer than it usually takes, in nanoseconds.
const WAIT: u64 = 10_000_000;
/// After so long, none that overlaps it will come.
const WAIT_OVER: u64 = 1_000_000_000;
const TELL: Duration = Duration::from_millis(100);
const TELL_EACH: u32 = 10;
