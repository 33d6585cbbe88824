//! Random schedules: first everything goes wrong, then nothing does any more.

use std::time::Duration;

use tenure_cluster::MembershipSettings;
use tenure_cluster::downing::{LeaseMajority, Mode, Strategy};
use tenure_lease::Settings as LeaseSettings;
use tenure_sharding::{Settings, Setup, Shard};

use super::{Outcome, World};
use crate::sim::Random;
use crate::sim::cluster::{SimSettings, Weather};

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// All links between two groups, both ways.
    Cut,
    /// All links from one group to the other.
    CutOneWay,
    /// A single link.
    CutLink,
    /// All links of the coordinator's node to some others.
    CutCoordinator,
    /// Messages are lost, repeated, late, or held up for long.
    Weather,
    /// A process ends without a word.
    Crash,
    /// The process ends whose coordinator is active.
    CrashCoordinator,
    /// A process ends and another one starts at its address.
    Restart,
    /// A process stands still; its clock runs on or not.
    Pause,
    /// The process stands still whose coordinator is active.
    PauseCoordinator,
    /// A node does not reach the store, or none does.
    Store,
    /// The store is slow.
    SlowStore,
    /// Requests to the store and its answers are lost, late or repeated.
    StoreTrouble,
    /// A node that was not there starts.
    Join,
    /// A node leaves.
    Leave,
    /// The coordinator's node removes another from the cluster, which does not hear of it and goes
    /// on reaching the store.
    Remove,
    /// The next coordinator dies that gives away a shard whose stop was confirmed, and where it
    /// gives it is cut off.
    Trap,
    /// A shard ends by itself.
    ShardEnds,
    /// A host stands still with its clock until others have taken over, and goes on while the
    /// coordinator changes.
    Stale,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 19] = [
        Self::Cut,
        Self::CutOneWay,
        Self::CutLink,
        Self::CutCoordinator,
        Self::Weather,
        Self::Crash,
        Self::CrashCoordinator,
        Self::Restart,
        Self::Pause,
        Self::PauseCoordinator,
        Self::Store,
        Self::SlowStore,
        Self::StoreTrouble,
        Self::Join,
        Self::Leave,
        Self::Remove,
        Self::Trap,
        Self::ShardEnds,
        Self::Stale,
    ];
}

/// What a schedule is made of.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How many nodes there are; about two thirds are started at the beginning.
    pub nodes: usize,
    /// The setup, and how many shards there are.
    pub sharding: Settings,
    /// The timing of leases and sessions.
    pub lease: LeaseSettings,
    /// Whether the store frees expired records itself; otherwise contenders observe.
    pub store_expires: bool,
    /// What may go wrong.
    pub faults: Vec<Fault>,
    /// For how long.
    pub faults_for: Duration,
    /// The timing of every node.
    pub membership: MembershipSettings,
    /// How splits are settled.
    pub downing: Strategy,
    /// Whether to write a trace.
    pub trace: bool,
}

impl Plan {
    /// A plan that varies with the seed: 3 to 9 nodes, 16 to 64 shards.
    pub fn of(seed: u64, setup: Setup) -> Self {
        let mut random = Random::new(seed ^ 0x706c_616e);
        let mut membership = MembershipSettings::default();
        if random.percent(50) {
            membership.heartbeat_interval = Duration::from_millis(250);
            membership.acceptable_pause = Duration::from_millis(750);
            membership.gossip_interval = Duration::from_millis(250);
            membership.joining_patience = Duration::from_millis(750);
            membership.leave_timeout = Duration::from_secs(3);
        }
        let mode = if random.percent(50) { Mode::Always } else { Mode::Ties };
        let mut lease = LeaseSettings::new(Duration::from_secs(10));
        if random.percent(30) {
            lease = LeaseSettings::new(Duration::from_secs(4));
        }
        let nodes = random.within(3..10) as usize;
        let shards = *random.pick(&[16, 24, 32, 64]);
        let store_expires = random.percent(50);
        let faults_for = Duration::from_secs(random.within(40..91));
        Self {
            nodes,
            sharding: Settings::new(setup, shards),
            lease,
            store_expires,
            faults: Fault::ALL.to_vec(),
            faults_for,
            membership,
            downing: Strategy::LeaseMajority(LeaseMajority { mode, ..LeaseMajority::default() }),
            trace: false,
        }
    }
}

