//! Shards at work: a few tasks, each with its share of this node's shards and one queue for all of
//! them.
//!
//! A message is handled right here, as far as that goes without waiting. An entity that waits goes
//! on in a task of its own, and what comes for it meanwhile waits in its mailbox: it slows nobody
//! but those who send to it. So does, from the start, one whose last call kept the thread for long.
//!
//! # Stopping a shard
//!
//! Nobody puts anything into the queue for a shard whose way was withdrawn ([`super::routes`]), and
//! that is done before the order to stop. So what was let in is in the queue by then: it is taken
//! out, and comes back with the shard.
//!
//! # A panic
//!
//! Calls of entities are caught, each. What else is of users may panic here, such as a message when it is
//! dropped: then nothing of the crew's shards goes on, and all of them are given back with what they have
//! not looked at.

use std::collections::{HashMap, VecDeque};
use std::panic::resume_unwind;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tokio::sync::mpsc;
use tokio::task::{self, AbortHandle, JoinError, JoinSet};
use tokio::time::Instant;

use tenure_cluster::messaging::Lost;
use tenure_cluster::{Address, Node};
use tenure_lease::Token;

use super::caught;
use super::count::Tally;
use super::due::Timers;
use super::handle::Shared;
use super::idle::Idle;
use super::memory::{Chore, Chores};
use super::queue::{Items, Queue};
use super::remote::refuse;
use super::routes::{Back, Item};
use super::run::{Caller, Factory, Outcome, Run, Told};
use super::shard::{ShardState, unfinished};
use super::turn::Turn;
use crate::entity::HostedShard;
use crate::id::{EntityId, IdHash};
use crate::{Entity, Shard, StopReason};

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

/// What a crew has to say.
pub(super) enum News<M> {
    Ended(Ended<M>),
    /// This allocation of a shard was refused by what remembers its entities.
    Refused(Shard, Token),
}

/// What a crew is told.
pub(super) enum Order {
    Begin(Arc<HostedShard>),
    Stop(Shard, Token, StopOrder),
    /// It stops, and has less time for that now.
    Hurry(Shard, Token, StopOrder),
}

/// The way into a crew.
pub(super) struct Crew<M> {
    pub(super) queue: Arc<Queue<M>>,
    orders: mpsc::UnboundedSender<Order>,
    /// How many orders it has not looked at.
    unread: Arc<AtomicUsize>,
    pub(super) task: task::Id,
    /// How many shards it has.
    pub(super) shards: usize,
}

/// Its inner end.
pub(super) struct Inlet<M> {
    /// How many crews there are.
    pub(super) crews: usize,
    queue: Arc<Queue<M>>,
    /// Unbounded: there is little to be said, and control must not wait.
    orders: mpsc::UnboundedReceiver<Order>,
    unread: Arc<AtomicUsize>,
    news: mpsc::UnboundedSender<News<M>>,
}

impl<M> Drop for Inlet<M> {
    fn drop(&mut self) {
        self.queue.close();
    }
}

impl<M: Send + 'static> Crew<M> {
    pub(super) fn new(
        crews: usize,
        news: mpsc::UnboundedSender<News<M>>,
        spawn: impl FnOnce(Inlet<M>) -> AbortHandle,
    ) -> Self {
        let queue = Arc::new(Queue::new());
        let (orders, ordered) = mpsc::unbounded_channel();
        let unread = Arc::<AtomicUsize>::default();
        let task = spawn(Inlet {
            crews,
            queue: queue.clone(),
            orders: ordered,
            unread: unread.clone(),
            news,
        });
        Self { queue, orders, unread, task: task.id(), shards: 0 }
    }

    pub(super) fn order(&self, order: Order) {
        self.unread.fetch_add(1, Relaxed);
        let _ = self.orders.send(order); // A crew that is gone is known to be.
    }
}

/// A crew at work.
struct Shards<E: Entity> {
    common: Common<E>,
    /// By the number of the shard.
    shards: Vec<Option<Box<ShardState<E>>>>,
    inlet: Inlet<E::Message>,
    /// Taken out of the queue, and not handled yet.
    ahead: Items<E::Message>,
}

/// What all shards of a crew share.
pub(super) struct Common<E: Entity> {
    pub(super) shared: Arc<Shared<E::Message>>,
    pub(super) make: Factory<E>,
    /// A copy of this crew's own, so that crews do not count references in one place.
    pub(super) me: Node,
    pub(super) caller: Caller<E>,
    /// Entities that wait for something.
    pub(super) busy: JoinSet<Outcome<E>>,
    /// Whose task is whose.
    pub(super) whose: HashMap<task::Id, (Shard, Token, EntityId, Option<Told>)>,
    pub(super) timers: Timers,
    pub(super) idle: Idle,
    pub(super) chores: Chores,
    /// How many entities there are.
    pub(super) live: usize,
    tally: Tally<E::Message>,
    /// Rises with every handful of messages.
    pub(super) round: u64,
    pub(super) turn: Turn,
    /// How many more calls are timed, since a turn was over before they were.
    pub(super) timed: u32,
    pub(super) news: mpsc::UnboundedSender<News<E::Message>>,
}

