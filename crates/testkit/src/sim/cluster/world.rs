use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tenure_cluster::formation::Formation;
use tenure_cluster::resolver::{Resolver, ResolverSettings};
use tenure_cluster::{Address, Incarnation, Membership, Node, Roles, Status, View};
use tenure_lease::Moment;

use super::arbitration::Arbitration;
use super::calm::Calm;
use super::invariants::{Invariants, Violation};
use super::network::Network;
use super::process::{Lease, Process};
use super::queue::Queue;
use super::singleton::Singletons;
use super::store::Store;
use super::truth::Truth;
use super::{SimSettings, Weather};
use crate::sim::Random;
use crate::sim::clock::Clock;

/// A simulated cluster.
pub struct Sim {
    pub(super) settings: SimSettings,
    pub(super) random: Random,
    pub(super) now: Moment,
    pub(super) places: Vec<Place>,
    pub(super) by_address: BTreeMap<Address, usize>,
    pub(super) network: Network,
    pub(super) store: Store,
    pub(super) arbitration: Arbitration,
    pub(super) queue: Queue,
    pub(super) truth: Truth,
    pub(super) singletons: Singletons,
    pub(super) invariants: Invariants,
    pub(super) incarnations: u64,
    pub(super) coverage: BTreeMap<&'static str, u64>,
    pub(super) hash: u64,
    pub(super) bytes: u64,
    /// How many tombstones each process had when it was last looked at.
    pub(super) tombstones: BTreeMap<u64, usize>,
    pub(super) events: Vec<(Duration, usize, String)>,
    /// Processes whose membership has ended, for those who host something on top of it.
    pub(super) ended: Vec<u64>,
    pub(super) calm: Option<Calm>,
    trace: Vec<String>,
}

impl std::fmt::Debug for Sim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sim").finish_non_exhaustive()
    }
}

/// An address, and the processes that answer there: one, or two while a process runs twice.
pub(super) struct Place {
    pub(super) address: Address,
    pub(super) processes: Vec<Process>,
    /// Whether it reaches the store.
    pub(super) store: bool,
    /// Whether a process that gave way is started anew.
    pub(super) restarts: bool,
    /// How many requests to the resolver's store there were.
    pub(super) flights: u64,
    /// Until then no singleton starts here.
    pub(super) sick_until: Moment,
    /// The newest cluster that a process here gave way to, since the last crash.
    pub(super) newest_cluster: u64,
}

impl Sim {
    /// A cluster of nodes that have not started.
    pub fn new(seed: u64, settings: SimSettings) -> Self {
        let places: Vec<Place> = (0..settings.nodes)
            .map(|index| Place {
                address: Address::new(&format!("n{index}:7400")).expect("an address"),
                processes: Vec::new(),
                store: true,
                restarts: true,
                flights: 0,
                sick_until: Moment::ZERO,
                newest_cluster: 0,
            })
            .collect();
        let by_address = places.iter().enumerate().map(|(i, place)| (place.address.clone(), i));
        Self {
            by_address: by_address.collect(),
            places,
            random: Random::new(seed),
            now: Moment::ZERO + Duration::from_secs(1),
            network: Network::new(),
            store: Store::new(settings.formation_ttl),
            arbitration: Arbitration::default(),
            queue: Queue::default(),
            truth: Truth::default(),
            singletons: Singletons::new(settings.singleton.as_ref()),
            invariants: Invariants::default(),
            incarnations: 0,
            coverage: BTreeMap::new(),
            hash: seed,
            bytes: 0,
            tombstones: BTreeMap::new(),
            events: Vec::new(),
            ended: Vec::new(),
            calm: None,
            trace: Vec::new(),
            settings,
        }
    }

    /// Starts every node, within a tenth of a second.
    pub fn start_all(&mut self) {
        for index in 0..self.places.len() {
            self.start(index);
        }
    }

