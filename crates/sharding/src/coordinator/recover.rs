//! Greeting, hearing what regions host, and finding out who is over; the roster.

use std::collections::BTreeSet;

use tenure_cluster::Node;
use tenure_lease::{Moment, Token};

use super::duty::{Duty, HostId, Known, Place};
use super::{Coordinator, Effect, Event};
use crate::settings::Rule;
use crate::wire::{self, Message};
use crate::{Host, Roster, Setup, Shard, Version};

impl Coordinator {
    /// Does what an active coordinator has to do, as far as it can now.
    pub(super) fn attend(&mut self, now: Moment) {
        self.greet_newcomers();
        self.find_who_is_over(now);
        self.end_recovery(now);
        self.write_roster();
        self.give_shards(now);
        self.publish(now);
    }

    /// Greets members that were not, and those on the roster that are no members.
    fn greet_newcomers(&mut self) {
        let Some(duty) = &mut self.duty else { return };
        let hosts = duty.hosts.values().filter(|known| !known.over).map(|known| &known.host.node);
        let newcomers: Vec<Node> = self
            .members
            .all()
            .chain(hosts)
            .filter(|node| !duty.greeted.contains(*node))
            .cloned()
            .collect();
        for node in newcomers {
            if duty.greeted.insert(node.clone()) {
                let greeting = Message::Greeting { term: duty.term, digest: None };
                self.effects.push(Effect::Send(node, greeting));
            }
        }
        // Whoever is gone and may host nothing is forgotten.
        let hosts = &duty.hosts;
        let is_host = |node: &Node| hosts.values().any(|known| known.host.node == *node);
        duty.greeted.retain(|node| self.members.contains(node) || is_host(node));
        duty.regions.retain(|node, _| self.members.contains(node) || is_host(node));
    }

    pub(super) fn receive_report(
        &mut self,
        from: &Node,
        term: u64,
        host: Option<Host>,
        shards: Vec<(Shard, Token)>,
        version: Version,
        now: Moment,
    ) {
        match host {
            Some(_) => drop(self.members.takes_part(from)),
            None => self.members.is_no_host(from, now),
        }
        if !self.is_active(now) {
            return;
        }
        let Some(duty) = &mut self.duty else { return };
        if term != duty.term {
            self.counts.stale_answers += 1;
            return;
        }
        let Some(host) = host else {
            duty.regions.insert(from.clone(), None);
            // It obeys this coordinator, so that it will not begin what another has given it either.
            if shards.is_empty() {
                let own = duty.hosts.values_mut().filter(|known| known.host.node == *from);
                own.for_each(|known| known.answered = true);
                duty.hosts_as(from, None);
            }
            return;
        };
        let known = duty.find(&host);
        if host.node != *from
            || duty.is_over(&host)
            || known.is_none() && !self.members.contains(from)
        {
            self.counts.stale_answers += 1;
            return;
        }
        duty.succeeded_by(&host);
        duty.hosts_as(from, Some(&host));
        let entry = self.members.entry(from);
        let id = known.unwrap_or_else(|| duty.intern(host, entry));
        duty.regions.insert(from.clone(), Some(id));
        let Some(known) = duty.hosts.get_mut(&id) else { return };
        known.answered = true;
        known.version = version;
        if duty.recovered.is_some() {
            self.compare(id, &shards);
        } else {
            let claims = shards.into_iter().filter(|claim| claim.0.0 < self.settings.shards);
            known.claims.extend(claims);
            if !self.settings.obeys(Rule::WholeRosterFirst) {
                let claims: Vec<_> = known.claims.iter().copied().collect();
                for (shard, token) in claims {
                    if duty.place(shard) == Some(Place::Taken) {
                        duty.set_place(shard, Place::At { host: id, token });
                    }
                }
            }
        }
    }

    /// A region says again what it hosts: whatever differs is asked back, which is always safe.
    fn compare(&mut self, id: HostId, shards: &[(Shard, Token)]) {
        let Some(duty) = &mut self.duty else { return };
        let mut leftovers = Vec::new();
        for &(shard, token) in shards {
            let Some(place) = duty.place(shard) else { continue };
            match place.allocation() {
                Some(own) if own == (id, token) => {
                    if matches!(place, Place::Starting { .. }) {
                        duty.set_place(shard, Place::At { host: id, token });
                        duty.news.insert(shard);
                    }
                }
                Some((_, own)) if own >= token => leftovers.push((id, shard, token)),
                former => {
                    duty.set_place(shard, Place::At { host: id, token });
                    duty.news.insert(shard);
                    leftovers.extend(former.map(|(host, token)| (host, shard, token)));
                }
            }
        }
        let reported: BTreeSet<(Shard, Token)> = shards.iter().copied().collect();
        let is_missing = |(shard, place): &(Shard, Place)| match place {
            Place::At { token, .. } => !reported.contains(&(*shard, *token)),
            _ => false,
        };
        let missing: Vec<Shard> =
            duty.hosted(id).filter(is_missing).map(|(shard, _)| shard).collect();
        self.hand_off(&missing);
        for (host, shard, token) in leftovers {
            self.order_stop(host, vec![(shard, token)]);
        }
    }

