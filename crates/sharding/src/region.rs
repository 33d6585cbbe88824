//! The region: hosts shards on one node, and finds those that are elsewhere. Pure.
//!
//! # Whom it obeys
//!
//! A region is registered with the coordinator that greeted it with the highest term, and obeys
//! nobody else. It starts a shard only for a token above all that it has seen for that shard,
//! HandOff included: a HandOff for an allocation that has not arrived ends that allocation. A
//! directive names the session that it is for; a region that has won its session anew refuses what
//! was meant for its former self, of which it remembers nothing. What it refuses, it says.
//!
//! # Sessions
//!
//! Where there are sessions: no session, no shards. When the session is lost, all shards are told to
//! stop at once; when all have, the session may be given back ([`Effect::SessionEnded`]).
//!
//! # Messages
//!
//! A message goes to its shard if that is here, else to the region that hosts it, else it waits
//! until the coordinator has said where that is. What waits is bounded, and what does not fit comes
//! back as an error. A region that does not host a shard any more sends what arrives for it back to
//! where it came from; the sender then waits for everything that is still on its way back before it
//! sends anything to the new home, so that messages of one sender stay in order
//! ([`Effect::Mark`]). It does not wait for ever: what comes back after later messages were sent to
//! the new home is a dead letter ([`Unroutable::Late`]), since it must not follow them.

mod buffer;
mod obey;
mod route;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use tenure_cluster::Node;
use tenure_lease::record::SessionRef;
use tenure_lease::{Moment, Token};

use crate::settings::Rule;
use crate::wire::{Answer, Message};
use crate::{Host, Settings, Shard};
use buffer::Buffer;
pub use buffer::Unroutable;

/// The region of one node. `M` is a message to an entity.
#[derive(Clone, Debug)]
pub struct Region<M> {
    me: Node,
    settings: Settings,
    /// Whether it hosts shards, or only sends.
    hosts: bool,
    session: Session,
    /// The coordinator that it obeys, and its term.
    registered: Option<(u64, Node)>,
    shards: BTreeMap<Shard, Hosted>,
    /// The highest token that it has seen for each shard.
    seen: BTreeMap<Shard, Token>,
    /// Where shards are, as far as it knows.
    homes: BTreeMap<Shard, Home>,
    /// Which nodes it can reach.
    reachable: BTreeSet<Node>,
    buffers: BTreeMap<Shard, Buffer<M>>,
    /// Former homes that are not waited for any longer, until they say that everything is back.
    overdue: BTreeMap<(Shard, Node), Overdue>,
    /// Whose messages go back, also if the shard is here again: until they have sent a mark, later ones are on
    /// their way that must not overtake those that went back.
    returned_to: BTreeSet<(Shard, Node)>,
    /// When to ask again where shards are that somebody waits for.
    ask_at: Moment,
    stage: Stage,
    /// Shards that are, or whose messages go, somewhere else than when that was last asked for.
    changed: BTreeSet<Shard>,
    counts: Counts,
    effects: Vec<Effect<M>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Session {
    /// There are none in this setup.
    NotNeeded,
    /// Not won yet.
    None,
    Held {
        session: SessionRef,
        until: Moment,
    },
    /// Lost, or to be given up; shards are still stopping.
    Ending,
}

#[derive(Clone, Debug)]
struct Hosted {
    /// As whom it was started.
    host: Host,
    token: Token,
    /// It was told to stop.
    stopping: bool,
    /// What to confirm when it has stopped.
    confirm: Vec<Token>,
    /// A later allocation, to be started then.
    next: Option<Token>,
}

#[derive(Clone, Debug)]
struct Home {
    /// The term of the coordinator that has said so: what a later one says counts, also if the token
    /// is lower. Without a lease a higher one may be gone with its node.
    said: u64,
    token: Token,
    node: Node,
}

#[derive(Clone, Copy, Debug)]
struct Overdue {
    /// Messages went elsewhere since: what comes back is too late.
    is_late: bool,
    /// When to ask for a mark again.
    mark_at: Moment,
    /// Nothing comes back after that.
    until: Moment,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Working,
    /// The node leaves: shards are handed off, and stopped at the latest then.
    Leaving {
        until: Moment,
    },
    /// Nothing is hosted any more.
    HandedOver,
    /// The node is in no cluster any more.
    Ended,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect<M> {
    /// Send this to a node, itself included.
    Send(Node, Message),
    /// Start a shard. Its entities fence with [`Region::fence`].
    Start {
        /// Which.
        shard: Shard,
        /// Of this allocation.
        token: Token,
    },
    /// Stop a shard, and call [`Region::stopped`] when that is done.
    Stop {
        /// Which.
        shard: Shard,
        /// Of this allocation.
        token: Token,
    },
    /// A shard that is being stopped has less time for it: the session is lost, or the node is out of
    /// the cluster.
    Hurry {
        /// Which.
        shard: Shard,
        /// Of this allocation.
        token: Token,
    },
    /// Hand a message to a shard that is here.
    Deliver {
        /// Which.
        shard: Shard,
        /// Of this allocation.
        token: Token,
        /// What.
        message: M,
    },
    /// Send a message to the region that hosts its shard. Messages to one node stay in order, and so
    /// do the next three.
    Forward {
        /// Where.
        to: Node,
        /// For which shard.
        shard: Shard,
        /// What.
        message: M,
    },
    /// Send a message back: its shard is not here. [`Region::returned`] takes it there.
    Return {
        /// Where it came from.
        to: Node,
        /// For which shard.
        shard: Shard,
        /// What.
        message: M,
    },
    /// Ask a region to say when everything that was sent before this has been returned or
    /// delivered: [`Region::mark`] there.
    Mark {
        /// Whom.
        to: Node,
        /// For which shard.
        shard: Shard,
    },
    /// Answer that: [`Region::marked`] there.
    Marked {
        /// Whom.
        to: Node,
        /// For which shard.
        shard: Shard,
    },
    /// A message could not be sent: tell whoever sent it.
    Fail {
        /// What.
        message: M,
        /// Why.
        why: Unroutable,
    },
    /// Everything under the session has ended: it may be given back. If the node stays, contend for
    /// it again.
    SessionEnded,
    /// The node leaves, and hosts nothing any more.
    HandedOver,
}

/// A message that a shard was handed, and has not looked at when it stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover<M> {
    /// Which node it came from; `None` if that is this one.
    pub from: Option<Node>,
    /// The message.
    pub message: M,
    /// Its size.
    pub bytes: usize,
}

/// Where a message to a shard goes now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// To the shard, which is here.
    Here(Token),
    /// To the region on this node.
    There(Node),
    /// Nowhere yet: [`Region::send`] keeps it.
    Waits,
}