/// Runs a schedule.
pub fn run(seed: u64, plan: &Plan) -> Outcome {
    let cluster = SimSettings {
        membership: plan.membership.clone(),
        wrong_clocks: true,
        rejoin: true,
        downing: Some(plan.downing.clone()),
        most_steps: MOST_STEPS,
        trace: plan.trace,
        ..SimSettings::nodes(plan.nodes)
    };
    let (sharding, lease) = (plan.sharding.clone(), plan.lease.clone());
    let mut world = World::new(seed, cluster, sharding, lease, plan.store_expires);
    let random = Random::new(seed ^ 0x6661_756c_7473);
    let mut campaign = Campaign { plan, random, undo: Vec::new() };
    campaign.start(&mut world);
    campaign.break_things(&mut world);
    let recovery = campaign.recover(&mut world);
    Outcome {
        violations: world.violations().to_vec(),
        tally: world.tally(),
        virtual_time: world.elapsed(),
        recovery,
        coverage: world.cluster().coverage().clone(),
        hash: world.hash,
        trace: world.cluster().take_trace(),
    }
}

struct Campaign<'a> {
    plan: &'a Plan,
    random: Random,
    /// What ends by itself, and when.
    undo: Vec<(Duration, Undo)>,
}

#[derive(Clone, Copy, Debug)]
enum Undo {
    Links,
    Weather,
    Resume(usize),
    ChangeCoordinator,
    Store(usize),
    StoreQuick,
    StoreWell,
    Start(usize),
}

