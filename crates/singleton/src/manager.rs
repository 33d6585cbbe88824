//! The manager of one singleton on one node: decides when this node hosts it. Pure.
//!
//! With a lease, whoever holds it hosts; membership only says who should *try*: the candidate, which is
//! the best placed node that is reachable and able. So a node that is cut off from the store, or on which
//! the singleton does not start, does not leave the slot empty, and nodes that disagree about who is
//! the candidate do no harm. A few that come next observe the lease beforehand, so that a ttl is
//! waited out once.
//!
//! Without a lease the oldest member hosts, and nobody else: also when it is unreachable or cannot. The
//! next one starts when each older one has said that it has stopped, or has been removed for a while.
//!
//! Not every member has a manager of this singleton: some have a proxy only, or another program. One that
//! has none says so when it is asked, or says nothing for `stable_after`, in which it was in reach: it is
//! *absent*, and nobody waits for it. Managers introduce themselves to each other when they meet. So one
//! that starts late is known, and without a lease it waits for whoever hosts already, although it is older.
//!
//! In either case the order at the end is *stop, give back, tell*, and only then does the node leave.

mod meet;
mod place;
mod reason;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tenure_cluster::{Node, Status, View};
use tenure_lease::{Loss, Moment, Token};

use crate::settings::Rule;
use crate::{Settings, Word};

pub use reason::StopReason;

/// What the node is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Do this about the lease, from now on.
    Stand(Stance),
    /// Look at the lease now: it may be free.
    Look,
    /// Start the singleton, under this token.
    Start(Token),
    /// Stop it. When it has ended: [`Manager::ended`].
    Stop(StopReason),
    /// Give the lease back: what it guarded has ended. Then: [`Manager::released`].
    Release,
    /// Say this to the manager and the proxies on another node.
    Tell(Node, Word),
    /// The same, and find out whether there is a manager: if there is none, [`Manager::absent`].
    Ask(Node, Word),
    /// Nothing is hosted here any more, nor will be: the node may leave.
    Over,
}

/// What a node does about the lease while it does not hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stance {
    /// Nothing.
    Out,
    /// It observes, to know when the lease has run out.
    Observing,
    /// It takes the lease as soon as that is free.
    Allowed,
}

/// The manager of one singleton on one node.
#[derive(Clone, Debug)]
pub struct Manager {
    me: Node,
    name: Arc<str>,
    guarded: bool,
    settings: Settings,
    phase: Phase,
    /// Never to host again, and why.
    ending: Option<StopReason>,
    /// The members that may host it, this node included.
    peers: BTreeMap<Node, Peer>,
    /// Everybody who may want to know.
    others: BTreeSet<Node>,
    /// Without a lease: who might have hosted it and was removed without a word, and when.
    gone: BTreeMap<Node, Moment>,
    stance: Stance,
    store_answers: bool,
    /// The store refused; ask again then.
    refused_until: Option<Moment>,
    /// The singleton does not start here; try again then.
    unable_until: Option<Moment>,
    /// An operator sent it elsewhere; until then others come first.
    away_until: Option<Moment>,
    /// How often it failed in a row, and how often that was given up.
    failures: u32,
    give_ups: u32,
    /// Who is better placed than this host, and since when.
    better: Option<(Node, Moment)>,
    /// The highest token that this node hosted under.
    last: Token,
    /// The highest that anybody said.
    heard: Token,
    tell_at: Moment,
    /// Until when it says what it does although nothing is wrong: others believe something else.
    announces_until: Option<Moment>,
    effects: VecDeque<Effect>,
}

#[derive(Clone, Debug)]
enum Phase {
    Waiting,
    Hosting { token: Token, instance: Instance },
    Stopping { token: Token },
    Releasing { token: Token },
    Over,
}

#[derive(Clone, Debug)]
enum Instance {
    Runs {
        since: Moment,
    },
    /// It failed, and is started again then.
    Again {
        at: Moment,
    },
}

#[derive(Clone, Debug)]
struct Peer {
    /// What people call it, if it has said so.
    name: Option<Arc<str>>,
    up_number: u64,
    status: Status,
    reachable: bool,
    able: bool,
    /// It said that it will never host again.
    over: bool,
    /// It has a manager: that has said something.
    managed: bool,
    /// Without a lease: it has hosted, and has not said that it has stopped.
    hosting: bool,
    /// It was told that there is a manager here, and asked whether it has one.
    asked: bool,
    /// When it is absent, unless it has said something by then.
    absent_at: Moment,
    /// It has no manager.
    absent: bool,
}

