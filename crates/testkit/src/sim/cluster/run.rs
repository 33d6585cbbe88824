//! Time passes: messages arrive, timers fire, and what processes ask for is done.

use std::time::Duration;

use tenure_cluster::membership::Effect;
use tenure_cluster::wire::Control;
use tenure_cluster::{Address, Ending, Event, Incarnation, Node, View};
use tenure_lease::Moment;

use super::Sim;
use super::invariants::Told;
use super::process::{Lease, Process};
use super::queue::{Queue, What};

impl Sim {
    /// Lets time pass.
    pub fn run_for(&mut self, duration: Duration) {
        let end = self.now + duration;
        while self.step(end).is_some() {}
        self.now = end;
    }

    /// Does the next thing that is due by then, and returns where that was.
    pub(in crate::sim) fn step(&mut self, end: Moment) -> Option<usize> {
        let step = self.queue.pop_until(end)?;
        if self.queue.steps() > self.settings.most_steps {
            self.storm(end);
            return None;
        }
        self.now = step.at;
        match step.what {
            What::Deliver { place, to, from, message } => {
                self.deliver(place, to, from, message);
                Some(place)
            }
            What::Wake { place, process, at } => {
                self.wake(place, process, at);
                Some(place)
            }
            What::Apply { place, process, flight, request } => {
                self.apply(place, process, flight, request);
                Some(place)
            }
            What::Answer { place, process, flight, reply } => {
                self.answer(place, process, flight, reply);
                Some(place)
            }
            What::Singleton(step) => {
                self.singleton_step(step);
                Some(0)
            }
            What::Start { place } => {
                self.start_again(place);
                Some(place)
            }
        }
    }

    /// So much happens that it can only be nodes that answer each other for ever.
    fn storm(&mut self, end: Moment) {
        self.now = end;
        let what = format!("more than {} messages and timers", self.settings.most_steps);
        self.invariants.report(end, [("the network is quiet", Some(what))]);
        self.queue = Queue::default();
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
        self.receive(place, which, &from, message);
    }

    pub(super) fn receive(&mut self, place: usize, which: usize, from: &Node, message: Control) {
        self.meet_message(place, which, &message);
        let process = &mut self.places[place].processes[which];
        let local = process.clock.read(self.now);
        process.membership.receive(from, message, local);
        self.settle(place, which);
    }

    fn wake(&mut self, place: usize, process: u64, at: Moment) {
        let due = |found: &Process| found.id == process && found.wake_at == at && !found.paused;
        if let Some(which) = self.places[place].processes.iter().position(due) {
            self.poll(place, which);
        }
    }

    pub(super) fn poll(&mut self, place: usize, which: usize) {
        let process = &mut self.places[place].processes[which];
        process.wake_at = Moment::NEVER;
        let local = process.clock.read(self.now);
        process.membership.poll(local);
        let (id, arbitrates) = (process.id, process.arbitrates);
        if arbitrates && self.places[place].store {
            self.arbitration.renew(id, self.now);
        }
        let process = &mut self.places[place].processes[which];
        if process.lease.next() <= local {
            self.tend_lease(place, which, local);
        }
        self.settle(place, which);
    }

    /// While a node runs twice: whether it decides anything.
    fn note_twins(&mut self, place: usize) {
        if let [_, _, ..] = &self.places[place].processes[..] {
            let decides = self.places[place].processes.iter().any(|process| {
                let view = process.membership.view();
                view.is_none_or(|view| view.leader().is_none_or(|leader| *leader == process.node))
            });
            if decides && !self.truth.twins_decided {
                self.truth.twins_decided = true;
                self.meet("leader runs twice");
            }
        }
    }

