//! How fast a singleton is talked to, from another process, over loopback with mutual TLS.
#![allow(clippy::disallowed_methods)] // It measures real time.

use std::fmt;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tenure_cluster::certs::Authority;
use tenure_cluster::messaging::{Ask, CodecError, Message, Received};
use tenure_cluster::{Address, Cluster, Settings};
use tenure_singleton::{Actor, BoxError, Hosted, Singletons as _};

use super::samples::Samples;
use crate::exit::{self, Failure};

/// What `--json` prints; its shape is stable.
#[derive(Serialize, Deserialize)]
pub(super) struct Figures {
    /// Told through a remote proxy and handled there, 64 bytes each, without serde or a tag.
    tells_per_s: f64,
    ask_us_p50: f64,
    ask_us_p99: f64,
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "told through a proxy, 64 raw bytes {:.0} /s", self.tells_per_s)?;
        write!(
            f,
            "asked and answered, one by one     p50 {:.1} µs, p99 {:.1} µs",
            self.ask_us_p50, self.ask_us_p99
        )
    }
}

/// Counts what it is told.
struct Counter(Arc<AtomicU64>);

pub(super) enum Count64 {
    /// With its tag, 64 bytes.
    Add([u8; 63]),
    Count,
}

impl Message for Count64 {
    fn encode(&self, out: &mut Vec<u8>) -> Result<(), CodecError> {
        match self {
            Self::Add(bytes) => {
                out.push(1);
                out.extend_from_slice(bytes);
            }
            Self::Count => out.push(0),
        }
        Ok(())
    }

    fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        match bytes.split_first() {
            Some((1, rest)) => rest.try_into().map(Self::Add).map_err(CodecError::new),
            _ => Ok(Self::Count),
        }
    }
}

pub(super) struct Count;

impl Ask for Count {
    type Reply = u64;
}

impl From<Count> for Count64 {
    fn from(_: Count) -> Self {
        Self::Count
    }
}

impl Actor for Counter {
    type Message = Count64;

    async fn receive(&mut self, received: Received<Count64>, _: &Hosted) -> Result<(), BoxError> {
        match received.message {
            Count64::Add(bytes) => {
                std::hint::black_box(bytes);
                self.0.fetch_add(1, Ordering::Relaxed);
            }
            Count64::Count => {
                received.reply.answer::<Count>(self.0.load(Ordering::Relaxed)).await?;
            }
        }
        Ok(())
    }
}

/// Hosts the singleton here, and has the other process talk to it.
pub(super) fn measure(how_long: Duration) -> Result<Figures, Failure> {
    let place = Place::new()?;
    runtime()?.block_on(async {
        let (cluster, store) = host(&place.0).await?;
        let count = Arc::<AtomicU64>::default();
        let singleton = cluster.singleton("counter").lease(store.lease("bench.counter"));
        singleton.start(move || Counter(count.clone())).map_err(broken)?;
        let figures = other_process("singleton", &place.0, how_long).await;
        cluster.leave().await;
        figures
    })
}

/// The other process: talks, and prints what it measured.
pub(super) fn peer(place: &Path, how_long: Duration) -> Result<(), Failure> {
    let place = place.to_owned();
    let figures = in_a_task(async move {
        let (cluster, _store) = join(&place, "peer").await?;
        let proxy = cluster.singleton("counter").proxy::<Count64>().map_err(broken)?;
        let before = proxy.ask(Count).within(PATIENCE).await.map_err(broken)?;
        let began = Instant::now();
        let mut told = 0_u64;
        while began.elapsed() < how_long {
            for _ in 0..1000 {
                proxy.tell(Count64::Add([7; 63])).await.map_err(broken)?;
            }
            told += 1000;
        }
        // It has handled what came before the question.
        let after = proxy.ask(Count).within(PATIENCE).await.map_err(broken)?;
        let tells_per_s = (after - before) as f64 / began.elapsed().as_secs_f64();
        if after - before != told {
            return Err(Failure::new(
                exit::SYSTEM,
                "messages were lost; is the machine overloaded?",
            ));
        }
        let mut asked = Vec::new();
        let began = Instant::now();
        while began.elapsed() < how_long / 2 {
            let at = Instant::now();
            proxy.ask(Count).within(PATIENCE).await.map_err(broken)?;
            asked.push(at.elapsed());
        }
        let asked: Samples = asked.into_iter().collect();
        let micros = |percent| asked.percentile(percent).as_secs_f64() * 1e6;
        cluster.leave().await;
        Ok(Figures { tells_per_s, ask_us_p50: micros(50), ask_us_p99: micros(99) })
    })?;
    println!("{}", serde_json::to_string(&figures).map_err(broken)?);
    Ok(())
}

/// Has another process of this program talk to what is hosted here, and returns what it found out.
pub(super) async fn other_process<T: DeserializeOwned>(
    what: &str,
    place: &Path,
    how_long: Duration,
) -> Result<T, Failure> {
    let program = std::env::current_exe().map_err(broken)?;
    let other = tokio::process::Command::new(program)
        .args(["bench", what, "--duration"])
        .arg(format!("{}ms", how_long.as_millis()))
        .arg("--peer")
        .arg(place)
        .kill_on_drop(true)
        .output();
    let output = other.await.map_err(broken)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(broken(format!("the other process, {}: {}", output.status, said.trim())));
    }
    serde_json::from_slice(&output.stdout).map_err(broken)
}

/// As services do their work. What runs outside of the runtime's threads would be woken across threads for
/// each answer.
pub(super) fn in_a_task<T: Send + 'static>(
    work: impl Future<Output = Result<T, Failure>> + Send + 'static,
) -> Result<T, Failure> {
    runtime()?.block_on(async { tokio::spawn(work).await.map_err(broken)? })
}

/// Makes certificates for both processes, and joins as the one that hosts.
pub(super) async fn host(place: &Path) -> Result<(Cluster, tenure_lease::Store), Failure> {
    let authority = Authority::new("bench").map_err(broken)?;
    for name in ["host", "peer"] {
        let files = authority.issue(name, &["127.0.0.1"]).map_err(broken)?;
        files.save(place.join(name)).map_err(broken)?;
    }
    join(place, "host").await
}

pub(super) async fn join(
    place: &Path,
    name: &str,
) -> Result<(Cluster, tenure_lease::Store), Failure> {
    let url = format!("file:{}", place.join("leases").display());
    let store = tenure_lease::open(&url).await.map_err(broken)?;
    let free = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
    let address = Address::new(&free.map_err(broken)?.to_string()).map_err(broken)?;
    let settings = Settings::new("bench")
        .name(name)
        .address(address)
        .identity(place.join(name))
        .formation(store.lease("bench.formation"));
    Ok((Cluster::join(settings).await.map_err(broken)?, store))
}

pub(super) fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(1).enable_all();
    builder.build().map_err(broken)
}

pub(super) fn broken(error: impl fmt::Display) -> Failure {
    Failure::new(exit::SYSTEM, error.to_string())
}

/// A directory that is gone with this.
pub(super) struct Place(pub(super) PathBuf);

impl Place {
    pub(super) fn new() -> Result<Self, Failure> {
        let place = std::env::temp_dir().join(format!("tenure-bench-{}", std::process::id()));
        std::fs::create_dir_all(&place).map_err(broken)?;
        Ok(Self(place))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0); // What is left is in the directory for such things.
    }
}

pub(super) const PATIENCE: Duration = Duration::from_secs(30);
