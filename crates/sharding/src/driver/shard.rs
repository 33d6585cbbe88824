//! A shard at work: a task with the entities of one shard.
//!
//! An entity's message is handled right here, as far as that goes without waiting. An entity that
//! waits goes on in a task of its own, and what comes for it meanwhile waits in its mailbox: it
//! slows nobody but those who send to it.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use tenure_cluster::Node;
use tenure_cluster::messaging::{Lost, Reply};
use tenure_lease::Token;

use super::count::Tally;
use super::handle::Shared;
use super::remote::refuse;
use super::routes::{Back, Item};
use super::run::{Call, Cell, Factory, Outcome, Run, make};
use crate::entity::HostedShard;
use crate::id::{EntityId, Hashed};
use crate::{BoxError, Entity, Hosted, Settings, Shard, StopReason, telemetry};

/// What a shard is told when it has to stop.
#[derive(Clone)]
pub(super) struct StopOrder {
    pub(super) reason: StopReason,
    pub(super) deadline: Instant,
}

/// How a shard ended.
pub(super) struct Ended<M> {
    pub(super) shard: Shard,
    pub(super) token: Token,
    /// What it has not looked at.
    pub(super) leftovers: Vec<Item<M>>,
}

/// What a shard is started with.
pub(super) struct Begin<M> {
    pub(super) hosted: Arc<HostedShard>,
    pub(super) me: Node,
    pub(super) items: mpsc::Receiver<Item<M>>,
    pub(super) orders: watch::Receiver<Option<StopOrder>>,
}

pub(super) struct Task<E: Entity> {
    shared: Arc<Shared<E::Message>>,
    make: Factory<E>,
    hosted: Arc<HostedShard>,
    me: Node,
    entities: HashMap<EntityId, Slot<E>, Hashed>,
    /// Those that wait for something.
    busy: JoinSet<Outcome<E>>,
    /// Those that have failed and had no success since.
    failed: HashMap<EntityId, Failed, Hashed>,
    /// Those that are to be made again.
    restarts: BinaryHeap<Reverse<Restart>>,
    /// How many messages wait in mailboxes.
    waiting: usize,
    tally: Tally<E::Message>,
}

/// An entity's place. It is idle, at work, or waits until it may be made again.
struct Slot<E: Entity> {
    idle: Option<Box<Cell<E>>>,
    #[allow(clippy::box_collection, reason = "most are idle: it takes eight bytes of each")]
    mailbox: Option<Box<VecDeque<Item<E::Message>>>>,
}

struct Failed {
    times: u32,
    /// When it may be made again.
    until: Instant,
}

/// Runs a shard until it has stopped.
pub(super) async fn run<E: Entity>(
    shared: Arc<Shared<E::Message>>,
    make: Factory<E>,
    begin: Begin<E::Message>,
) -> Ended<E::Message> {
    let Begin { hosted, me, mut items, mut orders } = begin;
    let mut task = Task {
        tally: Tally::new(shared.clone()),
        shared,
        make,
        hosted,
        me,
        entities: HashMap::default(),
        busy: JoinSet::new(),
        failed: HashMap::default(),
        restarts: BinaryHeap::new(),
        waiting: 0,
    };
    let mut batch = Vec::new();
    let order = loop {
        task.tally.entities(task.entities.len());
        let restart_at = task.restart_at();
        tokio::select! {
            biased;
            order = ordered(&mut orders) => break order,
            Some(outcome) = task.busy.join_next() => {
                if let Ok(outcome) = outcome {
                    task.ended(outcome);
                }
            }
            count = items.recv_many(&mut batch, BATCH) => {
                // A session whose time is over is lost: the order to stop is on its way.
                if count == 0 || !task.hosted.has_session() {
                    break ordered(&mut orders).await;
                }
                if task.take(&mut batch, &orders) {
                    break ordered(&mut orders).await;
                }
            }
            () = tokio::time::sleep_until(restart_at.unwrap_or_else(Instant::now)),
                if restart_at.is_some() => task.restart(),
        }
    };
    items.close();
    // Whoever was let in before may still be putting it down.
    while let Some(item) = items.recv().await {
        batch.push(item);
    }
    task.stop(order, batch).await
}

