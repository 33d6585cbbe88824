//! The coordinator: says which region hosts which shard. Pure.
//!
//! There is one on every node that may coordinate; it is active on the one that is the *candidate*
//! and holds the lease: `is_active() = is_candidate() && lease.is_held()`. While it acquires the
//! lease or recovers, requests wait; when the lease is lost it is passive at once.
//!
//! # Recovery
//!
//! A coordinator that has won knows nothing but the *roster* in the lease's note: every host that
//! was ever given an order. It greets everybody, and sends nothing else until each host on the
//! roster has answered, and so obeys no lower term, or is over. Until then every shard counts as
//! taken, whether somebody has reported it or not. From then on nothing that a predecessor sent
//! makes a difference any more, and the highest reported token says where a shard is.
//!
//! # Freeing a shard
//!
//! A shard is given away when its host has confirmed the stop of that very allocation, or when the
//! host is *over*: its session was released or taken over. That a host is no member any more frees
//! nothing. (Of a host without a session there is nothing else to go by: it is over when it was removed
//! and a margin has passed.)
//!
//! Each host goes by what it has, whatever this node has: so a kind goes on while its nodes are changed
//! from a lease to sessions, one after the other, and back. A coordinator that has a session gives no
//! shards to hosts without one, and takes back what they have.

mod allocate;
mod duty;
mod members;
mod recover;
#[cfg(test)]
mod scale;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use tenure_cluster::{Node, View};
use tenure_lease::Moment;
use tenure_lease::record::SessionRef;

use crate::settings::Rule;
use crate::wire::{Message, Refusal};
use crate::{Roster, RosterError, Settings, Setup, Shard};
use duty::{Duty, Place};
use members::Members;

/// The coordinator of one node.
#[derive(Clone, Debug)]
pub struct Coordinator {
    me: Node,
    settings: Settings,
    members: Members,
    candidate: bool,
    /// When to give way to an older node, if that stays.
    yield_at: Moment,
    /// Whether this node reaches the store.
    able: bool,
    /// Others serve, with which this node cannot work together.
    stands_back: bool,
    /// Who has said that it does not, and until when that counts.
    unable: BTreeMap<Node, Moment>,
    /// When to say again that this node does not reach the store.
    say_unable_at: Moment,
    /// Who was told that this node takes part, and asked whether it does.
    introduced: BTreeSet<Node>,
    /// When to ask again those of whom it is not known.
    introduce_at: Moment,
    /// When the next of them is absent.
    absent_at: Moment,
    contending: bool,
    /// Not to contend before this.
    contend_at: Moment,
    /// Until when the lease is held.
    held_until: Option<Moment>,
    /// The highest term that anybody is known to obey.
    above: u64,
    /// What it knows and does while it is active.
    duty: Option<Duty>,
    /// Who waits for the place of which shard.
    waiting: BTreeMap<Node, BTreeSet<Shard>>,
    /// The roster as it was last read from the record.
    seen: Roster,
    observed: BTreeSet<SessionRef>,
    taking_over: BTreeSet<SessionRef>,
    counts: Counts,
    effects: Vec<Effect>,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Send this to a node, itself included.
    Send(Node, Message),
    /// Contend for the lease until it is won or [`Effect::Withdraw`] comes, and ask for a term above
    /// this. After a loss it comes again.
    Contend {
        /// Zero, unless regions obey a term that the store has forgotten.
        above: u64,
    },
    /// Contend no more; release the lease if it is held.
    Withdraw,
    /// Put this into the lease's record, and call [`Coordinator::note_written`] when it stands there.
    WriteNote {
        /// To be passed back.
        number: u64,
        /// The roster.
        note: Vec<u8>,
    },
    /// Observe these sessions, and no others: how long each has not been renewed.
    Observe(BTreeSet<SessionRef>),
    /// Take these sessions over, and no others, as soon as they are not renewed for their ttl; then
    /// release them, and call [`Coordinator::session_over`]. Call it, too, when one turns out to be
    /// released, under whatever term, or to have been held under a higher one for a ttl.
    TakeOver(BTreeSet<SessionRef>),
    /// Tell the users of this node.
    Tell(Event),
}

