//! What a region does about greetings and directives.

use tenure_cluster::Node;
use tenure_lease::{Moment, Token};

use super::{Effect, Hosted, Region, Stage};
use crate::settings::Rule;
use crate::wire::{self, Answer, Directive, Message, Refusal};
use crate::{Host, Shard};

impl<M> Region<M> {
    pub(super) fn receive_greeting(&mut self, from: &Node, term: u64, digest: Option<u64>) {
        let known = self.registered.as_ref();
        let is_first = known.is_none();
        let is_new = match known {
            None => true,
            Some((registered, node)) if term == *registered => {
                if from != node {
                    return self.refuse_coordinator(from);
                }
                false
            }
            Some((registered, _)) if term < *registered => return self.refuse_coordinator(from),
            Some(_) => true,
        };
        if is_new {
            self.registered = Some((term, from.clone()));
        }
        let host = self.host();
        let own = wire::digest(host.as_ref(), self.shards());
        if is_new || digest != Some(own) {
            self.report();
        }
        if is_first {
            // So that messages find their way, too, while nobody coordinates.
            let all = (0..self.settings.shards).map(Shard).collect();
            self.tell(Message::Where(all));
        }
        if is_new && !self.buffers.is_empty() {
            // Whoever was asked before may be gone.
            self.ask_at = Moment::ZERO;
        }
    }

    /// Tells the coordinator what is hosted here, or still stopping.
    pub(super) fn report(&mut self) {
        let Some((term, _)) = self.registered else { return };
        let shards = self.shards().collect();
        let version = self.settings.version.clone();
        self.tell(Message::Report { term, host: self.host(), shards, version });
    }

    pub(super) fn receive_allocate(&mut self, from: &Node, directive: Directive, now: Moment) {
        let Some(host) = self.obeys(from, &directive) else { return };
        let mut started = Vec::new();
        let mut over = Vec::new();
        for (shard, token) in directive.shards {
            if token.term != directive.term || shard.0 >= self.settings.shards {
                continue;
            }
            if self.shards.get(&shard).is_some_and(|hosted| hosted.token == token) {
                started.push((shard, token)); // The answer was lost, or is on its way.
                continue;
            }
            let seen = self.seen.get(&shard).copied().unwrap_or_default();
            let is_new = match self.settings.obeys(Rule::TokensMustBeAbove) {
                true => token > seen,
                false => token >= seen,
            };
            if !is_new {
                self.counts.late += 1;
                // It will not be started any more. That it was stopped may have been said in vain.
                if !self.shards.contains_key(&shard) {
                    over.push((shard, token));
                }
                continue;
            }
            self.seen.insert(shard, token);
            if self.stage != Stage::Working {
                over.push((shard, token));
            } else if let Some(hosted) = self.shards.get_mut(&shard) {
                hosted.next = Some(token);
                self.stop(shard);
            } else {
                self.start_silently(shard, token, host.clone(), now);
                started.push((shard, token));
            }
        }
        if !started.is_empty() {
            self.tell(Message::Started(Answer { host: host.clone(), shards: started }));
        }
        if !over.is_empty() {
            self.tell(Message::Stopped(Answer { host, shards: over }));
        }
        self.flush_local();
    }

    pub(super) fn receive_hand_off(&mut self, from: &Node, directive: Directive) {
        let Some(host) = self.obeys(from, &directive) else { return };
        let mut stopped = Vec::new();
        for (shard, token) in directive.shards {
            let seen = self.seen.entry(shard).or_default();
            *seen = token.max(*seen);
            match self.shards.get_mut(&shard) {
                Some(hosted) if hosted.token <= token => {
                    if !hosted.confirm.contains(&token) {
                        hosted.confirm.push(token);
                    }
                    hosted.next.take_if(|next| *next <= token);
                    self.stop(shard);
                }
                Some(hosted) if hosted.next == Some(token) => {
                    hosted.next = None;
                    stopped.push((shard, token));
                }
                // Not here, or no more: that allocation is over, if it ever began.
                _ => stopped.push((shard, token)),
            }
        }
        if !stopped.is_empty() {
            self.tell(Message::Stopped(Answer { host, shards: stopped }));
        }
    }

    /// The present host, if a directive is for it and from whom it obeys.
    fn obeys(&mut self, from: &Node, directive: &Directive) -> Option<Host> {
        let registered = Some((directive.term, from.clone()));
        if self.registered != registered && self.settings.obeys(Rule::OnlyTheRegisteredIsObeyed) {
            self.refuse_coordinator(from);
            return None;
        }
        let host = self.host();
        let is_for_me = match self.settings.obeys(Rule::DirectivesNameTheSession) {
            true => host.as_ref() == Some(&directive.host),
            false => directive.host.node == self.me,
        };
        if !is_for_me || host.is_none() {
            self.counts.refused_session += 1;
            let refusal = Message::Refused(Refusal::OtherSession);
            self.effects.push(Effect::Send(from.clone(), refusal));
            return None;
        }
        host
    }

    fn refuse_coordinator(&mut self, from: &Node) {
        self.counts.refused_coordinator += 1;
        let term = self.registered.as_ref().map_or(0, |(term, _)| *term);
        let refusal = Message::Refused(Refusal::OtherCoordinator { term });
        self.effects.push(Effect::Send(from.clone(), refusal));
    }

    /// Starts a shard, and says so.
    pub(super) fn start(&mut self, shard: Shard, token: Token, host: Host, now: Moment) {
        self.start_silently(shard, token, host.clone(), now);
        self.tell(Message::Started(Answer { host, shards: vec![(shard, token)] }));
        self.flush_local();
    }

    fn start_silently(&mut self, shard: Shard, token: Token, host: Host, now: Moment) {
        let hosted = Hosted { host, token, stopping: false, confirm: Vec::new(), next: None };
        self.shards.insert(shard, hosted);
        self.changed.insert(shard);
        self.counts.started += 1;
        self.effects.push(Effect::Start { shard, token });
        self.move_home(shard, token, self.me.clone(), now);
    }
}
