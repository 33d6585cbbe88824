//! Letting nodes in, and being let in.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use tenure_lease::Moment;

use super::{Effect, Ending, Membership, Phase};
use crate::Node;
use crate::downing::Converged;
use crate::settings::Rule;
use crate::view::{Member, Status};
use crate::wire::{Control, Join, Refusal, State};

impl Membership {
    pub(super) fn ask_contacts(&mut self, now: Moment) {
        let join = self.join_request(0);
        let Phase::Outside { ask_at } = &mut self.phase else { return };
        *ask_at = now + self.random.around(ASK_AGAIN);
        self.older.retain(|_, ask_at| *ask_at > now);
        for contact in &self.contacts.asked {
            if self.older.contains_key(contact) {
                continue;
            }
            self.effects.push(Effect::Greet(contact.clone(), Control::Join(join.clone())));
        }
    }

    /// A node wants to come in.
    ///
    /// If the address is that of a member, that member's process must be dead, since two cannot
    /// listen at one address; it is declared down, so that a restarted node need not wait for
    /// anybody's verdict. But the request may also be an old one that was on its way for long, of a
    /// process that has itself been replaced, or that was removed so long ago that its tombstone is
    /// gone. So the newcomer must first answer at its address.
    pub(super) fn receive_join(&mut self, from: &Node, join: Join, now: Moment) {
        let answer = match self.admit(from, &join, now) {
            Ok(None) => return,
            Ok(Some(proof)) => Control::Prove(proof),
            Err(refusal) => Control::Refused(refusal),
        };
        self.effects.push(Effect::Send(from.clone(), answer));
    }

    /// `Ok(Some)` asks for a proof; `Ok(None)` has let it in.
    fn admit(&mut self, from: &Node, join: &Join, now: Moment) -> Result<Option<u64>, Refusal> {
        let must_agree = self.must_agree.clone();
        let Some(view) = self.view() else { return Err(Refusal::NotAMember) };
        let own = view.member(&self.me).filter(|member| member.is_full());
        // Only full members: joining ones who let each other in would keep a cluster going in which
        // nobody is left who could make them full members.
        if own.is_none_or(|own| own.status > Status::Leaving) {
            return Err(Refusal::NotAMember);
        }
        if view.is_removed(from) {
            return Err(Refusal::Removed);
        }
        if let Some(member) = view.member(from) {
            if member.status == Status::Down {
                return Err(Refusal::Removed);
            }
            self.welcome(from, now);
            return Ok(None);
        }
        check_agreement(&must_agree, &join.settings)?;
        let is_replaced = |(_, member): &(&Node, &Member)| member.status < Status::Down;
        let replaced: Vec<Node> =
            view.at_address(from).filter(is_replaced).map(|(node, _)| node.clone()).collect();
        if self.settings.obeys(Rule::ProveAddress) {
            let period = self.proof_period(now);
            let proof = self.proof(from, &replaced, period);
            let earlier = self.proof(from, &replaced, period.saturating_sub(1));
            if join.proof != proof && join.proof != earlier {
                return Ok(Some(proof));
            }
        }
        if self.by_verdict
            && !replaced.is_empty()
            && let Some(view) = self.view_mut()
        {
            view.announce(view.verdict().generation + 1);
        }
        for node in replaced {
            self.raise(&node, Status::Down, now);
        }
        if let Some(view) = self.view_mut() {
            view.set_member(from, Member::joining(join.roles.clone(), join.facts.clone()));
            self.tell_change(None, Some(Status::Joining), from.clone());
            self.changed(now);
            self.welcome(from, now);
        }
        Ok(None)
    }

