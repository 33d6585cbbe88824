//! One shard at work: its entities.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap, HashSet, VecDeque};
use std::hint::black_box;
use std::sync::Arc;

use tokio::task::AbortHandle;
use tokio::time::Instant;

use tenure_cluster::messaging::{Lost, Received, Reply};
use tenure_lease::Token;

use super::crew::{Common, Ended, StopOrder};
use super::memory::{Chore, Done, Memory, State};
use super::remote::refuse;
use super::routes::{Back, Item};
use super::run::{Cell, Outcome, Run, make};
use crate::entity::HostedShard;
use crate::id::{EntityId, Hashed};
use crate::{BoxError, Entity, Hosted, Shard, StopReason, telemetry};

pub(super) struct ShardState<E: Entity> {
    hosted: Arc<HostedShard>,
    entities: HashMap<EntityId, Slot<E>, Hashed>,
    /// Those that wait for something, each in a task of its own.
    running: HashMap<EntityId, AbortHandle, Hashed>,
    /// Those of them that are being passivated.
    going: HashSet<EntityId, Hashed>,
    /// Those that have failed and had no success since.
    failed: HashMap<EntityId, Failed, Hashed>,
    /// How many messages wait in mailboxes.
    waiting: usize,
    /// How many entities there are.
    live: usize,
    memory: Option<Memory>,
    /// What came while it may not receive: it is not known yet which entities there are, or its
    /// time is over and the order to stop is on its way.
    kept: Vec<Item<E::Message>>,
    /// When its time was last looked at.
    round: u64,
    lapsed: bool,
    stopping: Option<Stopping<E::Message>>,
}

/// An entity's place. It is idle, at work, or waits until it may be made.
struct Slot<E: Entity> {
    idle: Option<Box<Cell<E>>>,
    #[allow(clippy::box_collection, reason = "most are idle: it takes eight bytes of each")]
    mailbox: Option<Box<VecDeque<Item<E::Message>>>>,
    /// When it was last used.
    used: u64,
    /// The stamp of its entry among the idle.
    entered: u64,
}

struct Failed {
    times: u32,
    /// When it may be made again.
    until: Instant,
}

struct Stopping<M> {
    order: StopOrder,
    /// What it has not looked at.
    rest: Vec<Item<M>>,
    /// Those that were at something are still at it; then the others stop.
    finishing: bool,
    /// Its time is over.
    expired: bool,
    /// How many were not in time.
    late: usize,
}

impl<E: Entity> ShardState<E> {
    pub(super) fn new(hosted: Arc<HostedShard>, common: &mut Common<E>) -> Self {
        let memory = common.shared.remember.clone().map(Memory::new);
        if let Some(memory) = &memory {
            let (kind, chores) = (&common.shared.kind, &mut common.chores);
            memory.load(kind, hosted.shard, hosted.token, chores);
        }
        Self {
            hosted,
            entities: HashMap::default(),
            running: HashMap::default(),
            going: HashSet::default(),
            failed: HashMap::default(),
            waiting: 0,
            live: 0,
            memory,
            kept: Vec::new(),
            round: 0,
            lapsed: false,
            stopping: None,
        }
    }

    pub(super) fn shard(&self) -> Shard {
        self.hosted.shard
    }

    pub(super) fn token(&self) -> Token {
        self.hosted.token
    }

    /// Whether this is the entry of an entity that is here.
    pub(super) fn entered(&self, id: &EntityId, stamp: u64) -> bool {
        self.entities.get(id).is_some_and(|slot| slot.entered == stamp)
    }

    pub(super) fn knows(&self, id: &EntityId) -> bool {
        self.entities.contains_key(id)
    }

    /// Has an entity at hand for the message that comes next for it.
    #[inline]
    pub(super) fn fetch(&self, id: &EntityId) {
        let cell = self.entities.get(id).and_then(|slot| slot.idle.as_ref());
        black_box(cell.is_some_and(|cell| cell.hosted.is_passivated()));
    }