/// What happened to this coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// It knows where every shard is, and gives orders, with this term.
    Active {
        /// The term of its lease.
        term: u64,
    },
    /// It gives no more orders.
    Passive,
    /// It has the lease, and gives it up: it cannot read the roster.
    Unreadable(RosterError),
    /// There are more hosts than a note can name; the newest get no shards.
    RosterFull,
    /// What says where shards go has panicked, for the first time in this tenure.
    PlacementPanicked,
}

/// How often something happened, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Shards given to a region.
    pub allocations: u64,
    /// Shards asked back from a region.
    pub hand_offs: u64,
    /// Answers about an allocation that is not the present one, dropped.
    pub stale_answers: u64,
    /// Refusals by regions that obey somebody else, or have another session.
    pub refused: u64,
    /// Requests that found too many others waiting.
    pub busy: u64,
}

impl Coordinator {
    /// The coordinator of this node; passive.
    pub fn new(me: Node, settings: Settings) -> Self {
        Self {
            members: Members::new(me.clone(), settings.stable_after),
            me,
            settings,
            candidate: false,
            yield_at: Moment::NEVER,
            able: true,
            stands_back: false,
            unable: BTreeMap::new(),
            say_unable_at: Moment::NEVER,
            introduced: BTreeSet::new(),
            introduce_at: Moment::NEVER,
            absent_at: Moment::NEVER,
            contending: false,
            contend_at: Moment::ZERO,
            held_until: None,
            above: 0,
            duty: None,
            waiting: BTreeMap::new(),
            seen: Roster::default(),
            observed: BTreeSet::new(),
            taking_over: BTreeSet::new(),
            counts: Counts::default(),
            effects: Vec::new(),
        }
    }

    /// The view has changed; `None` once this node is in no cluster any more.
    pub fn view(&mut self, view: Option<&View>, now: Moment) {
        if self.members.update(view, self.settings.role.as_ref(), now) {
            self.settle(now);
        }
    }

    /// The lease was won, with this note in its record, and is held until then.
    pub fn won(&mut self, term: u64, note: &[u8], until: Moment, now: Moment) {
        if !self.contending || self.settings.setup == Setup::Gossip {
            return; // Withdrawn meanwhile: whoever drives this releases it.
        }
        match Roster::parse(note) {
            Ok(roster) => {
                self.held_until = Some(until);
                self.begin(term, roster, now);
            }
            Err(error) => {
                self.effects.push(Effect::Tell(Event::Unreadable(error)));
                // What stands there is not going to change soon.
                self.contend_at = now + self.settings.patience;
                self.withdraw();
            }
        }
        self.settle(now);
    }

    /// The lease is held until then.
    pub fn renewed(&mut self, until: Moment, now: Moment) {
        if self.held_until.is_some() {
            self.held_until = Some(until);
        }
        self.settle(now);
    }

    /// The lease was lost.
    pub fn lost(&mut self, now: Moment) {
        self.contending = false;
        self.rest();
        self.settle(now);
    }

    /// The roster with this number stands in the record.
    pub fn note_written(&mut self, number: u64, now: Moment) {
        if let Some(duty) = &mut self.duty {
            duty.note_written(number);
        }
        self.settle(now);
    }

    /// The record of the lease was read while another holds it: whose sessions to observe, so that
    /// their ttl is not waited out a second time after that of the coordinator.
    pub fn note_seen(&mut self, note: &[u8], now: Moment) {
        if let Ok(roster) = Roster::parse(note) {
            self.seen = roster;
        }
        self.settle(now);
    }