    fn find_who_is_over(&mut self, now: Moment) {
        let margin = self.settings.removal_margin;
        let has_sessions = self.settings.has_sessions();
        let frees = has_sessions && !self.settings.obeys(Rule::OnlySessionsFree);
        let Some(duty) = &mut self.duty else { return };
        for known in duty.hosts.values_mut() {
            let node = &known.host.node;
            if frees && !self.members.contains(node) {
                known.over = true;
            }
            // Nobody has said that it hosts anything: it has not been, or never will be, given anything.
            if self.settings.setup == Setup::Gossip
                && !known.answered
                && self.members.is_absent(node, now)
            {
                known.over = true;
            }
            if known.host.session.is_none()
                && let Some(since) = self.members.removed_since(node, known.entry)
                && now >= since + margin
            {
                known.over = true;
            }
        }
        if duty.hosts.values().all(|known| !known.over) {
            return;
        }
        let over = duty.hosts.iter().filter(|(_, known)| known.over);
        let freed: Vec<Shard> =
            over.flat_map(|(id, _)| duty.hosted(*id)).map(|(shard, _)| shard).collect();
        for shard in freed {
            duty.set_place(shard, Place::Free);
        }
        duty.hosts.retain(|_, known| !known.over);
        let hosts = &duty.hosts;
        let is_left = |id: &Option<HostId>| id.is_none_or(|id| hosts.contains_key(&id));
        duty.regions.retain(|_, id| is_left(id));
    }

    /// The whole roster has answered, or is over: now the highest token says where a shard is, and
    /// what nobody has reported is free.
    fn end_recovery(&mut self, now: Moment) {
        let Some(duty) = &mut self.duty else { return };
        if duty.recovered.is_some() {
            return;
        }
        let has_answered = |node: &Node| duty.regions.contains_key(node);
        let is_done = match self.settings.obeys(Rule::UnreportedIsTaken) {
            true => duty.hosts.values().all(|known| known.answered),
            false => self.members.hosts().all(has_answered),
        };
        if !is_done {
            return;
        }
        duty.recovered = Some(now);
        duty.balancing = true;
        self.effects.push(Effect::Tell(Event::Active { term: duty.term }));
        let mut claims: Vec<(Shard, Token, HostId)> = Vec::new();
        for (id, known) in &mut duty.hosts {
            let own = std::mem::take(&mut known.claims);
            claims.extend(own.into_iter().map(|(shard, token)| (shard, token, *id)));
        }
        claims.sort_unstable_by(|one, other| other.cmp(one));
        let mut leftovers = Vec::new();
        for (shard, token, host) in claims {
            match duty.place(shard).and_then(Place::allocation) {
                None => duty.set_place(shard, Place::At { host, token }),
                Some(own) if own == (host, token) => {}
                Some(_) => leftovers.push((host, shard, token)),
            }
        }
        let unreported: Vec<Shard> = duty
            .places()
            .filter(|(_, place)| *place == Place::Taken)
            .map(|(shard, _)| shard)
            .collect();
        for shard in unreported {
            duty.set_place(shard, Place::Free);
        }
        for (host, shard, token) in leftovers {
            self.order_stop(host, vec![(shard, token)]);
        }
    }

    /// Puts everybody on the roster who has answered, and takes off who is over.
    fn write_roster(&mut self) {
        if !self.is_guarded() {
            return;
        }
        let Some(duty) = &mut self.duty else { return };
        let is_new = |known: &Known| known.answered && !duty.roster.contains(&known.host);
        if duty.writing.is_some() || !duty.hosts.values().any(is_new) {
            return;
        }
        let mut roster = Roster::default();
        for known in duty.hosts.values() {
            if known.answered || duty.roster.contains(&known.host) {
                roster.insert(known.host.clone(), known.entry);
            }
        }
        // Whoever is over is taken off with the next one who comes.
        let note = fitting(&mut roster, duty);
        let grew = roster.iter().any(|(host, _)| !duty.roster.contains(host));
        let Some(note) = note.filter(|_| grew) else {
            if !std::mem::replace(&mut duty.full, true) {
                self.effects.push(Effect::Tell(Event::RosterFull));
            }
            return;
        };
        duty.notes += 1;
        duty.writing = Some((duty.notes, roster));
        self.effects.push(Effect::WriteNote { number: duty.notes, note });
    }

    /// Whether directives may be sent to this host.
    pub(super) fn may_direct(&self, duty: &Duty, id: HostId) -> bool {
        let is_ready = duty.recovered.is_some() || !self.settings.obeys(Rule::WholeRosterFirst);
        let on_roster = |host: &Host| {
            !self.is_guarded()
                || !self.settings.obeys(Rule::RosterBeforeDirective)
                || duty.roster.contains(host)
        };
        let known = duty.hosts.get(&id);
        is_ready && known.is_some_and(|known| known.answered && on_roster(&known.host))
    }

    /// Sends again what was not answered, and asks regions whether they host what they should.
    pub(super) fn resend(&mut self, now: Moment) {
        let Some(duty) = &mut self.duty else { return };
        if now < duty.resend_at {
            return;
        }
        duty.resend_at = now + self.settings.resend_interval;
        for node in &duty.greeted {
            let digest = duty.regions.get(node).map(|id| {
                let host = id.and_then(|id| duty.hosts.get(&id)).map(|known| &known.host);
                let own = id.iter().flat_map(|id| duty.hosted(*id));
                let own = own.filter_map(|(shard, place)| Some((shard, place.allocation()?.1)));
                wire::digest(host, own)
            });
            let greeting = Message::Greeting { term: duty.term, digest };
            self.effects.push(Effect::Send(node.clone(), greeting));
        }
        if duty.recovered.is_some() || !self.settings.obeys(Rule::WholeRosterFirst) {
            self.resend_directives();
        }
    }
}

/// The note, after those were left out again who do not fit.
fn fitting(roster: &mut Roster, duty: &Duty) -> Option<Vec<u8>> {
    loop {
        if let Some(note) = roster.to_note() {
            return Some(note);
        }
        let added = roster.iter().map(|(host, _)| host).filter(|host| !duty.roster.contains(host));
        let last = added.last()?.clone();
        roster.remove(&last);
    }
}