    /// Has one received now, if its entity is idle; else it waits.
    #[inline]
    pub(super) fn receive(&mut self, item: Item<E::Message>, common: &mut Common<E>) {
        if !self.may_receive(common) {
            return self.keep(item, common);
        }
        let Some(slot) = self.entities.get_mut(&item.id) else {
            return self.first(item, common);
        };
        slot.used = common.idle.stamp();
        let Some(cell) = slot.idle.take() else {
            return self.wait(item, common);
        };
        match call(common, cell, item) {
            Ok(Outcome { result: Ok(Some(cell)), .. })
                if self.failed.is_empty() && !cell.hosted.is_passivated() =>
            {
                slot.idle = Some(cell);
            }
            Ok(outcome) => self.ended(outcome, common),
            Err(run) => self.spawn(run, common),
        }
    }

    /// The first message for an entity that is not here.
    fn first(&mut self, item: Item<E::Message>, common: &mut Common<E>) {
        if self.waiting >= common.shared.settings.buffer_messages {
            return full(item, common); // It is not made for nothing.
        }
        let id = item.id.clone();
        self.add(id.clone(), common);
        self.wait(item, common);
        match &mut self.memory {
            Some(memory) => {
                let place = (self.hosted.shard, self.hosted.token);
                let (kind, chores) = (&common.shared.kind, &mut common.chores);
                memory.note(id.as_str(), true, kind, place, chores);
            }
            None => self.begin(id, common),
        }
    }

    fn add(&mut self, id: EntityId, common: &Common<E>) {
        let used = common.idle.stamp();
        self.entities.insert(id, Slot { idle: None, mailbox: None, used, entered: used });
    }

    /// Whether messages may be received: a session whose time is over is lost.
    #[inline]
    fn may_receive(&mut self, common: &Common<E>) -> bool {
        if self.round != common.round {
            self.round = common.round;
            self.lapsed |= !self.hosted.has_session();
        }
        !self.lapsed && self.memory.as_ref().is_none_or(|memory| memory.state == State::Ready)
    }

    /// Whether it should not be here any more, and waits to be told to stop.
    fn is_over(&self) -> bool {
        self.lapsed || self.memory.as_ref().is_some_and(|memory| memory.state == State::Refused)
    }

    fn keep(&mut self, item: Item<E::Message>, common: &Common<E>) {
        match &mut self.stopping {
            Some(stopping) => stopping.rest.push(item),
            None if self.kept.len() < common.shared.settings.buffer_messages => {
                self.kept.push(item);
            }
            None => full(item, common),
        }
    }

    /// Puts a message into the mailbox of its entity, if there is room.
    fn wait(&mut self, item: Item<E::Message>, common: &Common<E>) {
        let settings = &common.shared.settings;
        let Some(slot) = self.entities.get_mut(&item.id) else { return };
        let mailbox = slot.mailbox.get_or_insert_default();
        if mailbox.len() >= settings.mailbox || self.waiting >= settings.buffer_messages {
            return full(item, common);
        }
        mailbox.push_back(item);
        self.waiting += 1;
    }

    /// Makes an entity, as soon as there may be one more.
    fn begin(&mut self, id: EntityId, common: &mut Common<E>) {
        match common.idle.must_wait(common.live) {
            true => common.idle.wait(self.hosted.shard, self.hosted.token, id),
            false => self.start(id, common),
        }
    }

    pub(super) fn admitted(&mut self, id: EntityId, common: &mut Common<E>) {
        if self.stopping.is_none() {
            self.start(id, common);
        }
    }

    /// Makes an entity, unless it has to wait since it failed.
    fn start(&mut self, id: EntityId, common: &mut Common<E>) {
        self.lapsed |= !self.hosted.has_session();
        if self.is_over() {
            return; // What waits for it goes where the shard goes.
        }
        if let Some(failed) = self.failed.get(&id)
            && Instant::now() < failed.until
        {
            return self.later(failed.until, Some(id), common);
        }
        self.live += 1;
        common.live += 1;
        if let Some(slot) = self.entities.get_mut(&id) {
            (slot.used, slot.entered) = (common.idle.stamp(), common.idle.stamp());
            common.idle.enter(self.hosted.shard, &id, slot.entered);
        }
        let hosted = Hosted::new(self.hosted.clone(), id.clone());
        match make(&*common.make, hosted) {
            Ok(cell) => self.go_on(Run::start(id, cell), common),
            Err(error) => self.ended(Outcome { id, result: Err(error) }, common),
        }
    }

