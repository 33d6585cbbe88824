//! Does what the cores of a process ask for.

use std::time::Duration;

use tenure_cluster::Node;
use tenure_lease::keeper::Wish;
use tenure_lease::{Moment, Token};
use tenure_sharding::{Message, Setup, Shard, coordinator, region};

use super::World;
use super::data::{Kind, Op};
use super::invariants::Active;
use super::queue::{Cargo, What};
use super::shell::{Entity, Purpose};

impl World {
    /// Lets a process do whatever it can do now, and sets its timer.
    pub(super) fn attend(&mut self, id: u64) {
        loop {
            let now = self.sim.now();
            let Some(shell) = self.shells.get_mut(&id) else { return };
            if shell.paused {
                return;
            }
            let local = shell.clock.read(now);
            if shell.coordinator.next_wake() <= local {
                shell.coordinator.poll(local);
            }
            if shell.region.next_wake() <= local {
                shell.region.poll(local);
            }
            let mut any = self.keep(id, local);
            self.look_at_lease(id, local);
            let Some(shell) = self.shells.get_mut(&id) else { return };
            let orders: Vec<coordinator::Effect> = shell.coordinator.effects().collect();
            let deeds: Vec<region::Effect<u64>> = shell.region.effects().collect();
            any |= !orders.is_empty() || !deeds.is_empty();
            for effect in orders {
                self.coordinate(id, effect, local);
            }
            for effect in deeds {
                self.host(id, effect, local);
            }
            if !any {
                break;
            }
        }
        if self.shells.get(&id).is_some_and(|shell| shell.is_over()) {
            self.shells.remove(&id);
            self.invariants.gone(id);
            return;
        }
        self.set_timer(id);
    }

    pub(super) fn set_timer(&mut self, id: u64) {
        let now = self.sim.now();
        let Some(shell) = self.shells.get_mut(&id) else { return };
        let local = shell.next_wake();
        if local == Moment::NEVER {
            return;
        }
        let at = shell.clock.when(now, local).max(now);
        if at < shell.wake_at {
            shell.wake_at = at;
            self.queue.push(at, What::Wake { shell: id, at });
        }
    }

    fn coordinate(&mut self, id: u64, effect: coordinator::Effect, local: Moment) {
        match effect {
            coordinator::Effect::Send(to, message) => self.post(id, &to, message),
            coordinator::Effect::Contend { above } => {
                let wish = Wish { above, ..Wish::new(lease_name(), self.owner(id)) };
                self.contend(id, wish, Purpose::Lease, local);
            }
            coordinator::Effect::Withdraw => self.give_back(id, &Purpose::Lease, local),
            coordinator::Effect::WriteNote { number, note } => {
                let Some(shell) = self.shells.get_mut(&id) else { return };
                let lease = shell.keepers.values_mut().find(|it| it.purpose == Purpose::Lease);
                if let Some(kept) = lease {
                    kept.keeper.write_note(local, number, note);
                }
            }
            coordinator::Effect::Observe(sessions) => {
                if let Some(shell) = self.shells.get_mut(&id) {
                    shell.observed = sessions;
                }
                self.look_after_others(id, local);
            }
            coordinator::Effect::TakeOver(sessions) => {
                if let Some(shell) = self.shells.get_mut(&id) {
                    shell.taking_over = sessions;
                }
                self.look_after_others(id, local);
            }
            coordinator::Effect::Tell(event) => {
                self.note(|| format!("coordinator of process {id}: {event:?}"));
                if let coordinator::Event::Active { .. } = event {
                    self.meet("coordinator recovered");
                }
            }
        }
    }

