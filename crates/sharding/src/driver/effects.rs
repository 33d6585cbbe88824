//! Does what the cores ask for.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::task::JoinError;
use tokio::time::Instant;

use tenure_cluster::Node;
use tenure_cluster::messaging::{Lost, Message, NotDone, Protocol, Received, Reply};
use tenure_lease::planted::{self, GlueBug};
use tenure_lease::{Moment, Token};

use super::control::{Control, Published, Running};
use super::crew::{Ended, News, Order, StopOrder};
use super::handle::closed;
use super::letter::{Farewell, board};
use super::outbox::{Out, Outbox};
use super::queue::Refused;
use super::remote::{Frame, Peer, refuse, refuse_from, size_or_guess};
use super::routes::{Back, Item, Ticket, Way as Route};
use super::{Event, Parcel, Turn, What};
use crate::entity::HostedShard;
use crate::hosted_guard::GuardCount;
use crate::region::{Leftover, Unroutable, Way};
use crate::wire::Letter;
use crate::{Message as Word, Shard, StopReason, coordinator, region, telemetry};

impl<M: Message> Control<M> {
    /// Lets the cores do whatever they can do now, and publishes what follows.
    pub(super) fn attend(&mut self) {
        let me = self.me.clone();
        // What they say to that comes later: they might go on for ever.
        for word in std::mem::take(&mut self.own) {
            self.word(&me, word);
        }
        loop {
            let now = Moment::now();
            self.refresh(now);
            self.stand_back(now);
            if self.region.next_wake() <= now {
                self.region.poll(now);
            }
            let mut orders = Vec::new();
            if let Some(coordinator) = &mut self.coordinator {
                if coordinator.next_wake() <= now {
                    coordinator.poll(now);
                }
                orders.extend(coordinator.effects());
            }
            self.guard.look(self.coordinator.as_ref().is_some_and(|it| it.comes_next(now)));
            let any = !orders.is_empty();
            orders.into_iter().for_each(|order| self.coordinate(order));
            let any = self.carry_out() || any;
            if !any {
                break;
            }
        }
        self.push_pending();
        self.unsaid.append(&mut self.region.changed());
        let unsaid = std::mem::take(&mut self.unsaid);
        self.say(&unsaid);
        for shard in unsaid {
            if !self.publish(shard) {
                self.unsaid.insert(shard);
            }
        }
        self.let_go();
    }

    /// Tells those who go when nothing is on its way there from here any more.
    fn let_go(&mut self) {
        for (node, reply) in std::mem::take(&mut self.goers) {
            let there = Published::There(node.clone());
            if self.region.is_returning(&node) || self.published.contains(&there) {
                self.goers.push((node, reply));
            } else {
                tokio::spawn(reply.answer::<Farewell>(()));
            }
        }
    }

    /// Does what the region asks for; whether there was anything.
    fn carry_out(&mut self) -> bool {
        let deeds: Vec<region::Effect<Parcel<M>>> = self.region.effects().collect();
        let any = !deeds.is_empty();
        deeds.into_iter().for_each(|deed| self.host(deed));
        any
    }

    fn coordinate(&mut self, effect: coordinator::Effect) {
        let kind = &self.shared.kind;
        match effect {
            coordinator::Effect::Send(to, message) => self.post(&to, message),
            coordinator::Effect::Contend { above } => self.guard.contend(above),
            coordinator::Effect::Withdraw => {
                self.tenure = None;
                self.guard.withdraw();
            }
            coordinator::Effect::WriteNote { number, note } => {
                if let Some(tenure) = &self.tenure {
                    self.guard.write_note(tenure, number, note);
                }
            }
            coordinator::Effect::Observe(sessions) => {
                self.observe = sessions;
                self.guard.observe(&self.observe, &self.take_over);
            }
            coordinator::Effect::TakeOver(sessions) => {
                self.take_over = sessions;
                self.guard.observe(&self.observe, &self.take_over);
            }
            coordinator::Effect::Tell(event) => match event {
                coordinator::Event::Active { term } => {
                    tracing::info!(%kind, term, "this node coordinates");
                }
                coordinator::Event::Passive => {
                    tracing::info!(%kind, "this node coordinates no more")
                }
                coordinator::Event::Unreadable(error) => {
                    telemetry::roster_unreadable(kind);
                    tracing::error!(%kind, "{error}");
                }
                coordinator::Event::PlacementPanicked => {
                    tracing::error!(%kind, "the strategy of this kind panics, so some shards have no place, or none moves for balance: mend it, and restart the nodes");
                }
                coordinator::Event::RosterFull => {
                    tracing::error!(%kind, "there are more hosts than a lease's note can name; the newest get no shards");
                }
            },
        }
    }