    /// A session was released or taken over: whatever was hosted under it has surely stopped.
    pub fn session_over(&mut self, session: &SessionRef, now: Moment) {
        if let Some(duty) = &mut self.duty {
            duty.session_over(session);
        }
        self.settle(now);
    }

    /// Whether this node reaches the store; if it does not, others should coordinate.
    pub fn able(&mut self, able: bool, now: Moment) {
        if self.able != able {
            self.able = able;
            self.say_able(now);
            self.settle(now);
        }
    }

    /// Whether others serve, with which this node cannot work together: then it does not coordinate.
    pub fn stand_back(&mut self, stands_back: bool, now: Moment) {
        if self.stands_back != stands_back {
            self.stands_back = stands_back;
            self.say_able(now);
            self.settle(now);
        }
    }

    /// Something arrived from a node.
    pub fn receive(&mut self, from: &Node, message: Message, now: Moment) {
        self.expire(now);
        match message {
            Message::Report { term, host, shards, version } => {
                self.receive_report(from, term, host, shards, version, now);
            }
            Message::Started(answer) => self.receive_started(from, &answer),
            Message::Stopped(answer) => self.receive_stopped(from, &answer, now),
            Message::Where(shards) => self.receive_where(from, shards),
            Message::Refused(refusal) => self.receive_refusal(refusal),
            Message::Able(able) => self.receive_able(from, able, now),
            Message::Introduce { able } => {
                self.receive_able(from, able, now);
                self.effects.push(Effect::Send(from.clone(), Message::Able(self.is_able())));
            }
            // The rest is for regions, and says who takes part.
            Message::Greeting { .. } => drop(self.members.takes_part(from)),
            Message::Homes { homes, .. } => {
                let mut new = self.members.takes_part(from);
                for (_, _, node) in &homes {
                    new |= self.members.takes_part(node);
                }
                if !new {
                    return;
                }
            }
            Message::Allocate(_) | Message::HandOff(_) => return,
        }
        self.settle(now);
    }

    /// Does what is due. To be called at [`next_wake`](Self::next_wake), or earlier.
    pub fn poll(&mut self, now: Moment) {
        if self.say_unable_at <= now {
            self.say_able(now);
        }
        self.unable.retain(|_, until| now < *until);
        self.settle(now);
        self.resend(now);
        self.settle(now);
    }

    /// When [`poll`](Self::poll) has something to do.
    pub fn next_wake(&self) -> Moment {
        let unable = self.unable.values().copied().min().unwrap_or(Moment::NEVER);
        let held = self.held_until.unwrap_or(Moment::NEVER);
        let duty = self.duty.as_ref().map_or(Moment::NEVER, Duty::next_wake);
        let contend = if self.wants_lease() { self.contend_at } else { Moment::NEVER };
        let unknown = self.absent_at.min(self.introduce_at);
        let said = self.say_unable_at.min(unknown);
        unable.min(contend).min(held).min(duty).min(self.yield_at).min(said)
    }

