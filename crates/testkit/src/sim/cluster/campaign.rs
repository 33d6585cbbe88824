//! Random schedules: first everything goes wrong, then nothing does any more.
//!
//! While faults last, the [invariants](super::invariants) must hold. Then every link is mended, who
//! stands still goes on, and an operator declares those down whose processes are gone, since nobody
//! else may. Within a minute all must be up in one cluster and believe the same in every detail.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_cluster::Status;

use super::plan::{Fault, Plan};
use super::{Sim, SimSettings, Violation, Weather};
use crate::sim::Random;

/// What came of a schedule.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// What must not have happened.
    pub violations: Vec<Violation>,
    /// How much virtual time passed.
    pub virtual_time: Duration,
    /// How long it took until all agreed, after the last fault.
    pub recovery: Option<Duration>,
    /// How often each thing worth meeting was met.
    pub coverage: BTreeMap<&'static str, u64>,
    /// A hash of everything that happened.
    pub hash: u64,
    /// What happened, line by line, if the plan asks for it.
    pub trace: Vec<String>,
}

/// Runs a schedule.
pub fn run(seed: u64, plan: &Plan) -> Outcome {
    let settings = SimSettings {
        membership: plan.membership.clone(),
        wrong_clocks: plan.has(Fault::Clocks),
        trace: plan.trace,
        rejoin: plan.downing.is_some(),
        downing: plan.downing.clone(),
        singleton: plan.singleton.clone(),
        most_steps: MOST_STEPS,
        ..SimSettings::nodes(plan.nodes)
    };
    let mut sim = Sim::new(seed, settings);
    let random = Random::new(seed ^ 0x6661_756c_7473);
    let mut campaign =
        Campaign { plan, random, victim: None, crash_winner: false, undo: Vec::new() };
    campaign.start(&mut sim);
    campaign.break_things(&mut sim);
    let recovery = campaign.recover(&mut sim);
    Outcome {
        violations: sim.violations().to_vec(),
        virtual_time: sim.elapsed(),
        recovery,
        coverage: sim.coverage().clone(),
        hash: sim.hash(),
        trace: sim.take_trace(),
    }
}

struct Campaign<'a> {
    plan: &'a Plan,
    random: Random,
    /// The only node that an operator may declare down while it lives: if two could do this to each
    /// other, both would be right.
    victim: Option<usize>,
    /// Whether the next one to hold the resolver's lease ends.
    crash_winner: bool,
    /// What ends by itself, and when.
    undo: Vec<(Duration, Undo)>,
}

#[derive(Clone, Copy, Debug)]
enum Undo {
    Links,
    Weather,
    Resume(usize),
    EndClone(usize),
    Quick(usize),
    Store(usize),
    QuickStore,
    Admit(usize),
}