    fn host(&mut self, effect: region::Effect<Parcel<M>>) {
        match effect {
            region::Effect::Send(to, message) => self.post(&to, message),
            region::Effect::Start { shard, token } => self.start(shard, token),
            region::Effect::Stop { shard, token } => self.stop(shard, token),
            region::Effect::Hurry { shard, token } => self.hurry(shard, token),
            region::Effect::Deliver { shard, token, message } => {
                match self.shards.get_mut(&shard).filter(|running| running.token == token) {
                    Some(running) => {
                        running.pending.push_back(message);
                        self.crowded.insert(shard);
                    }
                    None => self.fail(message, &Unroutable::Ended), // Not reached.
                }
            }
            region::Effect::Forward { to, message: Parcel { id, what, ticket, .. }, .. } => {
                match what {
                    What::Tell(message) => {
                        self.put_out(&to, Out::Frame(Frame::Forward(id, message), ticket));
                    }
                    What::Turn(grant) => self.put_out(&to, Out::Turn(grant)),
                    What::Asked(_, reply) => self.not_here(reply), // Not reached.
                }
            }
            region::Effect::Return { to, message: Parcel { id, from, what, .. }, .. } => match what
            {
                What::Tell(message) => {
                    from.give_back();
                    self.put_out(&to, Out::Frame(Frame::Return(id, message), None));
                }
                What::Asked(_, reply) => self.not_here(reply),
                What::Turn(_) => {} // Not reached: it is of this node.
            },
            region::Effect::Mark { to, shard } => {
                // Nobody takes that way from here on.
                self.publish(shard);
                self.put_out(&to, Out::Mark(shard));
            }
            region::Effect::Marked { to, shard } => {
                self.put_out(&to, Out::Frame(Frame::Marked(shard), None));
            }
            region::Effect::Fail { message, why } => self.fail(message, &why),
            region::Effect::SessionEnded => {
                if let Some(session) = self.session.take() {
                    let goes = self.left || self.is_gone();
                    self.guard.done_with(session, goes);
                }
            }
            region::Effect::HandedOver => self.handed_over = Some(Moment::now()),
        }
    }

    fn start(&mut self, shard: Shard, token: Token) {
        if self.crews.is_empty() {
            return;
        }
        let kind = &self.shared.kind;
        tracing::debug!(%kind, %shard, %token, "shard starts here");
        telemetry::started(kind);
        let (stop, stopping) = watch::channel(None);
        let guards = Arc::new(GuardCount::new(self.guards_dropped.clone()));
        let hosted = Arc::new(HostedShard {
            cluster: self.shared.cluster.clone(),
            shard,
            token: self.region.fence(shard).unwrap_or(token),
            session: self.session.clone(),
            _life: self.life.clone(),
            stop: stopping,
            guards: guards.clone(),
        });
        let crews = self.crews.iter().zip(0..).min_by_key(|(crew, _)| crew.shards);
        let crew = crews.map_or(0, |(_, place)| place);
        self.crews[crew].shards += 1;
        self.crews[crew].order(Order::Begin(hosted));
        let pending = VecDeque::new();
        let (held, ended, stop_by) = (None, None, None);
        let running = Running { token, crew, stop, pending, held, guards, ended, stop_by };
        self.shards.insert(shard, running);
    }

    /// Why shards stop now, and by when.
    fn stop_order(&self) -> StopOrder {
        let reason = if self.is_gone() {
            StopReason::OutOfCluster
        } else if let Some(loss) = &self.loss {
            StopReason::SessionLost(loss.clone())
        } else if self.session.as_ref().is_some_and(|session| !session.tenure().is_held()) {
            let loss = self.session.as_ref().and_then(|session| session.tenure().loss());
            StopReason::SessionLost(loss.unwrap_or(tenure_lease::Loss::Expired))
        } else if self.left {
            StopReason::Leaving
        } else {
            StopReason::HandOff
        };
        let budget = self.session.as_ref().map(|session| session.tenure().time_to_stop());
        let within = match (&reason, budget) {
            (StopReason::SessionLost(_), Some(budget)) => budget,
            (StopReason::OutOfCluster, _) => self.shared.settings.stop_within.min(OUT),
            _ => self.shared.settings.stop_within,
        };
        StopOrder { reason, deadline: Instant::now() + within }
    }

