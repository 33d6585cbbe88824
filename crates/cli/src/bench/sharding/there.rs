//! What another process measures, over loopback with mutual TLS.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use tenure_cluster::messaging::Received;
use tenure_sharding::{BoxError, Entity, EntityRef, Hosted, Shardings as _};

use super::super::samples::Samples;
use super::super::singleton::{
    Count, Count64, PATIENCE, Place, broken, host, in_a_task, join, other_process, runtime,
};
use super::There;
use crate::exit::{self, Failure};

/// Counts what it is told.
struct Counter(u64, Arc<AtomicU64>);

impl Entity for Counter {
    type Message = Count64;

    async fn receive(&mut self, received: Received<Count64>, _: &Hosted) -> Result<(), BoxError> {
        match received.message {
            Count64::Add(bytes) => {
                std::hint::black_box(bytes);
                self.0 += 1;
            }
            Count64::Count => {
                self.1.fetch_add(std::mem::take(&mut self.0), Ordering::Relaxed);
                received.reply.answer::<Count>(self.1.load(Ordering::Relaxed)).await?;
            }
        }
        Ok(())
    }
}

/// Hosts entities here, and has the other process talk to them.
pub(super) fn measure(how_long: Duration) -> Result<There, Failure> {
    let place = Place::new()?;
    runtime()?.block_on(async {
        let (cluster, store) = host(&place.0).await?;
        let count = Arc::<AtomicU64>::default();
        let kind = cluster.sharding("counter").shards(SHARDS).lease(store.lease("bench.counters"));
        let counters = kind.start(move |_| Counter(0, count.clone())).map_err(broken)?;
        while counters.status().hosted.len() < SHARDS as usize {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        echo(&place.0).await?;
        let figures = other_process("sharding", &place.0, how_long).await;
        cluster.leave().await;
        figures
    })
}

/// The other process: talks, and prints what it measured.
pub(in super::super) fn peer(place: &Path, how_long: Duration) -> Result<(), Failure> {
    let place = place.to_owned();
    let there = in_a_task(async move {
        let (cluster, _store) = join(&place, "peer").await?;
        let kind = cluster.sharding("counter").shards(SHARDS);
        let counters = kind.proxy::<Count64>().map_err(broken)?;
        let ids: Vec<_> =
            (0..ENTITIES).map(|id| counters.entity(&format!("entity-{id}"))).collect();
        let before = total(&ids).await?;
        let began = Instant::now();
        let mut told = 0_u64;
        while began.elapsed() < how_long {
            for id in &ids {
                id.tell(Count64::Add([7; 63])).await.map_err(broken)?;
            }
            told += ids.len() as u64;
        }
        // It has handled what came before the question.
        ids[ids.len() - 1].ask(Count).within(PATIENCE).await.map_err(broken)?;
        let seconds = began.elapsed().as_secs_f64();
        let arrived = total(&ids).await? - before;
        if arrived != told {
            let lost = format!(
                "{} of {told} messages were lost; is the machine overloaded?",
                told - arrived
            );
            return Err(Failure::new(exit::SYSTEM, lost));
        }
        let mut asked = Vec::new();
        let began = Instant::now();
        while began.elapsed() < how_long / 2 {
            let id = &ids[asked.len() % ids.len()];
            let at = Instant::now();
            id.ask(Count).within(PATIENCE).await.map_err(broken)?;
            asked.push(at.elapsed());
        }
        let asked: Samples = asked.into_iter().collect();
        let micros = |percent| asked.percentile(percent).as_secs_f64() * 1e6;
        let bare_ping_us_p50 = ping(&place, how_long / 2).await?;
        cluster.leave().await;
        Ok(There {
            remote_tells_per_s: told as f64 / seconds,
            ask_us_p50: micros(50),
            ask_us_p99: micros(99),
            bare_ping_us_p50,
        })
    })?;
    println!("{}", serde_json::to_string(&there).map_err(broken)?);
    Ok(())
}

/// How many all of them have counted: each adds what it has when it is asked.
async fn total(ids: &[EntityRef<Count64>]) -> Result<u64, Failure> {
    let mut total = 0;
    for id in ids {
        total = id.ask(Count).within(PATIENCE).await.map_err(broken)?;
    }
    Ok(total)
}

/// Sends back what comes over a bare connection, from a task, for as long as this process lives.
async fn echo(place: &Path) -> Result<(), Failure> {
    let socket = TcpListener::bind("127.0.0.1:0").await.map_err(broken)?;
    let address = socket.local_addr().map_err(broken)?.to_string();
    std::fs::write(place.join(ECHO), address).map_err(broken)?;
    tokio::spawn(async move {
        let Ok((mut stream, _)) = socket.accept().await else { return };
        let _ = stream.set_nodelay(true);
        let mut bytes = [0; 64];
        while stream.read_exact(&mut bytes).await.is_ok() && stream.write_all(&bytes).await.is_ok()
        {
        }
    });
    Ok(())
}

/// What two processes of this machine need at least for 64 bytes there and back between two tasks, without
/// encryption or anything else: the middle, in microseconds.
async fn ping(place: &Path, how_long: Duration) -> Result<f64, Failure> {
    let address = std::fs::read_to_string(place.join(ECHO)).map_err(broken)?;
    let mut stream = TcpStream::connect(address).await.map_err(broken)?;
    stream.set_nodelay(true).map_err(broken)?;
    let (mut bytes, mut pinged) = ([0; 64], Vec::new());
    let began = Instant::now();
    while began.elapsed() < how_long {
        let at = Instant::now();
        stream.write_all(&bytes).await.map_err(broken)?;
        stream.read_exact(&mut bytes).await.map_err(broken)?;
        pinged.push(at.elapsed());
    }
    let pinged: Samples = pinged.into_iter().collect();
    Ok(pinged.percentile(50).as_secs_f64() * 1e6)
}

/// Where its address is.
const ECHO: &str = "echo";
const SHARDS: u32 = 64;
const ENTITIES: usize = 1000;
