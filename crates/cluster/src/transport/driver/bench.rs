//! How fast the transport is: two processes, mutual TLS, one data lane and both control lanes.
//!
//! Messages of 64 bytes go one way as fast as they are taken, while control frames go there and
//! back. Whoever calls [`run`] gives a command that ends up in [`peer`], so that each side has a
//! process, and its own runtimes, for itself.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::Transport;
use crate::certs::{Authority, CertsError};
use crate::transport::{
    Event, Handles, Identity, IdentityError, Local, Security, TransportError, TransportSettings,
};
use crate::{Incarnation, Node};

/// What was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// Messages of 64 bytes that arrived in a second, over mutual TLS.
    pub messages_per_s: f64,
    /// Milliseconds for a control frame to come back, nothing else going on: the median.
    pub control_ms_p50_idle: f64,
    /// The same while messages flow: the median.
    pub control_ms_p50_saturated: f64,
    /// The same while messages flow: 99 of 100 were faster.
    pub control_ms_p99_saturated: f64,
}

/// Measures for about `how_long` with a peer that `command` starts.
pub fn run(command: Command, how_long: Duration) -> Result<Figures, BenchError> {
    let dir = Scratch::new()?;
    let authority = Authority::new(CLUSTER)?;
    for name in [SENDER, RECEIVER] {
        authority.issue(name, &[])?.save(dir.0.join(name))?;
    }
    let mut peer = Peer::start(command, &dir.0)?;
    let node = peer.node()?;
    let mut side = Side::new(&dir.0, SENDER)?;
    let data = side.data.handle().clone();
    data.block_on(measure(&mut side, &node, how_long))
}

/// The other side: receives, answers, and ends when its standard input does.
pub fn peer() -> Result<(), BenchError> {
    let mut dir = String::new();
    io::stdin().read_line(&mut dir)?;
    let Side { transport, mut events, control, data } = Side::new(Path::new(dir.trim()), RECEIVER)?;
    println!("{}", transport.local().node.address);
    io::stdout().flush()?;
    let take_on = data.handle().clone();
    control.spawn(async move {
        let count = Arc::new(AtomicU64::new(0));
        while let Some(event) = events.recv().await {
            match event {
                Event::Data { frames, .. } => {
                    take_on.spawn(take(frames, count.clone()));
                }
                Event::Control { from, frames } => {
                    for frame in frames {
                        let answer = match frame[0] {
                            COUNT => {
                                [&[COUNT][..], &count.load(Relaxed).to_le_bytes()].concat().into()
                            }
                            _ => frame,
                        };
                        transport.control(&from.node.address, None, answer);
                    }
                }
                _ => {}
            }
        }
    });
    // Held open by the other side for as long as it lives.
    io::copy(&mut io::stdin(), &mut io::sink())?;
    Ok(())
}

async fn take(mut frames: mpsc::Receiver<crate::transport::Frames>, count: Arc<AtomicU64>) {
    while let Some(batch) = frames.recv().await {
        let mut right = 0;
        for message in batch {
            // Looked at, as whoever decodes it would.
            right += u64::from(message.len() == MESSAGE && message[MESSAGE - 1] == BYTE);
        }
        count.fetch_add(right, Relaxed);
    }
}

async fn measure(side: &mut Side, node: &Node, how_long: Duration) -> Result<Figures, BenchError> {
    // Opens both control links.
    ask(side, node, &[PING]).await?;
    let (idle, _) = ping(side, node, how_long / 4).await?;

    let lane = side.transport.data(node);
    let sending = side.data.spawn(async move {
        while lane.send_with(|out| out.extend_from_slice(&[BYTE; MESSAGE])).await.is_ok() {}
    });
    sleep(how_long / 4).await;
    let (before, since) = (count(side, node).await?, Instant::now());
    let (busy, failed) = ping(side, node, how_long).await?;
    let arrived = count(side, node).await? - before;
    let took = since.elapsed();
    sending.abort();
    if failed > 0 || sending.await.is_ok() {
        return Err(BenchError::Broken(format!("{failed} control frames were lost")));
    }
    Ok(Figures {
        messages_per_s: arrived as f64 / took.as_secs_f64(),
        control_ms_p50_idle: percentile(&idle, 50),
        control_ms_p50_saturated: percentile(&busy, 50),
        control_ms_p99_saturated: percentile(&busy, 99),
    })
}

