//! Giving shards to regions and taking them back.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use tenure_cluster::Node;
use tenure_lease::{Moment, Token};

use super::duty::{Duty, HostId, Known, Place};
use super::members::Members;
use super::{Coordinator, Effect, Event};
use crate::settings::Rule;
use crate::wire::{Answer, Directive, Message};
use crate::{Host, Load, Shard};

impl Coordinator {
    /// Takes shards from those who leave, gives away what is free, and evens out.
    pub(super) fn give_shards(&mut self, now: Moment) {
        let Some(duty) = &self.duty else { return };
        let eligible: BTreeSet<HostId> =
            duty.hosts.keys().copied().filter(|id| self.is_eligible(duty, *id)).collect();
        self.relieve(!eligible.is_empty());
        self.allocate(&eligible, now);
        self.rebalance(eligible, now);
    }

    /// Evens out now, instead of at the next interval.
    pub fn rebalance_now(&mut self, now: Moment) {
        if let Some(duty) = &mut self.duty {
            duty.rebalance_at = now;
            self.settle(now);
        }
    }

    /// Asks those for their shards who leave and, if others can have them, those who lack a session.
    fn relieve(&mut self, others_can: bool) {
        let Some(duty) = &self.duty else { return };
        let leavers = duty.hosts.iter().filter(|(_, it)| {
            let lacks = others_can && it.answered && !self.has_what_it_needs(&it.host);
            lacks || self.members.is_leaving(&it.host.node)
        });
        let leaving: Vec<Shard> = leavers
            .filter(|(id, _)| duty.kept(**id) > 0)
            .flat_map(|(id, _)| duty.hosted(*id))
            .filter(|(_, place)| matches!(place, Place::Starting { .. } | Place::At { .. }))
            .map(|(shard, _)| shard)
            .collect();
        self.hand_off(&leaving);
    }

    /// Whether a host can be given shards by a coordinator that is set up as this one is.
    fn has_what_it_needs(&self, host: &Host) -> bool {
        host.session.is_some() || !self.settings.has_sessions()
    }

    fn is_eligible(&self, duty: &Duty, id: HostId) -> bool {
        let Some(known) = duty.hosts.get(&id) else { return false };
        let node = &known.host.node;
        let is_there = duty.regions.get(node) == Some(&Some(id));
        let fits = self.has_what_it_needs(&known.host);
        is_there && fits && self.members.may_host(node) && self.may_direct(duty, id)
    }

    /// Gives what is free to those who have least.
    fn allocate(&mut self, eligible: &BTreeSet<HostId>, now: Moment) {
        let Some(duty) = &mut self.duty else { return };
        if eligible.is_empty() {
            return;
        }
        let free: Vec<Shard> =
            duty.free().iter().copied().filter(|shard| duty.is_due(*shard, now)).collect();
        // The first who answers does not get everything.
        let is_expected = |node: &Node| match duty.regions.get(node) {
            None => !self.members.is_absent(node, now),
            Some(None) => false,
            Some(Some(id)) => !eligible.contains(id),
        };
        let waited = duty.recovered.is_some_and(|since| now >= since + self.settings.patience);
        let is_early = !waited && self.members.hosts().any(is_expected);
        if free.is_empty() || is_early || now < duty.place_at {
            return;
        }
        let (ids, mut loads) = loads(duty, &self.members, &newest(duty, eligible));
        let placement = self.settings.strategy.placement();
        let mut orders: BTreeMap<HostId, Vec<(Shard, Token)>> = BTreeMap::new();
        let mut panicked = false;
        for shard in free {
            let Some(place) = caught(|| placement.place(shard, &loads)) else {
                panicked = true;
                break;
            };
            let Some(place) = place.filter(|place| *place < ids.len()) else { continue };
            let host = ids[place];
            loads[place].shards += 1;
            duty.step += 1;
            let token = Token::new(duty.term, duty.step);
            duty.set_place(shard, Place::Starting { host, token });
            orders.entry(host).or_default().push((shard, token));
            self.counts.allocations += 1;
        }
        for (host, shards) in orders {
            self.direct(host, shards, Message::Allocate);
        }
        if panicked {
            self.placement_panicked(now);
        }
    }

    /// What users wrote has panicked. It is asked again, but not without pause; what it has not placed
    /// waits, and everything else goes on.
    fn placement_panicked(&mut self, now: Moment) {
        let Some(duty) = &mut self.duty else { return };
        duty.place_at = now + self.settings.resend_interval;
        if !std::mem::replace(&mut duty.panicked, true) {
            self.effects.push(Effect::Tell(Event::PlacementPanicked));
        }
    }