impl<E: Entity> Common<E> {
    fn next_round(&mut self) {
        self.round += 1;
        self.idle.look();
    }

    pub(super) fn spawn(&mut self, shard: Shard, token: Token, mut run: Run<E>) -> AbortHandle {
        let (id, told) = (run.id.clone(), run.told.take());
        let handle = self.busy.spawn(run);
        self.whose.insert(handle.id(), (shard, token, id, told));
        handle
    }
}

/// Runs a crew for as long as its region lives.
pub(super) async fn run<E: Entity>(
    shared: Arc<Shared<E::Message>>,
    make: Factory<E>,
    inlet: Inlet<E::Message>,
) {
    let me = shared.cluster.me();
    let address = Address::new(me.address.as_str()).unwrap_or(me.address);
    let common = Common {
        idle: Idle::new(&shared.settings, inlet.crews),
        tally: Tally::new(shared.clone()),
        shared,
        make,
        me: Node { address, ..me },
        caller: Caller::new(),
        busy: JoinSet::new(),
        whose: HashMap::new(),
        timers: Timers::default(),
        chores: Chores::default(),
        live: 0,
        round: 1,
        turn: Turn::default(),
        timed: 0,
        news: inlet.news.clone(),
    };
    let mut shards = Shards { common, shards: Vec::new(), inlet, ahead: VecDeque::new() };
    if let Err(panic) = caught(shards.run()).await {
        shards.give_back().await;
        resume_unwind(panic);
    }
}

impl<E: Entity> Shards<E> {
    async fn run(&mut self) {
        // How often it looks again before it sleeps: to be woken costs whoever sends more.
        let mut awake = 0;
        let mut handled = 0;
        // One for all turns: most often the next one waits until the same moment.
        let mut alarm = pin!(tokio::time::sleep_until(Instant::now()));
        loop {
            if self.ahead.is_empty() {
                let count = self.inlet.queue.take(&mut self.ahead, awake == 0);
                if count > 0 {
                    awake = if count >= MANY { AWAKE } else { 0 };
                    self.common.tally.received(count);
                }
            }
            if self.common.turn.was_over() {
                (handled, self.common.timed) = (IN_A_ROW, TIMED);
            }
            if handled >= IN_A_ROW {
                handled = 0;
                tokio::task::yield_now().await;
            }
            // However much there is to receive.
            if self.next_wake().is_some_and(|at| at <= Instant::now()) {
                self.common.turn = Turn::default();
                self.wake();
                if self.common.turn.was_over() {
                    handled = IN_A_ROW;
                }
            }
            // Before it may sleep.
            self.common.tally.entities(self.common.live);
            let wake = self.next_wake();
            if let Some(at) = wake.filter(|at| *at != alarm.deadline()) {
                alarm.as_mut().reset(at);
            }
            self.common.turn = Turn::default();
            tokio::select! {
                biased;
                order = self.inlet.orders.recv() => match order {
                    Some(order) => self.obey(order),
                    None => return,
                },
                Some(chore) = self.common.chores.next() => self.chore(chore),
                Some(ended) = self.common.busy.join_next_with_id() => {
                    self.outcome(ended);
                    while !self.common.turn.was_over()
                        && let Some(ended) = self.common.busy.try_join_next_with_id()
                    {
                        self.outcome(ended);
                    }
                    // However many come back.
                    if !self.ahead.is_empty() {
                        handled += self.go_on();
                    }
                }
                () = std::future::ready(()), if !self.ahead.is_empty() => handled += self.go_on(),
                () = tokio::task::yield_now(), if awake > 0 => awake -= 1,
                () = self.inlet.queue.filled(), if awake == 0 => {}
                () = &mut alarm, if wake.is_some() => {}
            }
        }
    }

    /// Has some received, until there is an order or others must have their turn; how many.
    fn go_on(&mut self) -> usize {
        self.common.next_round();
        self.forget();
        let fetches = self.common.live > FETCHED_FROM;
        for handled in 0..BATCH {
            if self.inlet.unread.load(Relaxed) > 0 || self.common.turn.is_over() && handled > 0 {
                return handled;
            }
            if fetches && handled % FETCHED == 0 {
                self.fetch();
            }
            let Some((shard, item)) = self.ahead.pop_front() else { return handled };
            receive(&mut self.common, &mut self.shards, shard, item);
        }
        BATCH
    }

