//! The client: sends numbered jobs to the worker, wherever it is, and counts what is done.
#![allow(clippy::disallowed_methods, reason = "processes of a demonstration run in real time")]

use std::cell::Cell;
use std::time::Duration;

use tenure_cluster::Cluster;
use tenure_cluster::messaging::reliable::ReliableSender;
use tenure_singleton::{BoxError, Proxy, Singletons as _};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use super::wire::{Report, now, say};
use super::{LEDGER, WORKER};

/// Sends jobs until it is told to finish, and reports how far they are.
pub(super) async fn run(cluster: &Cluster, mut finish: watch::Receiver<bool>) {
    if let Err(error) = cluster.up().await {
        return say(&Report::Trouble(error.to_string()));
    }
    let (_worker, jobs) = match open(cluster) {
        Ok(open) => open,
        Err(error) => return say(&Report::Trouble(error.to_string())),
    };
    let (sent, acknowledged) = (Cell::new(0), Cell::new(0));
    let tell = |finished| {
        let (sent, acknowledged) = (sent.get(), acknowledged.get());
        say(&Report::Jobs { sent, acknowledged, finished });
    };
    let sending = async {
        tokio::select! {
            _ = finish.wait_for(|finish| *finish) => {}
            () = send(&jobs, &sent) => {}
        }
        // All that were sent: those that are under way are done too, in the end.
        if jobs.done(sent.get()).await.is_ok() {
            acknowledged.set(sent.get());
        }
    };
    let counting = async {
        let (mut next, mut heard) = (1, None);
        while jobs.done(next).await.is_ok() {
            acknowledged.set(next);
            next += 1;
            let to = now();
            let from = heard.replace(to).unwrap_or(to);
            if to - from > SILENCE.as_nanos() as u64 {
                say(&Report::Silence { from, to });
            }
        }
        std::future::pending().await
    };
    let telling = async {
        let mut ticks = interval(TELL);
        loop {
            ticks.tick().await;
            tell(false);
        }
    };
    tokio::select! {
        () = sending => tell(true),
        () = counting => {}
        () = telling => {}
    }
    std::future::pending().await
}

/// The way to the worker, wherever it is; the proxy finds it for as long as it is kept.
fn open(cluster: &Cluster) -> Result<(Proxy<u64>, ReliableSender<u64>), BoxError> {
    let worker = cluster.singleton(LEDGER).role(WORKER).proxy::<u64>()?;
    let jobs = worker.reliable("client")?;
    Ok((worker, jobs))
}

/// A job every so often; while too many are not done it waits.
async fn send(jobs: &ReliableSender<u64>, sent: &Cell<u64>) {
    let mut ticks = interval(PACE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let job = sent.get() + 1;
        match jobs.send(job).await {
            Ok(_) => sent.set(job),
            Err(error) => {
                say(&Report::Trouble(format!("the client cannot send: {error}")));
                return std::future::pending().await;
            }
        }
    }
}

const PACE: Duration = Duration::from_millis(5);
/// Longer than it usually takes.
const SILENCE: Duration = Duration::from_millis(10);
const TELL: Duration = Duration::from_millis(100);
