use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use tenure_cluster::view::View;
use tenure_cluster::{Node, Status};
use tenure_lease::{MemoryRecords, Moment};
use tenure_sharding::{Coordinator, Message, Region, Settings, Shard};

use super::data::Data;
use super::invariants::Invariants;
use super::queue::{Cargo, Queue, What};
use super::shell::Shell;
use super::trap::Trap;
use super::{Tally, Violation};
use crate::sim::Random;
use crate::sim::cluster::{Sim, SimSettings};

/// A simulated cluster with sharding.
pub struct World {
    pub(super) sim: Sim,
    pub(super) settings: Settings,
    pub(super) lease: tenure_lease::Settings,
    pub(super) random: Random,
    pub(super) queue: Queue,
    /// By the number of the process.
    pub(super) shells: BTreeMap<u64, Shell>,
    pub(super) records: MemoryRecords,
    /// How long the store takes, at most, each way.
    pub(super) store_delay: Duration,
    /// How many of a hundred requests to the store go wrong.
    pub(super) store_trouble: u64,
    pub(super) data: Data,
    /// When the last thing arrives that is kept in order, by link.
    pub(super) lanes: BTreeMap<(usize, usize), Moment>,
    pub(super) invariants: Invariants,
    /// Messages that reached their shard.
    pub(super) served: BTreeSet<u64>,
    /// Messages of which their senders were told that they are lost.
    pub(super) failed: BTreeSet<u64>,
    pub(super) messages: u64,
    pub(super) trap: Trap,
    pub(super) hash: u64,
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World").finish_non_exhaustive()
    }
}

impl World {
    /// A cluster of nodes that have not started.
    pub fn new(
        seed: u64,
        cluster: SimSettings,
        settings: Settings,
        lease: tenure_lease::Settings,
        store_expires: bool,
    ) -> Self {
        let records = match store_expires {
            true => MemoryRecords::expiring(),
            false => MemoryRecords::observed(),
        };
        Self {
            sim: Sim::new(seed, SimSettings { hosts: true, ..cluster }),
            random: Random::new(seed ^ 0x0073_6861_7264),
            queue: Queue::default(),
            shells: BTreeMap::new(),
            records,
            store_delay: STORE,
            store_trouble: 0,
            data: Data::new(settings.shards),
            lanes: BTreeMap::new(),
            invariants: Invariants::new(settings.setup),
            served: BTreeSet::new(),
            failed: BTreeSet::new(),
            messages: 0,
            trap: Trap::default(),
            hash: seed,
            settings,
            lease,
        }
    }

    /// Starts a process at this place.
    pub fn start(&mut self, place: usize) {
        self.sim.start(place);
        self.sync(place);
    }

    /// Lets time pass.
    pub fn run_for(&mut self, duration: Duration) {
        let end = self.sim.now() + duration;
        loop {
            let cluster = self.sim.next_at().filter(|at| *at <= end);
            let own = self.queue.next_at().filter(|at| *at <= end);
            match (cluster, own) {
                (None, None) => break,
                (Some(at), own) if own.is_none_or(|own| at <= own) => match self.sim.step(end) {
                    Some(place) => self.sync(place),
                    None => break,
                },
                _ => {
                    let Some((at, what)) = self.queue.pop() else { break };
                    self.sim.advance_to(at);
                    self.happen(what);
                }
            }
        }
        self.sim.advance_to(end);
    }

    /// Lets time pass until this holds, and returns how much; `None` if it did not in that time.
    pub fn run_until(
        &mut self,
        most: Duration,
        mut holds: impl FnMut(&mut Self) -> bool,
    ) -> Option<Duration> {
        let began = self.elapsed();
        while self.elapsed() - began <= most {
            if holds(self) {
                return Some(self.elapsed() - began);
            }
            self.run_for(LOOK);
        }
        None
    }

    /// How much virtual time has passed.
    pub fn elapsed(&self) -> Duration {
        self.sim.elapsed()
    }

    /// What must not have happened.
    pub fn violations(&self) -> &[Violation] {
        &self.invariants.violations
    }

