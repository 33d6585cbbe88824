use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tenure_cluster::formation::{Formation, FormationEffect};
use tenure_cluster::membership::Effect;
use tenure_cluster::message::Control;
use tenure_cluster::{Address, Ending, Event, Incarnation, Membership, Node, Roles, Status, View};
use tenure_lease::Moment;

use super::invariants::{Invariants, Told, Violation};
use super::network::Network;
use super::process::{ASK_STORE, Lease, Process};
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
    by_address: BTreeMap<Address, usize>,
    pub(super) network: Network,
    store: Store,
    queue: BinaryHeap<Step>,
    steps: u64,
    pub(super) truth: Truth,
    invariants: Invariants,
    incarnations: u64,
    pub(super) coverage: BTreeMap<&'static str, u64>,
    pub(super) endings: BTreeMap<&'static str, u64>,
    hash: u64,
    bytes: u64,
    trace: Vec<String>,
}

/// An address, and the processes that answer there: one, or two while a process runs twice.
pub(super) struct Place {
    pub(super) address: Address,
    pub(super) processes: Vec<Process>,
    /// Whether it reaches the store.
    pub(super) store: bool,
    /// Whether a process that gave way is started anew.
    pub(super) restarts: bool,
}

struct Step {
    at: Moment,
    number: u64,
    what: What,
}