/// How often something happened, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Shards started.
    pub started: u64,
    /// Directives and greetings refused because of a coordinator with a higher term.
    pub refused_coordinator: u64,
    /// Directives refused because they were for another session.
    pub refused_session: u64,
    /// Directives about allocations that are over already, ignored.
    pub late: u64,
    /// Messages that found their buffer full.
    pub overflows: u64,
}

impl<M> Region<M> {
    /// A region that hosts nothing yet, and never will if `hosts` is false.
    pub fn new(me: Node, settings: Settings, hosts: bool) -> Self {
        let session = match settings.has_sessions() && hosts {
            true => Session::None,
            false => Session::NotNeeded,
        };
        Self {
            me,
            settings,
            hosts,
            session,
            registered: None,
            shards: BTreeMap::new(),
            seen: BTreeMap::new(),
            homes: BTreeMap::new(),
            reachable: BTreeSet::new(),
            buffers: BTreeMap::new(),
            overdue: BTreeMap::new(),
            returned_to: BTreeSet::new(),
            ask_at: Moment::NEVER,
            stage: Stage::Working,
            changed: BTreeSet::new(),
            counts: Counts::default(),
            effects: Vec::new(),
        }
    }

    /// The session was won, and is held until then. Whoever drives this contends for it again only
    /// after [`Effect::SessionEnded`].
    pub fn session_won(&mut self, session: SessionRef, until: Moment, now: Moment) {
        self.tick(now);
        if self.wants_session() {
            self.session = Session::Held { session, until };
            self.report();
        }
    }

    /// Whether it could do with a session. One that is won when it could not is to be given back.
    pub fn wants_session(&self) -> bool {
        self.hosts && self.session == Session::None && self.stage == Stage::Working
    }

    /// The session is held until then.
    pub fn session_renewed(&mut self, until: Moment, now: Moment) {
        if let Session::Held { until: known, .. } = &mut self.session {
            *known = until.max(*known);
        }
        self.tick(now);
    }

    /// The session was lost.
    pub fn session_lost(&mut self, now: Moment) {
        self.tick(now);
        self.end_session();
    }

    /// Something arrived from a coordinator.
    pub fn receive(&mut self, from: &Node, message: Message, now: Moment) {
        self.tick(now);
        if self.stage == Stage::Ended {
            return;
        }
        match message {
            Message::Greeting { term, digest } => self.receive_greeting(from, term, digest),
            Message::Allocate(directive) => self.receive_allocate(from, directive, now),
            Message::HandOff(directive) => self.receive_hand_off(from, directive),
            Message::Homes { term, homes } => self.receive_homes(from, term, homes, now),
            // Who is busy is asked again anyway. The rest is for coordinators.
            Message::Refused(_)
            | Message::Report { .. }
            | Message::Started(_)
            | Message::Stopped(_)
            | Message::Where(_)
            | Message::Able(_)
            | Message::Introduce { .. } => {}
        }
    }

