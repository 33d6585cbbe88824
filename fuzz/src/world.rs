//! A few nodes, and a network between them that the input drives: it decides who starts, dies,
//! leaves or is declared down, what arrives when and how often, and when time passes. Only what real
//! nodes do, so that what they believe is what can be believed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use arbitrary::Unstructured;
use tenure_cluster::membership::{Effect, Event, Membership};
use tenure_cluster::wire::Control;
use tenure_cluster::settings::Rule;
use tenure_cluster::view::{Survivors, Verdict};
use tenure_cluster::{Address, MembershipSettings, Node, Status, View};
use tenure_lease::Moment;

use crate::planted::planted;
use crate::{below, node};

/// Addresses at which nodes may run.
pub const PLACES: usize = 4;

/// All of it.
pub struct World {
    pub now: Moment,
    pub settings: MembershipSettings,
    /// How many processes were ever started.
    pub started: u64,
    places: Vec<Option<Process>>,
    on_the_way: Vec<Parcel>,
    cut: BTreeSet<(usize, usize)>,
    /// What stands in the resolver's lease.
    verdict: Verdict,
    formed: bool,
}

struct Process {
    membership: Membership,
    /// Those of whom it was told that they are gone for good.
    gone: BTreeSet<Node>,
    /// It was in no cluster yet when it was last looked at.
    asked: bool,
}

#[derive(Clone)]
struct Parcel {
    from: Node,
    to: Node,
    message: Control,
}

impl Default for World {
    fn default() -> Self {
        let mut settings = MembershipSettings::default();
        if planted("ghosts") {
            settings.without = Some(Rule::RefuseGhosts);
        }
        Self {
            now: Moment::ZERO + Duration::from_secs(1_000_000),
            settings,
            started: 0,
            places: (0..PLACES).map(|_| None).collect(),
            on_the_way: Vec::new(),
            cut: BTreeSet::new(),
            verdict: Verdict::default(),
            formed: false,
        }
    }
}

impl World {
    /// Does one thing.
    pub fn step(&mut self, input: &mut Unstructured<'_>) {
        let kind = below(input, 16);
        let place = below(input, PLACES);
        match kind {
            0 | 1 => self.start(place),
            2 => self.places[place] = None,
            3 => self.act(place, |it, now| it.leave(now)),
            4 => {
                let whom = below(input, PLACES);
                let whom = self.places[whom].as_ref().map(|it| it.membership.me().clone());
                if let Some(whom) = whom {
                    self.act(place, |it, now| it.down(&whom, now));
                }
            }
            5 => self.decide(place),
            6 => self.follow(place),
            7 => {
                let other = below(input, PLACES);
                let link = (place.min(other), place.max(other));
                if !self.cut.remove(&link) {
                    self.cut.insert(link);
                }
            }
            8 | 9 => self.pass(Duration::from_millis(50 + 250 * place as u64)),
            10 => self.deliver(below(input, self.on_the_way.len()), false),
            11 => self.deliver(below(input, self.on_the_way.len()), true),
            12 => {
                let index = below(input, self.on_the_way.len());
                if index < self.on_the_way.len() {
                    self.on_the_way.remove(index);
                }
            }
            // Nothing is on its way for a day.
            13 if place == 0 => {
                self.on_the_way.clear();
                self.pass(self.settings.keep_removed);
            }
            _ => self.go_on(1 + 4 * place),
        }
    }

    /// What the nodes that run believe.
    pub fn views(&self) -> Vec<&View> {
        self.running().filter_map(|process| process.membership.view()).collect()
    }

    /// The same, of processes that are [`Status::Down`] by nobody's word: whoever is down is not
    /// listened to any more.
    pub fn views_that_count(&self) -> Vec<&View> {
        let views = self.views();
        let down = |node: &Node| {
            let is_down = |view: &&View| {
                view.is_removed(node) || view.member(node).is_some_and(|m| m.status == Status::Down)
            };
            views.iter().any(is_down)
        };
        self.running()
            .filter(|process| !down(process.membership.me()))
            .filter_map(|process| process.membership.view())
            .collect()
    }

    /// What is on its way.
    pub fn messages(&self) -> impl Iterator<Item = &Control> {
        self.on_the_way.iter().map(|parcel| &parcel.message)
    }

    /// Whoever is gone stays out; nothing grows beyond what there is.
    pub fn check(&mut self) {
        self.let_askers_in();
        for process in self.running() {
            let Some(view) = process.membership.view() else { continue };
            let back = view.members().find(|(node, _)| process.gone.contains(node));
            assert!(back.is_none(), "{back:?} is back at {}", process.membership.me());
            let known = view.members().len() + view.tombstones();
            assert!(known as u64 <= self.started, "{known} nodes of {}", self.started);
        }
    }