enum What {
    Deliver { place: usize, to: Option<Incarnation>, from: Node, message: Control },
    Wake { place: usize, incarnation: Incarnation, at: Moment },
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
            queue: BinaryHeap::new(),
            steps: 0,
            truth: Truth::default(),
            invariants: Invariants::default(),
            incarnations: 0,
            coverage: BTreeMap::new(),
            endings: BTreeMap::new(),
            hash: seed,
            bytes: 0,
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
        let membership = Membership::new(
            node.clone(),
            Roles::default(),
            Arc::new([]),
            self.settings.membership.clone(),
            self.random.next(),
        );
        let mut formation = Formation::by_lease(self.settings.formation_ttl);
        formation.discovered(Vec::new());
        self.truth.born(&node);
        self.note(|| format!("{node} starts"));
        let jitter = self.random.up_to(Duration::from_millis(100));
        self.places[index].processes.push(Process {
            node,
            membership,
            formation,
            clock,
            wake_at: Moment::NEVER,
            paused: false,
            inbox: VecDeque::new(),
            lease: Lease::Contending { next: local + jitter },
        });
        let which = self.places[index].processes.len() - 1;
        self.settle(index, which);
    }

    /// Lets time pass.
    pub fn run_for(&mut self, duration: Duration) {
        let end = self.now + duration;
        while self.queue.peek().is_some_and(|step| step.at <= end) {
            self.step();
        }
        self.now = end;
    }

    /// Lets time pass until this holds, and returns how much; `None` if it did not in that time.
    /// Looked at ten times a second.
    pub fn run_until(
        &mut self,
        most: Duration,
        mut holds: impl FnMut(&Self) -> bool,
    ) -> Option<Duration> {
        let began = self.now;
        while self.now.since(began) <= most {
            if holds(self) {
                return Some(self.now.since(began));
            }
            self.run_for(LOOK);
        }
        None
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
        self.steps
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

    pub(super) fn meet(&mut self, what: &'static str) {
        *self.coverage.entry(what).or_default() += 1;
    }

    pub(super) fn note(&mut self, line: impl FnOnce() -> String) {
        if self.settings.trace {
            let at = self.now.since(Moment::ZERO + Duration::from_secs(1));
            self.trace.push(format!("{:>9.3} {}", at.as_secs_f64(), line()));
        }
    }

    fn step(&mut self) {
        let Some(step) = self.queue.pop() else { return };
        self.now = step.at;
        match step.what {
            What::Deliver { place, to, from, message } => self.deliver(place, to, from, message),
            What::Wake { place, incarnation, at } => self.wake(place, incarnation, at),
        }
    }

    fn deliver(&mut self, place: usize, to: Option<Incarnation>, from: Node, message: Control) {
        let processes = &mut self.places[place].processes;
        if processes.is_empty() {
            return;
        }
        let which = match processes.len() {
            1 => 0,
            count => self.random.within(0..count as u64) as usize,
        };
        let process = &mut processes[which];
        // The transport's handshake says which incarnation answers.
        if to.is_some_and(|to| to != process.node.incarnation) {
            return;
        }
        if process.paused {
            if process.inbox.len() < INBOX {
                process.inbox.push_back((from, message));
            }
            return;
        }
        let local = process.clock.read(self.now);
        process.membership.receive(&from, message, local);
        self.settle(place, which);
    }

    fn wake(&mut self, place: usize, incarnation: Incarnation, at: Moment) {
        let processes = &mut self.places[place].processes;
        for which in 0..processes.len() {
            let process = &processes[which];
            if process.node.incarnation == incarnation && process.wake_at == at && !process.paused {
                return self.poll(place, which);
            }
        }
    }

    pub(super) fn poll(&mut self, place: usize, which: usize) {
        let process = &mut self.places[place].processes[which];
        process.wake_at = Moment::NEVER;
        let local = process.clock.read(self.now);
        process.membership.poll(local);
        if process.lease.next() <= local {
            self.tend_lease(place, which, local);
        }
        self.settle(place, which);
    }

    /// Asks the store for the formation lease, or renews it.
    fn tend_lease(&mut self, place: usize, which: usize, local: Moment) {
        let ttl = self.settings.formation_ttl;
        let reaches = self.places[place].store;
        let process = &mut self.places[place].processes[which];
        match &mut process.lease {
            Lease::Idle => {}
            Lease::Contending { next } => {
                *next = local + ASK_STORE;
                if !reaches {
                    return;
                }
                let note = self.store.note().cloned();
                match self.store.acquire(&process.node, self.now) {
                    Some(term) => {
                        process.formation.won(term, note);
                        process.lease = Lease::Held { term, renewed: local, next: local + ttl / 3 };
                    }
                    None => process.formation.read(note),
                }
            }
            Lease::Held { term, renewed, next } => {
                *next = local + ttl / 3;
                let term = *term;
                let refused = reaches && !self.store.renew(&process.node, term, self.now);
                let expired = !reaches && local.since(*renewed) > ttl * 7 / 10;
                if reaches {
                    *renewed = local;
                    process.formation.read(self.store.note().cloned());
                }
                if refused || expired {
                    process.lease = Lease::Idle;
                    process.formation.lost();
                }
            }
        }
    }

    /// Does what a process asks for, until it asks for nothing more; then sets its timer.
    pub(super) fn settle(&mut self, place: usize, which: usize) {
        loop {
            let process = &mut self.places[place].processes[which];
            let local = process.clock.read(self.now);
            let effects: Vec<Effect> = process.membership.effects().collect();
            let formation = process.formation.poll(&process.membership, local);
            if effects.is_empty() && formation.is_empty() {
                break;
            }
            let node = process.node.clone();
            let mut ended = None;
            for effect in effects {
                match effect {
                    Effect::Send(to, message) => {
                        self.send(place, &node, &to.address, Some(to.incarnation), message);
                    }
                    Effect::Greet(to, message) => self.send(place, &node, &to, None, message),
                    Effect::Tell(event) => self.told(place, which, &node, event),
                    Effect::HandOver => {
                        self.places[place].processes[which].membership.handed_over(local);
                    }
                    Effect::End(ending) => ended = Some(ending),
                }
            }
            for effect in formation {
                self.form(place, which, local, effect);
            }
            if let Some(ending) = ended {
                return self.ended(place, which, ending);
            }
        }
        self.set_timer(place, which);
    }

    fn form(&mut self, place: usize, which: usize, local: Moment, effect: FormationEffect) {
        let reaches = self.places[place].store;
        let process = &mut self.places[place].processes[which];
        match effect {
            FormationEffect::Join(contacts) => process.membership.join(contacts, local),
            FormationEffect::Contend => {
                if matches!(process.lease, Lease::Idle) {
                    process.lease = Lease::Contending { next: local };
                }
            }
            FormationEffect::Withdraw => {
                process.lease = Lease::Idle;
                if reaches {
                    self.store.release(&process.node);
                }
            }
            FormationEffect::Form(term) => {
                process.membership.form(term, local);
                self.meet("cluster formed");
            }
            FormationEffect::FormUnguarded => {} // Here there is always a lease.
            FormationEffect::WriteNote(note) => {
                if let Lease::Held { term, .. } = process.lease
                    && reaches
                {
                    self.store.write(&process.node, term, note, self.now);
                }
            }
            FormationEffect::GiveWay(cluster) => {
                process.membership.give_way(cluster);
                self.meet("gave way to a newer cluster");
            }
        }
    }

    fn ended(&mut self, place: usize, which: usize, ending: Ending) {
        let process = self.places[place].processes.remove(which);
        self.note(|| format!("{} ends: {ending}", process.node));
        self.mix(3, place as u64);
        self.truth.change(&process.node, |facts| facts.dead = true);
        if matches!(process.lease, Lease::Held { .. }) && self.places[place].store {
            self.store.release(&process.node);
        }
        let (name, again) = match ending {
            Ending::Left => ("left", false),
            Ending::Downed => ("downed", false),
            Ending::Removed => ("removed", false),
            Ending::Refused(_) => ("refused", false),
            Ending::LostWhileJoining => ("lost while joining", true),
            Ending::OtherCluster(_) => ("gave way", true),
        };
        *self.endings.entry(name).or_default() += 1;
        self.check_end(&process.node, &ending);
        if again && self.places[place].restarts && self.places[place].processes.is_empty() {
            self.start(place);
        }
    }

    /// A full member that ends without a cause has been thrown out.
    fn check_end(&mut self, node: &Node, ending: &Ending) {
        let facts = self.truth.of(node);
        let cause = facts.leaving || facts.downed || facts.cloned || facts.replaced;
        if matches!(ending, Ending::Downed | Ending::Removed) && facts.up.is_some() && !cause {
            self.invariants.violations.push(Violation {
                at: self.now,
                invariant: "nobody is out without a cause",
                what: format!("{node} ended: {ending}"),
            });
        }
    }

    fn send(
        &mut self,
        from: usize,
        sender: &Node,
        to: &Address,
        incarnation: Option<Incarnation>,
        message: Control,
    ) {
        let Some(place) = self.by_address.get(to).copied() else { return };
        self.mix(1, place as u64);
        if self.count_bytes() {
            self.bytes += tenure_cluster::message::encoded_len(&message) as u64 + FRAME;
        }
        let mut message = Some(message);
        let journeys = self.network.journeys(from, place, &mut self.random);
        for (copy, journey) in journeys.into_iter().enumerate() {
            let Some(journey) = journey else { continue };
            let last = copy == 1 || journeys[1].is_none();
            let copied = if last { message.take() } else { message.clone() };
            if let Some(message) = copied {
                let from = sender.clone();
                self.push(
                    self.now + journey,
                    What::Deliver { place, to: incarnation, from, message },
                );
            }
        }
    }

    fn told(&mut self, place: usize, which: usize, who: &Node, event: Event) {
        self.note(|| format!("{who} {event:?}"));
        self.mix(2, place as u64);
        let process = &self.places[place].processes[which];
        let Some(view) = process.membership.view() else { return };
        let others = |node: &Node| -> Option<&View> {
            let place = &self.places[*self.by_address.get(&node.address)?];
            place.processes.iter().find(|process| process.node == *node)?.membership.view()
        };
        let told = Told { who, event: &event, view, truth: &self.truth, others: &others };
        self.invariants.check(self.now, &told);
        if let Event::Up(node) = &event
            && self.truth.of(node).up.is_none()
            && let Some(member) = view.member(node)
        {
            let up = (view.cluster(), member.up_number);
            self.truth.is_up(node, up);
        }
    }

    pub(super) fn set_timer(&mut self, place: usize, which: usize) {
        let process = &mut self.places[place].processes[which];
        let local = process.next_wake();
        if process.paused || local == Moment::NEVER {
            return;
        }
        let at = process.clock.when(self.now, local).max(self.now);
        if at < process.wake_at {
            process.wake_at = at;
            let incarnation = process.node.incarnation;
            self.push(at, What::Wake { place, incarnation, at });
        }
    }

    fn push(&mut self, at: Moment, what: What) {
        self.steps += 1;
        self.queue.push(Step { at, number: self.steps, what });
    }

    fn count_bytes(&self) -> bool {
        self.settings.count_bytes
    }

    fn mix(&mut self, kind: u64, place: u64) {
        let word = self.now.as_nanos() ^ kind.rotate_left(56) ^ place.rotate_left(40);
        self.hash = (self.hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
    }
}

impl PartialEq for Step {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Step {}

impl PartialOrd for Step {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Step {
    /// The earliest is the greatest, since a heap gives the greatest first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

/// How often a condition is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// How much waits for a process that stands still; a socket's buffer ends somewhere too.
const INBOX: usize = 4096;
/// What a frame costs besides its content: length, kind, TLS record and headers, about.
const FRAME: u64 = 66;