    /// A shard cannot work here: it is stopped, and its coordinator is told when it has.
    pub fn give_back(&mut self, shard: Shard, token: Token, now: Moment) {
        self.tick(now);
        if self.shards.get(&shard).is_some_and(|hosted| hosted.token == token) {
            self.stop(shard);
        }
    }

    /// A shard has stopped: as it was told, or by itself.
    pub fn stopped(&mut self, shard: Shard, token: Token, now: Moment) {
        self.stopped_with(shard, token, Vec::new(), now);
    }

    /// The same, with messages that it was handed and has not looked at. They go before everything
    /// that has come for it since.
    pub fn stopped_with(
        &mut self,
        shard: Shard,
        token: Token,
        leftovers: Vec<Leftover<M>>,
        now: Moment,
    ) {
        self.tick(now);
        let from_others = self.keep_leftovers(shard, leftovers);
        self.shard_stopped(shard, token, now);
        for (from, message) in from_others {
            self.forwarded(&from, shard, message, now);
        }
        self.ask_soon(now);
    }

    fn shard_stopped(&mut self, shard: Shard, token: Token, now: Moment) {
        let Some(hosted) = self.shards.get(&shard).filter(|hosted| hosted.token == token) else {
            return;
        };
        let Hosted { host, mut confirm, next, .. } = hosted.clone();
        self.shards.remove(&shard);
        self.changed.insert(shard);
        if !confirm.contains(&token) {
            confirm.push(token);
        }
        let shards = confirm.into_iter().map(|token| (shard, token)).collect();
        self.tell(Message::Stopped(Answer { host: host.clone(), shards }));
        // What a former coordinator wanted is not begun any more: the present one was not told of it.
        if let Some(next) = next
            && self.term() == Some(next.term)
            && self.host().as_ref() == Some(&host)
            && self.stage == Stage::Working
        {
            self.start(shard, next, host, now);
        }
        self.end_if_empty();
    }

    /// This node hosts nothing any more, and only sends: stops its shards, which others get.
    pub fn stop_hosting(&mut self, now: Moment) {
        self.tick(now);
        if std::mem::take(&mut self.hosts) && self.stage != Stage::Ended {
            if matches!(self.session, Session::Held { .. }) {
                self.session = Session::Ending;
            }
            self.stop_all();
            // Before it says what has stopped: else that would be given back to it.
            self.report();
            self.end_if_empty();
        }
    }

    /// It may host shards again. Whoever drives this contends for a session, where there are any.
    pub fn host_again(&mut self, now: Moment) {
        self.tick(now);
        self.hosts = true;
        if self.settings.has_sessions() && self.session == Session::NotNeeded {
            self.session = Session::None;
        }
        self.report();
    }

    /// The node leaves: hands everything over, then says so.
    pub fn leave(&mut self, now: Moment) {
        self.tick(now);
        if self.stage == Stage::Working {
            self.stage = Stage::Leaving { until: now + self.settings.hand_over_timeout };
            self.end_if_empty();
        }
    }

    /// The node leaves, and nobody is there to take its shards: waits no longer.
    pub fn hurry(&mut self, now: Moment) {
        if let Stage::Leaving { until } = &mut self.stage {
            *until = now.min(*until);
        }
        self.poll(now);
    }

    /// The node is in no cluster any more: stops everything.
    pub fn end(&mut self, now: Moment) {
        self.tick(now);
        if self.stage != Stage::Ended {
            self.stage = Stage::Ended;
            self.all_changed();
            self.fail_all();
            self.stop_in_a_hurry();
            self.end_if_empty();
        }
    }

    /// Does what is due. To be called at [`next_wake`](Self::next_wake), or earlier.
    pub fn poll(&mut self, now: Moment) {
        self.tick(now);
        if let Stage::Leaving { until } = self.stage
            && until <= now
        {
            self.stop_all();
        }
        self.wait_no_longer(now);
        self.mark_overdue(now);
        if self.ask_at <= now {
            self.ask(now);
        }
    }

    /// When [`poll`](Self::poll) has something to do.
    pub fn next_wake(&self) -> Moment {
        let session = match &self.session {
            Session::Held { until, .. } => *until,
            _ => Moment::NEVER,
        };
        let leaving = match self.stage {
            Stage::Leaving { until } if self.shards.values().any(|it| !it.stopping) => until,
            _ => Moment::NEVER,
        };
        session.min(leaving).min(self.ask_at).min(self.next_overdue())
    }