    fn go_on(&mut self, run: Run<E>, common: &mut Common<E>) {
        match run.try_end() {
            Ok(outcome) => self.ended(outcome, common),
            Err(run) => self.spawn(run, common),
        }
    }

    fn spawn(&mut self, run: Run<E>, common: &mut Common<E>) {
        let id = run.id.clone();
        let handle = common.spawn(self.hosted.shard, self.hosted.token, run);
        self.running.insert(id, handle);
    }

    /// A task has ended; `None` if it was dropped where it awaited. How the shard ended, if it has.
    pub(super) fn came_back(
        &mut self,
        id: EntityId,
        outcome: Option<Outcome<E>>,
        common: &mut Common<E>,
    ) -> Option<Ended<E::Message>> {
        self.running.remove(&id);
        if self.going.remove(&id) {
            common.idle.gone();
        }
        if self.stopping.is_some() {
            if let Some(Outcome { result: Ok(Some(cell)), .. }) = outcome
                && let Some(slot) = self.entities.get_mut(&id)
            {
                slot.idle = Some(cell);
            }
            return self.advance(common);
        }
        let dropped = || Outcome { id, result: Err("it was dropped where it awaited".into()) };
        self.lapsed |= !self.hosted.has_session();
        self.ended(outcome.unwrap_or_else(dropped), common);
        None
    }

    /// A call has ended: goes on with what waits.
    fn ended(&mut self, outcome: Outcome<E>, common: &mut Common<E>) {
        let mut outcome = outcome;
        loop {
            let Outcome { id, result } = outcome;
            let cell = match result {
                Ok(Some(cell)) => cell,
                Ok(None) => return self.gone(id, common),
                Err(error) => return self.failure(id, &error, common),
            };
            let is_over = self.is_over();
            let Some(slot) = self.entities.get_mut(&id) else { return };
            if is_over {
                slot.idle = Some(cell); // What waits for it goes where the shard goes.
                return;
            }
            let next = slot.mailbox.as_mut().and_then(|mailbox| mailbox.pop_front());
            let called = match next {
                Some(item) => {
                    self.waiting -= 1;
                    slot.used = common.idle.stamp();
                    call(common, cell, item)
                }
                None => {
                    self.failed.remove(&id);
                    if !cell.hosted.is_passivated() {
                        slot.mailbox = None;
                        slot.idle = Some(cell);
                        return;
                    }
                    Run::stop(id, cell, StopReason::Passivated).try_end().inspect_err(|run| {
                        self.going.insert(run.id.clone());
                        common.idle.goes();
                    })
                }
            };
            match called {
                Ok(next) => outcome = next,
                Err(run) => return self.spawn(run, common),
            }
        }
    }

    /// Stops an entity that has not been used since this stamp; whether it goes.
    pub(super) fn passivate(&mut self, id: &EntityId, stamp: u64, common: &mut Common<E>) -> bool {
        let Some(slot) = self.entities.get_mut(id) else { return true };
        if slot.entered != stamp || self.stopping.is_some() {
            return true; // Another entry stands for it.
        }
        let idle = slot.idle.take_if(|_| slot.used <= stamp);
        let Some(cell) = idle else {
            slot.entered = if slot.idle.is_some() { slot.used } else { common.idle.stamp() };
            common.idle.enter(self.hosted.shard, id, slot.entered);
            return false;
        };
        cell.hosted.passivate();
        self.ended(Outcome { id: id.clone(), result: Ok(Some(cell)) }, common);
        true
    }

    fn one_less(&mut self, common: &mut Common<E>) {
        self.live -= 1;
        common.live -= 1;
    }

    /// An entity is no more: makes another if messages wait for it.
    fn gone(&mut self, id: EntityId, common: &mut Common<E>) {
        self.one_less(common);
        self.again(id, common);
    }