    /// Takes shards from where they should not be, a few at a time. Not while regions have different
    /// versions of the application: what is moved then, moves again.
    fn rebalance(&mut self, eligible: BTreeSet<HostId>, now: Moment) {
        let limit = self.settings.rebalance_limit;
        let Some(duty) = &mut self.duty else { return };
        if duty.recovered.is_none() && self.settings.obeys(Rule::WholeRosterFirst) {
            return;
        }
        if now >= duty.rebalance_at || eligible != duty.eligible {
            duty.rebalance_at = now + self.settings.rebalance_interval;
            duty.eligible = eligible;
            duty.balancing = true;
        }
        let moving = duty.moving();
        let is_mixed = newest(duty, &duty.eligible) != duty.eligible;
        let is_asked = duty.balancing && !duty.eligible.is_empty() && now >= duty.place_at;
        if !is_asked || moving >= limit || is_mixed {
            return;
        }
        let placement = self.settings.strategy.placement();
        let (ids, mut loads) = loads(duty, &self.members, &duty.eligible);
        let mut homes: Vec<(Shard, usize)> = Vec::new();
        let mut on_their_way: Vec<Shard> = duty.free().iter().copied().collect();
        for (place, id) in ids.iter().enumerate() {
            for (shard, now) in duty.hosted(*id) {
                match now {
                    Place::At { .. } => homes.push((shard, place)),
                    Place::HandingOff { .. } => on_their_way.push(shard),
                    _ => {}
                }
            }
        }
        homes.sort_unstable();
        let most = limit - moving;
        let moved = caught(|| {
            // As if they had arrived: else too many would be sent after them.
            for shard in on_their_way {
                let place = placement.place(shard, &loads);
                if let Some(load) = place.and_then(|place| loads.get_mut(place)) {
                    load.shards += 1;
                }
            }
            placement.moves(&loads, &homes, most)
        });
        let Some(mut moved) = moved else { return self.placement_panicked(now) };
        moved.truncate(most);
        // It could go on if there was something on its way.
        duty.balancing = moved.len() == most || moving > 0;
        self.hand_off(&moved);
    }

    /// Asks these back from where they are.
    pub(super) fn hand_off(&mut self, shards: &[Shard]) {
        let mut orders: BTreeMap<HostId, Vec<(Shard, Token)>> = BTreeMap::new();
        for &shard in shards {
            let Some(duty) = &self.duty else { return };
            let Some((host, token)) = duty.place(shard).and_then(Place::allocation) else {
                continue;
            };
            if !self.may_direct(duty, host) {
                continue;
            }
            let Some(duty) = &mut self.duty else { return };
            duty.set_place(shard, Place::HandingOff { host, token });
            orders.entry(host).or_default().push((shard, token));
            self.counts.hand_offs += 1;
        }
        for (host, shards) in orders {
            self.order_stop(host, shards);
        }
    }

    pub(super) fn order_stop(&mut self, host: HostId, shards: Vec<(Shard, Token)>) {
        self.direct(host, shards, Message::HandOff);
    }

    fn direct(
        &mut self,
        host: HostId,
        shards: Vec<(Shard, Token)>,
        message: impl Fn(Directive) -> Message,
    ) {
        let Some(duty) = &self.duty else { return };
        if !self.may_direct(duty, host) {
            return;
        }
        let Some(known) = duty.hosts.get(&host) else { return };
        let directive = Directive { term: duty.term, host: known.host.clone(), shards };
        self.effects.push(Effect::Send(known.host.node.clone(), message(directive)));
    }

    /// Sends directives again that were not answered.
    pub(super) fn resend_directives(&mut self) {
        let Some(duty) = &self.duty else { return };
        let mut allocate: BTreeMap<HostId, Vec<(Shard, Token)>> = BTreeMap::new();
        let mut hand_off: BTreeMap<HostId, Vec<(Shard, Token)>> = BTreeMap::new();
        for (shard, place) in duty.places() {
            match place {
                Place::Starting { host, token } => {
                    allocate.entry(host).or_default().push((shard, token));
                }
                Place::HandingOff { host, token } => {
                    hand_off.entry(host).or_default().push((shard, token));
                }
                Place::Taken | Place::Free | Place::At { .. } => {}
            }
        }
        for (host, shards) in allocate {
            self.direct(host, shards, Message::Allocate);
        }
        for (host, shards) in hand_off {
            self.direct(host, shards, Message::HandOff);
        }
    }

    pub(super) fn receive_started(&mut self, from: &Node, answer: &Answer) {
        let Some((duty, id)) = self.answers(from, &answer.host) else { return };
        let mut stale = 0;
        for &(shard, token) in &answer.shards {
            match duty.place(shard) {
                Some(Place::Starting { host, token: own }) if (host, own) == (id, token) => {
                    duty.set_place(shard, Place::At { host, token });
                    duty.news.insert(shard);
                }
                Some(place) if place.allocation() == Some((id, token)) => {}
                _ => stale += 1,
            }
        }
        self.counts.stale_answers += stale;
    }