    /// What is to be done, since the last call.
    pub fn effects(&mut self) -> std::vec::Drain<'_, Effect<M>> {
        self.effects.drain(..)
    }

    /// The shards that are active here, stopping or not, and the tokens of their allocations.
    pub fn shards(&self) -> impl ExactSizeIterator<Item = (Shard, Token)> {
        self.shards.iter().map(|(shard, hosted)| (*shard, hosted.token))
    }

    /// What the entities of a shard fence with: its token. Never the session's: terms of different
    /// leases do not compare.
    pub fn fence(&self, shard: Shard) -> Option<Token> {
        let hosted = self.shards.get(&shard)?;
        if !self.settings.obeys(Rule::FenceWithTheShardsToken)
            && let Some(session) = &hosted.host.session
        {
            return Some(Token::new(session.term, 0));
        }
        Some(hosted.token)
    }

    /// As whom it hosts shards now, if it may.
    pub fn host(&self) -> Option<Host> {
        let session = match &self.session {
            Session::NotNeeded => None,
            Session::Held { session, .. } => Some(session.clone()),
            Session::None | Session::Ending => return None,
        };
        self.hosts.then(|| Host { node: self.me.clone(), session })
    }

    /// The coordinator that it obeys.
    pub fn coordinator(&self) -> Option<&Node> {
        self.registered.as_ref().map(|(_, node)| node)
    }

    /// The term of the coordinator that it obeys.
    pub fn term(&self) -> Option<u64> {
        self.registered.as_ref().map(|(term, _)| *term)
    }

    /// The allocation of a shard that is active here, stopping or not.
    pub fn token(&self, shard: Shard) -> Option<Token> {
        self.shards.get(&shard).map(|hosted| hosted.token)
    }

    /// Where a shard is, as far as this region knows.
    pub fn home_of(&self, shard: Shard) -> Option<&Node> {
        self.homes.get(&shard).map(|home| &home.node)
    }

    /// Shards of which [`way`](Self::way), [`token`](Self::token) or [`home_of`](Self::home_of) may say
    /// something else than before the last call.
    pub fn changed(&mut self) -> BTreeSet<Shard> {
        std::mem::take(&mut self.changed)
    }

    /// Where each shard is, as far as this region knows.
    pub fn homes(&self) -> impl Iterator<Item = (Shard, &Node)> {
        self.homes.iter().map(|(shard, home)| (*shard, &home.node))
    }

    /// How often things happened.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    fn all_changed(&mut self) {
        self.changed.extend((0..self.settings.shards).map(Shard));
    }

    /// Lets time pass: a session whose time is over is lost, whoever has noticed.
    fn tick(&mut self, now: Moment) {
        if matches!(self.session, Session::Held { until, .. } if until <= now) {
            self.end_session();
        }
    }

    fn end_session(&mut self) {
        if matches!(self.session, Session::Held { .. }) {
            self.session = Session::Ending;
            self.stop_in_a_hurry();
            // Before it says what has stopped: else that would be given back to it.
            self.report();
            self.end_if_empty();
        }
    }

    /// Also those that have begun to stop when there was more time.
    fn stop_in_a_hurry(&mut self) {
        let stopping = self.shards.iter().filter(|(_, hosted)| hosted.stopping);
        let hurry =
            stopping.map(|(shard, hosted)| Effect::Hurry { shard: *shard, token: hosted.token });
        self.effects.extend(hurry);
        self.stop_all();
    }

    fn stop_all(&mut self) {
        let all: Vec<Shard> = self.shards.keys().copied().collect();
        for shard in all {
            self.stop(shard);
        }
    }

    fn stop(&mut self, shard: Shard) {
        if let Some(hosted) = self.shards.get_mut(&shard)
            && !std::mem::replace(&mut hosted.stopping, true)
        {
            let token = hosted.token;
            self.changed.insert(shard);
            self.effects.push(Effect::Stop { shard, token });
        }
    }

    /// Whatever waits until nothing is hosted any more.
    fn end_if_empty(&mut self) {
        if !self.shards.is_empty() {
            return;
        }
        let leaves = matches!(self.stage, Stage::Leaving { .. } | Stage::Ended);
        let is_held = matches!(self.session, Session::Held { .. });
        if self.session == Session::Ending || leaves && is_held {
            self.session = Session::None;
            self.effects.push(Effect::SessionEnded);
        }
        if matches!(self.stage, Stage::Leaving { .. }) {
            self.stage = Stage::HandedOver;
            self.effects.push(Effect::HandedOver);
        }
    }

    /// To the coordinator, if there is one.
    fn tell(&mut self, message: Message) {
        if let Some((_, node)) = &self.registered {
            self.effects.push(Effect::Send(node.clone(), message));
        }
    }
}