impl Campaign<'_> {
    fn start(&mut self, world: &mut World) {
        let nodes = self.plan.nodes;
        let first = (nodes * 2).div_ceil(3).max(2).min(nodes);
        for node in 0..first {
            world.start(node);
        }
        if self.random.percent(90) {
            world.run_until(Duration::from_secs(30), World::is_served);
        }
    }

    fn break_things(&mut self, world: &mut World) {
        let end = world.elapsed() + self.plan.faults_for;
        // Some schedules are hectic, some give each fault time to show.
        let calm = self.random.within(1..9);
        while world.elapsed() < end {
            let wait = self.random.up_to(Duration::from_secs(calm));
            self.pass(world, wait);
            let fault = *self.random.pick(&self.plan.faults);
            self.inject(world, fault);
        }
    }

    /// Lets time pass, sends messages, looks now and then, and ends what ends by itself.
    fn pass(&mut self, world: &mut World, time: Duration) {
        let end = world.elapsed() + time;
        while world.elapsed() < end {
            world.run_for(LOOK.min(end - world.elapsed()));
            world.look();
            let place = self.any(self.plan.nodes);
            let shard = Shard(self.random.within(0..u64::from(self.plan.sharding.shards)) as u32);
            world.send(place, shard);
            if let Some(place) = world.take_caught() {
                self.undo_later(world, 30, Undo::Links);
                self.undo_later(world, 40, Undo::Start(place));
            }
            let now = world.elapsed();
            let (due, rest): (Vec<_>, Vec<_>) =
                std::mem::take(&mut self.undo).into_iter().partition(|(at, _)| *at <= now);
            self.undo = rest;
            for (_, undo) in due {
                self.undo(world, undo);
            }
        }
    }

    fn undo(&mut self, world: &mut World, undo: Undo) {
        match undo {
            Undo::Links => world.cluster().mend_all(),
            Undo::Weather => world.cluster().weather(Weather::FAIR),
            Undo::Resume(node) => world.resume(node),
            Undo::ChangeCoordinator => {
                if let Some(node) = world.coordinators().first().copied() {
                    world.meet("coordinator changes, a stale host goes on");
                    match self.random.percent(50) {
                        true => world.crash(node),
                        false => world.leave(node),
                    }
                    self.undo_later(world, 40, Undo::Start(node));
                }
            }
            Undo::Store(node) => world.cluster().reach_store(node, true),
            Undo::StoreQuick => world.slow_store(Duration::ZERO),
            Undo::StoreWell => world.trouble_store(0),
            Undo::Start(node) => {
                if world.cluster().running().all(|index| index != node) {
                    world.start(node);
                }
            }
        }
    }

    fn undo_later(&mut self, world: &World, most: u64, undo: Undo) {
        let at = world.elapsed() + self.random.up_to(Duration::from_secs(most));
        self.undo.push((at, undo));
    }

    fn inject(&mut self, world: &mut World, fault: Fault) {
        let nodes = self.plan.nodes;
        let node = self.any(nodes);
        let runs = world.cluster().running().any(|index| index == node);
        let coordinator = world.coordinators().first().copied();
        match fault {
            Fault::Cut | Fault::CutOneWay | Fault::CutLink => self.cut(world, fault),
            Fault::CutCoordinator => {
                if let Some(node) = coordinator {
                    world.meet("coordinator cut off");
                    let others = (0..nodes).filter(|other| *other != node);
                    let others: Vec<usize> = others.filter(|_| self.random.percent(70)).collect();
                    world.cluster().partition(&[node], &others);
                    self.undo_later(world, 30, Undo::Links);
                }
            }
            Fault::Weather => self.worsen(world),
            Fault::Crash if runs => {
                world.meet("crash");
                world.crash(node);
                self.undo_later(world, 40, Undo::Start(node));
            }
            Fault::CrashCoordinator => {
                if let Some(node) = coordinator {
                    world.meet(match world.has_hand_offs() {
                        true => "coordinator crashes during a hand-off",
                        false => "coordinator crashes",
                    });
                    world.crash(node);
                    self.undo_later(world, 40, Undo::Start(node));
                }
            }
            Fault::Restart if runs => {
                world.meet("restart");
                world.restart(node);
            }
            Fault::Pause if runs => self.pause(world, node),
            Fault::PauseCoordinator => {
                if let Some(node) = coordinator {
                    world.meet("coordinator stands still");
                    self.pause(world, node);
                }
            }
            Fault::Store => {
                world.meet("store away");
                let all = self.random.percent(30);
                for node in (0..nodes).filter(|index| all || *index == node) {
                    world.cluster().reach_store(node, false);
                    self.undo_later(world, 30, Undo::Store(node));
                }
            }
            Fault::SlowStore => {
                world.meet("slow store");
                let delay = self.random.up_to(Duration::from_secs(5));
                world.slow_store(delay);
                self.undo_later(world, 20, Undo::StoreQuick);
            }
            Fault::StoreTrouble => {
                world.meet("store in trouble");
                let percent = self.random.within(5..40);
                world.trouble_store(percent);
                self.undo_later(world, 30, Undo::StoreWell);
            }
            Fault::Join if !runs => {
                world.meet("join");
                world.start(node);
            }
            Fault::Leave if runs => {
                world.meet("leave");
                world.leave(node);
                self.undo_later(world, 40, Undo::Start(node));
            }
            Fault::Remove => {
                if let Some(by) = coordinator.filter(|by| *by != node && runs) {
                    world.meet("region removed, not told");
                    world.remove(by, node);
                    self.undo_later(world, 30, Undo::Links);
                }
            }
            Fault::Trap => world.set_trap(),
            Fault::Stale if runs && coordinator != Some(node) => {
                world.meet("pause with its clock");
                world.pause(node, true);
                let change = world.elapsed() + self.plan.lease.ttl + Duration::from_secs(4);
                self.undo.push((change, Undo::ChangeCoordinator));
                let resume = change + self.random.up_to(self.plan.lease.ttl * 2);
                self.undo.push((resume, Undo::Resume(node)));
            }
            Fault::ShardEnds if runs && world.end_shard(node) => {
                world.meet("shard ends by itself");
            }
            _ => {}
        }
    }

    fn pause(&mut self, world: &mut World, node: usize) {
        let clock_too = self.random.percent(50);
        world.meet(if clock_too { "pause with its clock" } else { "pause" });
        world.pause(node, clock_too);
        self.undo_later(world, 40, Undo::Resume(node));
    }

    fn cut(&mut self, world: &mut World, fault: Fault) {
        let nodes = self.plan.nodes;
        let (some, others): (Vec<usize>, Vec<usize>) = match fault {
            Fault::CutLink => {
                let one = self.any(nodes);
                (vec![one], vec![(one + 1 + self.any(nodes - 1)) % nodes])
            }
            _ => (0..nodes).partition(|_| self.random.percent(50)),
        };
        if some.is_empty() || others.is_empty() {
            return;
        }
        if world.has_hand_offs() {
            world.meet("cut during a hand-off");
        }
        if fault == Fault::CutOneWay {
            world.meet("one-way cut");
            world.cluster().partition_one_way(&some, &others);
        } else {
            world.meet(if fault == Fault::CutLink { "link cut" } else { "cut" });
            world.cluster().partition(&some, &others);
        }
        self.undo_later(world, 30, Undo::Links);
    }

    fn worsen(&mut self, world: &mut World) {
        let mut weather = Weather::FAIR;
        match self.random.within(0..4) {
            0 => {
                world.meet("loss");
                weather.loss = self.random.within(20..400);
            }
            1 => {
                world.meet("repeats");
                weather.repeated = self.random.within(20..500);
            }
            2 => {
                world.meet("delay");
                weather.delay.1 = self.random.up_to(Duration::from_secs(3));
            }
            _ => {
                world.meet("strays");
                weather.stray = self.random.within(50..400);
            }
        }
        world.cluster().weather(weather);
        self.undo_later(world, 30, Undo::Weather);
    }

    fn any(&mut self, count: usize) -> usize {
        self.random.within(0..count as u64) as usize
    }

    /// Takes all faults away, and requires that every shard is served soon, from everywhere.
    fn recover(&mut self, world: &mut World) -> Option<Duration> {
        let is_fault = |undo: &Undo| matches!(undo, Undo::ChangeCoordinator);
        let undo = std::mem::take(&mut self.undo);
        for (_, undo) in undo.into_iter().filter(|(_, undo)| !is_fault(undo)) {
            self.undo(world, undo);
        }
        world.heal();
        for node in 0..self.plan.nodes {
            if world.cluster().running().all(|index| index != node) {
                world.start(node);
            }
        }
        let began = world.elapsed();
        let mut recovery = None;
        while world.elapsed() - began < RECOVERY {
            if world.cluster().agrees() && world.is_served() {
                recovery = Some(world.elapsed() - began);
                break;
            }
            // Those who were leaving may have left.
            for node in 0..self.plan.nodes {
                if world.cluster().running().all(|index| index != node) {
                    world.start(node);
                }
            }
            // Where only ties ask the lease, splits that shift may need an operator.
            if world.elapsed() - began > OPERATOR {
                world.meet("waited for an operator");
                world.down_the_dead();
                world.restart_smaller_sides();
            }
            self.pass(world, Duration::from_secs(1));
        }
        let missing = recovery.is_none().then(|| {
            let agrees = world.cluster().agrees();
            format!("not after {RECOVERY:?}; the cluster agrees: {agrees}\n{}", world.show())
        });
        let now = world.sim.now();
        world.invariants.report(now, "every shard is served in the end", missing);
        if recovery.is_some() {
            self.ask_everywhere(world);
        }
        recovery
    }

    /// Every node sends a message to every shard, and each arrives. A verdict that was asked for
    /// before everything was mended may still come, and end processes with what they had to send; and
    /// what comes back late of a shard that went to and fro is a dead letter. Then everybody is asked
    /// again.
    fn ask_everywhere(&mut self, world: &mut World) {
        for _ in 0..ASKED {
            let before = world.processes();
            let mut sent = Vec::new();
            for place in 0..self.plan.nodes {
                for shard in 0..self.plan.sharding.shards {
                    sent.extend(world.send(place, Shard(shard)));
                }
            }
            let all = |world: &mut World| sent.iter().all(|message| world.served.contains(message));
            // A coordinator may still have to wait for those who were removed.
            let arrived = world.run_until(Duration::from_secs(30), all);
            world.look();
            if arrived.is_some() {
                return;
            }
            let is_missing = |message: &&u64| !world.served.contains(message);
            let missing: Vec<&u64> = sent.iter().filter(is_missing).collect();
            let in_silence = missing.iter().any(|message| !world.failed.contains(message));
            if world.processes() == before && in_silence {
                let lost = missing.len();
                let what = format!("{lost} of {} did not arrive\n{}", sent.len(), world.show());
                let now = world.sim.now();
                world.invariants.report(now, "every shard is reached from everywhere", Some(what));
                return;
            }
        }
        let now = world.sim.now();
        let what = format!("processes went on ending\n{}", world.show());
        world.invariants.report(now, "every shard is reached from everywhere", Some(what));
    }
}