    /// A process that was let in, never heard of it, and was removed, may be let in again once its
    /// removal is forgotten: it still asks, and has been in no cluster.
    fn let_askers_in(&mut self) {
        let mut askers = Vec::new();
        for process in self.places.iter_mut().flatten() {
            let membership = &process.membership;
            let asks = membership.view().is_none() && !membership.is_ended();
            if std::mem::replace(&mut process.asked, asks) || asks {
                askers.push(membership.me().clone());
            }
        }
        for process in self.places.iter_mut().flatten() {
            process.gone.retain(|node| !askers.contains(node));
        }
    }

    fn running(&self) -> impl Iterator<Item = &Process> {
        self.places.iter().flatten()
    }

    fn start(&mut self, place: usize) {
        self.started += 1;
        let me = node(place, self.started);
        let (roles, agree) = (Arc::default(), Arc::from([]));
        let mut membership = Membership::new(me, roles, agree, self.settings.clone(), self.started);
        if self.formed {
            let contacts: Vec<Address> = (0..PLACES).map(|other| node(other, 0).address).collect();
            membership.join(contacts, self.now);
        } else {
            membership.form(1, self.now);
            self.formed = true;
        }
        self.places[place] = Some(Process { membership, gone: BTreeSet::new(), asked: true });
        self.act(place, |_, _| {});
    }

    /// A side wins the lease: those that answer this node go on.
    fn decide(&mut self, place: usize) {
        let Some(view) = self.places[place].as_ref().and_then(|it| it.membership.view()) else {
            return;
        };
        if view.verdict().generation != self.verdict.generation {
            return; // It has not read the last one.
        }
        let survives = |node: &&Node| {
            let is_alive = view.member(node).is_some_and(|it| it.status < Status::Down);
            is_alive && !view.is_unreachable(node)
        };
        let (survivors, losers): (Vec<&Node>, Vec<&Node>) =
            view.members().map(|(node, _)| node).partition(survives);
        let generation = self.verdict.generation + 1;
        let survivors = Arc::new(Survivors::new(survivors, losers));
        let verdict = Verdict { cluster: 1, generation, survivors };
        self.verdict = verdict;
        self.follow(place);
    }

    /// A node reads the lease's record.
    fn follow(&mut self, place: usize) {
        let verdict = self.verdict.clone();
        self.act(place, |it, now| it.adopt(&verdict, now));
    }

    /// All is delivered in order while time passes.
    fn go_on(&mut self, turns: usize) {
        for _ in 0..turns {
            self.pass(Duration::from_millis(200));
            for _ in 0..self.on_the_way.len() {
                self.deliver(0, false);
            }
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        for place in 0..PLACES {
            self.act(place, |it, now| it.poll(now));
        }
    }

    fn deliver(&mut self, index: usize, and_keep: bool) {
        if index >= self.on_the_way.len() {
            return;
        }
        let parcel = match and_keep {
            true => self.on_the_way[index].clone(),
            false => self.on_the_way.remove(index),
        };
        let at =
            |it: &Option<Process>| it.as_ref().is_some_and(|p| *p.membership.me() == parcel.to);
        if let Some(place) = self.places.iter().position(at) {
            let Parcel { from, message, .. } = parcel;
            self.act(place, |it, now| it.receive(&from, message, now));
        }
    }

    fn act(&mut self, place: usize, act: impl FnOnce(&mut Membership, Moment)) {
        let Some(process) = &mut self.places[place] else { return };
        act(&mut process.membership, self.now);
        self.carry_out(place);
    }

    fn carry_out(&mut self, place: usize) {
        let Some(process) = &mut self.places[place] else { return };
        let from = process.membership.me().clone();
        let effects: Vec<Effect> = process.membership.effects().collect();
        assert!(effects.len() < 256, "{} effects of one event", effects.len());
        for effect in effects {
            match effect {
                Effect::Send(to, message) => self.send(&from, to, message),
                Effect::Greet(address, message) => {
                    let at = |it: &&Process| it.membership.me().address == address;
                    let to = self.running().find(at).map(|it| it.membership.me().clone());
                    if let Some(to) = to {
                        self.send(&from, to, message);
                    }
                }
                Effect::Tell(Event::Removed(node)) => {
                    if let Some(process) = &mut self.places[place] {
                        process.gone.insert(node);
                    }
                }
                Effect::Tell(_) => {}
                Effect::HandOver => {
                    if let Some(process) = &mut self.places[place] {
                        process.membership.handed_over(self.now);
                    }
                    self.carry_out(place);
                }
                Effect::End(_) => self.places[place] = None,
            }
        }
    }

    fn send(&mut self, from: &Node, to: Node, message: Control) {
        let place = |node: &Node| node.address.as_str()[1..2].parse::<usize>().unwrap_or(0);
        let (one, other) = (place(from), place(&to));
        if !self.cut.contains(&(one.min(other), one.max(other))) {
            if self.on_the_way.len() >= ON_THE_WAY {
                self.on_the_way.remove(0);
            }
            self.on_the_way.push(Parcel { from: from.clone(), to, message });
        }
    }
}

const ON_THE_WAY: usize = 64;