impl Peer {
    /// Whether it may have a manager, and is to be asked.
    fn is_unknown(&self) -> bool {
        let is_up = (Status::Up..Status::Down).contains(&self.status);
        is_up && self.reachable && !self.managed && !self.absent
    }
}

impl Manager {
    /// The manager on this node of the singleton of this name; `guarded`: it has a lease.
    pub fn new(me: Node, name: &str, guarded: bool, settings: Settings, now: Moment) -> Self {
        Self {
            me,
            name: name.into(),
            guarded,
            settings,
            phase: Phase::Waiting,
            ending: None,
            peers: BTreeMap::new(),
            others: BTreeSet::new(),
            gone: BTreeMap::new(),
            stance: Stance::Out,
            store_answers: true,
            refused_until: None,
            unable_until: None,
            away_until: None,
            failures: 0,
            give_ups: 0,
            better: None,
            last: Token::default(),
            heard: Token::default(),
            tell_at: now,
            announces_until: None,
            effects: VecDeque::new(),
        }
    }

    /// What to do next.
    pub fn next_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// When to call [`tick`](Self::tick) although nothing happens.
    pub fn next_wake(&self) -> Moment {
        let mut wake = if self.tells() { self.tell_at } else { Moment::NEVER };
        let again = match &self.phase {
            Phase::Hosting { instance: Instance::Again { at }, .. } => Some(*at),
            _ => None,
        };
        let better = self.better.as_ref().map(|(_, since)| *since + self.settings.stable_after);
        let until = [self.refused_until, self.unable_until, self.away_until];
        for at in [again, better].into_iter().chain(until).flatten() {
            wake = wake.min(at);
        }
        for removed in self.gone.values() {
            wake = wake.min(*removed + self.settings.removal_margin);
        }
        for (_, peer) in self.unknown() {
            wake = wake.min(peer.absent_at);
        }
        wake
    }

    /// Lets time pass.
    pub fn tick(&mut self, now: Moment) {
        self.act(now);
    }

    /// What this node believes of the cluster has changed.
    pub fn view(&mut self, now: Moment, view: &View) {
        let unreachable: BTreeSet<&Node> =
            view.observations().map(|(_, subject)| subject).filter(|it| **it != self.me).collect();
        let role = self.settings.role.as_ref();
        let peers =
            view.members().filter(|(_, it)| role.is_none_or(|role| it.roles.contains(role)));
        let peers: BTreeMap<Node, Peer> = peers
            .map(|(node, member)| {
                let known = self.peers.get(node);
                let reachable = !unreachable.contains(node);
                // While it is out of reach it can say nothing.
                let absent_at = match known {
                    Some(known) if known.reachable && reachable => known.absent_at,
                    _ if reachable => now + self.settings.stable_after,
                    _ => Moment::NEVER,
                };
                let peer = Peer {
                    name: member.name().cloned(),
                    up_number: member.up_number,
                    status: member.status,
                    reachable,
                    able: known.is_none_or(|known| known.able),
                    over: known.is_some_and(|known| known.over),
                    managed: *node == self.me || known.is_some_and(|known| known.managed),
                    hosting: known.is_some_and(|known| known.hosting),
                    asked: known.is_some_and(|known| known.asked),
                    absent_at,
                    absent: known.is_some_and(|known| known.absent),
                };
                (node.clone(), peer)
            })
            .collect();
        if !self.guarded {
            let age = self.mine().map_or(0, |me| me.up_number);
            let gone = self.peers.iter().filter(|(node, peer)| {
                let older = peer.up_number > 0 && (age == 0 || peer.up_number < age);
                let may_host = older && !peer.absent || peer.hosting;
                may_host && !peer.over && !peers.contains_key(*node)
            });
            self.gone.extend(gone.map(|(node, _)| (node.clone(), now)));
        }
        self.peers = peers;
        let others: BTreeSet<Node> = view
            .members()
            .filter(|(node, member)| member.status < Status::Down && **node != self.me)
            .map(|(node, _)| node.clone())
            .collect();
        let before = std::mem::replace(&mut self.others, others);
        if self.speaks() {
            let word = self.word();
            let new = self.others.difference(&before);
            self.effects.extend(new.map(|node| Effect::Tell(node.clone(), word.clone())));
        }
        if self.mine().is_some_and(|me| me.status == Status::Down) {
            self.end(now, StopReason::OutOfCluster);
        }
        self.act(now);
    }

