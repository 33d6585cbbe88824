//! What metrics cost: messages a second through a region, with the recorder that `/metrics` is served from
//! and without one. Both are measured in processes of their own, in turn, on one thread and by the time that
//! the processor spends on it, so that it matters little what else runs; the best of each counts.
//!
//! ```sh
//! cargo run --release -p tenure-manage --example metrics_cost -- --at-most 5
//! ```
#![allow(clippy::disallowed_methods, reason = "it measures real time")]

use std::error::Error;
use std::net::TcpListener;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure_cluster::messaging::Received;
use tenure_cluster::{Cluster, Settings};
use tenure_lease::{MemoryStore, Store};
use tenure_manage::Recorder;
use tenure_sharding::{BoxError, Entity, Hosted, Shardings as _};

#[derive(Serialize, Deserialize)]
struct Add(u64);

struct Counter {
    total: u64,
    seen: Arc<AtomicU64>,
}

impl Entity for Counter {
    type Message = Add;

    async fn receive(&mut self, received: Received<Add>, _: &Hosted) -> Result<(), BoxError> {
        self.total += received.message.0;
        self.seen.fetch_add(1, Relaxed);
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let limit: Option<f64> = match words[..] {
        ["--measure", with] => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            println!("{}", runtime.block_on(measure(with == "with"))?);
            return Ok(());
        }
        [] => None,
        ["--at-most", percent] => Some(percent.parse()?),
        _ => return Err("usage: metrics_cost [--at-most PERCENT]".into()),
    };
    let (mut with, mut without) = (0.0_f64, 0.0_f64);
    for round in 1..=ROUNDS {
        let now = (in_process("without")?, in_process("with")?);
        println!("round {round}: {:.2} without, {:.2} with", now.0 / 1e6, now.1 / 1e6);
        (without, with) = (without.max(now.0), with.max(now.1));
    }
    let cost = 100.0 * (1.0 - with / without);
    println!(
        "million messages a second of work: {:.2} without metrics, {:.2} with; they cost {cost:.1} %",
        without / 1e6,
        with / 1e6,
    );
    match limit {
        Some(limit) if cost > limit => Err(format!("that is more than {limit} %").into()),
        _ => Ok(()),
    }
}

fn in_process(with: &str) -> Result<f64, Box<dyn Error>> {
    let output = Command::new(std::env::current_exe()?).args(["--measure", with]).output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    Ok(String::from_utf8(output.stdout)?.trim().parse()?)
}

/// Messages a second, to entities of this node.
async fn measure(with: bool) -> Result<f64, Box<dyn Error>> {
    if with {
        let recorder = Recorder::install()?;
        // It is read as often as Prometheus would at most.
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_secs(1)).await;
                std::hint::black_box(recorder.render());
            }
        });
    }
    let store = Store::new(MemoryStore::new());
    let free = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let mut settings = Settings::new("cost")
        .address(free.to_string().parse()?)
        .formation(store.lease("cost.formation"));
    settings.plaintext_without_any_protection = true;
    let cluster = Cluster::join(settings).await?;
    let seen = Arc::<AtomicU64>::default();
    let made = seen.clone();
    let counters = cluster
        .sharding("counter")
        .shards(64)
        .start(move |_| Counter { total: 0, seen: made.clone() })?;
    let ids: Vec<_> = (0..ENTITIES).map(|id| counters.entity(&format!("entity-{id}"))).collect();
    let send = async |count: u64| -> Result<f64, Box<dyn Error>> {
        let (begin, before) = (spent()?, seen.load(Relaxed));
        for number in 0..count {
            ids[number as usize % ENTITIES].tell(Add(1)).await?;
        }
        while seen.load(Relaxed) < before + count {
            tokio::task::yield_now().await;
        }
        Ok(count as f64 / (spent()? - begin).as_secs_f64())
    };
    send(ENTITIES as u64).await?;
    let mut best = 0.0_f64;
    for _ in 0..PARTS {
        best = best.max(send(MESSAGES).await?);
    }
    cluster.leave().await;
    Ok(best)
}

/// How long this thread, the process's main one, has been at work.
fn spent() -> Result<Duration, Box<dyn Error>> {
    let text = std::fs::read_to_string("/proc/self/schedstat")?;
    let nanos = text.split_whitespace().next().ok_or("no time")?.parse()?;
    Ok(Duration::from_nanos(nanos))
}

const ROUNDS: usize = 5;
/// Short ones: some of them meet nobody else on the machine.
const PARTS: usize = 20;
const MESSAGES: u64 = 100_000;
const ENTITIES: usize = 1000;