    fn host(&mut self, id: u64, effect: region::Effect<u64>, local: Moment) {
        let Some(shell) = self.shells.get_mut(&id) else { return };
        match effect {
            region::Effect::Send(to, message) => {
                if let Message::Stopped(answer) = &message {
                    self.invariants.confirmed(id, answer);
                }
                self.post(id, &to, message);
            }
            region::Effect::Start { shard, token } => {
                // Without a lease terms begin anew with every cluster: there is nothing to fence with.
                let fence = match self.settings.setup {
                    Setup::Gossip => Token::default(),
                    Setup::Lease | Setup::Sessions => shell.region.fence(shard).unwrap_or(token),
                };
                let entity = Entity { token, fence, known: None, busy: true, waiting: 0 };
                shell.entities.insert(shard, entity);
                let node = shell.node.clone();
                self.note(|| format!("{node} starts shard {shard} with {token}"));
                self.mix(u64::from(shard.0), token.term ^ token.step);
                let active = Active { shell: id, node, token };
                self.invariants.started(self.sim.now(), shard, active);
                self.ask_database(id, Op { shard, token, fence, kind: Kind::Open });
                self.work_later(id, shard, token);
            }
            region::Effect::Stop { shard, token } => {
                let node = shell.node.clone();
                let budget = self.lease.stop_budget;
                let takes = match self.random.percent(20) {
                    true => budget,
                    false => self.random.up_to(budget / 2),
                };
                let now = self.sim.now();
                let Some(shell) = self.shells.get_mut(&id) else { return };
                let at = shell.clock.when(now, local + takes);
                self.queue.push(at, What::Stopped { shell: id, shard, token });
                self.note(|| format!("{node} stops shard {shard} with {token}"));
            }
            region::Effect::Hurry { .. } => {} // Whatever stops does so within the budget.
            region::Effect::Deliver { shard, token, message } => {
                self.served.insert(message);
                self.invariants.arrived(self.sim.now(), shard, token, message);
                self.sim.note(|| format!("message {message} reaches shard {shard}"));
                if let Some(entity) = shell.entities.get_mut(&shard).filter(|it| it.token == token)
                {
                    entity.waiting += 1;
                    self.write(id, shard);
                }
            }
            region::Effect::Forward { to, shard, message } => {
                self.ship(id, &to, Cargo::Forward(shard, message));
            }
            region::Effect::Return { to, shard, message } => {
                self.meet("message returned");
                self.ship(id, &to, Cargo::Return(shard, message));
            }
            region::Effect::Mark { to, shard } => self.ship(id, &to, Cargo::Mark(shard)),
            region::Effect::Marked { to, shard } => self.ship(id, &to, Cargo::Marked(shard)),
            region::Effect::Fail { message, .. } => {
                self.failed.insert(message);
                self.meet("message failed");
            }
            region::Effect::SessionEnded => {
                self.give_back(id, &Purpose::Session, local);
                self.want_session(id, local);
            }
            region::Effect::HandedOver => {
                let place = shell.place;
                self.meet("handed over");
                self.sim.handed_over(place, id);
                self.sync(place);
            }
        }
    }

    /// Sends a message of the control lane.
    fn post(&mut self, id: u64, to: &Node, message: Message) {
        if self.is_trapped(id, to, &message) {
            return;
        }
        let Some(shell) = self.shells.get(&id) else { return };
        let (from, place) = (shell.node.clone(), shell.place);
        let Some(target) = self.sim.place_of(to) else { return };
        let to = to.clone();
        if target == place {
            let what = What::Message { from, to, message };
            return self.queue.push(self.sim.now() + HERE, what);
        }
        let journeys = self.sim.journeys(place, target);
        for journey in journeys.into_iter().flatten() {
            let what =
                What::Message { from: from.clone(), to: to.clone(), message: message.clone() };
            self.queue.push(self.sim.now() + journey, what);
        }
    }

    /// Sends something that is kept in order.
    fn ship(&mut self, id: u64, to: &Node, cargo: Cargo) {
        let Some(shell) = self.shells.get(&id) else { return };
        let (from, place) = (shell.node.clone(), shell.place);
        self.note(|| format!("{from} to {to}: {cargo:?}"));
        let Some(target) = self.sim.place_of(to) else { return };
        let Some(journey) = self.sim.reliable_journey(place, target) else { return };
        let last = self.lanes.entry((place, target)).or_insert(Moment::ZERO);
        *last = (self.sim.now() + journey).max(*last);
        self.queue.push(*last, What::Cargo { from, to: to.clone(), cargo });
    }

