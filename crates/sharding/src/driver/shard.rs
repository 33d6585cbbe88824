//! One shard at work: its entities.

mod stop;

use std::collections::{HashMap, HashSet, VecDeque};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::Instant;

use tenure_cluster::messaging::{Lost, Received, Reply};
use tenure_lease::Token;

use super::crew::{Common, Ended, News};
use super::due::{Due, Timer};
use super::failures::Failures;
use super::memory::{Chore, Done, Memory, State};
use super::remote::{full, refuse};
use super::routes::{Back, Item};
use super::run::{Cell, Outcome, Run, Told, discard, make};
use super::turn::LONG;
use super::unbegun::Unbegun;
use crate::entity::HostedShard;
use crate::id::{EntityId, Hashed, IdHash};
use crate::{BoxError, Entity, Hosted, Shard, StopReason, telemetry};
use stop::Stopping;

pub(super) struct ShardState<E: Entity> {
    hosted: Arc<HostedShard>,
    entities: HashMap<EntityId, Slot<E>, Hashed>,
    /// Those that wait for something, each in a task of its own.
    running: HashMap<EntityId, AbortHandle, Hashed>,
    /// Those of them that are being passivated.
    going: HashSet<EntityId, Hashed>,
    failures: Failures,
    /// How many messages wait in mailboxes.
    waiting: usize,
    /// How many entities there are.
    live: usize,
    memory: Option<Memory>,
    unbegun: Unbegun,
    /// What came while it may not receive: it is not known yet which entities there are, or it should
    /// not be here and the order to stop is on its way.
    kept: Vec<Item<E::Message>>,
    /// When its time was last looked at.
    round: u64,
    lapsed: bool,
    stopping: Option<Stopping<E>>,
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

impl<E: Entity> Slot<E> {
    /// Whether messages wait for it.
    fn has_mail(&self) -> bool {
        self.mailbox.as_ref().is_some_and(|mailbox| !mailbox.is_empty())
    }
}

impl<E: Entity> ShardState<E> {
    pub(super) fn new(hosted: Arc<HostedShard>, common: &mut Common<E>) -> Self {
        let mut memory = common.shared.remember.clone().map(Memory::new);
        if let Some(memory) = &mut memory {
            let (kind, place) = (&common.shared.kind, (hosted.shard, hosted.token));
            memory.load(kind, place, &mut common.chores);
        }
        Self {
            hosted,
            entities: HashMap::default(),
            running: HashMap::default(),
            going: HashSet::default(),
            failures: Failures::new(),
            waiting: 0,
            live: 0,
            memory,
            unbegun: Unbegun::default(),
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
    pub(super) fn entered(&self, id: IdHash, stamp: u64) -> bool {
        self.entities.get(&id).is_some_and(|slot| slot.entered == stamp)
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
            let next = self.unbegun.take(&item.id);
            self.wait(item, common);
            return next.into_iter().for_each(|id| self.begin(id, common));
        };
        match call(common, cell, item, true) {
            Ok(Outcome { result: Ok(Some(cell)), .. })
                if self.failures.is_empty() && !cell.hosted.is_passivated() =>
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
            return full(&common.shared, item); // It is not made for nothing.
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
    fn is_over(&mut self) -> bool {
        self.lapsed |= !self.hosted.has_session();
        self.lapsed || self.memory.as_ref().is_some_and(|memory| memory.state == State::Refused)
    }

    fn keep(&mut self, item: Item<E::Message>, common: &Common<E>) {
        match &mut self.stopping {
            Some(stopping) => stopping.rest.push(item),
            None if self.kept.len() < common.shared.settings.buffer_messages => {
                self.kept.push(item);
            }
            None => full(&common.shared, item),
        }
    }

    /// Puts a message into the mailbox of its entity, if there is room.
    fn wait(&mut self, item: Item<E::Message>, common: &Common<E>) {
        let settings = &common.shared.settings;
        let Some(slot) = self.entities.get_mut(&item.id) else { return };
        let mailbox = slot.mailbox.get_or_insert_default();
        if mailbox.len() >= settings.mailbox || self.waiting >= settings.buffer_messages {
            return full(&common.shared, item);
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
        if self.is_over() {
            return; // What waits for it goes where the shard goes.
        }
        if let Some(until) = self.failures.until(&id)
            && Instant::now() < until
        {
            return self.later(until, Due::Restart(id), common);
        }
        self.live += 1;
        common.live += 1;
        if let Some(slot) = self.entities.get_mut(&id) {
            (slot.used, slot.entered) = (common.idle.stamp(), common.idle.stamp());
            common.idle.enter(self.hosted.shard, id.id_hash(), slot.entered);
        }
        let hosted = Hosted::new(self.hosted.clone(), id.text().clone());
        match make(&*common.make, hosted) {
            Ok(cell) => self.go_on(Run::start(id, cell), common),
            Err(error) => self.ended(Outcome { id, result: Err(error) }, common),
        }
    }

    fn go_on(&mut self, run: Run<E>, common: &mut Common<E>) {
        match go_on(common, run) {
            Ok(outcome) => self.ended(outcome, common),
            Err(run) => self.spawn(run, common),
        }
    }

    fn spawn(&mut self, run: Run<E>, common: &mut Common<E>) {
        let id = run.id.clone();
        let handle = common.spawn(self.hosted.shard, self.hosted.token, run);
        if self.going.contains(&id) {
            let by = Instant::now() + common.shared.settings.stop_within;
            self.later(by, Due::Passivation(id.clone(), handle.id()), common);
        }
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
        let was_going = self.going.remove(&id);
        if was_going {
            common.idle.gone();
        }
        if self.stopping.is_some() {
            match outcome {
                Some(Outcome { result: Ok(Some(cell)), .. }) => match self.entities.get_mut(&id) {
                    Some(slot) => slot.idle = Some(cell),
                    None => discard(cell), // Not reached.
                },
                // What waits for it is for the next one.
                Some(Outcome { result: Ok(None), .. })
                    if was_going && !self.entities.get(&id).is_some_and(Slot::has_mail) =>
                {
                    self.forget(id, common);
                }
                _ => {}
            }
            return self.advance(common);
        }
        let dropped = || Outcome { id, result: Err("it was dropped where it awaited".into()) };
        self.ended(outcome.unwrap_or_else(dropped), common);
        None
    }

    /// A call has ended: goes on with what waits.
    fn ended(&mut self, outcome: Outcome<E>, common: &mut Common<E>) {
        self.unbegun.begun(&outcome.id);
        let mut outcome = outcome;
        loop {
            let Outcome { id, result } = outcome;
            let cell = match result {
                Ok(Some(cell)) => cell,
                Ok(None) => return self.gone(id, common),
                Err(error) => return self.failure(id, &error, common),
            };
            // Before each: what waits for it may take long.
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
                    let at_once = !common.turn.is_over();
                    call(common, cell, item, at_once)
                }
                None => {
                    self.failures.succeeded(&id);
                    if !cell.hosted.is_passivated() {
                        slot.mailbox = None;
                        slot.idle = Some(cell);
                        return;
                    }
                    let stop = Run::stop(id, cell, StopReason::Passivated);
                    go_on(common, stop).inspect_err(|run| {
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
    pub(super) fn passivate(&mut self, id: IdHash, stamp: u64, common: &mut Common<E>) -> bool {
        let Some(slot) = self.entities.get_mut(&id) else { return true };
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
        let id = EntityId::new(cell.hosted.id());
        self.ended(Outcome { id, result: Ok(Some(cell)) }, common);
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
        match self.entities.get(&id).is_some_and(Slot::has_mail) {
            true => self.begin(id, common),
            false => self.forget(id, common),
        }
    }

    /// An entity is no more, and nothing waits for it.
    fn forget(&mut self, id: EntityId, common: &mut Common<E>) {
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
        let backoff = common.shared.settings.restart_backoff;
        self.failures.failed(id.clone(), backoff, Instant::now());
        match self.memory {
            Some(_) => self.begin(id, common), // It is there, whoever sends it something.
            None => self.again(id, common),
        }
    }

    fn later(&self, at: Instant, due: Due, common: &mut Common<E>) {
        let (shard, token) = (self.hosted.shard, self.hosted.token);
        common.timers.set(Timer { at, shard, token, due });
    }

    /// It is time for something. How the shard ended, if it has.
    pub(super) fn due(
        &mut self,
        due: Due,
        now: Instant,
        common: &mut Common<E>,
    ) -> Option<Ended<E::Message>> {
        match due {
            Due::Stop => return self.stop_due(now, common),
            _ if self.stopping.is_some() => {}
            Due::Restart(id) => self.begin(id, common),
            Due::Remembered => self.begin_remembered(common),
            Due::Passivation(id, task) => {
                if let Some(running) = self.running.get(&id).filter(|it| it.id() == task) {
                    running.abort(); // It has failed, and comes back as that.
                }
            }
        }
        None
    }

    /// Something about what is remembered is done. How the shard ended, if it has.
    pub(super) fn chore_done(
        &mut self,
        chore: Chore,
        common: &mut Common<E>,
    ) -> Option<Ended<E::Message>> {
        let place = (self.hosted.shard, self.hosted.token);
        let kind = common.shared.kind.clone();
        let memory = self.memory.as_mut()?;
        match chore.done {
            Done::Loaded(_) if self.stopping.is_some() => {}
            Done::Loaded(ids) => {
                memory.state = State::Ready;
                self.loaded(ids, common);
            }
            Done::Written(ids) => {
                memory.written(&kind, place, &mut common.chores);
                for id in ids {
                    if self.stopping.is_none() {
                        self.begin(EntityId::new(&id), common);
                    }
                }
            }
            Done::Refused(error) => {
                memory.refused();
                tracing::error!(%kind, shard = %place.0, "it should not be here, and is given back: {error}");
                let _ = common.news.send(News::Refused(place.0, place.1)); // Control is there.
            }
        }
        self.advance(common)
    }

    /// These were there before. Whatever they come from may be wrong: one that belongs to another shard
    /// would be in two places, and one that is named twice, too.
    fn loaded(&mut self, ids: Vec<String>, common: &mut Common<E>) {
        let shard = self.hosted.shard;
        let mut wrong = 0_usize;
        for id in ids {
            let id = EntityId::new(&id);
            let belongs = !common.shared.outlives || id.shard(&common.shared.settings) == shard;
            if !belongs || !id.is_valid() || self.entities.contains_key(&id) {
                wrong += 1;
                continue;
            }
            self.add(id.clone(), common);
            self.unbegun.put(id);
        }
        self.begin_remembered(common);
        if wrong > 0 {
            let kind = &common.shared.kind;
            tracing::error!(%kind, %shard, "{wrong} of the remembered ids are not started: they belong to another shard, are named twice, or cannot be ids; have the number of shards or their key been changed?");
        }
    }

    /// Makes some of those that are remembered, and then the next, a few at a time: what they do when
    /// they start, a database may have to bear.
    fn begin_remembered(&mut self, common: &mut Common<E>) {
        while let Some(id) = self.unbegun.next() {
            self.begin(id, common);
        }
        if !self.unbegun.is_empty() {
            self.later(Instant::now() + REMEMBERED_POLL, Due::Remembered, common);
        }
    }

    /// What was kept and may be received now.
    pub(super) fn released(&mut self, common: &Common<E>) -> Vec<Item<E::Message>> {
        match self.stopping.is_none() && self.may_receive(common) {
            true => std::mem::take(&mut self.kept),
            false => Vec::new(),
        }
    }

    /// What it has not looked at, when it has failed with its crew.
    pub(super) fn leftovers(mut self: Box<Self>) -> Vec<Item<E::Message>> {
        let mut leftovers = Vec::new();
        for slot in self.entities.values_mut() {
            leftovers.extend(slot.mailbox.take().into_iter().flat_map(|mailbox| *mailbox));
        }
        leftovers.append(&mut self.kept);
        if let Some(stopping) = &mut self.stopping {
            leftovers.append(&mut stopping.rest);
        }
        leftovers
    }
}

impl<E: Entity> Drop for ShardState<E> {
    fn drop(&mut self) {
        let idle = std::mem::take(&mut self.entities).into_values().filter_map(|slot| slot.idle);
        let untold = self.stopping.as_mut().into_iter().flat_map(Stopping::untold);
        idle.chain(untold).for_each(discard);
    }
}

/// How often to look whether more of those that are remembered may be made.
const REMEMBERED_POLL: Duration = Duration::from_millis(5);

/// Has an entity receive a message: at once, as far as that goes without waiting, or in a task of its own.
#[inline]
fn call<E: Entity>(
    common: &mut Common<E>,
    cell: Box<Cell<E>>,
    item: Item<E::Message>,
    at_once: bool,
) -> Result<Outcome<E>, Run<E>> {
    let Item { id, from, message, back } = item;
    let reply = match back.map(|back| *back) {
        None => Reply::nobody(),
        Some(Back::Reply(reply)) => reply,
        Some(Back::Numbered(delivery)) => {
            let run = Run::deliver(id, cell, message, delivery);
            return if at_once { run.try_end() } else { Err(run) };
        }
    };
    let is_told = !reply.is_awaited();
    let sender = reply.node().or(from.node()).unwrap_or(&common.me).clone();
    let received = Received { message, from: sender, reply };
    match begin(common, id, cell, received, at_once) {
        Ok(outcome) if is_told => {
            match outcome.result.is_ok() {
                true => from.settle(),
                false => unfinished(common, &outcome.id, Told { from }),
            }
            Ok(outcome)
        }
        Err(mut run) if is_told => {
            run.told = Some(Told { from });
            Err(run)
        }
        called => called,
    }
}

/// Has an entity receive a message: at once if that may be and is not expected to take long.
#[inline]
fn begin<E: Entity>(
    common: &mut Common<E>,
    id: EntityId,
    cell: Box<Cell<E>>,
    received: Received<E::Message>,
    at_once: bool,
) -> Result<Outcome<E>, Run<E>> {
    if !at_once || cell.hosted.is_slow() {
        return Err(Run::receive(id, cell, received));
    }
    if common.timed == 0 {
        return common.caller.receive(id, cell, received);
    }
    common.timed -= 1;
    let began = Instant::now();
    let called = common.caller.receive(id, cell, received);
    called.map(|Outcome { id, result }| Outcome::new(id, result, began.elapsed() >= LONG))
}

/// What was told was begun with, and not finished.
#[cold]
pub(super) fn unfinished<E: Entity>(common: &Common<E>, id: &EntityId, told: Told) {
    refuse(&common.shared, id, told.from.into(), Lost::Unfinished);
}

/// Goes on as far as that goes without waiting, if there is time for it.
fn go_on<E: Entity>(common: &mut Common<E>, run: Run<E>) -> Result<Outcome<E>, Run<E>> {
    if common.turn.is_over() { Err(run) } else { run.try_end() }
}