    /// What may have happened, as often as it did.
    pub fn tally(&self) -> Tally {
        self.invariants.tally
    }

    /// The cluster beneath.
    pub fn cluster(&mut self) -> &mut Sim {
        &mut self.sim
    }

    pub(super) fn note(&mut self, line: impl FnOnce() -> String) {
        self.sim.note(line);
    }

    pub(super) fn meet(&mut self, what: &'static str) {
        self.sim.meet(what);
    }

    pub(super) fn mix(&mut self, one: u64, other: u64) {
        let word = self.sim.now().as_nanos() ^ one.rotate_left(48) ^ other.rotate_left(24);
        self.hash = (self.hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
    }

    /// Something happened in the cluster at this place: what runs on top of it is told.
    pub(super) fn sync(&mut self, place: usize) {
        for id in self.sim.take_ended() {
            self.membership_ended(id);
        }
        let now = self.sim.now();
        let Some(process) = self.sim.process_at(place) else { return };
        let id = process.id;
        let shell = self.shells.entry(id).or_insert_with(|| {
            let mut clock = process.clock.clone();
            let local = clock.read(now);
            let node = process.node.clone();
            Shell {
                place,
                clock,
                paused: false,
                ended: false,
                inbox: VecDeque::new(),
                wake_at: Moment::NEVER,
                coordinator: Coordinator::new(node.clone(), self.settings.clone()),
                region: Region::new(node.clone(), self.settings.clone(), true),
                keepers: BTreeMap::new(),
                next_keeper: 1,
                observed: BTreeSet::new(),
                taking_over: BTreeSet::new(),
                look_at: local,
                answered_at: local,
                view: None,
                entities: BTreeMap::new(),
                resumed_at: Moment::ZERO,
                lease_impaired: false,
                node,
            }
        });
        let is_new = shell.next_keeper == 1;
        let view = process.membership.view();
        let digest = view.map(View::digest);
        let leaves = process.handing_over;
        if !is_new && digest == shell.view && !leaves {
            return;
        }
        let local = shell.clock.read(now);
        if digest != shell.view {
            shell.view = digest;
            shell.coordinator.view(view, local);
            shell.region.reachable(reachable(view), local);
        }
        if leaves {
            shell.region.leave(local);
        }
        if is_new {
            shell.next_keeper += 1;
        }
        if leaves || is_new {
            self.want_session(id, local);
        }
        self.attend(id);
    }

    fn membership_ended(&mut self, id: u64) {
        let now = self.sim.now();
        let Some(shell) = self.shells.get_mut(&id) else { return };
        let local = shell.clock.read(now);
        shell.ended = true;
        shell.view = None;
        shell.coordinator.view(None, local);
        shell.region.end(local);
        self.want_session(id, local);
        self.attend(id);
    }

    fn happen(&mut self, what: What) {
        let id = match &what {
            What::Apply { .. } | What::Op { .. } => None,
            What::Message { to, .. } | What::Cargo { to, .. } => match self.shell_of(to) {
                Some(id) => Some(id),
                None => return,
            },
            What::Wake { shell, .. }
            | What::Answer { shell, .. }
            | What::Stopped { shell, .. }
            | What::Work { shell, .. }
            | What::OpDone { shell, .. } => Some(*shell),
        };
        let Some(id) = id else {
            return match what {
                What::Apply { shell, keeper, flight, request, answered } => {
                    self.apply(shell, keeper, flight, request, answered);
                }
                What::Op { shell, op } => self.operate(shell, op),
                _ => {}
            };
        };
        let Some(shell) = self.shells.get_mut(&id) else { return };
        if shell.paused {
            // A socket's buffer ends somewhere too; timers are set anew when it goes on.
            if shell.inbox.len() < INBOX && !matches!(what, What::Wake { .. }) {
                shell.inbox.push_back(what);
            }
            return;
        }
        self.arrive(id, what);
    }

    /// Something reaches a process that runs.
    pub(super) fn arrive(&mut self, id: u64, what: What) {
        let now = self.sim.now();
        self.watch_trap(id, &what);
        let Some(shell) = self.shells.get_mut(&id) else { return };
        let local = shell.clock.read(now);
        match what {
            What::Wake { at, .. } => {
                if shell.wake_at != at {
                    return;
                }
                shell.wake_at = Moment::NEVER;
            }
            What::Message { from, message, .. } => self.receive(id, &from, message, local),
            What::Cargo { from, cargo, .. } => match cargo {
                Cargo::Forward(shard, message) => {
                    shell.region.forwarded(&from, shard, message, local);
                }
                Cargo::Return(shard, message) => {
                    shell.region.returned(&from, shard, message, SIZE, local);
                }
                Cargo::Mark(shard) => shell.region.mark(&from, shard),
                Cargo::Marked(shard) => shell.region.marked(&from, shard),
            },
            What::Answer { keeper, flight, answer, .. } => {
                self.answered(id, keeper, flight, answer, local);
            }
            What::Stopped { shard, token, .. } => self.shard_stopped(id, shard, token, local),
            What::Work { shard, token, .. } => self.work(id, shard, token),
            What::OpDone { op, result, .. } => self.operated(id, op, result, local),
            What::Apply { .. } | What::Op { .. } => {}
        }
        self.attend(id);
        self.spring_trap();
    }

    fn receive(&mut self, id: u64, from: &Node, message: Message, local: Moment) {
        self.mix(1, id);
        let Some(shell) = self.shells.get_mut(&id) else { return };
        match &message {
            Message::Greeting { term, .. } => {
                self.invariants.greeted(id, *term);
                shell.region.receive(from, message.clone(), local);
                shell.coordinator.receive(from, message, local);
            }
            Message::Allocate(_) | Message::HandOff(_) => {
                let before = shell.region.counts();
                shell.region.receive(from, message, local);
                let after = shell.region.counts();
                if after.refused_coordinator > before.refused_coordinator {
                    self.sim.meet("deposed coordinator refused");
                }
                if after.refused_session > before.refused_session {
                    self.sim.meet("directive for another session refused");
                }
                if after.late > before.late {
                    self.sim.meet("late allocate refused");
                }
            }
            Message::Homes { .. } | Message::Refused(_) => {
                shell.region.receive(from, message.clone(), local);
                shell.coordinator.receive(from, message, local);
            }
            Message::Report { .. }
            | Message::Started(_)
            | Message::Stopped(_)
            | Message::Where(_)
            | Message::Able(_)
            | Message::Introduce { .. } => {
                let before = shell.coordinator.counts().stale_answers;
                shell.coordinator.receive(from, message, local);
                if shell.coordinator.counts().stale_answers > before {
                    self.sim.meet("stale answer dropped");
                }
            }
        }
    }

    /// The process that is this node, if it is still there.
    pub(super) fn shell_of(&self, node: &Node) -> Option<u64> {
        self.shells.iter().find(|(_, shell)| shell.node == *node).map(|(id, _)| *id)
    }

    /// Somebody sends a message to a shard.
    pub fn send(&mut self, place: usize, shard: Shard) -> Option<u64> {
        let id = self.sim.process_at(place)?.id;
        let now = self.sim.now();
        let shell = self.shells.get_mut(&id).filter(|shell| !shell.paused)?;
        self.messages += 1;
        self.invariants.sent(id, self.messages);
        let local = shell.clock.read(now);
        shell.region.send(shard, self.messages, SIZE, local);
        let message = self.messages;
        self.attend(id);
        Some(message)
    }
}

/// Those that nobody calls unreachable.
fn reachable(view: Option<&View>) -> BTreeSet<Node> {
    let Some(view) = view else { return BTreeSet::new() };
    let unreachable: BTreeSet<&Node> = view.observations().map(|(_, subject)| subject).collect();
    view.members()
        .filter(|(node, member)| member.status < Status::Down && !unreachable.contains(node))
        .map(|(node, _)| node.clone())
        .collect()
}

/// How often a condition is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// How long a store takes on a good day.
pub(super) const STORE: Duration = Duration::from_millis(5);
/// How much waits for a process that stands still.
const INBOX: usize = 4096;
/// How large a message is.
const SIZE: usize = 64;
