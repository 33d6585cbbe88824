//! What is measured in one process.

use std::collections::HashMap;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tenure_cluster::messaging::{CodecError, Message, Received};
use tenure_cluster::{Address, Cluster, Settings};
use tenure_lease::{MemoryStore, Store};
use tenure_sharding::{BoxError, Entity, Hosted, Sharding, Shardings as _};

use super::super::counting::{Counting, Counts};
use super::super::singleton::broken;
use crate::exit::Failure;

/// Adds up.
struct Counter {
    total: u64,
    seen: Arc<AtomicU64>,
}

pub(super) struct Add(u64);

impl Message for Add {
    fn encode(&self, out: &mut Vec<u8>) -> Result<(), CodecError> {
        out.extend_from_slice(&self.0.to_le_bytes());
        Ok(())
    }

    fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        bytes.try_into().map(|bytes| Self(u64::from_le_bytes(bytes))).map_err(CodecError::new)
    }
}

impl Entity for Counter {
    type Message = Add;

    async fn receive(&mut self, received: Received<Add>, _: &Hosted) -> Result<(), BoxError> {
        self.total += received.message.0;
        // Only what somebody reads now and then is shared between threads.
        if self.total.is_multiple_of(SHARED_EVERY) {
            self.seen.fetch_add(SHARED_EVERY, Relaxed);
        }
        Ok(())
    }
}

/// A loop over a hash map of counters, fed by one bounded channel.
pub(super) fn bare(how_long: Duration, entities: usize) -> Result<f64, Failure> {
    runtime()?.block_on(async {
        let (sender, mut receiver) = tokio::sync::mpsc::channel::<(Arc<str>, u64)>(4096);
        let ids: Vec<Arc<str>> = (0..entities).map(|id| format!("entity-{id}").into()).collect();
        let task = tokio::spawn(async move {
            let mut counters: HashMap<Arc<str>, u64> = HashMap::new();
            let mut batch = Vec::new();
            while receiver.recv_many(&mut batch, 256).await > 0 {
                for (id, number) in batch.drain(..) {
                    *counters.entry(id).or_default() += number;
                }
            }
            counters.values().sum::<u64>()
        });
        let telling = tokio::spawn(async move {
            let began = Instant::now();
            let mut told = 0_u64;
            while began.elapsed() < how_long {
                for _ in 0..1000 {
                    let id = ids[told as usize % ids.len()].clone();
                    sender.send((id, 1)).await.map_err(broken)?;
                    told += 1;
                }
            }
            Ok::<_, Failure>((began, told))
        });
        let (began, told) = telling.await.map_err(broken)??;
        let counted = task.await.map_err(broken)?;
        debug_assert_eq!(counted, told, "all arrived");
        Ok(told as f64 / began.elapsed().as_secs_f64())
    })
}

/// Told to entities of this node.
pub(super) fn local(how_long: Duration, entities: usize) -> Result<f64, Failure> {
    runtime()?.block_on(async {
        let store = Store::new(MemoryStore::new());
        let cluster = join(&store).await?;
        let (counters, seen) = host(&cluster, 64)?;
        let ids: Vec<_> =
            (0..entities).map(|id| counters.entity(&format!("entity-{id}"))).collect();
        // So that all of them are there.
        for id in &ids {
            id.tell(Add(SHARED_EVERY)).await.map_err(broken)?;
        }
        let telling = tokio::spawn(async move {
            let began = Instant::now();
            let mut told = 0_u64;
            while began.elapsed() < how_long {
                // A whole number of rounds, so that each has as many as it says.
                for id in &ids {
                    id.tell(Add(1)).await.map_err(broken)?;
                }
                told += ids.len() as u64;
            }
            let rounds = told / ids.len() as u64;
            for _ in rounds..rounds.next_multiple_of(SHARED_EVERY) {
                for id in &ids {
                    id.tell(Add(1)).await.map_err(broken)?;
                }
                told += ids.len() as u64;
            }
            Ok::<_, Failure>((began, told))
        });
        let (began, told) = telling.await.map_err(broken)??;
        while seen.load(Relaxed) < told + entities as u64 * SHARED_EVERY {
            tokio::task::yield_now().await;
        }
        let rate = told as f64 / began.elapsed().as_secs_f64();
        cluster.leave().await;
        Ok(rate)
    })
}

/// What an entity takes that does nothing.
pub(super) fn idle(entities: u64) -> Result<f64, Failure> {
    runtime()?.block_on(async {
        let store = Store::new(MemoryStore::new());
        let cluster = join(&store).await?;
        let (counters, seen) = host(&cluster, 64)?;
        counters.entity("first").tell(Add(SHARED_EVERY)).await.map_err(broken)?;
        let before = resident();
        for id in 0..entities {
            let entity = counters.entity(&format!("idle-{id}"));
            entity.tell(Add(SHARED_EVERY)).await.map_err(broken)?;
        }
        while seen.load(Relaxed) < (entities + 1) * SHARED_EVERY {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let each = (resident() - before) as f64 / entities as f64;
        cluster.leave().await;
        Ok(each - size_of::<Counter>() as f64)
    })
}

/// How long it takes until so many shards are served by one node, and how often a second the store is
/// written to from then on.
pub(super) fn shards(shards: u32) -> Result<(f64, f64), Failure> {
    runtime()?.block_on(async {
        let (counting, counts) = Counting::new(Arc::new(MemoryStore::new()));
        let store = Store::new(counting);
        let cluster = join(&store).await?;
        let session = store.lease("bench.node").ttl(TTL).kept_session().map_err(broken)?;
        session.held().await;
        let began = Instant::now();
        let seen = Arc::<AtomicU64>::default();
        let kind = cluster.sharding("counter").shards(shards);
        let kind = kind.lease(store.lease("bench.counters").ttl(TTL)).session(&session);
        let counters =
            kind.start(move |_| Counter { total: 0, seen: seen.clone() }).map_err(broken)?;
        while counters.status().hosted.len() < shards as usize {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let millis = began.elapsed().as_secs_f64() * 1e3;
        let renewals = writes_per_s(&counts).await;
        cluster.leave().await;
        Ok((millis, renewals))
    })
}

async fn writes_per_s(counts: &Counts) -> f64 {
    let (began, before) = (Instant::now(), counts.writes());
    tokio::time::sleep(TTL * 3).await;
    (counts.writes() - before) as f64 / began.elapsed().as_secs_f64()
}

fn host(cluster: &Cluster, shards: u32) -> Result<(Sharding<Add>, Arc<AtomicU64>), Failure> {
    let seen = Arc::<AtomicU64>::default();
    let made = seen.clone();
    let kind = cluster.sharding("counter").shards(shards);
    let counters = kind.start(move |_| Counter { total: 0, seen: made.clone() }).map_err(broken)?;
    Ok((counters, seen))
}

async fn join(store: &Store) -> Result<Cluster, Failure> {
    let free = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
    let address = Address::new(&free.map_err(broken)?.to_string()).map_err(broken)?;
    let formation = store.lease("bench.formation");
    let mut settings = Settings::new("bench").address(address).formation(formation);
    settings.plaintext_without_any_protection = true; // There is nobody else.
    Cluster::join(settings).await.map_err(broken)
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all();
    builder.build().map_err(broken)
}

/// How much memory this process has, in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().unwrap_or_default();
    kib * 1024
}

const TTL: Duration = Duration::from_secs(3);
const SHARED_EVERY: u64 = 16;
