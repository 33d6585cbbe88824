//! The processes of the demonstration, and what is done to them.
#![allow(clippy::disallowed_methods, reason = "a demonstration runs in real time")]

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use tenure_cluster::Address;
use tenure_cluster::certs::Authority;
use tenure_lease::Moment;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::sync::mpsc;

use super::wire::{DECLARED_DOWN, Order, Report};
use super::{CERTS, CLUSTER, DATABASE, Load, PROCESS, name};
use crate::exit::Failure;
use crate::run::PidFd;

/// The processes: 0 is the client, the others are nodes.
pub(super) struct Stage {
    directory: Directory,
    store: String,
    ttl: Duration,
    load: Load,
    addresses: Vec<Address>,
    /// What processes are started from.
    pub(super) program: PathBuf,
    /// Whether nodes serve their own management API.
    pub(super) managed: bool,
    pub(super) actors: Vec<Actor>,
    /// The sides that do not reach each other; none while the network is whole.
    pub(super) sides: Vec<Vec<usize>>,
    /// Whom the store does not answer.
    pub(super) without_store: BTreeSet<usize>,
    news: mpsc::Sender<News>,
}

/// One process.
pub(super) struct Actor {
    pub(super) state: State,
    /// Whether the last of its processes is known to have ended.
    over: bool,
    process: Option<Process>,
}

/// How a process is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    Runs,
    /// Stopped, until then.
    Paused(Moment),
    Leaves,
    Gone(&'static str),
}

struct Process {
    pid: u32,
    handle: PidFd,
    orders: ChildStdin,
}

/// What came from a process.
pub(super) struct News {
    pub(super) from: usize,
    pub(super) what: What,
}

pub(super) enum What {
    Said(Report),
    /// It has ended, at about that moment.
    Ended {
        at: Moment,
        /// Because the others declared it down: whoever looks after such processes starts it again.
        declared_down: bool,
    },
}

impl Stage {
    /// Makes certificates and a directory for everything; nobody runs yet.
    pub(super) fn new(
        directory: Directory,
        store: String,
        ttl: Duration,
        load: Load,
        nodes: usize,
    ) -> Result<(Self, mpsc::Receiver<News>), Failure> {
        let authority = Authority::new(CLUSTER)?;
        for number in 0..=nodes {
            let path = directory.path().join(CERTS).join(name(number));
            authority.issue(&name(number), &[])?.save(path)?;
        }
        let (news, received) = mpsc::channel(NEWS);
        let actors = (0..=nodes)
            .map(|_| Actor { state: State::Gone("not started"), over: true, process: None })
            .collect();
        let addresses = addresses(nodes + 1);
        let (sides, without_store) = (Vec::new(), BTreeSet::new());
        let failed = |error| Failure::system("cannot start a process", &error);
        let program = std::env::current_exe().map_err(failed)?;
        let stage = Self {
            program,
            directory,
            store,
            ttl,
            load,
            addresses,
            managed: false,
            actors,
            sides,
            without_store,
            news,
        };
        Ok((stage, received))
    }

    pub(super) fn address(&self, number: usize) -> &Address {
        &self.addresses[number]
    }

    /// Whether the nodes host counters besides the worker.
    pub(super) fn has_counters(&self) -> bool {
        self.load.sharding.is_some()
    }

    pub(super) fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub(super) fn ledger(&self) -> PathBuf {
        self.directory.path().join(DATABASE)
    }

    /// Keeps the directory, for who wants to know what went wrong.
    pub(super) fn keep(&mut self) -> &Path {
        self.directory.keep = true;
        self.directory.path()
    }

    pub(super) fn pid(&self, number: usize) -> Option<u32> {
        self.actors[number].process.as_ref().map(|process| process.pid)
    }

    /// The numbers of the nodes that have ended.
    pub(super) fn gone(&self) -> Vec<usize> {
        (1..self.actors.len()).filter(|number| self.actors[*number].over).collect()
    }

    /// The numbers of all processes that run, stopped ones included.
    pub(super) fn running(&self) -> Vec<usize> {
        (0..self.actors.len()).filter(|number| self.actors[*number].process.is_some()).collect()
    }

