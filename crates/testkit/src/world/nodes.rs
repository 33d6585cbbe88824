use std::collections::BTreeSet;
use std::future::Future;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure_cluster::downing::{LeaseMajority, Strategy};
use tenure_cluster::{Address, Settings};
use tenure_lease::Store;

use super::World;
use super::core::{Core, Main, Order, ProcessState};
use super::outside::{Database, Working};
use super::records::SimulatedStore;
use super::turn::{STEP, address};

/// What goes wrong in a service: anything.
type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A node, as the service on it sees it.
#[derive(Clone)]
pub struct Node {
    core: Arc<Core>,
    /// Among all processes.
    process: usize,
    /// Among the nodes.
    number: usize,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Node {
    /// Its number, from 0.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Its name: `node-0` and so on.
    pub fn name(&self) -> String {
        self.core.with(|state| state.name(self.process))
    }

    /// Where it listens.
    pub fn address(&self) -> Address {
        let text = address(self.process).to_string();
        text.parse().expect("an IP address and a port are an address")
    }

    /// The store of leases, as this node reaches it.
    pub fn store(&self) -> Store {
        Store::new(SimulatedStore::new(self.core.clone(), self.process))
    }

    /// Settings with which this node finds the others: a lease for forming, one for splits, no
    /// certificates. Change what your service has otherwise.
    pub fn settings(&self, cluster: &str) -> Settings {
        let store = self.store();
        let mut settings = Settings::new(cluster)
            .name(self.name())
            .address(self.address())
            .formation(store.lease(&format!("{cluster}.formation")))
            .downing(Strategy::LeaseMajority(LeaseMajority::default()))
            .arbitration(store.lease(&format!("{cluster}.arbitration")));
        settings.plaintext_without_any_protection = true;
        settings
    }

    /// The database outside of all nodes.
    pub fn database(&self) -> Database {
        Database::new(self.core.clone())
    }

    /// Does something to the outside world that cannot be taken back; see
    /// [`World::effects`](super::World::effects).
    pub fn effect(&self, what: impl Into<String>) {
        self.core.with(|state| state.effect(what.into()));
    }

    /// This node works, until what is returned is dropped, on something that only one node may work
    /// on at a time. The seed fails if another does already, unless that one's process was stopped:
    /// about such a one nothing is promised but that fences refuse it.
    pub fn working(&self, what: &str) -> Working {
        Working::begin(&self.core, self.process, what)
    }

    /// A number that follows from the seed.
    pub fn random(&self, range: Range<u64>) -> u64 {
        self.core.with(|state| state.random.within(range))
    }

    /// Puts a line into the story.
    pub fn note(&self, what: impl AsRef<str>) {
        self.core.with(|state| {
            let name = state.name(self.process);
            state.tell(&name, what);
        });
    }
}

/// The nodes of a test, each with a service `T` on it.
pub struct Nodes<T> {
    core: Arc<Core>,
    first: usize,
    services: Services<T>,
}

impl<T> std::fmt::Debug for Nodes<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nodes").finish_non_exhaustive()
    }
}

/// What runs on each node, and in which life of the node it was started.
type Services<T> = Arc<Mutex<Vec<Slot<T>>>>;
type Slot<T> = Option<(u64, Arc<T>)>;

/// The node was not running, or crashed before it was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotRunning;

impl std::fmt::Display for NotRunning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the node does not run")
    }
}

impl std::error::Error for NotRunning {}