/// More than any schedule needs, less than nodes that answer each other for ever.
const MOST_STEPS: u64 = 20_000_000;
/// How often every shard is asked, if processes end meanwhile.
const ASKED: usize = 4;
/// How often everybody is looked at.
const LOOK: Duration = Duration::from_millis(250);
/// After this time an operator declares those down whose processes are gone, and restarts what
/// survived besides a larger side.
const OPERATOR: Duration = Duration::from_secs(60);
/// Within this time after the last fault every shard must be served.
const RECOVERY: Duration = Duration::from_secs(120);

/// Every word that a full campaign with sessions must have met.
pub const COVERAGE: &[&str] = &[
    "cut",
    "one-way cut",
    "link cut",
    "coordinator cut off",
    "loss",
    "repeats",
    "delay",
    "strays",
    "crash",
    "coordinator crashes",
    "coordinator crashes during a hand-off",
    "cut during a hand-off",
    "restart",
    "pause",
    "pause with its clock",
    "coordinator stands still",
    "store away",
    "slow store",
    "store in trouble",
    "join",
    "leave",
    "region removed, not told",
    "region removed while its session lives",
    "coordinator dies between a stop and an allocation",
    "shard ends by itself",
    "coordinator changes, a stale host goes on",
    "unfenced write lost",
    "handed over",
    "coordinator recovered",
    "coordinator's lease lost",
    "session lost with shards",
    "session taken over",
    "deposed coordinator believes",
    "deposed coordinator refused",
    "directive for another session refused",
    "late allocate refused",
    "stale answer dropped",
    "fence refused",
    "message returned",
];
