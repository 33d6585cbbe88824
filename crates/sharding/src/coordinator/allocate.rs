//! Giving shards to regions and taking them back.

use std::collections::{BTreeMap, BTreeSet};

use tenure_cluster::Node;
use tenure_lease::{Moment, Token};

use super::duty::{Duty, HostId, Place};
use super::{Coordinator, Effect};
use crate::message::{Answer, Directive, Message};
use crate::settings::Rule;
use crate::{Host, Shard};

impl Coordinator {
    /// Takes shards from those who leave, gives away what is free, and evens out.
    pub(super) fn give_shards(&mut self, now: Moment) {
        self.relieve_leavers();
        let Some(duty) = &self.duty else { return };
        let eligible: BTreeSet<HostId> =
            duty.hosts.keys().copied().filter(|id| self.is_eligible(duty, *id)).collect();
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

    fn relieve_leavers(&mut self) {
        let Some(duty) = &self.duty else { return };
        let leaves = |id: HostId| {
            let known = duty.hosts.get(&id);
            known.is_some_and(|known| self.members.is_leaving(&known.host.node))
        };
        let leaving: Vec<Shard> = duty
            .places()
            .filter(|(_, place)| match place {
                Place::Starting { host, .. } | Place::At { host, .. } => leaves(*host),
                _ => false,
            })
            .map(|(shard, _)| shard)
            .collect();
        self.hand_off(&leaving);
    }

    fn is_eligible(&self, duty: &Duty, id: HostId) -> bool {
        let Some(known) = duty.hosts.get(&id) else { return false };
        let node = &known.host.node;
        let is_there = duty.regions.get(node) == Some(&Some(id));
        is_there && self.members.may_host(node) && self.may_direct(duty, id)
    }

    /// Gives what is free to those who have least.
    fn allocate(&mut self, eligible: &BTreeSet<HostId>, now: Moment) {
        let Some(duty) = &mut self.duty else { return };
        let free: Vec<Shard> = duty
            .places()
            .filter(|(shard, place)| *place == Place::Free && duty.is_due(*shard, now))
            .map(|(shard, _)| shard)
            .collect();
        // The first who answers does not get everything.
        let is_expected = |node: &Node| match duty.regions.get(node) {
            None => true,
            Some(None) => false,
            Some(Some(id)) => !eligible.contains(id),
        };
        let waited = duty.recovered.is_some_and(|since| now >= since + self.settings.patience);
        let is_early = !waited && self.members.hosts().any(is_expected);
        if free.is_empty() || eligible.is_empty() || is_early {
            return;
        }
        let mut counts = counts(duty, eligible);
        let mut orders: BTreeMap<HostId, Vec<(Shard, Token)>> = BTreeMap::new();
        for shard in free {
            let Some((host, count)) = least(&mut counts) else { break };
            *count += 1;
            duty.step += 1;
            let token = Token::new(duty.term, duty.step);
            duty.set_place(shard, Place::Starting { host, token });
            orders.entry(host).or_default().push((shard, token));
            self.counts.allocations += 1;
        }
        for (host, shards) in orders {
            self.direct(host, shards, Message::Allocate);
        }
    }

    /// Takes shards from those who have most, a few at a time, while others have two less.
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
        let is_still = |place| matches!(place, Place::At { .. } | Place::Taken);
        let moving = duty.places().filter(|(_, place)| !is_still(*place)).count();
        if !duty.balancing || moving >= limit {
            return;
        }
        let mut counts = counts(duty, &duty.eligible);
        // Those that are on their way, or about to be, go to whoever has least.
        let is_going = |place| matches!(place, Place::HandingOff { .. } | Place::Free);
        for _ in duty.places().filter(|(_, place)| is_going(*place)) {
            least(&mut counts).into_iter().for_each(|(_, count)| *count += 1);
        }
        let mut moved = Vec::new();
        let mut places: Vec<(Shard, HostId)> = duty
            .places()
            .filter_map(|(shard, place)| match place {
                Place::At { host, .. } if counts.contains_key(&host) => Some((shard, host)),
                _ => None,
            })
            .collect();
        while moving + moved.len() < limit {
            let least = counts.iter().min_by_key(|(id, count)| (**count, **id));
            let most = counts.iter().max_by_key(|(id, count)| (**count, **id));
            let (Some((&least, &few)), Some((&most, &many))) = (least, most) else { break };
            let from_most = places.iter().rposition(|(_, host)| *host == most);
            let Some(index) = from_most.filter(|_| many >= few + 2) else {
                duty.balancing = false;
                break;
            };
            moved.push(places.swap_remove(index).0);
            counts.insert(most, many - 1);
            counts.insert(least, few + 1);
        }
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
                    duty.news.push(shard);
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
                        known.claims.retain(|claim| *claim != (shard, token));
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

    /// Tells every region of new homes, and whoever has asked where things are.
    pub(super) fn publish(&mut self) {
        let Some(duty) = &mut self.duty else { return };
        let home = |duty: &Duty, shard: Shard| match duty.place(shard)? {
            Place::At { host, token } => {
                Some((shard, token, duty.hosts.get(&host)?.host.node.clone()))
            }
            _ => None,
        };
        let news = std::mem::take(&mut duty.news);
        let news: Vec<_> = news.into_iter().filter_map(|shard| home(duty, shard)).collect();
        let term = duty.term;
        if !news.is_empty() {
            for node in duty.regions.keys() {
                let homes = Message::Homes { term, homes: news.clone() };
                self.effects.push(Effect::Send(node.clone(), homes));
            }
        }
        if duty.recovered.is_none() {
            return;
        }
        for (node, shards) in &mut self.waiting {
            let told = duty.regions.contains_key(node);
            let known: Vec<_> = shards.iter().filter_map(|shard| home(duty, *shard)).collect();
            shards.retain(|shard| known.iter().all(|(found, ..)| found != shard));
            let is_new = |found: &Shard| !told || news.iter().all(|(shard, ..)| shard != found);
            let homes: Vec<_> = known.into_iter().filter(|(found, ..)| is_new(found)).collect();
            if !homes.is_empty() {
                let homes = Message::Homes { term, homes };
                self.effects.push(Effect::Send(node.clone(), homes));
            }
        }
        self.waiting.retain(|_, shards| !shards.is_empty());
    }
}

/// How many shards each of these has and keeps, or is being given.
fn counts(duty: &Duty, eligible: &BTreeSet<HostId>) -> BTreeMap<HostId, usize> {
    let mut counts: BTreeMap<HostId, usize> = eligible.iter().map(|id| (*id, 0)).collect();
    for (_, place) in duty.places() {
        if let Place::Starting { host, .. } | Place::At { host, .. } = place
            && let Some(count) = counts.get_mut(&host)
        {
            *count += 1;
        }
    }
    counts
}

/// Who has least.
fn least(counts: &mut BTreeMap<HostId, usize>) -> Option<(HostId, &mut usize)> {
    let least = counts.iter_mut().min_by_key(|(id, count)| (**count, **id));
    least.map(|(id, count)| (*id, count))
}