    fn stop(&mut self, shard: Shard, token: Token) {
        let order = self.stop_order();
        let reason = &order.reason;
        tracing::debug!(kind = %self.shared.kind, %shard, %token, %reason, "shard stops here");
        telemetry::stopped(&self.shared.kind, reason);
        self.publish(shard);
        if let Some(running) = self.shards.get_mut(&shard).filter(|it| it.token == token) {
            running.held.get_or_insert_default();
            running.stop_by = Some(order.stop_by());
            running.stop.send_replace(Some(reason.clone()));
            self.crews[running.crew].order(Order::Stop(shard, token, order));
        }
    }

    /// A shard that stops has less time for it now, for another reason.
    fn hurry(&mut self, shard: Shard, token: Token) {
        let order = self.stop_order();
        if let Some(running) = self.shards.get_mut(&shard).filter(|it| it.token == token) {
            running.stop_by = running.stop_by.into_iter().chain([order.stop_by()]).min();
            running.stop.send_replace(Some(order.reason.clone()));
            self.crews[running.crew].order(Order::Hurry(shard, token, order));
        }
    }

    /// What a crew has to say.
    pub(super) fn news(&mut self, news: News<M>) {
        match news {
            News::Ended(ended) => self.ended(ended),
            News::Refused(shard, token) => self.region.give_back(shard, token, Moment::now()),
        }
    }

    /// A shard has stopped: what it has not looked at goes before everything that came since.
    pub(super) fn ended(&mut self, ended: Ended<M>) {
        let now = Moment::now();
        self.refresh(now);
        // It may have been ended with its crew already.
        let Some(ended) = self.keep_guarded(ended) else { return };
        let Ended { shard, token, leftovers } = ended;
        let Some(running) = self.shards.remove(&shard) else { return };
        self.crews[running.crew].shards -= 1;
        let mut left = Vec::new();
        for item in leftovers {
            let Item { id, from, message, back } = item;
            match back.map(|back| *back) {
                None => {
                    let bytes = size_or_guess(&message);
                    let sender = from.node().cloned();
                    let what = What::Tell(message);
                    let ticket = Some(self.shared.routes.issue(shard));
                    let message = Parcel { id, from, what, ticket };
                    left.push(Leftover { from: sender, message, bytes });
                }
                Some(Back::Reply(reply)) => self.not_here(reply),
                Some(Back::Numbered(_)) => {} // Not done: it comes again.
            }
        }
        for message in running.pending {
            let bytes = match &message.what {
                What::Tell(message) | What::Asked(message, _) => size_or_guess(message),
                What::Turn(_) => 0,
            };
            left.push(Leftover { from: message.sender(), message, bytes });
        }
        if planted::has(GlueBug::LeftoversLost) {
            left.clear();
        }
        self.region.stopped_with(shard, token, left, now);
        self.carry_out();
        for event in running.held.into_iter().flatten() {
            if planted::has(GlueBug::HeldMessagesLost) && matches!(event, Event::Forwarded { .. }) {
                continue;
            }
            self.event(event);
            self.carry_out();
        }
    }

    /// A crew has failed. It has given back the shards that it knew of; not those that it was given since.
    pub(super) fn failed(&mut self, error: &JoinError) {
        if error.is_cancelled() {
            return; // The runtime is shut down.
        }
        tracing::error!(kind = %self.shared.kind, "shards have failed: {error}");
        telemetry::failed(&self.shared.kind);
        let Some(crew) = self.crews.iter().position(|crew| crew.task == error.id()) else { return };
        if let Some(mut next) = self.open_crew(self.crews.len()) {
            next.shards = self.crews[crew].shards;
            self.crews[crew] = next;
        }
        let theirs = self.shards.iter().filter(|(_, running)| running.crew == crew);
        let failed: Vec<_> = theirs.map(|(shard, running)| (*shard, running.token)).collect();
        for (shard, token) in failed {
            self.ended(Ended { shard, token, leftovers: Vec::new() });
        }
    }