    /// Starts a process at this place. It finds the others through the formation lease's note.
    pub fn start(&mut self, index: usize) {
        self.incarnations += 1;
        // Scrambled, as random ones are; the order on the ring comes from it.
        let incarnation = Incarnation(self.incarnations.wrapping_mul(0x2545_f491_4f6c_dd1d));
        let node = Node { address: self.places[index].address.clone(), incarnation };
        let rate = match self.settings.wrong_clocks {
            true => self.random.within(990_000..1_010_000),
            false => 1_000_000,
        };
        let mut clock = Clock::new(self.random.within(0..1 << 40), rate);
        let local = clock.read(self.now);
        let mut membership = Membership::new(
            node.clone(),
            Roles::default(),
            Arc::new([]),
            self.settings.membership.clone(),
            self.random.next(),
        );
        membership.refuse_clusters_below(self.places[index].newest_cluster);
        if let Some(strategy) = &self.settings.downing
            && strategy.only_by_verdict()
        {
            membership = membership.only_by_verdict();
        }
        let mut formation =
            Formation::by_lease(self.settings.formation_ttl, &self.settings.membership);
        formation.discovered(Vec::new());
        let resolver = self.settings.downing.clone().map(|strategy| {
            let (timing, rules) = (ResolverSettings::default(), self.settings.membership.clone());
            Resolver::new(strategy, timing, rules, self.random.next())
        });
        self.truth.born(&node);
        self.note(|| format!("{node} starts"));
        let jitter = self.random.up_to(Duration::from_millis(100));
        self.places[index].processes.push(Process {
            id: self.incarnations,
            node,
            membership,
            cluster: None,
            formation,
            clock: clock.clone(),
            wake_at: Moment::NEVER,
            paused: false,
            inbox: VecDeque::new(),
            note: None,
            lease: Lease::Contending { next: local + jitter },
            resolver,
            answered: 0,
            arbitrates: false,
            guards_since: None,
            handing_over: false,
        });
        self.singleton_starts(self.incarnations, index, &clock);
        let which = self.places[index].processes.len() - 1;
        self.settle(index, which);
    }

    /// What the process at this place believes.
    pub fn view(&self, index: usize) -> Option<&View> {
        self.places[index].processes.first()?.membership.view()
    }

    /// The nodes whose processes run and belong to a cluster, or want to.
    pub fn running(&self) -> impl Iterator<Item = usize> {
        (0..self.places.len()).filter(|index| !self.places[*index].processes.is_empty())
    }

    /// Whom this node's view calls unreachable.
    pub fn unreachable_from(&self, index: usize) -> Vec<usize> {
        let Some(view) = self.view(index) else { return Vec::new() };
        let mut found: Vec<usize> = view
            .observations()
            .filter_map(|(_, subject)| self.by_address.get(&subject.address).copied())
            .collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Whether every process that runs is up in one cluster, all believe the same, that is, the
    /// processes that run are the members, nobody is unreachable, and the leader knows that all
    /// have seen it.
    pub fn agrees(&self) -> bool {
        let mut digest = None;
        let running = self.running().count();
        for index in self.running() {
            let Some(view) = self.view(index) else { return false };
            if *digest.get_or_insert(view.digest()) != view.digest() {
                return false;
            }
        }
        let Some(first) = self.running().next() else { return false };
        let Some(view) = self.view(first) else { return false };
        view.members().len() == running
            && view.members().all(|(_, member)| member.status == Status::Up)
            && view.observations().next().is_none()
            && view.leader().is_some_and(|leader| {
                self.process(leader).is_some_and(|process| process.membership.is_converged())
            })
    }

    /// What must not have happened.
    pub fn violations(&self) -> &[Violation] {
        &self.invariants.violations
    }

    /// A hash of everything that happened.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// How many messages and timers there were.
    pub fn steps(&self) -> u64 {
        self.queue.steps()
    }

    /// How many bytes nodes have sent. Counted only if the settings ask for it.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How much virtual time has passed.
    pub fn elapsed(&self) -> Duration {
        self.now.since(Moment::ZERO + Duration::from_secs(1))
    }

    /// What happened, line by line, if the settings ask for it.
    pub fn take_trace(&mut self) -> Vec<String> {
        std::mem::take(&mut self.trace)
    }

    /// What nodes told since the last call: when, which node, what. Kept only if the settings ask for
    /// it.
    pub(super) fn take_events(&mut self) -> Vec<(Duration, usize, String)> {
        std::mem::take(&mut self.events)
    }

    /// How often each thing worth meeting was met.
    pub fn coverage(&self) -> &BTreeMap<&'static str, u64> {
        &self.coverage
    }

    /// How the network is.
    pub fn weather(&mut self, weather: Weather) {
        self.network.weather = weather;
    }

    pub(super) fn process(&self, node: &Node) -> Option<&Process> {
        let place = &self.places[*self.by_address.get(&node.address)?];
        place.processes.iter().find(|process| process.node == *node)
    }

    pub(in crate::sim) fn meet(&mut self, what: &'static str) {
        *self.coverage.entry(what).or_default() += 1;
    }

    pub(in crate::sim) fn note(&mut self, line: impl FnOnce() -> String) {
        if self.settings.trace {
            let at = self.now.since(Moment::ZERO + Duration::from_secs(1));
            self.trace.push(format!("{:>9.3} {}", at.as_secs_f64(), line()));
        }
    }
}