/// How long control frames take there and back, sorted, and how many did not return.
async fn ping(
    side: &mut Side,
    node: &Node,
    how_long: Duration,
) -> Result<(Vec<Duration>, usize), BenchError> {
    let (start, mut took, mut lost) = (Instant::now(), Vec::new(), 0);
    while start.elapsed() < how_long {
        let sent = Instant::now();
        match ask(side, node, &[PING]).await {
            Ok(_) => took.push(sent.elapsed()),
            Err(_) => lost += 1,
        }
        sleep(Duration::from_millis(5)).await;
    }
    took.sort();
    Ok((took, lost))
}

async fn count(side: &mut Side, node: &Node) -> Result<u64, BenchError> {
    let answer = ask(side, node, &[COUNT]).await?;
    let count = answer.get(1..9).and_then(|count| count.try_into().ok());
    count.map(u64::from_le_bytes).ok_or_else(|| BenchError::Broken("no count".into()))
}

async fn ask(
    side: &mut Side,
    node: &Node,
    question: &'static [u8],
) -> Result<bytes::Bytes, BenchError> {
    side.transport.control(&node.address, None, question);
    let answer = async {
        loop {
            match side.events.recv().await {
                Some(Event::Control { mut frames, .. }) => return frames.next(),
                Some(Event::Failed { refusal, .. }) => tracing::warn!("{refusal}"),
                Some(_) => {}
                None => return None,
            }
        }
    };
    let answer = timeout(Duration::from_secs(10), answer).await.ok().flatten();
    answer.ok_or_else(|| BenchError::Broken("the peer does not answer".into()))
}

fn percentile(sorted: &[Duration], percent: usize) -> f64 {
    let index = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
    sorted.get(index).map_or(f64::NAN, |took| took.as_secs_f64() * 1e3)
}

/// One process's end.
struct Side {
    transport: Transport,
    events: mpsc::Receiver<Event>,
    control: Runtime,
    data: Runtime,
}

impl Side {
    fn new(dir: &Path, name: &str) -> Result<Self, BenchError> {
        let control = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let data = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?.to_string();
        let node = node(&address)?;
        let local = Local { cluster: CLUSTER.into(), name: name.into(), node };
        let security = Security::Tls(Identity::load(dir.join(name), CLUSTER, name)?);
        let handles = Handles { control: control.handle().clone(), data: data.handle().clone() };
        let (sender, events) = mpsc::channel(256);
        let settings = TransportSettings::default();
        let transport =
            Transport::with_listener(listener, settings, security, local, handles, sender)?;
        Ok(Self { transport, events, control, data })
    }
}

fn node(address: &str) -> Result<Node, BenchError> {
    let address = address.trim().parse();
    let address =
        address.map_err(|error: crate::AddressError| BenchError::Broken(error.to_string()))?;
    Ok(Node { address, incarnation: Incarnation(1) })
}

/// The other process; killed when this one is done.
struct Peer(Child);

impl Peer {
    fn start(mut command: Command, dir: &Path) -> Result<Self, BenchError> {
        let mut peer = Self(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?);
        if let Some(stdin) = &mut peer.0.stdin {
            writeln!(stdin, "{}", dir.display())?;
        }
        Ok(peer)
    }

    fn node(&mut self) -> Result<Node, BenchError> {
        let mut line = String::new();
        if let Some(stdout) = self.0.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        node(&line)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A directory that goes when it is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> io::Result<Self> {
        let name = format!("tenure-bench-{}-{:x}", std::process::id(), super::random());
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir(&dir)?;
        Ok(Self(dir))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Why nothing could be measured.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// Certificates.
    #[error(transparent)]
    Certs(#[from] CertsError),
    /// Certificates.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The transport did not start.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// Processes or files.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The peer did not do what it should.
    #[error("the benchmark broke off: {0}")]
    Broken(String),
}

const CLUSTER: &str = "bench";
const SENDER: &str = "sender";
const RECEIVER: &str = "receiver";
const MESSAGE: usize = 64;
const BYTE: u8 = 7;
const PING: u8 = 1;
const COUNT: u8 = 2;