/// Waits until it has to stop.
async fn ordered(orders: &mut watch::Receiver<Option<StopOrder>>) -> StopOrder {
    match orders.wait_for(Option::is_some).await.map(|order| order.clone()) {
        Ok(Some(order)) => order,
        // Its region is gone, which only a runtime that is shut down can cause.
        _ => StopOrder { reason: StopReason::OutOfCluster, deadline: Instant::now() },
    }
}

impl<E: Entity> Task<E> {
    /// Has these received; whether it has to stop. The rest of them stays.
    fn take(
        &mut self,
        batch: &mut Vec<Item<E::Message>>,
        orders: &watch::Receiver<Option<StopOrder>>,
    ) -> bool {
        let count = batch.len();
        let mut rest = std::mem::take(batch).into_iter();
        let mut stops = false;
        while !stops && let Some(item) = rest.next() {
            self.receive(item);
            stops = orders.has_changed().unwrap_or(true);
        }
        self.tally.received(count - rest.len());
        batch.extend(rest);
        stops
    }

    /// Has one received now, if its entity is idle; else it waits.
    fn receive(&mut self, item: Item<E::Message>) {
        match self.entities.get_mut(&item.id) {
            Some(slot) => {
                if let Some(cell) = slot.idle.take() {
                    let run = Run::new(cell, Call::Receive(item), &self.me);
                    match run.try_end() {
                        Ok(Outcome { result: Ok(Some(cell)), .. })
                            if self.failed.is_empty() && !cell.hosted.is_passivated() =>
                        {
                            slot.idle = Some(cell);
                        }
                        Ok(outcome) => self.ended(outcome),
                        Err(run) => drop(self.busy.spawn(run)),
                    }
                } else {
                    self.wait(item);
                }
            }
            None => {
                let id = item.id.clone();
                self.entities.insert(id.clone(), Slot { idle: None, mailbox: None });
                self.wait(item);
                self.start(id);
            }
        }
    }

    /// Puts a message into the mailbox of its entity, if there is room.
    fn wait(&mut self, item: Item<E::Message>) {
        let settings: &Settings = &self.shared.settings;
        let Some(slot) = self.entities.get_mut(&item.id) else { return };
        let mailbox = slot.mailbox.get_or_insert_default();
        if mailbox.len() >= settings.mailbox || self.waiting >= settings.buffer_messages {
            let Item { from, back, .. } = item;
            match back {
                Back::Nobody => refuse(&self.shared, from, Reply::nobody(), Lost::Full),
                Back::Reply(reply) => refuse(&self.shared, from, reply, Lost::Full),
                Back::Numbered(_) => {} // Not done: it comes again.
            }
            return;
        }
        mailbox.push_back(item);
        self.waiting += 1;
    }

    /// Makes an entity, unless it has to wait since it failed.
    fn start(&mut self, id: EntityId) {
        if let Some(failed) = self.failed.get(&id)
            && Instant::now() < failed.until
        {
            self.restarts.push(Reverse(Restart { at: failed.until, id }));
            return;
        }
        let hosted = Hosted::new(self.hosted.clone(), id.clone());
        match make(&*self.make, hosted) {
            Ok(cell) => self.call(cell, Call::Start),
            Err(error) => self.ended(Outcome { id, result: Err(error) }),
        }
    }

    fn call(&mut self, cell: Box<Cell<E>>, call: Call<E::Message>) {
        match Run::new(cell, call, &self.me).try_end() {
            Ok(outcome) => self.ended(outcome),
            Err(run) => drop(self.busy.spawn(run)),
        }
    }