    /// The number that a newcomer must say. Nobody else can know it, it holds for two periods at
    /// most, and for those who are at this address now and nobody else: an answer that comes late
    /// cannot replace whoever has come in meanwhile.
    fn proof(&self, from: &Node, replaced: &[Node], period: u64) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.secret, from, replaced, period).hash(&mut hasher);
        hasher.finish().max(1)
    }

    fn proof_period(&self, now: Moment) -> u64 {
        let period = self.settings.joining_patience.as_nanos().max(1) as u64;
        now.as_nanos() / period
    }

    fn welcome(&mut self, to: &Node, now: Moment) {
        if let Some(state) = self.state(false, now) {
            let converged = self.converged.clone();
            self.effects.push(Effect::Send(to.clone(), Control::Welcome(state, converged)));
        }
    }

    pub(super) fn receive_prove(&mut self, from: &Node, proof: u64) {
        if matches!(self.phase, Phase::Outside { .. }) && self.is_contact(from) {
            let join = self.join_request(proof);
            self.effects.push(Effect::Send(from.clone(), Control::Join(join)));
        }
    }

    pub(super) fn receive_welcome(
        &mut self,
        from: &Node,
        state: State,
        converged: Option<Arc<Converged<Node>>>,
        now: Moment,
    ) {
        let lists_me = state.view.member(&self.me).is_some_and(|m| m.status < Status::Down);
        let asked = matches!(self.phase, Phase::Outside { .. }) && self.is_contact(from);
        if !asked || !lists_me {
            return;
        }
        if state.view.cluster() < self.cluster_min {
            // It is about to give way itself. Asked again and again, it would have to give this
            // node up each time.
            if self.older.len() < OLDER_MAX {
                self.older.insert(from.address.clone(), now + ASK_OLDER_AGAIN);
            }
            return;
        }
        self.enter((*state.view).clone(), now);
        for (node, member) in state.view.members() {
            if member.status >= Status::Up || *node == self.me {
                self.tell_change(None, Some(member.status), node.clone());
            }
        }
        self.converged = converged;
        self.add_seen(from, &state.seen);
        if let Phase::Inside(view) = &mut self.phase {
            for (node, age) in state.removed.iter() {
                view.remove(node, now - *age);
            }
        }
        self.after_change(now);
        self.send_summary(from);
    }

    pub(super) fn receive_refusal(&mut self, from: &Node, refusal: Refusal) {
        if matches!(self.phase, Phase::Outside { .. }) && self.is_contact(from) {
            match refusal {
                Refusal::NotAMember => {}
                Refusal::Removed => self.end(Ending::Removed),
                Refusal::Setting { .. } => self.end(Ending::Refused(refusal)),
            }
        }
    }

    /// Whether this node was let in, and is not a full member yet.
    pub(super) fn is_joining(&self) -> bool {
        let own = self.view().and_then(|view| view.member(&self.me));
        own.is_some_and(|member| member.status == Status::Joining)
    }

    fn join_request(&self, proof: u64) -> Join {
        let (roles, facts) = (self.roles.clone(), self.facts.clone());
        Join { roles, facts, settings: Arc::clone(&self.must_agree), proof }
    }
}

fn check_agreement(ours: &[(String, String)], theirs: &[(String, String)]) -> Result<(), Refusal> {
    let value = |settings: &[(String, String)], name: &str| {
        settings.iter().find(|(other, _)| other == name).map(|(_, value)| value.clone())
    };
    for (name, _) in ours.iter().chain(theirs) {
        let (ours, theirs) = (value(ours, name), value(theirs, name));
        if ours != theirs {
            let shown = |value: Option<String>| value.unwrap_or_else(|| "not set".into());
            let (ours, theirs) = (shown(ours), shown(theirs));
            return Err(Refusal::Setting { name: name.clone(), ours, theirs });
        }
    }
    Ok(())
}

/// How long a node that wants to join waits for an answer before it asks again.
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// How long a contact that is in an older cluster is left alone.
const ASK_OLDER_AGAIN: Duration = Duration::from_secs(10);
/// How many such contacts are remembered; more than anybody asks.
const OLDER_MAX: usize = 256;