    /// A word from another node.
    pub fn heard(&mut self, now: Moment, from: &Node, word: &Word) {
        match word {
            Word::Who => self.answer(from),
            Word::State { hosting, able } => {
                self.heard = self.heard.max(hosting.unwrap_or_default());
                let met = self.meet(from);
                if let Some(peer) = self.peers.get_mut(from) {
                    peer.able = *able;
                    peer.hosting |= hosting.is_some() && !self.guarded;
                }
                // A host that does not know how this node is does not hand over to it.
                let waits = self.guarded && matches!(self.phase, Phase::Waiting);
                if met || hosting.is_some() && waits && self.candidate() == Some(&self.me) {
                    self.answer(from);
                }
            }
            Word::HandedOver { token } => {
                self.meet(from);
                if self.guarded {
                    if *token >= self.heard && self.stance != Stance::Out {
                        self.effects.push_back(Effect::Look);
                    }
                } else if self.settings.obeys(Rule::HandOverOfThatHost) {
                    self.gone.remove(from);
                    if let Some(peer) = self.peers.get_mut(from) {
                        (peer.over, peer.hosting) = (true, false);
                    }
                } else {
                    self.gone.clear();
                    for peer in self.peers.values_mut() {
                        (peer.over, peer.hosting) = (true, false);
                    }
                }
            }
        }
        self.act(now);
    }

    /// The lease is held.
    pub fn won(&mut self, now: Moment, token: Token) {
        self.store_answers = true;
        self.refused_until = None;
        match self.phase {
            Phase::Waiting if self.ending.is_none() => self.start(now, token),
            // Nothing was started under it.
            _ => self.effects.push_back(Effect::Release),
        }
        self.act(now);
    }

    /// The lease is lost.
    pub fn lost(&mut self, now: Moment, loss: Loss) {
        if loss == Loss::Expired {
            // Until it is heard of again: others reach it, perhaps.
            self.store_answers = false;
        }
        match &self.phase {
            Phase::Hosting { token, instance: Instance::Runs { .. } } => {
                self.phase = Phase::Stopping { token: *token };
                self.effects.push_back(Effect::Stop(StopReason::LeaseLost(loss)));
                self.tell_all();
            }
            Phase::Hosting { token, instance: Instance::Again { .. } } => {
                self.phase = Phase::Releasing { token: *token };
                self.effects.push_back(Effect::Release);
                self.tell_all();
            }
            Phase::Stopping { .. } => {
                self.effects.push_back(Effect::Stop(StopReason::LeaseLost(loss)))
            }
            Phase::Waiting | Phase::Releasing { .. } | Phase::Over => {}
        }
        self.act(now);
    }

    /// Whether the store has answered when it was last asked about the lease.
    pub fn store(&mut self, now: Moment, answers: bool) {
        if self.store_answers != answers {
            self.store_answers = answers;
            self.tell_all();
        }
        self.act(now);
    }

    /// The store refused to let this node ask for the lease at all.
    pub fn refused(&mut self, now: Moment) {
        self.refused_until = Some(now + self.settings.acquire_retry_interval);
        self.stance = Stance::Out;
        self.tell_all();
        self.act(now);
    }

    /// The singleton has ended here: it was told to, it failed, or it returned by itself.
    pub fn ended(&mut self, now: Moment) {
        match self.phase {
            Phase::Stopping { token } => self.give_back(now, token),
            Phase::Hosting { token, instance: Instance::Runs { since } } => {
                if now.since(since) >= self.settings.healthy_after {
                    (self.failures, self.give_ups) = (0, 0);
                }
                self.failures += 1;
                if self.guarded && self.failures >= self.settings.start_attempts {
                    let pause =
                        self.settings.restart_backoff * (BACKOFF_MAX << self.give_ups.min(4));
                    (self.failures, self.give_ups) = (0, self.give_ups + 1);
                    self.unable_until = Some(now + pause);
                    self.give_back(now, token);
                } else {
                    let times = 1_u32 << (self.failures - 1).min(16);
                    let at = now + self.settings.restart_backoff * times.min(BACKOFF_MAX);
                    self.phase = Phase::Hosting { token, instance: Instance::Again { at } };
                    self.tell_all();
                }
            }
            _ => {}
        }
        self.act(now);
    }