    pub(super) fn receive_stopped(&mut self, from: &Node, answer: &Answer, now: Moment) {
        let names = self.settings.obeys(Rule::AnswersNameTheAllocation);
        let unit = self.settings.resend_interval;
        let stays = !self.members.is_leaving(from);
        let Some((duty, id)) = self.answers(from, &answer.host) else { return };
        let mut stale = 0;
        for &(shard, token) in &answer.shards {
            let place = duty.place(shard);
            match place.and_then(Place::allocation) {
                Some((host, own)) if host == id && (own == token || !names) => {
                    if stays && matches!(place, Some(Place::At { .. })) {
                        duty.ended_by_itself(shard, unit, now);
                    }
                    duty.set_place(shard, Place::Free);
                }
                _ => {
                    stale += 1;
                    // It may have been reported before the roster was through.
                    if let Some(known) = duty.hosts.get_mut(&id) {
                        known.claims.remove(&(shard, token));
                    }
                }
            }
        }
        self.counts.stale_answers += stale;
    }

    /// The host that an answer is from, if it is known.
    fn answers(&mut self, from: &Node, host: &Host) -> Option<(&mut Duty, HostId)> {
        let duty = self.duty.as_mut()?;
        match duty.find(host).filter(|_| host.node == *from) {
            Some(id) => Some((duty, id)),
            None => {
                self.counts.stale_answers += 1;
                None
            }
        }
    }

    /// Tells every region of new homes, a few at once, and whoever has asked where things are, at once.
    pub(super) fn publish(&mut self, now: Moment) {
        let Some(duty) = &mut self.duty else { return };
        let home = |duty: &Duty, shard: Shard| match duty.place(shard)? {
            Place::At { host, token } => {
                let node = &duty.hosts.get(&host)?.host.node;
                // A region that is there without its session refuses what is sent to it.
                let is_there = duty.regions.get(node) == Some(&Some(host));
                is_there.then(|| (shard, token, node.clone()))
            }
            _ => None,
        };
        let is_time = now >= duty.news_at;
        let news = if is_time { std::mem::take(&mut duty.news) } else { BTreeSet::new() };
        let news: Vec<_> = news.into_iter().filter_map(|shard| home(duty, shard)).collect();
        let term = duty.term;
        if !news.is_empty() {
            duty.news_at = now + NEWS_EVERY;
            for node in duty.regions.keys() {
                let homes = Message::Homes { term, homes: news.clone() };
                self.effects.push(Effect::Send(node.clone(), homes));
            }
        }
        if duty.recovered.is_none() {
            return;
        }
        let told_now: BTreeSet<Shard> = news.iter().map(|(shard, ..)| *shard).collect();
        for (node, shards) in &mut self.waiting {
            let told = duty.regions.contains_key(node);
            let known: Vec<_> = shards.iter().filter_map(|shard| home(duty, *shard)).collect();
            shards.retain(|shard| known.binary_search_by_key(shard, |(found, ..)| *found).is_err());
            let is_new = |found: &Shard| !told || !told_now.contains(found);
            let homes: Vec<_> = known.into_iter().filter(|(found, ..)| is_new(found)).collect();
            if !homes.is_empty() {
                let homes = Message::Homes { term, homes };
                self.effects.push(Effect::Send(node.clone(), homes));
            }
        }
        self.waiting.retain(|_, shards| !shards.is_empty());
    }
}

/// What users wrote may panic; `None`, then.
fn caught<T>(ask: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(ask)).ok()
}

/// How many shards each of these has and keeps, or is being given.
fn loads(duty: &Duty, members: &Members, hosts: &BTreeSet<HostId>) -> (Vec<HostId>, Vec<Load>) {
    let known = hosts.iter().filter_map(|id| Some((*id, duty.hosts.get(id)?)));
    let load = |id, known: &Known| {
        let node = known.host.node.clone();
        Load { name: members.name(&node).cloned(), node, shards: duty.kept(id) }
    };
    let (ids, mut loads): (Vec<HostId>, Vec<Load>) =
        known.map(|(id, known)| (id, load(id, known))).unzip();
    let mut named: BTreeMap<Arc<str>, usize> = BTreeMap::new();
    for name in loads.iter().filter_map(|load| load.name.clone()) {
        *named.entry(name).or_default() += 1;
    }
    // All processes of one machine may have its name.
    for load in &mut loads {
        load.name.take_if(|name| named.get(name).is_some_and(|count| *count > 1));
    }
    (ids, loads)
}

/// Those of them with the newest version of the application.
fn newest(duty: &Duty, hosts: &BTreeSet<HostId>) -> BTreeSet<HostId> {
    let version = |id: &HostId| duty.hosts.get(id).map(|known| &known.version);
    let newest = hosts.iter().filter_map(version).max();
    hosts.iter().copied().filter(|id| version(id) == newest).collect()
}

/// How often everybody is told of new homes. Whoever has something for one of them has asked.
const NEWS_EVERY: Duration = Duration::from_millis(20);