impl Campaign<'_> {
    fn start(&mut self, sim: &mut Sim) {
        let nodes = self.plan.nodes;
        let first = (nodes * 2).div_ceil(3).max(2).min(nodes);
        for node in 0..first {
            sim.start(node);
        }
        if self.random.percent(30) {
            self.victim = Some(self.any(nodes));
        }
        // Mostly from a whole cluster, sometimes right into its formation.
        if self.random.percent(85) {
            sim.run_until(Duration::from_secs(20), Sim::agrees);
        }
    }

    fn break_things(&mut self, sim: &mut Sim) {
        let end = sim.elapsed() + self.plan.faults_for;
        // Some schedules are hectic, some give each fault time to show.
        let calm = self.random.within(1..9);
        while sim.elapsed() < end {
            let wait = self.random.up_to(Duration::from_secs(calm));
            self.pass(sim, wait);
            let fault = *self.random.pick(&self.plan.faults);
            self.inject(sim, fault);
        }
    }

    /// Lets time pass, looks now and then, and ends what ends by itself.
    fn pass(&mut self, sim: &mut Sim, time: Duration) {
        let end = sim.elapsed() + time;
        while sim.elapsed() < end {
            sim.run_for(LOOK.min(end - sim.elapsed()));
            sim.look();
            if self.crash_winner && sim.somebody_arbitrates() {
                self.crash_winner = false;
                sim.meet("crash while holding the lease");
                sim.crash_arbiter();
            }
            let now = sim.elapsed();
            let (due, rest) = self.undo.iter().partition(|(at, _)| *at <= now);
            self.undo = rest;
            let due: Vec<(Duration, Undo)> = due;
            for (_, undo) in due {
                self.undo(sim, undo);
            }
        }
    }

    fn undo(&mut self, sim: &mut Sim, undo: Undo) {
        match undo {
            Undo::Links => sim.mend_all(),
            Undo::Weather => sim.weather(Weather::FAIR),
            Undo::Resume(node) => sim.resume(node),
            Undo::EndClone(node) => sim.end_clone(node),
            Undo::Quick(node) => sim.slow(node, Duration::ZERO),
            Undo::Store(node) => sim.reach_store(node, true),
            Undo::QuickStore => sim.slow_store(Duration::ZERO),
            Undo::Admit(node) => sim.shut_out(node, false),
        }
    }

    fn undo_later(&mut self, sim: &Sim, most: u64, undo: Undo) {
        let at = sim.elapsed() + self.random.up_to(Duration::from_secs(most));
        self.undo.push((at, undo));
    }

    fn inject(&mut self, sim: &mut Sim, fault: Fault) {
        let nodes = self.plan.nodes;
        let node = self.any(nodes);
        let runs = sim.running().any(|index| index == node);
        match fault {
            Fault::Cut | Fault::CutOneWay | Fault::CutLink => self.cut(sim, fault),
            Fault::Weather => self.worsen(sim),
            Fault::Crash if runs => {
                sim.meet("crash");
                sim.crash(node);
            }
            Fault::Restart if runs => self.restart(sim, node),
            Fault::Pause if runs => {
                let clock_too = self.random.percent(50);
                sim.meet(if clock_too { "pause with its clock" } else { "pause" });
                sim.pause(node, clock_too);
                // Removed incarnations are remembered for longer than anybody is held up.
                let longest = Duration::from_secs(40).min(self.plan.membership.keep_removed / 2);
                // A lease allows for short ones.
                let short = self.plan.singleton.is_some() && self.random.percent(40);
                let longest = if short { 1 } else { longest.as_secs() };
                self.undo_later(sim, longest, Undo::Resume(node));
            }
            Fault::Clone if runs => {
                sim.meet("clone");
                sim.clone_process(node);
                self.undo_later(sim, 20, Undo::EndClone(node));
            }
            Fault::Slow => {
                sim.meet("slow node");
                let by = self.random.up_to(Duration::from_secs(2));
                sim.slow(node, by);
                self.undo_later(sim, 30, Undo::Quick(node));
            }
            Fault::Store => {
                sim.meet("store away");
                let all = self.random.percent(20);
                for node in (0..nodes).filter(|index| all || *index == node) {
                    sim.reach_store(node, false);
                    self.undo_later(sim, 30, Undo::Store(node));
                }
            }
            Fault::Join if !runs => {
                sim.meet(if sim.has_cuts() { "join during a cut" } else { "join" });
                sim.start(node);
            }
            Fault::Leave if runs => {
                sim.meet(if sim.has_cuts() { "leave during a cut" } else { "leave" });
                sim.leave(node);
            }
            Fault::Down => self.down(sim, node),
            Fault::CutFromStore => self.cut(sim, fault),
            Fault::SlowStore => {
                sim.meet("slow store");
                sim.slow_store(self.random.up_to(Duration::from_secs(8)));
                self.undo_later(sim, 30, Undo::QuickStore);
            }
            Fault::CrashWinner => self.crash_winner = true,
            Fault::Outsider => {
                sim.meet("outsider");
                sim.shut_out(node, true);
                sim.restart(node);
                self.undo_later(sim, 60, Undo::Admit(node));
            }
            _ => {}
        }
    }

    fn cut(&mut self, sim: &mut Sim, fault: Fault) {
        if sim.anybody_is(Status::Joining) {
            sim.meet("cut while somebody joins");
        }
        if sim.anybody_is(Status::Leaving) || sim.anybody_is(Status::Exiting) {
            sim.meet("cut while somebody leaves");
        }
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
        let one_way =
            fault == Fault::CutOneWay || fault == Fault::CutLink && self.random.percent(30);
        if one_way {
            sim.meet("one-way cut");
            sim.partition_one_way(&some, &others);
        } else {
            sim.meet(if fault == Fault::CutLink { "link cut" } else { "cut" });
            sim.partition(&some, &others);
        }
        self.undo_later(sim, 30, Undo::Links);
        if fault == Fault::CutFromStore {
            sim.meet("store reached by one side");
            for node in some {
                sim.reach_store(node, false);
                self.undo_later(sim, 30, Undo::Store(node));
            }
        }
    }

    fn worsen(&mut self, sim: &mut Sim) {
        let mut weather = Weather::FAIR;
        match self.random.within(0..4) {
            0 => {
                sim.meet("loss");
                weather.loss = self.random.within(20..400);
            }
            1 => {
                sim.meet("repeats");
                weather.repeated = self.random.within(20..500);
            }
            2 => {
                sim.meet("delay");
                weather.delay.1 = self.random.up_to(Duration::from_secs(3));
            }
            _ => {
                sim.meet("strays");
                weather.stray = self.random.within(50..400);
            }
        }
        sim.weather(weather);
        self.undo_later(sim, 30, Undo::Weather);
    }

    fn restart(&mut self, sim: &mut Sim, node: usize) {
        sim.meet(if sim.has_cuts() { "restart during a cut" } else { "restart" });
        sim.restart(node);
        if self.random.percent(50) {
            let wait = self.random.up_to(Duration::from_secs(2));
            self.pass(sim, wait);
            if sim.running().any(|index| index == node) {
                sim.meet("two restarts in a row");
                sim.restart(node);
            }
        }
    }

    fn down(&mut self, sim: &mut Sim, node: usize) {
        let by = self.any(self.plan.nodes);
        if by == node || Some(by) == self.victim {
            return;
        }
        if Some(node) == self.victim && self.random.percent(50) {
            sim.meet("operator downs one that lives");
            sim.down(by, node);
        } else {
            sim.down_dead(by, node);
        }
    }

    fn any(&mut self, count: usize) -> usize {
        self.random.within(0..count as u64) as usize
    }

    /// Takes all faults away, and requires that all is well soon.
    fn recover(&mut self, sim: &mut Sim) -> Option<Duration> {
        self.crash_winner = false;
        for (_, undo) in std::mem::take(&mut self.undo) {
            self.undo(sim, undo);
        }
        sim.heal();
        sim.singleton_stops_failing();
        for node in 0..self.plan.nodes {
            let dead = sim.running().all(|index| index != node);
            if dead && (self.random.percent(50) || sim.running().count() < 2) {
                sim.start(node);
            }
        }
        sim.calm_begins();
        let mut highest = 0;
        let began = sim.elapsed();
        let mut recovery = None;
        while sim.elapsed() - began < RECOVERY {
            highest = sim.clusters().into_iter().chain([highest]).max().unwrap_or_default();
            if sim.agrees() && sim.believes_the_same() {
                recovery = Some(sim.elapsed() - began);
                break;
            }
            // Those who were leaving may have left.
            let dead = (0..self.plan.nodes).find(|node| sim.running().all(|index| index != *node));
            if let Some(dead) = dead.filter(|_| sim.running().count() < 2) {
                sim.start(dead);
            }
            // An operator looks every other second, at whatever node.
            if self.plan.downing.is_none() {
                let by = self.any(self.plan.nodes);
                for node in 0..self.plan.nodes {
                    sim.down_dead(by, node);
                }
            }
            self.pass(sim, Duration::from_secs(2));
        }
        sim.check_recovery(recovery.is_some(), highest);
        if self.plan.singleton.is_some() && recovery.is_some() {
            sim.singleton_recovers();
            if self.random.percent(50) && sim.violations().is_empty() {
                sim.singleton_host_loses_store();
            }
        }
        recovery
    }
}