    pub(super) async fn start(&mut self, number: usize) -> Result<(), Failure> {
        let failed = |error: std::io::Error| Failure::system("cannot start a process", &error);
        let log = self.directory.path().join(format!("{}.log", name(number)));
        let log = File::options().create(true).append(true).open(log).map_err(failed)?;
        let addresses: Vec<_> = self.addresses.iter().map(Address::as_str).collect();
        let mut command = Command::new(&self.program);
        command
            .arg(PROCESS)
            .arg("--directory")
            .arg(self.directory.path())
            .args(["--addresses", &addresses.join(",")])
            .args(["--number", &number.to_string()])
            .args(["--ttl", &format!("{}ms", self.ttl.as_millis())])
            .args(self.managed.then_some("--manage"))
            .args(self.load.args())
            // It may have a password in it, and arguments can be seen by everybody.
            .env("TENURE_LEASE", &self.store)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log);
        crate::run::tie_to_us(&mut command);
        let mut child = tokio::process::Command::from(command).spawn().map_err(failed)?;
        let (Some(pid), Some(orders), Some(words)) =
            (child.id(), child.stdin.take(), child.stdout.take())
        else {
            return Err(Failure::new(crate::exit::SYSTEM, "a process ended at once"));
        };
        let handle = PidFd::open(pid.cast_signed()).map_err(failed)?;
        let actor = &mut self.actors[number];
        actor.state = State::Runs;
        actor.over = false;
        actor.process = Some(Process { pid, handle, orders });
        tokio::spawn(listen(number, child, words, self.news.clone()));
        // It begins with the faults of the others.
        self.tell_sides(number).await;
        if self.without_store.contains(&number) {
            self.order(number, &Order::Store { answers: false }).await;
        }
        Ok(())
    }

    /// Takes in that a process has ended.
    pub(super) fn ended(&mut self, number: usize) {
        let actor = &mut self.actors[number];
        actor.process = None;
        actor.over = true;
        actor.state = match actor.state {
            State::Gone(why) => State::Gone(why),
            State::Leaves => State::Gone("left"),
            State::Runs | State::Paused(_) => State::Gone("ended"),
        };
    }

    /// `kill -9`, and the moment when that was done.
    pub(super) fn kill(&mut self, number: usize) -> Moment {
        let actor = &mut self.actors[number];
        if let Some(process) = actor.process.take() {
            process.handle.signal(libc::SIGKILL);
        }
        actor.state = State::Gone("killed");
        Moment::now()
    }

    /// Stops it until then, and says since when it stands still.
    pub(super) async fn pause(&mut self, number: usize, until: Moment) -> Option<Moment> {
        let actor = &mut self.actors[number];
        let process = actor.process.as_ref()?;
        process.handle.signal(libc::SIGSTOP);
        for _ in 0..STOPPING {
            if stands_still(process.pid) {
                actor.state = State::Paused(until);
                return Some(Moment::now());
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        process.handle.signal(libc::SIGCONT);
        None
    }

    /// Lets it go on, and says since when.
    pub(super) fn resume(&mut self, number: usize) -> Moment {
        let actor = &mut self.actors[number];
        let now = Moment::now();
        if let (State::Paused(_), Some(process)) = (&actor.state, &actor.process) {
            process.handle.signal(libc::SIGCONT);
            actor.state = State::Runs;
        }
        now
    }

    pub(super) async fn leave(&mut self, number: usize) {
        self.actors[number].state = State::Leaves;
        self.order(number, &Order::Leave).await;
    }

    /// The network falls into these sides; with none it is whole.
    pub(super) async fn cut(&mut self, sides: Vec<Vec<usize>>) {
        self.sides = sides;
        for number in 0..self.actors.len() {
            self.tell_sides(number).await;
        }
    }

    async fn tell_sides(&mut self, number: usize) {
        let others = self.sides.iter().filter(|side| !side.contains(&number)).flatten();
        let others = others.map(|other| self.addresses[*other].clone()).collect();
        self.order(number, &Order::Cut(others)).await;
    }

    /// The store answers all but these.
    pub(super) async fn take_store_from(&mut self, whom: BTreeSet<usize>) {
        self.without_store = whom;
        for number in 0..self.actors.len() {
            let answers = !self.without_store.contains(&number);
            self.order(number, &Order::Store { answers }).await;
        }
    }

    /// Tells a process something; one that is gone is not told.
    pub(super) async fn order(&mut self, number: usize, order: &Order) {
        if let Some(process) = &mut self.actors[number].process {
            // Our own types have string keys and no fallible parts.
            let mut line = serde_json::to_vec(order).expect("an order is JSON");
            line.push(b'\n');
            // A pipe has room for thousands of them, also while nobody reads.
            let _ = process.orders.write_all(&line).await;
        }
    }
}

async fn listen(from: usize, mut child: Child, words: ChildStdout, news: mpsc::Sender<News>) {
    let mut lines = BufReader::new(words).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let said = serde_json::from_str(&line)
            .unwrap_or_else(|_| Report::Trouble(format!("{}: {line}", name(from))));
        if news.send(News { from, what: What::Said(said) }).await.is_err() {
            return;
        }
    }
    let status = child.wait().await;
    let declared_down = status.is_ok_and(|it| it.code() == Some(i32::from(DECLARED_DOWN)));
    let what = What::Ended { at: Moment::now(), declared_down };
    let _ = news.send(News { from, what }).await;
}

/// Whether a stop signal has had its effect on every thread of a process.
fn stands_still(pid: u32) -> bool {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    tasks.flatten().all(|task| {
        let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        // After the name, which may have anything in it, comes the state.
        stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
    })
}

/// Addresses of this machine that no other demonstration has; the port is outside of the range that
/// the kernel gives away, so that a node finds its own free when it is started again.
fn addresses(count: usize) -> Vec<Address> {
    let pid = std::process::id();
    let (high, low) = (1 + (pid >> 8) % 254, pid & 0xff);
    let address = |number| format!("127.{high}.{low}.{}:7400", number + 1).parse();
    (0..count).map(|number| address(number).expect("an address")).collect()
}

/// A directory of its own, removed in the end.
pub(super) struct Directory {
    path: PathBuf,
    keep: bool,
}

impl Directory {
    pub(super) fn new() -> Result<Self, Failure> {
        let path = std::env::temp_dir().join(format!("tenure-demo-{}", std::process::id()));
        fs::create_dir(&path)
            .map_err(|error| Failure::system(&path.display().to_string(), &error))?;
        Ok(Self { path, keep: false })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if !self.keep {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// What processes may be ahead of the demonstration.
const NEWS: usize = 1024;
/// How many milliseconds a process may take to stand still.
const STOPPING: usize = 500;