    /// Looks at the entities of the next few messages. Memory answers several such looks at once, but
    /// only one when each message is handled in between.
    fn fetch(&self) {
        for (shard, item) in self.ahead.iter().take(FETCHED) {
            if let Some(Some(state)) = self.shards.get(shard.0 as usize) {
                state.fetch(&item.id);
            }
        }
    }

    fn forget(&mut self) {
        let (common, shards) = (&mut self.common, &self.shards);
        common.idle.forget(common.live, |shard, id, stamp| {
            let state = shards.get(shard.0 as usize).and_then(Option::as_deref);
            state.is_some_and(|state| state.entered(id, stamp))
        });
    }

    /// Does all that it is told by now.
    fn obey(&mut self, first: Order) {
        let mut next = Some(first);
        let (mut stopping, mut hurried) = (Vec::new(), Vec::new());
        while let Some(order) = next {
            self.inlet.unread.fetch_sub(1, Relaxed);
            match order {
                Order::Begin(hosted) => self.begin(hosted),
                Order::Stop(shard, token, order) => stopping.push((shard, token, order)),
                Order::Hurry(shard, token, order) => hurried.push((shard, token, order)),
            }
            next = self.inlet.orders.try_recv().ok();
        }
        if !stopping.is_empty() {
            self.stop(stopping);
        }
        for (shard, token, order) in hurried {
            if let Some((state, common)) = self.state(shard, token) {
                let ended = state.hurry(order, common);
                self.finish(shard, ended);
            }
        }
    }

    /// Stops these, with what is there for them.
    fn stop(&mut self, stopping: Vec<(Shard, Token, StopOrder)>) {
        let count = self.inlet.queue.take(&mut self.ahead, false);
        self.common.tally.received(count);
        let mut theirs: HashMap<Shard, Vec<Item<E::Message>>> =
            stopping.iter().map(|(shard, ..)| (*shard, Vec::new())).collect();
        let ahead = std::mem::take(&mut self.ahead);
        for (shard, item) in ahead {
            match theirs.get_mut(&shard) {
                Some(items) => items.push(item),
                None => self.ahead.push_back((shard, item)),
            }
        }
        for (shard, token, order) in stopping {
            let items = theirs.remove(&shard).unwrap_or_default();
            match self.state(shard, token) {
                Some((state, common)) => {
                    let ended = state.stop(order, items, common);
                    self.finish(shard, ended);
                }
                // Not reached: it has begun, and ends when it is told to.
                None => self.finish(shard, Some(Ended { shard, token, leftovers: items })),
            }
        }
    }

    fn begin(&mut self, hosted: Arc<HostedShard>) {
        let place = hosted.shard.0 as usize;
        if self.shards.len() <= place {
            self.shards.resize_with(place + 1, || None);
        }
        self.shards[place] = Some(Box::new(ShardState::new(hosted, &mut self.common)));
    }

    /// A shard's state, if this allocation of it is here.
    fn state(
        &mut self,
        shard: Shard,
        token: Token,
    ) -> Option<(&mut ShardState<E>, &mut Common<E>)> {
        let state = self.shards.get_mut(shard.0 as usize)?.as_deref_mut();
        state.filter(|state| state.token() == token).map(|state| (state, &mut self.common))
    }

    fn outcome(&mut self, ended: Result<(task::Id, Outcome<E>), JoinError>) {
        let (task, outcome) = match ended {
            Ok((task, outcome)) => (task, Some(outcome)),
            Err(error) => (error.id(), None), // It was dropped where it awaited.
        };
        let Some((shard, token, id, told)) = self.common.whose.remove(&task) else { return };
        let is_finished = outcome.as_ref().is_some_and(|outcome| outcome.result.is_ok());
        match told {
            Some(told) if is_finished => told.from.settle(),
            Some(told) => unfinished(&self.common, &id, told),
            None => {}
        }
        if let Some((state, common)) = self.state(shard, token) {
            let ended = state.came_back(id, outcome, common);
            self.finish(shard, ended);
        }
        self.admit();
    }

    fn chore(&mut self, chore: Chore) {
        let (shard, token) = (chore.shard, chore.token);
        if let Some((state, common)) = self.state(shard, token) {
            let ended = state.chore_done(chore, common);
            // Before what has come since.
            for item in state.released(common).into_iter().rev() {
                self.ahead.push_front((shard, item));
            }
            self.finish(shard, ended);
        }
    }

    /// A shard has stopped, if it has.
    fn finish(&mut self, shard: Shard, ended: Option<Ended<E::Message>>) {
        let Some(ended) = ended else { return };
        if let Some(state) = self.shards.get_mut(shard.0 as usize) {
            *state = None;
        }
        self.say(ended);
    }

    fn say(&self, ended: Ended<E::Message>) {
        let _ = self.inlet.news.send(News::Ended(ended)); // Control is there for as long as this.
    }