impl<T: Send + Sync + 'static> Nodes<T> {
    /// Starts nodes. On each, `service` starts what runs there, and returns what the test talks to; it
    /// is run again when the node is restarted. A service that cannot be started fails the seed.
    pub fn start<F, R>(world: &World, count: usize, service: F) -> Self
    where
        F: Fn(Node) -> R + Send + Sync + 'static,
        R: Future<Output = Result<T, BoxError>> + Send + 'static,
    {
        let core = world.core.clone();
        let services: Services<T> = Arc::new(Mutex::new((0..count).map(|_| None).collect()));
        let service = Arc::new(service);
        let first = core.with(|state| state.processes.len());
        for number in 0..count {
            let node = Node { core: core.clone(), process: first + number, number };
            let (service, services) = (service.clone(), services.clone());
            let main: Main = Arc::new(move || {
                Box::pin(run_service(node.clone(), service(node.clone()), services.clone()))
            });
            core.with(|state| {
                let ahead = Duration::from_millis(state.random.within(0..1_000_000));
                let mut process = ProcessState::new(&format!("node-{number}"), main);
                process.clock_ahead = ahead;
                state.processes.push(process);
                state.orders.push_back(Order::Start(first + number));
            });
        }
        Self { core, first, services }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        lock(&self.services).len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What was started on a node, while it runs.
    pub fn service(&self, node: usize) -> Option<Arc<T>> {
        let (life, service) = lock(&self.services).get(node)?.clone()?;
        let process = self.first + node;
        let runs = self.core.with(|state| {
            let state = &state.processes[process];
            state.is_running && state.life == life
        });
        runs.then_some(service)
    }

    /// Whether a node's process runs, whatever its service does.
    pub fn is_running(&self, node: usize) -> bool {
        self.core.with(|state| state.processes[self.first + node].is_running)
    }

    /// The services of all nodes that run.
    pub fn services(&self) -> Vec<Arc<T>> {
        (0..self.len()).filter_map(|node| self.service(node)).collect()
    }

    /// Waits until the services of all nodes were started.
    pub async fn until_all_started(&self) {
        let world = World::new(self.core.clone());
        world.until("all are started", || self.services().len() == self.len()).await;
    }

    /// Does something on a node, as a task of its own there.
    pub async fn run<F, R>(&self, node: usize, work: F) -> Result<R::Output, NotRunning>
    where
        F: FnOnce(Arc<T>) -> R,
        R: Future + Send + 'static,
        R::Output: Send + 'static,
    {
        let service = self.service(node).ok_or(NotRunning)?;
        let process = self.first + node;
        let handle = self.core.with(|state| state.processes[process].handle.clone());
        let task = handle.ok_or(NotRunning)?.spawn(work(service));
        task.await.map_err(|_| NotRunning)
    }

    /// Cuts two groups of nodes off from each other.
    pub fn partition(&self, one: &[usize], other: &[usize]) {
        let (one, other) = (self.processes(one), self.processes(other));
        self.core.with(|state| {
            state.cut(&one, &other);
            state.cut(&other, &one);
            let (one, other) = (state.names(&one), state.names(&other));
            state.tell("world", format!("cuts {one} off from {other}"));
        });
    }

    /// Nothing gets through any more from these to those; what those send still arrives.
    pub fn one_way(&self, from: &[usize], to: &[usize]) {
        let (from, to) = (self.processes(from), self.processes(to));
        self.core.with(|state| {
            state.cut(&from, &to);
            let (from, to) = (state.names(&from), state.names(&to));
            state.tell("world", format!("cuts the way from {from} to {to}"));
        });
    }

    /// Mends all cuts.
    pub fn heal(&self) {
        self.core.with(|state| {
            state.heal();
            state.tell("world", "heals");
        });
    }

    /// Breaks all connections between two nodes, wherever their bytes are just then.
    pub fn break_connections(&self, one: usize, other: usize) {
        let (one, other) = (self.first + one, self.first + other);
        self.core.with(|state| {
            state.break_connections(one, other);
            let (one, other) = (state.name(one), state.name(other));
            state.tell("world", format!("breaks the connections between {one} and {other}"));
        });
    }

    /// Kills a node, as `kill -9` does: it says nothing to anybody, and its kernel closes its
    /// connections.
    pub async fn crash(&self, node: usize) {
        self.tell(node, "is killed");
        self.order(Order::Crash(self.first + node), node, |state| !state.is_running).await;
    }

    /// Loses a node's machine: nobody hears of it again, not even that its connections are closed.
    pub async fn lose_machine(&self, node: usize) {
        self.tell(node, "is lost with its machine");
        self.core.with(|state| state.processes[self.first + node].machine_gone = true);
        self.order(Order::Crash(self.first + node), node, |state| !state.is_running).await;
    }

    /// Starts a node again, which is killed if it still runs.
    pub async fn restart(&self, node: usize) {
        let before = self.core.with(|state| state.processes[self.first + node].life);
        self.order(Order::Start(self.first + node), node, |state| state.life > before).await;
    }

    /// Stops a node's process, as SIGSTOP does.
    pub fn pause(&self, node: usize) {
        self.tell(node, "is stopped");
        self.core.with(|state| {
            state.processes[self.first + node].is_paused = true;
            state.excuse(self.first + node);
        });
    }

    /// Lets a stopped process go on.
    pub async fn resume(&self, node: usize) {
        self.tell(node, "goes on");
        self.order(Order::Resume(self.first + node), node, |state| !state.is_paused).await;
    }

    /// The store of leases answers these nodes no more.
    pub fn store_away(&self, nodes: &[usize]) {
        let nodes = self.processes(nodes);
        self.core.with(|state| {
            state.store_away(&nodes, true);
            let names = state.names(&nodes);
            state.tell("world", format!("takes the store away from {names}"));
        });
    }

    /// The store of leases answers all nodes again.
    pub fn store_back(&self) {
        let all = self.processes(&(0..self.len()).collect::<Vec<_>>());
        self.core.with(|state| {
            state.store_away(&all, false);
            state.tell("world", "gives the store back");
        });
    }

    fn processes(&self, nodes: &[usize]) -> BTreeSet<usize> {
        nodes.iter().map(|node| self.first + node).collect()
    }

    fn tell(&self, node: usize, what: &str) {
        self.core.with(|state| {
            let name = state.name(self.first + node);
            state.tell(&name, what);
        });
    }

    /// Has something done between two steps, and waits until it is.
    async fn order(&self, order: Order, node: usize, done: impl Fn(&ProcessState) -> bool) {
        self.core.with(|state| state.orders.push_back(order));
        while !self.core.with(|state| done(&state.processes[self.first + node])) {
            tokio::time::sleep(STEP).await;
        }
    }
}

async fn run_service<T>(
    node: Node,
    starting: impl Future<Output = Result<T, BoxError>>,
    services: Services<T>,
) {
    let life = node.core.with(|state| state.processes[node.process].life);
    match starting.await {
        Ok(service) => {
            let former = lock(&services)[node.number].replace((life, Arc::new(service)));
            drop(former);
        }
        Err(error) => node.core.with(|state| {
            let name = state.name(node.process);
            state.violated(format!("the service on {name} cannot be started: {error}"));
        }),
    }
}

fn lock<T>(services: &Services<T>) -> std::sync::MutexGuard<'_, Vec<Slot<T>>> {
    // A slot is replaced whole.
    services.lock().unwrap_or_else(PoisonError::into_inner)
}