impl Sim {
    /// The end of a campaign: all agree, on the newest of all clusters.
    fn check_recovery(&mut self, recovered: bool, highest: u64) {
        let clusters = self.clusters();
        let excused = self.truth.twins_decided;
        let missing = (!recovered && !excused)
            .then(|| format!("not after {RECOVERY:?}:\n{}", self.show_all()));
        let older = clusters.iter().find(|cluster| recovered && **cluster != highest);
        let older = older.map(|cluster| format!("the cluster {cluster}, not {highest}"));
        let now = self.now;
        self.invariants.report(now, [("all agree in the end", missing)]);
        self.invariants.report(now, [("the newest cluster is left", older)]);
    }
}

/// Some hundred per node and second, for as long as a schedule lasts.
const MOST_STEPS: u64 = 2_000_000;
/// How often everybody is looked at.
const LOOK: Duration = Duration::from_millis(500);
/// Within this time after the last fault all must agree.
const RECOVERY: Duration = Duration::from_secs(60);

/// Every word that a full campaign must have met.
pub const COVERAGE: &[&str] = &[
    "cut",
    "one-way cut",
    "link cut",
    "cut while somebody joins",
    "cut while somebody leaves",
    "loss",
    "repeats",
    "delay",
    "strays",
    "crash",
    "restart",
    "restart during a cut",
    "two restarts in a row",
    "pause",
    "pause with its clock",
    "pause noticed",
    "clone",
    "leader runs twice",
    "slow node",
    "store away",
    "join",
    "join during a cut",
    "leave",
    "leave during a cut",
    "operator downs one that lives",
    "two leaders",
    "two clusters",
    "cluster formed",
    "gave way to a newer cluster",
    "proof of an address asked for",
    "told that it was removed",
    "removed one refused",
    "ghost refused",
    "tombstone collected",
    "left",
    "downed",
    "removed",
    "lost while joining",
];
