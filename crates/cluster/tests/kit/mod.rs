//! Nodes on loopback with certificates of their own, and ways to see what they told, counted and
//! logged.
#![allow(dead_code, unreachable_pub, reason = "each test uses a part of it")]
#![allow(clippy::disallowed_methods, reason = "these tests run in real time, over real sockets")]

use std::collections::BTreeMap;
use std::io::Write;
use std::net::TcpListener;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, Key, KeyName, Metadata, SharedString, Unit,
};
use tempfile::TempDir;
use tenure_cluster::certs::Authority;
use tenure_cluster::transport::{
    Event, Frames, Handles, Identity, Local, Security, Transport, TransportSettings,
};
use tenure_cluster::{Incarnation, Node};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Longer than anything takes that works.
pub const LONG: Duration = Duration::from_secs(20);

/// A cluster's authority, and a directory for its nodes' certificates.
pub struct Kit {
    pub authority: Authority,
    pub dir: TempDir,
    runtimes: Vec<Runtime>,
}

impl Kit {
    pub fn new() -> Self {
        watch();
        let authority = Authority::new("shop").unwrap();
        Self { authority, dir: TempDir::new().unwrap(), runtimes: Vec::new() }
    }

    pub fn certify(&self, name: &str) {
        self.authority.issue(name, &["localhost"]).unwrap().save(self.path(name)).unwrap();
    }

    pub fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    pub fn identity(&self, name: &str) -> Identity {
        if !self.path(name).exists() {
            self.certify(name);
        }
        Identity::load(self.path(name), "shop", name).unwrap()
    }

    pub fn node(&mut self, name: &str) -> Started {
        self.node_with(name, quick())
    }

    pub fn node_with(&mut self, name: &str, settings: TransportSettings) -> Started {
        self.node_at(name, settings, TcpListener::bind("127.0.0.1:0").unwrap(), 1)
    }

    pub fn node_at(
        &mut self,
        name: &str,
        settings: TransportSettings,
        listener: TcpListener,
        incarnation: u64,
    ) -> Started {
        let handles = self.handles();
        self.node_on(handles, name, settings, listener, incarnation)
    }

    pub fn node_on(
        &mut self,
        handles: Handles,
        name: &str,
        settings: TransportSettings,
        listener: TcpListener,
        incarnation: u64,
    ) -> Started {
        let node = Node {
            address: listener.local_addr().unwrap().to_string().parse().unwrap(),
            incarnation: Incarnation(incarnation),
        };
        self.start(handles, name, node, settings, listener)
    }

    /// A node that says that it is `node`, wherever it listens.
    pub fn node_as(&mut self, name: &str, node: Node, listener: TcpListener) -> Started {
        let handles = self.handles();
        self.start(handles, name, node, quick(), listener)
    }

    fn start(
        &mut self,
        handles: Handles,
        name: &str,
        node: Node,
        settings: TransportSettings,
        listener: TcpListener,
    ) -> Started {
        let local = Local { cluster: "shop".into(), name: name.into(), node: node.clone() };
        let security = Security::Tls(self.identity(name));
        let (events, told) = mpsc::channel(256);
        let transport =
            Transport::with_listener(listener, settings, security, local, handles, events).unwrap();
        Started { transport, told, node, incoming: Vec::new() }
    }

    /// Two runtimes of one thread each, apart from the test's own.
    pub fn handles(&mut self) -> Handles {
        let runtime = || {
            tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build()
                .unwrap()
        };
        let (control, data) = (runtime(), runtime());
        let handles = Handles { control: control.handle().clone(), data: data.handle().clone() };
        self.runtimes.extend([control, data]);
        handles
    }
}

impl Drop for Kit {
    fn drop(&mut self) {
        for runtime in self.runtimes.drain(..) {
            runtime.shutdown_background(); // A test's own runtime must not be blocked.
        }
    }
}

/// Settings that make a test short.
pub fn quick() -> TransportSettings {
    TransportSettings {
        handshake_timeout: Duration::from_secs(1),
        silence_max: Duration::from_secs(2),
        reconnect_max: Duration::from_millis(200),
        ..TransportSettings::default()
    }
}

pub struct Started {
    pub transport: Transport,
    pub told: mpsc::Receiver<Event>,
    pub node: Node,
    /// What came of `Event::Data`, which the other events are told without.
    pub incoming: Vec<mpsc::Receiver<Frames>>,
}