    /// The lease was given back, or the store could not be told so in time.
    pub fn released(&mut self, now: Moment) {
        if let Phase::Releasing { token } = self.phase {
            self.phase = Phase::Waiting;
            for node in self.others.clone() {
                self.effects.push_back(Effect::Tell(node, Word::HandedOver { token }));
            }
            self.tell_all(); // Whether it is able.
        }
        self.act(now);
    }

    /// This node leaves: hand over. [`Effect::Over`] says that it may go.
    pub fn leave(&mut self, now: Moment) {
        self.end(now, StopReason::Leaving);
        self.act(now);
    }

    /// An operator wants another node to host it: it stops here, and others come first for
    /// [`STAY_AWAY`], unless nobody else can. Says to whom it goes; if it cannot, why not.
    pub fn hand_over(&mut self, now: Moment) -> Result<Node, String> {
        if self.hosting().is_none() {
            return Err(format!("this node does not host it: {}", self.why_not()));
        }
        if !self.guarded {
            return Err(
                "without a lease only the oldest node hosts it; have this node leave".into()
            );
        }
        let Some(next) = self.others_first().cloned() else {
            return Err("no other node that may host it is up, reachable and able".into());
        };
        self.away_until = Some(now + STAY_AWAY);
        self.stop(now, StopReason::HandOver(next.clone()));
        self.act(now);
        Ok(next)
    }

    /// This node hosts it no more: hand over. [`Effect::Over`] says that this is done; from then on the
    /// others are told, again and again, that this node does not count.
    pub fn retire(&mut self, now: Moment) {
        self.end(now, StopReason::Stopped);
        self.act(now);
    }

    /// This node hosted it no more, and may again: the others are told, a few times.
    pub fn announce(&mut self, now: Moment) {
        self.announces_until = Some(now + ANNOUNCE);
    }

    /// Whether this node hosts it no more because of [`retire`](Self::retire).
    pub fn is_retired(&self) -> bool {
        self.ending == Some(StopReason::Stopped)
    }

    /// This node is out of the cluster.
    pub fn out(&mut self, now: Moment) {
        self.end(now, StopReason::OutOfCluster);
        self.others.clear();
        self.act(now);
    }

    /// Under which token the singleton runs here.
    pub fn hosting(&self) -> Option<Token> {
        match self.phase {
            Phase::Hosting { token, instance: Instance::Runs { .. } } => Some(token),
            _ => None,
        }
    }

    fn mine(&self) -> Option<&Peer> {
        self.peers.get(&self.me)
    }

    fn able(&self) -> bool {
        self.store_answers
            && !self.is_retired()
            && self.refused_until.is_none()
            && self.unable_until.is_none()
            && self.away_until.is_none()
    }

    fn act(&mut self, now: Moment) {
        for peer in self.peers.values_mut() {
            peer.absent |= peer.is_unknown() && now >= peer.absent_at;
        }
        if self.away_until.is_some() && self.others_first().is_none() {
            self.away_until = Some(now); // Rather here than nowhere.
        }
        for until in [&mut self.refused_until, &mut self.unable_until, &mut self.away_until] {
            if until.is_some_and(|until| now >= until) {
                *until = None;
                self.tell_at = now;
            }
        }
        if !matches!(self.phase, Phase::Hosting { .. }) {
            self.better = None; // Nothing is left to hand over.
        }
        let margin = self.settings.removal_margin;
        self.gone.retain(|_, removed| now.since(*removed) < margin);
        match &self.phase {
            Phase::Waiting if self.ending.is_some() => self.go(),
            Phase::Waiting if !self.guarded && self.may_start() => {
                let term = self.mine().map_or(0, |me| me.up_number);
                let step = if self.last.term == term { self.last.step + 1 } else { 0 };
                self.start(now, Token { term, step });
            }
            Phase::Hosting { token, instance: Instance::Again { at } } if now >= *at => {
                let token = *token;
                self.start(now, token);
            }
            Phase::Hosting { .. } => self.consider_handing_over(now),
            _ => {}
        }
        self.take_stance();
        if self.tells() && now >= self.tell_at {
            self.tell_at = now + TELL_INTERVAL;
            if self.speaks() {
                self.tell_all();
            }
            let older: Vec<Node> = self.silent_older().cloned().collect();
            self.effects.extend(older.into_iter().map(|node| Effect::Tell(node, Word::Who)));
            self.introduce();
        }
    }

    /// Whether there is something to say again and again: words may be lost.
    fn tells(&self) -> bool {
        if matches!(self.phase, Phase::Over) {
            return self.is_retired();
        }
        let asks = self.silent_older().next().is_some() || self.unknown().next().is_some();
        self.speaks() || asks
    }

