//! How many messages a second reach entities of this node, beside a bare loop over a hash map that is
//! fed by one channel; how long a question takes; what an idle entity takes.
//!
//! ```sh
//! cargo run --release -p tenure-sharding --example tell_rate -- 5000000
//! ```
#![allow(clippy::disallowed_methods, reason = "it measures real time")]

use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tenure_cluster::messaging::{Ask, Received};
use tenure_cluster::{Cluster, Settings};
use tenure_lease::{MemoryStore, Store};
use tenure_sharding::{BoxError, Entity, Hosted, Shardings as _};

#[derive(Serialize, Deserialize)]
enum Message {
    Add(u64),
    Total,
}

struct Total;
impl Ask for Total {
    type Reply = u64;
}
impl From<Total> for Message {
    fn from(_: Total) -> Self {
        Self::Total
    }
}

struct Counter {
    total: u64,
    seen: Arc<AtomicU64>,
}

impl Entity for Counter {
    type Message = Message;

    async fn receive(&mut self, received: Received<Message>, _: &Hosted) -> Result<(), BoxError> {
        match received.message {
            Message::Add(number) => {
                self.total += number;
                self.seen.fetch_add(1, Relaxed);
            }
            Message::Total => received.reply.answer::<Total>(self.total).await?,
        }
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let count: u64 = std::env::args().nth(1).map_or(Ok(2_000_000), |text| text.parse())?;
    let bare = bare(count).await;
    println!("a bare loop: {:.2} million a second", bare / 1e6);

    let store = Store::new(MemoryStore::new());
    let mut settings = Settings::new("rate")
        .address("127.0.0.1:7499".parse()?)
        .formation(store.lease("rate.formation"));
    settings.plaintext_without_any_protection = true;
    let cluster = Cluster::join(settings).await?;
    let seen = Arc::<AtomicU64>::default();
    let made = seen.clone();
    let counters = cluster
        .sharding("counter")
        .shards(64)
        .start(move |_| Counter { total: 0, seen: made.clone() })?;
    let ids: Vec<_> = (0..ENTITIES).map(|id| counters.entity(&format!("entity-{id}"))).collect();
    for id in &ids {
        id.ask(Total).within(Duration::from_secs(10)).await?;
    }
    let begin = Instant::now();
    for number in 0..count {
        ids[number as usize % ENTITIES].tell(Message::Add(1)).await?;
    }
    while seen.load(Relaxed) < count {
        tokio::task::yield_now().await;
    }
    let rate = count as f64 / begin.elapsed().as_secs_f64();
    println!("tell: {:.2} million a second, {:.0} % of that", rate / 1e6, 100.0 * rate / bare);

    let mut times = Vec::new();
    for number in 0..20_000 {
        let begin = Instant::now();
        ids[number % ENTITIES].ask(Total).within(Duration::from_secs(10)).await?;
        times.push(begin.elapsed());
    }
    times.sort_unstable();
    println!("ask: p50 {:?}, p99 {:?}", times[10_000], times[19_800]);

    let before = resident();
    for id in 0..IDLE {
        counters.entity(&format!("idle-{id}")).tell(Message::Add(0)).await?;
    }
    while seen.load(Relaxed) < count + IDLE {
        tokio::task::yield_now().await;
    }
    let each = (resident() - before) as f64 / IDLE as f64;
    println!("an idle entity: {each:.0} bytes, {} of them its own", size_of::<Counter>());
    cluster.leave().await;
    Ok(())
}

/// What sharding is compared with.
async fn bare(count: u64) -> f64 {
    let (sender, mut receiver) = tokio::sync::mpsc::channel::<(Arc<str>, Message)>(2048);
    let ids: Vec<Arc<str>> = (0..ENTITIES).map(|id| format!("entity-{id}").into()).collect();
    let begin = Instant::now();
    let task = tokio::spawn(async move {
        let mut entities: HashMap<Arc<str>, u64> = HashMap::new();
        let mut batch = Vec::new();
        while receiver.recv_many(&mut batch, 256).await > 0 {
            for (id, message) in batch.drain(..) {
                if let Message::Add(number) = message {
                    *entities.entry(id).or_default() += number;
                }
            }
        }
        entities.values().sum::<u64>()
    });
    for number in 0..count {
        let id = ids[number as usize % ENTITIES].clone();
        if sender.send((id, Message::Add(1))).await.is_err() {
            break;
        }
    }
    drop(sender);
    assert_eq!(task.await.ok(), Some(count), "all arrived");
    count as f64 / begin.elapsed().as_secs_f64()
}

/// How much memory this process has, in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().unwrap_or_default();
    kib * 1024
}

const ENTITIES: usize = 1000;
const IDLE: u64 = 1_000_000;