    pub(super) fn shard_stopped(&mut self, id: u64, shard: Shard, token: Token, local: Moment) {
        let Some(shell) = self.shells.get_mut(&id) else { return };
        if shell.entities.get(&shard).is_none_or(|entity| entity.token != token) {
            return;
        }
        shell.entities.remove(&shard);
        shell.region.stopped(shard, token, local);
        self.invariants.stopped(shard, id);
        self.note(|| format!("process {id} has stopped shard {shard} with {token}"));
    }

    fn work_later(&mut self, id: u64, shard: Shard, token: Token) {
        let at = self.sim.now() + Duration::from_millis(500) + self.random.up_to(WORK);
        self.queue.push(at, What::Work { shell: id, shard, token });
    }

    /// A shard writes by itself, as long as it is active.
    pub(super) fn work(&mut self, id: u64, shard: Shard, token: Token) {
        let Some(shell) = self.shells.get_mut(&id) else { return };
        let Some(entity) = shell.entities.get_mut(&shard).filter(|it| it.token == token) else {
            return;
        };
        entity.waiting = entity.waiting.max(1);
        self.write(id, shard);
        self.work_later(id, shard, token);
    }

    fn write(&mut self, id: u64, shard: Shard) {
        let Some(shell) = self.shells.get_mut(&id) else { return };
        let Some(entity) = shell.entities.get_mut(&shard) else { return };
        let Some((fenced, unfenced)) = entity.known.filter(|_| !entity.busy && entity.waiting > 0)
        else {
            return;
        };
        entity.busy = true;
        entity.waiting -= 1;
        let (token, fence) = (entity.token, entity.fence);
        self.ask_database(id, Op { shard, token, fence, kind: Kind::Write { fenced, unfenced } });
    }

    fn ask_database(&mut self, id: u64, op: Op) {
        // Now and then a write is on its way for long.
        let is_write = op.kind != Kind::Open;
        let takes = match is_write && self.random.within(0..100) < 2 {
            true => self.random.up_to(LONGEST_WRITE),
            false => self.random.up_to(Duration::from_millis(20)),
        };
        self.queue.push(self.sim.now() + takes, What::Op { shell: id, op });
    }

    /// Something reaches the database.
    pub(super) fn operate(&mut self, shell: u64, op: Op) {
        let done = self.data.apply(&op);
        self.invariants.done(self.sim.now(), &op, &done);
        if done.lost_unfenced {
            self.meet("unfenced write lost");
        }
        if done.result.is_none() {
            self.meet("fence refused");
            self.note(|| format!("the fence refuses {op:?}"));
        }
        let takes = self.random.up_to(Duration::from_millis(20));
        let result = done.result;
        self.queue.push(self.sim.now() + takes, What::OpDone { shell, op, result });
    }

    pub(super) fn operated(&mut self, id: u64, op: Op, result: Option<(u64, u64)>, local: Moment) {
        let Some(shell) = self.shells.get_mut(&id) else { return };
        let entity = shell.entities.get_mut(&op.shard).filter(|it| it.token == op.token);
        let Some(entity) = entity else { return };
        entity.busy = false;
        match result {
            Some(known) => {
                entity.known = Some(known);
                self.write(id, op.shard);
            }
            // Whoever is refused by a fence is stale, and ends.
            None => self.shard_stopped(id, op.shard, op.token, local),
        }
    }
}

pub(super) fn lease_name() -> tenure_lease::LeaseName {
    "coordinator".parse().expect("a name")
}

/// How long a message to oneself takes.
const HERE: Duration = Duration::from_micros(50);
/// A shard writes by itself about so often.
const WORK: Duration = Duration::from_secs(3);
/// For how long a write may be on its way.
const LONGEST_WRITE: Duration = Duration::from_secs(25);