    /// Something about a message.
    pub(super) fn event(&mut self, event: Event<M>) {
        let now = Moment::now();
        self.refresh(now);
        // If the session has just turned out to be over, its shards stop from here on: what is held back
        // for them below would otherwise overtake what they still give back.
        if !planted::has(GlueBug::MarkOvertakesStop) {
            self.carry_out();
        }
        let shard = event.shard();
        if shard.0 >= self.shared.settings.shards {
            return; // From a node that counts differently.
        }
        let room = self.shared.settings.buffer_messages;
        let event = match (event, self.shards.get_mut(&shard).and_then(|it| it.held.as_mut())) {
            // Its time is better spent where it can be asked next.
            (
                Event::Forwarded { parcel: Parcel { what: What::Asked(_, reply), .. }, .. },
                Some(_),
            ) => return self.not_here(reply),
            // What came before it is still with the shard, and must go first.
            (event @ (Event::Forwarded { .. } | Event::Mark { .. }), Some(held)) => {
                match (event, held.len() < room) {
                    (event, true) => return held.push_back(event),
                    (Event::Forwarded { parcel, .. }, false) => {
                        let (messages, bytes) = (held.len(), 0);
                        return self.fail(parcel, &Unroutable::BufferFull { messages, bytes });
                    }
                    (_, false) => return,
                }
            }
            (event, _) => event,
        };
        match event {
            Event::Send { parcel, bytes, ack, .. } => {
                self.make_room(shard, bytes);
                self.region.send(shard, parcel, bytes, now);
                self.taken(ack);
            }
            // Whoever asks sends no mark.
            Event::Forwarded {
                from, parcel: Parcel { what: What::Asked(_, reply), .. }, ..
            } if !self.region.takes(&from, shard) => self.not_here(reply),
            Event::Forwarded { from, parcel, .. } => {
                self.region.forwarded(&from, shard, parcel, now);
            }
            Event::Returned { from, mut parcel, bytes, .. } => {
                parcel.ticket.get_or_insert_with(|| self.shared.routes.issue(shard));
                self.make_room(shard, bytes);
                self.region.returned(&from, shard, parcel, bytes, now);
            }
            Event::Mark { from, .. } => self.region.mark(&from, shard),
            Event::Marked { from, .. } => self.region.marked(&from, shard),
        }
    }

    /// Throws questions out for which nobody waits any more, if there is no room for so many bytes.
    fn make_room(&mut self, shard: Shard, bytes: usize) {
        if !self.region.has_room(shard, bytes) && self.shared.routes.have_given_up(shard) {
            let is_wanted = |parcel: &Parcel<M>| match &parcel.what {
                What::Turn(grant) => !grant.is_closed(),
                What::Tell(_) | What::Asked(..) => true,
            };
            self.region.retain_waiting(shard, is_wanted);
        }
    }

    /// Tells a sender whether its message was taken in: if not, that is the last effect.
    fn taken(&mut self, ack: Option<oneshot::Sender<Result<(), NotDone>>>) {
        let deeds: Vec<region::Effect<Parcel<M>>> = self.region.effects().collect();
        let mut result = Ok(());
        for deed in deeds {
            match deed {
                region::Effect::Fail { message: Parcel { what: What::Tell(_), .. }, why } => {
                    telemetry::refused(&self.shared.kind, lost(&why));
                    result = Err(not_done(&why));
                }
                deed => self.host(deed),
            }
        }
        if let Some(ack) = ack {
            let _ = ack.send(result); // Its sender may not wait any more.
        }
    }

    /// Offers to shards what they had no room for.
    fn push_pending(&mut self) {
        for shard in std::mem::take(&mut self.crowded) {
            let Some(running) = self.shards.get_mut(&shard) else { continue };
            if running.held.is_some() {
                continue; // It stops, and gives back what waits.
            }
            while let Some(Parcel { id, from, what, ticket }) = running.pending.pop_front() {
                let queue = &self.crews[running.crew].queue;
                let (message, back) = match what {
                    What::Tell(message) => (message, None),
                    What::Asked(message, reply) => (message, Some(Box::new(Back::Reply(reply)))),
                    What::Turn(grant) => {
                        let _ = grant.send(Ok(Turn::Here)); // Its time may be over.
                        continue;
                    }
                };
                let item = Item { id, from, message, back };
                let max = self.shared.settings.buffer_messages;
                if let Err(Refused::Full(item) | Refused::Closed(item)) =
                    queue.put_beyond(shard, item, max)
                {
                    running.pending.push_front(parcel_of(item, ticket));
                    self.crowded.insert(shard);
                    break;
                }
                drop(ticket); // It is where it goes.
            }
        }
    }

    /// Says where messages to a shard go now, once nothing is on the slow way any more; whether that
    /// is said.
    fn publish(&mut self, shard: Shard) -> bool {
        let wanted = match self.region.way(shard) {
            Way::Here(token) => Published::Here(token),
            Way::There(node) => Published::There(node),
            Way::Waits => Published::Slow,
        };
        let index = shard.0 as usize;
        if self.published[index] == wanted {
            return true;
        }
        if wanted != Published::Slow {
            // First nobody takes the slow way any more; then those that did must be where they go.
            let to = match &wanted {
                Published::There(node) => Some(node.clone()),
                _ => None,
            };
            let wait = Published::Wait(to.clone());
            if self.published[index] != wait {
                self.published[index] = wait;
                self.shared.routes.publish(shard, Route::Wait(to));
            }
            if !self.shared.routes.is_settled(shard) {
                return false;
            }
        }
        let route = match &wanted {
            Published::Here(_) => match self.shards.get(&shard) {
                Some(running) => Route::Here(self.crews[running.crew].queue.clone()),
                None => return false, // Not reached: it is started before it is published.
            },
            Published::There(node) => {
                Route::There(Arc::new(Peer::new(&self.shared.cluster, node, &self.shared.inbox)))
            }
            Published::Slow | Published::Wait(_) => Route::Slow,
        };
        self.shared.routes.publish(shard, route);
        self.published[index] = wanted;
        true
    }

