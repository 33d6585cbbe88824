//! Letting nodes in, and being let in.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tenure_lease::Moment;

use super::{Effect, Ending, Membership, Phase};
use crate::Node;
use crate::downing::Converged;
use crate::message::{Control, Join, Refusal, State};
use crate::settings::Rule;
use crate::view::{Member, Status};

/// Whom this node asked for a proof of its address.
#[derive(Clone, Debug, Default)]
pub(super) struct Admission {
    proofs: BTreeMap<Node, u64>,
}

impl Membership {
    pub(super) fn ask_contacts(&mut self, now: Moment) {
        let join = self.join_request(0);
        let Phase::Outside { contacts, ask_at } = &mut self.phase else { return };
        *ask_at = now + self.random.around(ASK_AGAIN);
        for contact in contacts {
            self.effects.push(Effect::Greet(contact.clone(), Control::Join(join.clone())));
        }
    }

    /// A node wants to come in.
    ///
    /// If the address is that of a member, that member's process must be dead, since two cannot
    /// listen at one address; it is declared down, so that a restarted node need not wait for
    /// anybody's verdict. But the request may also be an old one that was on its way for long, of a
    /// process that has itself been replaced. So the newcomer must first answer at that address.
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
        let own = view.member(&self.me).map(|member| member.status);
        if own.is_none_or(|status| status >= Status::Exiting) {
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
        if !replaced.is_empty() && self.settings.obeys(Rule::ProveAddress) {
            match self.admission.proofs.get(from) {
                Some(proof) if *proof == join.proof => {}
                Some(proof) => return Ok(Some(*proof)),
                None => {
                    if self.admission.proofs.len() >= MOST_PROOFS {
                        self.admission.proofs.clear();
                    }
                    let proof = self.random.next().max(1);
                    self.admission.proofs.insert(from.clone(), proof);
                    return Ok(Some(proof));
                }
            }
        }
        self.admission.proofs.remove(from);
        for node in replaced {
            self.raise(&node, Status::Down, now);
        }
        if let Some(view) = self.view_mut() {
            view.set_member(from, Member::joining(join.roles.clone()));
            self.tell_change(None, Some(Status::Joining), from.clone());
            self.changed(now);
            self.welcome(from, now);
        }
        Ok(None)
    }

    fn welcome(&mut self, to: &Node, now: Moment) {
        if let Some(state) = self.state(false, now) {
            let converged = self.converged.clone();
            self.effects.push(Effect::Send(to.clone(), Control::Welcome(state, converged)));
        }
    }

    pub(super) fn receive_prove(&mut self, from: &Node, proof: u64) {
        if matches!(self.phase, Phase::Outside { .. }) {
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
        if !matches!(self.phase, Phase::Outside { .. }) || !lists_me {
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

    pub(super) fn receive_refusal(&mut self, refusal: Refusal) {
        match (&self.phase, refusal) {
            (Phase::Ended, _) | (_, Refusal::NotAMember) => {}
            (Phase::Outside { .. }, Refusal::Removed) => self.end(Ending::Removed),
            (Phase::Outside { .. }, refusal) => self.end(Ending::Refused(refusal)),
            (Phase::Inside(_), _) if self.is_joining() => self.end(Ending::LostWhileJoining),
            (Phase::Inside(_), _) => {}
        }
    }

    /// Whether this node was let in, and is not a full member yet.
    pub(super) fn is_joining(&self) -> bool {
        let own = self.view().and_then(|view| view.member(&self.me));
        own.is_some_and(|member| member.status == Status::Joining)
    }

    pub(super) fn join_request(&self, proof: u64) -> Join {
        Join { roles: self.roles.clone(), settings: Arc::clone(&self.must_agree), proof }
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
/// How many open questions to remember; whoever is forgotten is asked again.
const MOST_PROOFS: usize = 256;