    /// Does what a process asks for, until it asks for nothing more; then sets its timer.
    pub(super) fn settle(&mut self, place: usize, which: usize) {
        self.note_twins(place);
        loop {
            let process = &mut self.places[place].processes[which];
            let local = process.clock.read(self.now);
            process.cluster = process.membership.cluster().or(process.cluster);
            let effects: Vec<Effect> = process.membership.effects().collect();
            if let Some(noted) = process.formation.noted_cluster() {
                process.membership.cluster_is_noted(noted);
            }
            let formation = process.formation.poll(&process.membership, local);
            let node = process.node.clone();
            let resolved = self.resolve(place, which, local);
            if effects.is_empty() && formation.is_empty() && !resolved {
                break;
            }
            let mut ended = None;
            for effect in effects {
                match effect {
                    Effect::Send(to, message) => {
                        self.send(place, &node, &to.address, Some(to.incarnation), message);
                    }
                    Effect::Greet(to, message) => self.send(place, &node, &to, None, message),
                    Effect::Tell(event) => self.told(place, which, &node, event),
                    Effect::HandOver => {
                        let id = self.places[place].processes[which].id;
                        if self.settings.hosts {
                            self.places[place].processes[which].handing_over = true;
                        } else if !self.singleton_leaves(id) {
                            self.places[place].processes[which].membership.handed_over(local);
                        }
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
        self.look_for_guard(place, which);
        self.singleton_sees(place, which);
        self.set_timer(place, which);
    }

    fn ended(&mut self, place: usize, which: usize, ending: Ending) {
        let process = self.places[place].processes.remove(which);
        let cluster = process.cluster;
        self.invariants.ended(self.now, &process.node, cluster, &ending, &self.truth);
        self.note(|| format!("{} ends: {ending}", process.node));
        if self.settings.hosts {
            self.ended.push(process.id);
        }
        if self.settings.events {
            self.events.push((self.elapsed(), place, format!("ends: {ending}")));
        }
        self.mix(3, place as u64);
        self.truth.change(&process.node, |facts| facts.dead = true);
        self.truth.forgets(process.id);
        if matches!(process.lease, Lease::Held { .. }) && self.places[place].store {
            self.store.release(&process.node);
        }
        if let Ending::OtherCluster(newer) = &ending {
            let newest = &mut self.places[place].newest_cluster;
            *newest = (*newest).max(*newer);
        }
        let (name, again) = match ending {
            Ending::Left => ("left", false),
            Ending::Downed => ("downed", self.settings.rejoin),
            Ending::Removed => ("removed", self.settings.rejoin),
            Ending::Refused(_) => ("refused", false),
            Ending::Failed(_) => ("failed", false),
            Ending::LostWhileJoining => ("lost while joining", true),
            Ending::OtherCluster(_) => ("gave way to a newer cluster", true),
        };
        self.meet(name);
        let waits = self.singleton_out(process.id, again);
        if again && !waits {
            self.restart_soon(place);
        }
    }

    /// Another process starts where one has gone, unless somebody else sees to it.
    pub(super) fn restart_soon(&mut self, place: usize) {
        let most = self.settings.restart_takes;
        if most.is_zero() {
            return self.start_again(place);
        }
        let takes = most / 5 + self.random.up_to(most * 4 / 5);
        self.queue.push(self.now + takes, What::Start { place });
    }

    fn start_again(&mut self, place: usize) {
        if self.places[place].restarts && self.places[place].processes.is_empty() {
            self.start(place);
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
        if self.settings.count_bytes {
            self.bytes += tenure_cluster::wire::encoded_len(&message) as u64 + FRAME;
        }
        let mut message = Some(message);
        let journeys = self.network.journeys(from, place, &mut self.random);
        for (copy, journey) in journeys.into_iter().enumerate() {
            let Some(journey) = journey else { continue };
            let last = copy == 1 || journeys[1].is_none();
            let copied = if last { message.take() } else { message.clone() };
            if let Some(message) = copied {
                let from = sender.clone();
                self.queue.push(
                    self.now + journey,
                    What::Deliver { place, to: incarnation, from, message },
                );
            }
        }
    }

    fn told(&mut self, place: usize, which: usize, who: &Node, event: Event) {
        self.note(|| format!("{who} {event:?}"));
        self.mix(2, place as u64);
        if self.settings.events {
            let what = self.describe(&event);
            self.events.push((self.elapsed(), place, what));
        }
        let process = &self.places[place].processes[which];
        let Some(view) = process.membership.view() else { return };
        let others = |node: &Node| -> Option<&View> {
            let place = &self.places[*self.by_address.get(&node.address)?];
            place.processes.iter().find(|process| process.node == *node)?.membership.view()
        };
        // Beyond a cut it may have become a full member; whoever gives it up has not heard of that.
        if let Event::Downed(node) = &event
            && view.member(node).is_some_and(|member| member.up_number == 0)
        {
            self.truth.change(node, |facts| facts.downed = true);
        }
        let told = Told {
            process: process.id,
            who,
            event: &event,
            view,
            truth: &self.truth,
            others: &others,
        };
        self.invariants.told(self.now, &told);
        if let Event::Up(node) = &event
            && !self.truth.of(who).downed
            && let Some(member) = view.member(node)
        {
            let up = (view.cluster(), member.up_number);
            self.truth.is_up(node, up, process.id);
        }
        self.meet_event(&event);
    }

    pub(super) fn set_timer(&mut self, place: usize, which: usize) {
        let process = &mut self.places[place].processes[which];
        let local = process.clock.read(self.now);
        let local = process.next_wake(local);
        if process.paused || local == Moment::NEVER {
            return;
        }
        let at = process.clock.when(self.now, local).max(self.now);
        if at < process.wake_at {
            process.wake_at = at;
            let process = process.id;
            self.queue.push(at, What::Wake { place, process, at });
        }
    }

    fn mix(&mut self, kind: u64, place: u64) {
        let word = self.now.as_nanos() ^ kind.rotate_left(56) ^ place.rotate_left(40);
        self.hash = (self.hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
    }
}

/// How often a condition is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// How much waits for a process that stands still; a socket's buffer ends somewhere too.
const INBOX: usize = 4096;
/// What a frame costs besides its content: length, kind, TLS record and headers, about.
const FRAME: u64 = 66;