    fn again(&mut self, id: EntityId, common: &mut Common<E>) {
        let mailbox = self.entities.get(&id).and_then(|slot| slot.mailbox.as_ref());
        if mailbox.is_some_and(|mailbox| !mailbox.is_empty()) {
            return self.begin(id, common);
        }
        self.entities.remove(&id);
        if let Some(memory) = &mut self.memory {
            let place = (self.hosted.shard, self.hosted.token);
            memory.note(id.as_str(), false, &common.shared.kind, place, &mut common.chores);
        }
    }

    fn failure(&mut self, id: EntityId, error: &BoxError, common: &mut Common<E>) {
        self.one_less(common);
        let kind = &common.shared.kind;
        telemetry::failed(kind);
        tracing::error!(%kind, %id, shard = %self.hosted.shard, "entity failed: {error}");
        let now = Instant::now();
        let backoff = common.shared.settings.restart_backoff;
        if self.failed.len() >= FAILED_MAX {
            self.failed.retain(|_, failed| now < failed.until + backoff * BACKOFF_MAX);
        }
        let failed = self.failed.entry(id.clone()).or_insert(Failed { times: 0, until: now });
        // The first time, it may be made again at once.
        failed.until = match failed.times {
            0 => now,
            times => now + backoff * 2_u32.saturating_pow(times - 1).min(BACKOFF_MAX),
        };
        failed.times += 1;
        match self.memory {
            Some(_) => self.begin(id, common), // It is there, whoever sends it something.
            None => self.again(id, common),
        }
    }

    fn later(&self, at: Instant, id: Option<EntityId>, common: &mut Common<E>) {
        let (shard, token) = (self.hosted.shard, self.hosted.token);
        common.restarts.0.push(Reverse(Restart { at, shard, token, id }));
    }

    /// An entity may be made again, or the time to stop is over.
    pub(super) fn due(
        &mut self,
        id: Option<EntityId>,
        now: Instant,
        common: &mut Common<E>,
    ) -> Option<Ended<E::Message>> {
        let Some(stopping) = &mut self.stopping else {
            if let Some(id) = id {
                self.begin(id, common);
            }
            return None;
        };
        if id.is_none() && now >= stopping.order.deadline && !stopping.expired {
            stopping.expired = true;
            stopping.late += self.running.len();
            self.running.values().for_each(AbortHandle::abort);
        }
        None
    }

    /// Something about what is remembered is done.
    pub(super) fn chore_done(&mut self, chore: Chore, common: &mut Common<E>) {
        let place = (self.hosted.shard, self.hosted.token);
        let Some(memory) = &mut self.memory else { return };
        if self.stopping.is_some() {
            return;
        }
        match chore.done {
            Done::Loaded(ids) => {
                memory.state = State::Ready;
                for id in ids {
                    let id = EntityId::new(&id);
                    self.add(id.clone(), common);
                    self.begin(id, common);
                }
                for item in std::mem::take(&mut self.kept) {
                    self.receive(item, common);
                }
            }
            Done::Written(ids) => {
                memory.written(&common.shared.kind, place, &mut common.chores);
                for id in ids {
                    self.begin(EntityId::new(&id), common);
                }
            }
            Done::Refused(error) => {
                memory.state = State::Refused;
                let kind = &common.shared.kind;
                tracing::error!(%kind, shard = %place.0, "it should not be here: {error}");
            }
        }
    }

    /// Stops all entities, by the deadline. How the shard ended, if it has.
    pub(super) fn stop(
        &mut self,
        order: StopOrder,
        items: Vec<Item<E::Message>>,
        common: &mut Common<E>,
    ) -> Option<Ended<E::Message>> {
        if !order.reason.is_graceful() {
            self.running.values().for_each(AbortHandle::abort);
        }
        self.later(order.deadline, None, common);
        let mut rest = std::mem::take(&mut self.kept);
        rest.extend(items);
        self.stopping = Some(Stopping { order, rest, finishing: true, expired: false, late: 0 });
        self.advance(common)
    }

