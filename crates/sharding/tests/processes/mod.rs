//! Nodes as real processes: the test starts itself again, as a child, and tells it on stdin what to do.

pub(crate) mod log;

use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_cluster::downing::{LeaseMajority, Strategy};
use tenure_cluster::transport::Switch;
use tenure_cluster::{Address, Cluster, Member, Node, Status as MemberStatus};
use tenure_lease::{Moment, Store, Token};
use tenure_sharding::{BoxError, Daemon, Daemons, Hosted, Settings, Setup, Shardings as _};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

pub(crate) const TTL: Duration = Duration::from_secs(3);
pub(crate) const NODES: usize = 5;
pub(crate) const WORKERS: u32 = 20;
/// What works takes less.
pub(crate) const LONG: Duration = Duration::from_secs(60);
/// How often a worker says that it works.
const BEAT: Duration = Duration::from_millis(20);
const LOOK: Duration = Duration::from_millis(20);

/// Writes down that it works, while it may; and that it would go on, when it may not any more.
struct Worker {
    number: u32,
    process: String,
    log: Arc<File>,
}

/// Ends when it is dropped.
struct Run<'a>(&'a Worker, &'a Hosted);

impl Run<'_> {
    fn write(&self, what: &str, at: Moment) {
        let (Worker { number, process, log }, Token { term, step }) = (self.0, self.1.token());
        let line = format!("{what} {process} {number} {term} {step} {}\n", at.as_nanos());
        // In one go: lines do not mix.
        (&**log).write_all(line.as_bytes()).unwrap();
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        self.write("ends", Moment::now());
    }
}

impl Daemon for Worker {
    async fn run(&mut self, hosted: &Hosted) -> Result<(), BoxError> {
        let run = Run(self, hosted);
        loop {
            // Before it asks whether it may: it may have been stopped since.
            let at = Moment::now();
            run.write(if hosted.is_held() { "works" } else { "late" }, at);
            sleep(BEAT).await;
        }
    }
}

/// A node, until it is told to leave, is out of the cluster, or whoever started it is gone.
pub(crate) async fn child() {
    let Ok(process) = std::env::var("TENURE_CHILD") else { return };
    let place = PathBuf::from(std::env::var("TENURE_PLACE").unwrap());
    let address = std::env::var("TENURE_ADDRESS").unwrap();
    let mut orders = orders();
    let switch = Switch::default();
    let url = format!("file:{}", place.join("leases").display());
    let store = tenure_lease::open(&url).await.unwrap();
    let cluster = Cluster::start(settings(&process, &address, &store, &switch)).unwrap();
    let log = OpenOptions::new().append(true).open(place.join("log")).unwrap();
    let log = Arc::new(log);
    let workers = host(&cluster, &store, &process, &log);
    let mut said = None;
    loop {
        tokio::select! {
            order = orders.recv() => match order.as_deref().map(str::trim) {
                None => return,
                Some("leave") => return cluster.leave().await,
                Some(cut) => switch.cut(cut.split_whitespace().map(|it| Address::new(it).unwrap())),
            },
            _ = cluster.ended() => break,
            () = sleep(LOOK) => {
                let sees = Some((workers.status().coordinates, agreed(&cluster)));
                if said != sees && let Some((coordinates, members)) = sees {
                    let line = format!("sees {process} {coordinates} {members}\n");
                    (&*log).write_all(line.as_bytes()).unwrap();
                    said = sees;
                }
            }
        }
    }
    let ended = async {
        while !workers.status().hosted.is_empty() {
            sleep(LOOK).await;
        }
    };
    let _ = timeout(LONG, ended).await;
}

/// How many members there are, if all of them are up and have seen that; else none.
fn agreed(cluster: &Cluster) -> usize {
    let (view, known_by) = cluster.seen();
    let agrees = |(node, member): (&Node, &Member)| {
        member.status == MemberStatus::Up && known_by.contains(node)
    };
    let all = view.members().all(agrees) && view.observations().next().is_none();
    if all { view.members().count() } else { 0 }
}

fn orders() -> mpsc::UnboundedReceiver<String> {
    let (tell, orders) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let _ = tell.send(line); // It may have ended.
        }
    });
    orders
}

/// The session is that of the node, whichever process it is.
fn host(cluster: &Cluster, store: &Store, process: &str, log: &Arc<File>) -> Daemons {
    let (node, _) = process.split_once('-').unwrap();
    let session = store.lease(&format!("workers.{node}")).ttl(TTL).kept_session().unwrap();
    let settings = Settings {
        resend_interval: Duration::from_millis(200),
        patience: Duration::from_millis(500),
        rebalance_interval: Duration::from_secs(1),
        stable_after: Duration::from_secs(1),
        ..Settings::new(Setup::Sessions, WORKERS)
    };
    let kind = cluster.sharding("worker").settings(settings);
    let kind = kind.lease(store.lease("workers").ttl(TTL)).session(&session);
    let (process, log) = (process.to_owned(), log.clone());
    let make = move |number| Worker { number, process: process.clone(), log: log.clone() };
    kind.daemons(WORKERS, make).unwrap()
}

fn settings(name: &str, at: &str, store: &Store, switch: &Switch) -> tenure_cluster::Settings {
    let mut settings = tenure_cluster::Settings::new("shop")
        .name(name)
        .address(Address::new(at).unwrap())
        .formation(store.lease("formation").ttl(TTL))
        .arbitration(store.lease("arbitration").ttl(TTL))
        .downing(Strategy::LeaseMajority(LeaseMajority::default()));
    settings.plaintext_without_any_protection = true;
    settings.membership.heartbeat_interval = Duration::from_millis(250);
    settings.membership.acceptable_pause = Duration::from_secs(1);
    settings.membership.gossip_interval = Duration::from_millis(250);
    settings.membership.joining_patience = Duration::from_secs(2);
    settings.membership.leave_timeout = Duration::from_secs(3);
    settings.resolver.stable_after = Some(Duration::from_secs(1));
    settings.transport.silence_max = Duration::from_secs(2);
    settings.transport.reconnect_max = Duration::from_millis(250);
    settings.transport.switch = Some(switch.clone());
    settings
}

/// A node's process, killed with this.
pub(crate) struct Process {
    pub(crate) name: String,
    child: Child,
}

impl Process {
    pub(crate) fn start(place: &Path, address: &str, name: String) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture"])
            .env("TENURE_CHILD", &name)
            .env("TENURE_PLACE", place)
            .env("TENURE_ADDRESS", address)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self { name, child }
    }

    /// A line on its stdin; it may have ended.
    pub(crate) fn order(&mut self, order: &str) {
        let _ = writeln!(self.child.stdin.as_mut().unwrap(), "{order}");
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap(); // With SIGKILL.
        self.child.wait().unwrap();
    }

    /// Stops it as SIGSTOP does, or lets it go on.
    pub(crate) fn stop(&self, stop: bool) {
        let signal = if stop { "-STOP" } else { "-CONT" };
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    /// Waits for it to end by itself.
    pub(crate) fn end(&mut self) -> ExitStatus {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(began.elapsed() < LONG, "{} does not end", self.name);
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An address that nobody listens at.
pub(crate) fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}