impl Started {
    /// The first event that `pick` takes; others are dropped.
    pub async fn told<T>(&mut self, mut pick: impl FnMut(Event) -> Option<T>) -> T {
        let found = async {
            loop {
                match self.told.recv().await.expect("the transport lives") {
                    Event::Data { frames, .. } => self.incoming.push(frames),
                    event => {
                        if let Some(found) = pick(event) {
                            return found;
                        }
                    }
                }
            }
        };
        timeout(LONG, found).await.expect("the event comes in time")
    }

    pub async fn data(&mut self) -> mpsc::Receiver<Frames> {
        let found = async {
            while self.incoming.is_empty() {
                if let Event::Data { frames, .. } =
                    self.told.recv().await.expect("the transport lives")
                {
                    self.incoming.push(frames);
                }
            }
            self.incoming.remove(0)
        };
        timeout(LONG, found).await.expect("the event comes in time")
    }

    pub async fn control_frame(&mut self) -> Vec<u8> {
        self.told(|event| match event {
            Event::Control { mut frames, .. } => frames.next().map(|frame| frame.to_vec()),
            _ => None,
        })
        .await
    }
}

pub async fn receive(frames: &mut mpsc::Receiver<Frames>) -> Frames {
    timeout(LONG, frames.recv()).await.expect("frames come in time").expect("the peer is there")
}

/// Bytes of memory that this process has in use.
pub fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// How often a metric was counted, over all its labels that contain `label`.
pub fn counted(name: &str, label: &str) -> u64 {
    let counters = watch().counters.lock().unwrap();
    let matching =
        counters.iter().filter(|((key, labels), _)| key == name && labels.contains(label));
    matching.map(|(_, value)| value.load(Ordering::Relaxed)).sum()
}

/// What a gauge says, of those whose labels contain `label`.
pub fn gauged(name: &str, label: &str) -> Option<f64> {
    let gauges = watch().gauges.lock().unwrap();
    let mut matching =
        gauges.iter().filter(|((key, labels), _)| key == name && labels.contains(label));
    matching.next().map(|(_, value)| f64::from_bits(value.load(Ordering::Relaxed)))
}

/// Lines of the log that contain `text`.
pub fn logged(text: &str) -> usize {
    let log = watch().log.lock().unwrap();
    String::from_utf8_lossy(&log).lines().filter(|line| line.contains(text)).count()
}

#[derive(Debug, Default)]
pub struct Watched {
    counters: Mutex<BTreeMap<(String, String), Arc<AtomicU64>>>,
    gauges: Mutex<BTreeMap<(String, String), Arc<AtomicU64>>>,
    log: Mutex<Vec<u8>>,
}

fn watch() -> &'static Watched {
    static WATCHED: OnceLock<&'static Watched> = OnceLock::new();
    WATCHED.get_or_init(|| {
        let watched: &'static Watched = Box::leak(Box::default());
        metrics::set_global_recorder(watched).ok().unwrap();
        let to_log = move || Log(watched);
        tracing_subscriber::fmt().with_ansi(false).with_writer(to_log).init();
        watched
    })
}

struct Log(&'static Watched);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.log.lock().unwrap().extend_from_slice(bytes);
        std::io::stderr().write_all(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

struct Count(Arc<AtomicU64>);

impl CounterFn for Count {
    fn increment(&self, by: u64) {
        self.0.fetch_add(by, Ordering::Relaxed);
    }

    fn absolute(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}

/// Only what is set is kept; what is counted up and down is not looked at.
struct Level(Arc<AtomicU64>);

impl GaugeFn for Level {
    fn increment(&self, _: f64) {}

    fn decrement(&self, _: f64) {}

    fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Ordering::Relaxed);
    }
}

fn keyed(key: &Key) -> (String, String) {
    let labels: Vec<_> =
        key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
    (key.name().to_owned(), labels.join(","))
}

impl metrics::Recorder for &'static Watched {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let value = self.counters.lock().unwrap().entry(keyed(key)).or_default().clone();
        Counter::from_arc(Arc::new(Count(value)))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        let value = self.gauges.lock().unwrap().entry(keyed(key)).or_default().clone();
        Gauge::from_arc(Arc::new(Level(value)))
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

pub fn copy_files(from: &Path, to: &Path) {
    for file in ["ca.pem", "node.pem", "node.key"] {
        std::fs::copy(from.join(file), to.join(file)).unwrap();
    }
}