    /// A call has ended: goes on with what waits.
    fn ended(&mut self, outcome: Outcome<E>) {
        let mut outcome = outcome;
        loop {
            let Outcome { id, result } = outcome;
            let cell = match result {
                Ok(Some(cell)) => cell,
                Ok(None) => return self.again(id),
                Err(error) => return self.failure(id, &error),
            };
            let Some(slot) = self.entities.get_mut(&id) else { return };
            let next = slot.mailbox.as_mut().and_then(|mailbox| mailbox.pop_front());
            let call = match next {
                Some(item) => {
                    self.waiting -= 1;
                    Call::Receive(item)
                }
                None => {
                    self.failed.remove(&id);
                    if !cell.hosted.is_passivated() {
                        slot.mailbox = None;
                        slot.idle = Some(cell);
                        return;
                    }
                    Call::Stop(StopReason::Passivated)
                }
            };
            match Run::new(cell, call, &self.me).try_end() {
                Ok(next) => outcome = next,
                Err(run) => return drop(self.busy.spawn(run)),
            }
        }
    }

    /// An entity is no more: makes another if messages wait for it.
    fn again(&mut self, id: EntityId) {
        let mailbox = self.entities.get(&id).and_then(|slot| slot.mailbox.as_ref());
        match mailbox.is_some_and(|mailbox| !mailbox.is_empty()) {
            true => self.start(id),
            false => drop(self.entities.remove(&id)),
        }
    }

    fn failure(&mut self, id: EntityId, error: &BoxError) {
        let kind = &self.shared.kind;
        telemetry::failed(kind);
        tracing::error!(%kind, %id, shard = %self.hosted.shard, "entity failed: {error}");
        let now = Instant::now();
        let backoff = self.shared.settings.restart_backoff;
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
        self.again(id);
    }

    fn restart_at(&self) -> Option<Instant> {
        self.restarts.peek().map(|Reverse(restart)| restart.at)
    }

    /// Makes those again whose pause is over.
    fn restart(&mut self) {
        while let Some(Reverse(next)) = self.restarts.peek()
            && next.at <= Instant::now()
        {
            if let Some(Reverse(Restart { id, .. })) = self.restarts.pop() {
                self.start(id);
            }
        }
    }

    /// Stops all entities, by the deadline.
    async fn stop(mut self, order: StopOrder, rest: Vec<Item<E::Message>>) -> Ended<E::Message> {
        let StopOrder { reason, deadline } = order;
        if !reason.is_graceful() {
            self.busy.shutdown().await;
        }
        let late = self.finish(deadline).await;
        let mut leftovers = Vec::new();
        let (hosted, me) = (self.hosted.clone(), self.me.clone());
        for (_, Slot { idle, mailbox }) in std::mem::take(&mut self.entities) {
            leftovers.extend(mailbox.into_iter().flat_map(|mailbox| *mailbox));
            if let Some(cell) = idle
                && let Err(run) = Run::new(cell, Call::Stop(reason.clone()), &me).try_end()
            {
                self.busy.spawn(run);
            }
        }
        let late = late + self.finish(deadline).await;
        if late > 0 {
            let kind = &self.shared.kind;
            telemetry::failed(kind);
            tracing::error!(%kind, shard = %hosted.shard, late, "entities did not stop in time, and were dropped");
        }
        leftovers.extend(rest);
        Ended { shard: hosted.shard, token: hosted.token, leftovers }
    }

    /// Waits for those that are at something, by the deadline; how many were not in time.
    async fn finish(&mut self, deadline: Instant) -> usize {
        while let Ok(Some(outcome)) = tokio::time::timeout_at(deadline, self.busy.join_next()).await
        {
            if let Ok(Outcome { id, result: Ok(Some(cell)) }) = outcome
                && let Some(slot) = self.entities.get_mut(&id)
            {
                slot.idle = Some(cell);
            }
        }
        let late = self.busy.len();
        self.busy.shutdown().await;
        late
    }
}

/// When to make an entity again.
struct Restart {
    at: Instant,
    id: EntityId,
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

/// How many messages are taken at a time.
const BATCH: usize = 256;
/// The longest pause, in pauses.
const BACKOFF_MAX: u32 = 30;
/// Of how many failures is remembered before old ones are forgotten.
const FAILED_MAX: usize = 1000;