    /// What is to be done, since the last call.
    pub fn effects(&mut self) -> std::vec::Drain<'_, Effect> {
        self.effects.drain(..)
    }

    /// Whether this node is the one that should coordinate, as far as it knows.
    pub fn is_candidate(&self) -> bool {
        self.candidate
    }

    /// Whether it coordinates, or is one of the few that come next: only those look at the store.
    pub fn comes_next(&self, now: Moment) -> bool {
        self.candidate || self.members.is_among_first(OBSERVERS, now)
    }

    /// Whether it may give orders: it is the candidate, and holds the lease.
    pub fn is_active(&self, now: Moment) -> bool {
        self.candidate && self.duty.is_some() && self.is_held(now)
    }

    /// Whether it knows where every shard is.
    pub fn is_recovered(&self) -> bool {
        self.duty.as_ref().is_some_and(|duty| duty.recovered.is_some())
    }

    /// How often things happened.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Where each shard is, as far as this coordinator knows.
    pub fn homes(&self) -> impl Iterator<Item = (Shard, &Node)> {
        self.duty.iter().flat_map(|duty| {
            duty.places().filter_map(|(shard, place)| match place {
                Place::At { host, .. } => Some((shard, &duty.hosts.get(&host)?.host.node)),
                _ => None,
            })
        })
    }

    fn is_held(&self, now: Moment) -> bool {
        !self.is_guarded() || self.held_until.is_some_and(|until| now < until)
    }

    /// Whether it should contend, and does not.
    fn wants_lease(&self) -> bool {
        self.candidate && !self.contending && self.settings.setup != Setup::Gossip
    }

    /// Whether a lease decides who is active.
    fn is_guarded(&self) -> bool {
        self.settings.setup != Setup::Gossip && self.settings.obeys(Rule::OnlyWithTheLease)
    }

    /// Does what follows from what has changed.
    fn settle(&mut self, now: Moment) {
        self.expire(now);
        self.introduce(now);
        self.decide_candidacy(now);
        if self.wants_lease() && self.contend_at <= now {
            self.contending = true;
            self.effects.push(Effect::Contend { above: self.above });
        }
        if self.candidate && !self.is_guarded() && self.duty.is_none() {
            let roster = match self.settings.setup {
                Setup::Gossip => self.members.roster(now, self.settings.removal_margin),
                Setup::Lease | Setup::Sessions => self.seen.clone(), // Only in tests.
            };
            self.begin(self.above + 1, roster, now);
        }
        if !self.candidate {
            if self.contending || self.duty.is_some() {
                self.withdraw();
            }
            self.waiting.clear();
        }
        if self.is_active(now) {
            self.attend(now);
        }
        self.look_after_sessions(now);
    }

    /// A lease whose time is over is lost, whoever has noticed.
    fn expire(&mut self, now: Moment) {
        if self.held_until.is_some_and(|until| until <= now) {
            self.rest();
        }
    }

    /// Whether it could coordinate.
    fn is_able(&self) -> bool {
        self.able && !self.stands_back
    }

    fn decide_candidacy(&mut self, now: Moment) {
        let is_able = |node: &Node| match *node == self.me {
            true => self.is_able(),
            false => !self.unable.contains_key(node) && !self.members.is_absent(node, now),
        };
        let chosen = match self.settings.setup {
            // Without a lease nothing keeps two from acting but that they agree who is the oldest.
            Setup::Gossip => self.members.oldest(now).filter(|_| !self.stands_back),
            Setup::Lease | Setup::Sessions => self.members.candidate(is_able),
        };
        if chosen == Some(&self.me) {
            self.candidate = true;
            self.yield_at = Moment::NEVER;
            return;
        }
        let may_stay = self.duty.is_some() && self.is_able() && self.members.is_up(&self.me);
        if self.candidate && may_stay && self.settings.setup != Setup::Gossip {
            self.yield_at = self.yield_at.min(now + self.settings.stable_after);
        }
        if !may_stay || self.yield_at <= now || self.settings.setup == Setup::Gossip {
            self.candidate = false;
            self.yield_at = Moment::NEVER;
        }
    }

    fn begin(&mut self, term: u64, roster: Roster, now: Moment) {
        self.duty = Some(Duty::new(term, roster, &self.settings, now));
    }

    /// Passive, at once.
    fn rest(&mut self) {
        self.held_until = None;
        if self.duty.take().is_some_and(|duty| duty.recovered.is_some()) {
            self.effects.push(Effect::Tell(Event::Passive));
        }
    }

    fn withdraw(&mut self) {
        self.rest();
        if std::mem::take(&mut self.contending) {
            self.effects.push(Effect::Withdraw);
        }
    }

    fn receive_where(&mut self, from: &Node, shards: Vec<Shard>) {
        let mut busy = false;
        let mut count: usize = self.waiting.values().map(BTreeSet::len).sum();
        for shard in shards.into_iter().filter(|shard| shard.0 < self.settings.shards) {
            let waits = self.waiting.entry(from.clone()).or_default();
            if count < self.settings.requests_max {
                count += usize::from(waits.insert(shard));
            } else if !waits.contains(&shard) {
                busy = true;
            }
        }
        self.waiting.retain(|_, shards| !shards.is_empty());
        if busy {
            self.counts.busy += 1;
            self.effects.push(Effect::Send(from.clone(), Message::Refused(Refusal::Busy)));
        }
    }

    fn receive_refusal(&mut self, refusal: Refusal) {
        self.counts.refused += 1;
        let Refusal::OtherCoordinator { term } = refusal else { return };
        let Some(duty) = &self.duty else { return };
        if !self.is_guarded() && term >= duty.term {
            // Without a lease the term is one above the highest that any region reports.
            self.above = self.above.max(term);
            self.rest();
        } else if term > duty.term {
            // There is a newer coordinator, or the store has lost its memory: the next tenure must
            // be above.
            self.above = self.above.max(term);
            self.withdraw();
        }
    }

    /// Tells newcomers that this node takes part, and asks those of whom it is not known whether they
    /// do: again and again, until they are absent.
    fn introduce(&mut self, now: Moment) {
        let unknown: Vec<(Node, Moment)> =
            self.members.unknown(now).map(|(node, at)| (node.clone(), at)).collect();
        self.absent_at = unknown.iter().map(|(_, at)| *at).min().unwrap_or(Moment::NEVER);
        let is_due = self.introduce_at <= now;
        if is_due || self.introduce_at == Moment::NEVER {
            let again = now + self.settings.resend_interval;
            self.introduce_at = if unknown.is_empty() { Moment::NEVER } else { again };
        }
        for (node, _) in unknown {
            if self.introduced.insert(node.clone()) || is_due {
                let introduce = Message::Introduce { able: self.is_able() };
                self.effects.push(Effect::Send(node, introduce));
            }
        }
        self.introduced.retain(|node| self.members.contains(node));
    }

    fn receive_able(&mut self, from: &Node, able: bool, now: Moment) {
        self.members.takes_part(from);
        match able {
            true => drop(self.unable.remove(from)),
            false => {
                let until = now + self.settings.resend_interval * UNABLE_FOR;
                self.unable.insert(from.clone(), until);
            }
        }
    }

    /// Tells the others whether this node could coordinate; again and again while it could not.
    fn say_able(&mut self, now: Moment) {
        let others: Vec<Node> = self.members.others().cloned().collect();
        for node in others {
            self.effects.push(Effect::Send(node, Message::Able(self.is_able())));
        }
        self.say_unable_at = match self.is_able() {
            true => Moment::NEVER,
            false => now + self.settings.resend_interval,
        };
    }

    /// Says which sessions to observe and to take over, if that has changed.
    fn look_after_sessions(&mut self, now: Moment) {
        if self.settings.setup == Setup::Gossip {
            return;
        }
        let (observed, taking_over) = match &self.duty {
            Some(duty) => (duty.sessions(), duty.suspects(&self.members, now)),
            None if self.comes_next(now) => {
                let sessions = self.seen.iter().filter_map(|(host, _)| host.session.clone());
                (sessions.collect(), BTreeSet::new())
            }
            None => (BTreeSet::new(), BTreeSet::new()),
        };
        if observed != self.observed {
            self.observed = observed;
            self.effects.push(Effect::Observe(self.observed.clone()));
        }
        if taking_over != self.taking_over {
            self.taking_over = taking_over;
            self.effects.push(Effect::TakeOver(self.taking_over.clone()));
        }
    }
}

/// For how many resend intervals it counts that somebody does not reach the store.
const UNABLE_FOR: u32 = 3;
/// How many of the oldest observe sessions: who coordinates, and those who come next.
const OBSERVERS: usize = 3;