    /// Gives all shards back, once nothing of them goes on.
    async fn give_back(&mut self) {
        self.inlet.queue.close();
        self.inlet.queue.take(&mut self.ahead, false);
        self.common.busy.shutdown().await;
        for (_, (_, _, id, told)) in std::mem::take(&mut self.common.whose) {
            told.into_iter().for_each(|told| unfinished(&self.common, &id, told));
        }
        self.common.chores.end().await;
        let mut all = Vec::new();
        for state in std::mem::take(&mut self.shards).into_iter().flatten() {
            all.push((state.shard(), state.token(), state.leftovers()));
        }
        while let Ok(order) = self.inlet.orders.try_recv() {
            if let Order::Begin(hosted) = order {
                all.push((hosted.shard, hosted.token, Vec::new()));
            }
        }
        let mut theirs: HashMap<Shard, Vec<Item<E::Message>>> = HashMap::new();
        for (shard, item) in std::mem::take(&mut self.ahead) {
            theirs.entry(shard).or_default().push(item);
        }
        for (shard, token, mut leftovers) in all {
            leftovers.extend(theirs.remove(&shard).unwrap_or_default());
            self.say(Ended { shard, token, leftovers });
        }
    }

    fn next_wake(&self) -> Option<Instant> {
        let timer = self.common.timers.next();
        timer.into_iter().chain(self.common.idle.next()).min()
    }

    fn wake(&mut self) {
        let now = Instant::now();
        self.common.idle.look();
        while let Some(timer) = self.common.timers.due(now) {
            if let Some((state, common)) = self.state(timer.shard, timer.token) {
                let ended = state.due(timer.due, now, common);
                self.finish(timer.shard, ended);
            }
        }
        while !self.common.turn.was_over()
            && let Some((shard, id, stamp)) = self.common.idle.due()
        {
            passivate(&mut self.common, &mut self.shards, shard, id, stamp);
        }
        self.admit();
    }

    /// Makes entities that had to wait for others to go.
    fn admit(&mut self) {
        while self.common.idle.has_waiting() {
            if self.common.idle.is_full(self.common.live) {
                make_room(&mut self.common, &mut self.shards);
            }
            let admitted = self.common.idle.admitted(self.common.live);
            let Some((shard, token, id)) = admitted else { return };
            if let Some((state, common)) = self.state(shard, token) {
                state.admitted(id, common);
            }
        }
    }
}

#[inline]
fn receive<E: Entity>(
    common: &mut Common<E>,
    shards: &mut [Option<Box<ShardState<E>>>],
    shard: Shard,
    item: Item<E::Message>,
) {
    let place = shard.0 as usize;
    if common.idle.is_full(common.live) {
        let knows = |state: &ShardState<E>| state.knows(&item.id);
        let known = shards.get(place).and_then(Option::as_deref).is_some_and(knows);
        if !known {
            make_room(common, shards);
        }
    }
    match shards.get_mut(place) {
        Some(Some(state)) => state.receive(item, common),
        // Not reached: a shard begins before the way to it is known.
        _ => {
            let reply = match item.back.map(|back| *back) {
                Some(Back::Reply(reply)) => reply,
                None | Some(Back::Numbered(_)) => item.from.into(),
            };
            refuse(&common.shared, &item.id, reply, Lost::NoSuchReceiver);
        }
    }
}

/// Passivates those that have not been used for longest until there is room for one.
fn make_room<E: Entity>(common: &mut Common<E>, shards: &mut [Option<Box<ShardState<E>>>]) {
    while common.idle.needs_room(common.live) {
        let Some((shard, id, stamp)) = common.idle.oldest() else { return };
        if !passivate(common, shards, shard, id, stamp) && common.idle.is_now(stamp) {
            return; // All are at work.
        }
    }
}

/// Whether it has gone, or is about to; it stays if it was used since, or is at work.
fn passivate<E: Entity>(
    common: &mut Common<E>,
    shards: &mut [Option<Box<ShardState<E>>>],
    shard: Shard,
    id: IdHash,
    stamp: u64,
) -> bool {
    match shards.get_mut(shard.0 as usize) {
        Some(Some(state)) if state.shard() == shard => state.passivate(id, stamp, common),
        _ => true,
    }
}

/// How many messages are taken at a time.
const BATCH: usize = 256;
/// How many entities are looked at ahead of their messages.
const FETCHED: usize = 8;
/// With fewer entities, all are near the processor anyway.
const FETCHED_FROM: usize = 4096;
/// How many messages are handled before others have their turn.
const IN_A_ROW: usize = 1024;
/// How many calls are timed after a turn that took long.
const TIMED: u32 = 1024;
/// So many at a time, and more are on their way.
const MANY: usize = 32;
/// How often a crew looks again before it sleeps: for some microseconds.
const AWAKE: u32 = 16;