    /// It stops, and has less time for that now.
    pub(super) fn hurry(&mut self, order: StopOrder, common: &mut Common<E>) {
        let Some(stopping) = &mut self.stopping else { return };
        if !order.reason.is_graceful() {
            self.running.values().for_each(AbortHandle::abort);
        }
        stopping.order.deadline = stopping.order.deadline.min(order.deadline);
        stopping.order.reason = order.reason;
        let deadline = stopping.order.deadline;
        self.later(deadline, None, common);
    }

    fn advance(&mut self, common: &mut Common<E>) -> Option<Ended<E::Message>> {
        if !self.running.is_empty() {
            return None;
        }
        let stopping = self.stopping.as_mut()?;
        if std::mem::replace(&mut stopping.finishing, false) {
            let (reason, expired) = (stopping.order.reason.clone(), stopping.expired);
            let mut leftovers = Vec::new();
            for (id, Slot { idle, mailbox, .. }) in std::mem::take(&mut self.entities) {
                leftovers.extend(mailbox.into_iter().flat_map(|mailbox| *mailbox));
                if let Some(cell) = idle
                    && let Err(run) = Run::stop(id, cell, reason.clone()).try_end()
                {
                    self.spawn(run, common);
                }
            }
            let stopping = self.stopping.as_mut()?;
            leftovers.append(&mut stopping.rest);
            stopping.rest = leftovers;
            if expired {
                stopping.late += self.running.len();
                self.running.values().for_each(AbortHandle::abort);
            }
            if !self.running.is_empty() {
                return None;
            }
        }
        let Stopping { rest, late, .. } = self.stopping.take()?;
        common.live -= self.live;
        if late > 0 {
            let kind = &common.shared.kind;
            telemetry::failed(kind);
            tracing::error!(%kind, shard = %self.hosted.shard, late, "entities did not stop in time, and were dropped");
        }
        let HostedShard { shard, token, .. } = *self.hosted;
        Some(Ended { shard, token, leftovers: rest })
    }
}

/// Has an entity receive a message, as far as that goes without waiting.
#[inline]
fn call<E: Entity>(
    common: &mut Common<E>,
    cell: Box<Cell<E>>,
    item: Item<E::Message>,
) -> Result<Outcome<E>, Run<E>> {
    let Item { id, from, message, back } = item;
    let reply = match back.map(|back| *back) {
        None => Reply::nobody(),
        Some(Back::Reply(reply)) => reply,
        Some(Back::Numbered(delivery)) => {
            return Run::deliver(id, cell, message, delivery).try_end();
        }
    };
    let from = from.as_deref().unwrap_or(&common.me).clone();
    common.caller.receive(id, cell, Received { message, from, reply })
}

/// There is no room for a message.
fn full<E: Entity>(item: Item<E::Message>, common: &Common<E>) {
    let from = item.sender();
    match item.back.map(|back| *back) {
        None => refuse(&common.shared, from, Reply::nobody(), Lost::Full),
        Some(Back::Reply(reply)) => refuse(&common.shared, from, reply, Lost::Full),
        Some(Back::Numbered(_)) => {} // Not done: it comes again.
    }
}

/// When something is to be done about shards.
#[derive(Default)]
pub(super) struct Restarts(BinaryHeap<Reverse<Restart>>);

/// When to make an entity again; without one, when a shard must have stopped.
pub(super) struct Restart {
    at: Instant,
    pub(super) shard: Shard,
    pub(super) token: Token,
    pub(super) id: Option<EntityId>,
}

impl Restarts {
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.peek().map(|Reverse(restart)| restart.at)
    }

    pub(super) fn due(&mut self, now: Instant) -> Option<Restart> {
        if self.next()? > now { None } else { self.0.pop().map(|Reverse(restart)| restart) }
    }
}

impl PartialEq for Restart {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl Eq for Restart {}

impl PartialOrd for Restart {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Restart {
    fn cmp(&self, other: &Self) -> Ordering {
        self.at.cmp(&other.at)
    }
}

/// The longest pause, in pauses.
const BACKOFF_MAX: u32 = 30;
/// Of how many failures is remembered before old ones are forgotten.
const FAILED_MAX: usize = 1000;