    /// Whether everybody is to know how this node is.
    fn speaks(&self) -> bool {
        let announces = self.announces_until.is_some_and(|until| self.tell_at <= until);
        announces || self.hosting().is_some() || !self.able()
    }

    fn start(&mut self, now: Moment, token: Token) {
        self.last = self.last.max(token);
        self.heard = self.heard.max(token);
        self.phase = Phase::Hosting { token, instance: Instance::Runs { since: now } };
        self.effects.push_back(Effect::Start(token));
        self.tell_all();
    }

    fn consider_handing_over(&mut self, now: Moment) {
        let up = self.mine().is_some_and(|me| me.status == Status::Up);
        let better =
            self.candidate().filter(|node| up && self.guarded && **node != self.me).cloned();
        let Some(better) = better else {
            self.better = None;
            return;
        };
        match &self.better {
            Some((node, since)) if *node == better => {
                if now.since(*since) >= self.settings.stable_after {
                    self.stop(now, StopReason::HandOver(better));
                }
            }
            _ => self.better = Some((better, now)),
        }
    }

    fn end(&mut self, now: Moment, reason: StopReason) {
        let ends = match self.ending {
            None | Some(StopReason::Leaving) => true,
            Some(StopReason::Stopped) => reason == StopReason::OutOfCluster,
            Some(_) => false,
        };
        if ends {
            self.ending = Some(reason.clone());
            self.stop(now, reason);
        }
    }

    fn stop(&mut self, now: Moment, reason: StopReason) {
        self.better = None;
        match self.phase {
            Phase::Hosting { token, instance: Instance::Runs { .. } } => {
                self.phase = Phase::Stopping { token };
                self.effects.push_back(Effect::Stop(reason));
                self.tell_all();
                if !self.settings.obeys(Rule::StopThenRelease) && self.guarded {
                    self.effects.push_back(Effect::Release);
                }
            }
            Phase::Hosting { token, .. } => self.give_back(now, token),
            Phase::Stopping { .. } => self.effects.push_back(Effect::Stop(reason)),
            Phase::Waiting | Phase::Releasing { .. } | Phase::Over => {}
        }
    }

    fn give_back(&mut self, now: Moment, token: Token) {
        self.phase = Phase::Releasing { token };
        if self.guarded {
            self.effects.push_back(Effect::Release);
        } else {
            self.released(now);
        }
    }

    /// Nothing is hosted here: says so, and lets the node go.
    fn go(&mut self) {
        // The one who comes next would not know of those that this node waits for.
        let hands_over = matches!(self.ending, Some(StopReason::Leaving | StopReason::Stopped));
        let waits = hands_over && !self.gone.is_empty();
        if waits && self.mine().is_some() {
            return;
        }
        self.phase = Phase::Over;
        for node in self.others.clone() {
            self.effects.push_back(Effect::Tell(node, Word::HandedOver { token: self.last }));
        }
        self.effects.push_back(Effect::Over);
    }

    fn take_stance(&mut self) {
        let stance = self.best_stance();
        if self.guarded && stance != self.stance {
            self.stance = stance;
            self.effects.push_back(Effect::Stand(stance));
        }
    }

    /// Whether it runs here, or will again after a failure.
    pub fn hosts(&self) -> bool {
        matches!(self.phase, Phase::Hosting { .. })
    }

    /// What it says to the others.
    pub fn word(&self) -> Word {
        match self.phase {
            // Without a lease the others wait until each older node has said that it is over.
            Phase::Over if !self.guarded => Word::HandedOver { token: self.last },
            _ => Word::State { hosting: self.hosting(), able: self.able() },
        }
    }

    fn tell_all(&mut self) {
        let word = self.word();
        let tell = self.others.iter().map(|node| Effect::Tell(node.clone(), word.clone()));
        self.effects.extend(tell);
    }
}

/// For how long a node that an operator took the singleton from leaves it to others: enough to look
/// after it, or to restart it.
pub const STAY_AWAY: Duration = Duration::from_secs(600);
/// For how long a node that may host it again says so.
const ANNOUNCE: Duration = Duration::from_secs(10);
/// How often a host, or one that is unable, says so again.
const TELL_INTERVAL: Duration = Duration::from_secs(1);
/// The longest pause before a restart, in backoffs.
const BACKOFF_MAX: u32 = 30;