    /// To a node, this one included. It may be lost: what matters is said again.
    fn post(&mut self, to: &Node, message: Word) {
        if *to == self.me {
            return self.own.push(message);
        }
        let cluster = &self.shared.cluster;
        let letters = self.letters.entry(to.clone());
        let sender = letters.or_insert_with(|| cluster.to(to, &board(&self.shared.kind)));
        let (setup, serves) = (self.setup.clone(), !self.strangers.stands_back());
        let letter = Letter { setup, serves, message: Some(message) };
        let letter = Protocol { message: letter, spoken: cluster.spoken_with(to) };
        if let Err(error @ NotDone::TooLong { .. }) = sender.post(letter) {
            tracing::error!(kind = %self.shared.kind, %to, "shards cannot be settled: {error}");
        }
    }

    fn put_out(&mut self, to: &Node, out: Out<M>) {
        let shared = &self.shared;
        let outbox = self.outboxes.entry(to.clone()).or_insert_with(|| Outbox::new(shared, to));
        match outbox.put(out) {
            Ok(()) | Err(Out::Frame(Frame::Mark(_) | Frame::Marked(_), _) | Out::Mark(_)) => {}
            Err(Out::Frame(Frame::Forward(id, ..), _)) => {
                refuse(shared, &id, Reply::nobody(), Lost::Full);
            }
            Err(Out::Frame(Frame::Return(id, ..), _)) => {
                refuse_from(shared, &id, to.clone(), Reply::nobody(), Lost::Full);
            }
            Err(Out::Turn(grant)) => drop(grant.send(Err(NotDone::Full))),
        }
    }

    /// Whoever asked asks again, where the shard is by then.
    fn not_here(&self, reply: Reply) {
        let from = reply.node().unwrap_or(&self.me).clone();
        let received = Received { message: (), from, reply };
        self.shared.cluster.refuse(&self.shared.inbox, None, received, Lost::NoSuchReceiver);
    }

    /// A message could not be sent: tells whoever sent it.
    fn fail(&mut self, parcel: Parcel<M>, why: &Unroutable) {
        let Parcel { id, from, what, ticket } = parcel;
        if let (What::Turn(_), Unroutable::Late) = (&what, why) {
            // Whoever asks waits for the answer: nothing of theirs is overtaken.
            let shard = id.shard(&self.shared.settings);
            let parcel = Parcel { id, from, what, ticket };
            return self.region.send(shard, parcel, 0, Moment::now());
        }
        drop(ticket); // Before its sender hears of it.
        match what {
            What::Tell(_) => refuse(&self.shared, &id, from.into(), lost(why)),
            What::Asked(_, reply) => refuse(&self.shared, &id, reply, lost(why)),
            What::Turn(grant) => drop(grant.send(Err(not_done(why)))),
        }
    }
}

/// What has found no room in the queue of its crew.
fn parcel_of<M>(item: Item<M>, ticket: Option<Ticket>) -> Parcel<M> {
    let Item { id, from, message, back } = item;
    let what = match back.map(|back| *back) {
        Some(Back::Reply(reply)) => What::Asked(message, reply),
        None | Some(Back::Numbered(_)) => What::Tell(message),
    };
    Parcel { id, from, what, ticket }
}

fn lost(why: &Unroutable) -> Lost {
    match why {
        Unroutable::BufferFull { .. } => Lost::Full,
        Unroutable::Late => Lost::Late,
        Unroutable::NoSuchShard { .. } | Unroutable::Ended => Lost::NoSuchReceiver,
    }
}

fn not_done(why: &Unroutable) -> NotDone {
    match why {
        Unroutable::BufferFull { .. } => NotDone::Full,
        Unroutable::NoSuchShard { .. } | Unroutable::Late | Unroutable::Ended => closed(),
    }
}

/// Who is out of the cluster has no longer than this: others may host its shards soon.
const OUT: Duration = Duration::from_secs(3);
