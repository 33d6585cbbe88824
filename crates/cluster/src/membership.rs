//! One node's part in the cluster: joining, watching, gossiping, leading, leaving.
//!
//! Pure: time comes in as `now`, chance from a seed, and what is to be done comes out as
//! [`Effect`]s. The driver and the simulator run the same code.
//!
//! How news travels. Each node exchanges summaries with somebody once a second, and five times a
//! second while they differ; only when they do, whole views are exchanged, both ways. A view that
//! has changed has been seen by nobody but the one that changed it; everybody who comes to believe
//! the same is added to the set of those who have *seen* it, and that set travels too. When every
//! member that is not down has seen a view, the view is *converged*, and then its leader may act.
//!
//! Why the leader does nothing while somebody is unreachable: the others may have a leader of their
//! own. If each side let its joiners become full members, a pair of new pods would turn one half of
//! a split into a majority of which the other half knows nothing.

mod admit;
mod credible;
mod event;
mod gossip;
mod lead;
mod leave;
mod ping;
mod tell;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tenure_lease::Moment;
use tenure_lease::keeper::Random;

use crate::downing::Converged;
use crate::reachability::Watch;
use crate::settings::{MembershipSettings, Rule};
use crate::view::{Digest, Facts, Member, Roles, Status, Verdict, View};
use crate::wire::Control;
use crate::{Address, Node};

pub use event::{Decided, Ending, Event};
use leave::Leaving;

/// One node's part in the cluster.
#[derive(Clone, Debug)]
pub struct Membership {
    me: Node,
    roles: Roles,
    /// What must be the same on every node, by name.
    facts: Facts,
    must_agree: Arc<[(String, String)]>,
    settings: MembershipSettings,
    /// Whether only a verdict ends a membership.
    by_verdict: bool,
    random: Random,
    /// This node joins no cluster with a lower id: it knows of this one.
    cluster_min: u64,
    /// Contacts that are in a cluster with a lower id, and when to ask them again.
    older: BTreeMap<Address, Moment>,
    phase: Phase,
    /// Where this node was told to look for a cluster, its own or another one: nobody else who is no
    /// member has a say about clusters.
    contacts: Contacts,
    /// Who believes exactly what this node believes; always itself.
    seen: BTreeSet<Node>,
    /// The members that counted when everybody had last seen the view, and the view's digest.
    converged: Option<Arc<Converged<Node>>>,
    converged_on: Option<Digest>,
    watch: Watch,
    /// What the proofs are made of that newcomers are asked for.
    secret: u64,
    /// When to ask the watched for a sign of life.
    heartbeat_at: Moment,
    /// When to exchange summaries with somebody.
    gossip_at: Moment,
    /// When that happened last.
    gossiped_at: Moment,
    /// Since when each unreachable member that is only joining has been so.
    lost_joiners: BTreeMap<Node, Moment>,
    /// Since when others do not know this node, which is only joining.
    disowned: Option<Moment>,
    leaving: Option<Leaving>,
    /// What users were told last.
    told: Told,
    effects: Vec<Effect>,
}

#[derive(Clone, Debug)]
enum Phase {
    /// In no cluster. Asks the contacts for one, again at this moment.
    Outside { ask_at: Moment },
    /// In a cluster.
    Inside(View),
    /// In no cluster any more.
    Ended,
}

#[derive(Clone, Debug, Default)]
struct Contacts {
    /// Of [`Membership::join`].
    asked: Vec<Address>,
    /// Of [`Membership::meet`].
    met: Vec<Address>,
}

#[derive(Clone, Debug, Default)]
struct Told {
    leader: Option<Node>,
    oldest: Option<Node>,
    unreachable: BTreeSet<Node>,
}

/// What is to be done.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Send this to a node.
    Send(Node, Control),
    /// Send this to whoever answers at an address.
    Greet(Address, Control),
    /// Tell the users of this node.
    Tell(Event),
    /// Hand over what this node hosts, then call [`Membership::handed_over`].
    HandOver,
    /// It is over; nothing more will come from here.
    End(Ending),
}

impl Membership {
    /// A node that is in no cluster yet: see [`join`](Self::join) and [`form`](Self::form).
    pub fn new(
        me: Node,
        roles: Roles,
        must_agree: Arc<[(String, String)]>,
        settings: MembershipSettings,
        seed: u64,
    ) -> Self {
        let mut random = Random::new(seed);
        let secret = random.next();
        Self {
            me,
            roles,
            facts: Facts::default(),
            must_agree,
            settings,
            by_verdict: false,
            random,
            cluster_min: 0,
            older: BTreeMap::new(),
            phase: Phase::Outside { ask_at: Moment::NEVER },
            contacts: Contacts::default(),
            seen: BTreeSet::new(),
            converged: None,
            converged_on: None,
            watch: Watch::default(),
            secret,
            heartbeat_at: Moment::NEVER,
            gossip_at: Moment::NEVER,
            gossiped_at: Moment::ZERO,
            lost_joiners: Default::default(),
            disowned: None,
            leaving: None,
            told: Told::default(),
            effects: Vec::new(),
        }
    }

    /// What the others should know of this node beside its roles.
    pub fn with_facts(mut self, facts: Facts) -> Self {
        self.facts = facts;
        self
    }

    /// Where every split is decided by a verdict: whoever a newcomer has replaced at its address may
    /// have won one before it died, with survivors that nobody here knows of. So nobody is moved on
    /// before there is a verdict about that as well.
    pub fn only_by_verdict(mut self) -> Self {
        self.by_verdict = self.settings.obeys(Rule::ReplacedByVerdict);
        self
    }

    /// Whether somebody was replaced, and there is no verdict yet.
    pub fn owes_verdict(&self) -> bool {
        self.by_verdict && self.view().is_some_and(|view| view.asked() > view.verdict().generation)
    }

    /// Joins no cluster with a lower id than this: one with this id exists, and older ones give way
    /// to it.
    pub fn refuse_clusters_below(&mut self, cluster: u64) {
        self.cluster_min = cluster;
    }

    /// The formation lease's note names this cluster. A cluster is in the note before it is formed:
    /// one that was said to be newer never was, or has gone, and an older one took the note back.
    pub fn cluster_is_noted(&mut self, cluster: u64) {
        self.cluster_min = self.cluster_min.min(cluster);
    }

    /// Asks these for a cluster, until one of them lets this node in. May be called again with
    /// others.
    pub fn join(&mut self, contacts: Vec<Address>, now: Moment) {
        if let Phase::Outside { ask_at } = &mut self.phase {
            let known = &mut self.contacts.asked;
            *known = contacts;
            known.retain(|address| *address != self.me.address);
            *ask_at = if known.is_empty() { Moment::NEVER } else { now };
        }
    }

    /// Forms a cluster of one, with this id: the term of a tenure of the formation lease.
    pub fn form(&mut self, cluster: u64, now: Moment) {
        if matches!(self.phase, Phase::Outside { .. }) {
            let mut view = View::new(cluster);
            let first = Member {
                status: Status::Up,
                up_number: 1,
                ..Member::joining(self.roles.clone(), self.facts.clone())
            };
            view.set_member(&self.me, first);
            self.enter(view, now);
            self.tell_change(None, Some(Status::Up), self.me.clone());
            self.after_change(now);
        }
    }

    /// Something arrived from a node.
    pub fn receive(&mut self, from: &Node, message: Control, now: Moment) {
        if from == &self.me {
            return;
        }
        match message {
            Control::Join(join) => self.receive_join(from, join, now),
            Control::Welcome(state, converged) => {
                self.receive_welcome(from, state, converged, now);
            }
            Control::Refused(refusal) => self.receive_refusal(from, refusal),
            Control::Prove(proof) => self.receive_prove(from, proof),
            Control::Ping { cluster } => self.receive_ping(from, cluster),
            Control::Pong { cluster } => self.receive_pong(from, cluster, now),
            Control::Summary(summary) => self.receive_summary(from, summary, now),
            Control::State(state) => self.receive_state(from, state, now),
            Control::Removed { cluster } => {
                if self.cluster() == Some(cluster) && self.is_member(from) {
                    self.end(Ending::Removed);
                }
            }
            Control::Posted(_) => {} // Not for it.
        }
    }

    /// Does what is due. To be called at [`next_wake`](Self::next_wake), or earlier.
    pub fn poll(&mut self, now: Moment) {
        match &mut self.phase {
            Phase::Ended => {}
            Phase::Outside { ask_at } => {
                if *ask_at <= now {
                    self.ask_contacts(now);
                }
            }
            Phase::Inside(_) => {
                if self.heartbeat_at <= now {
                    self.watch.timer(self.heartbeat_at, now, &self.settings);
                    self.heartbeat(now);
                }
                let silent = self.watch.silent(now, &self.settings);
                if !silent.is_empty() {
                    self.observed(silent, now);
                }
                if self.gossip_at <= now {
                    self.gossip(now);
                    self.lead(now);
                    self.give_up_lost_joiners(now);
                    self.start_over_if_lost(now);
                    self.collect_tombstones(now);
                }
                self.leave_if_due(now);
            }
        }
    }

    /// When [`poll`](Self::poll) has something to do.
    pub fn next_wake(&self) -> Moment {
        match &self.phase {
            Phase::Ended => Moment::NEVER,
            Phase::Outside { ask_at } => *ask_at,
            Phase::Inside(_) => {
                let silence = self.watch.deadline().unwrap_or(Moment::NEVER);
                let leaving = self.leaving.as_ref().map_or(Moment::NEVER, Leaving::next_wake);
                self.heartbeat_at.min(self.gossip_at).min(silence).min(leaving)
            }
        }
    }

    /// What is to be done, since the last call.
    pub fn effects(&mut self) -> std::vec::Drain<'_, Effect> {
        self.effects.drain(..)
    }

    /// An operator, or the resolver, declares a member down.
    pub fn down(&mut self, node: &Node, now: Moment) {
        self.raise(node, Status::Down, now);
    }

    /// The resolver declares these down, this node perhaps among them.
    pub fn down_all(&mut self, nodes: &[Node], now: Moment) {
        let mut own = false;
        for node in nodes {
            // Itself last, so that the others are told.
            if *node == self.me {
                own = true;
            } else {
                self.raise(node, Status::Down, now);
            }
        }
        if own {
            let me = self.me.clone();
            self.raise(&me, Status::Down, now);
        }
    }

    /// A verdict of the resolver that is newer than the one known here, if it is: whoever is not
    /// among its survivors is down.
    pub fn adopt(&mut self, verdict: &Verdict, now: Moment) {
        let Some(view) = self.view_mut() else { return };
        if verdict.generation <= view.verdict().generation {
            return;
        }
        let changes = view.adopt(verdict);
        self.converged = Some(Arc::new(Converged::of(view)));
        self.owe_for_survivors();
        self.seen = BTreeSet::from([self.me.clone()]);
        self.tell_changes(changes);
        // Before this node may end by it.
        for node in self.answering() {
            self.push_state(&node, true, now);
        }
        self.after_change(now);
    }

    /// This node's side will ask the lease for this generation of the verdict.
    pub fn announce(&mut self, generation: u64, now: Moment) {
        if let Some(view) = self.view_mut()
            && generation > view.asked()
        {
            view.announce(generation);
            self.changed(now);
        }
    }

    /// A verdict that was asked for before somebody was replaced says nothing about that.
    fn owe_for_survivors(&mut self) {
        let by_verdict = self.by_verdict;
        let Some(view) = self.view_mut().filter(|_| by_verdict) else { return };
        let verdict = view.verdict();
        let next = verdict.generation + 1;
        let is_replaced = view.members().any(|(node, member)| {
            member.status == Status::Down && verdict.survivors.contains(node)
        });
        if is_replaced {
            view.announce(next);
        }
    }

    /// The membership that everybody had seen when that was last so.
    pub fn converged(&self) -> Option<&Arc<Converged<Node>>> {
        self.converged.as_ref()
    }

    /// There may be another cluster of the same name at these addresses: tells them of this one, so
    /// that the older of the two gives way.
    pub fn meet(&mut self, contacts: &[Address]) {
        let Some(cluster) = self.cluster() else { return };
        self.contacts.met = contacts.to_vec();
        for address in contacts.iter().filter(|address| **address != self.me.address) {
            self.effects.push(Effect::Greet(address.clone(), Control::Ping { cluster }));
        }
    }

    /// This node.
    pub fn me(&self) -> &Node {
        &self.me
    }

    /// What this node believes, once it is in a cluster.
    pub fn view(&self) -> Option<&View> {
        match &self.phase {
            Phase::Inside(view) => Some(view),
            Phase::Outside { .. } | Phase::Ended => None,
        }
    }

    /// Who leads in this node's view.
    pub fn leader(&self) -> Option<&Node> {
        self.told.leader.as_ref()
    }

    /// The id of the cluster that this node is in.
    pub fn cluster(&self) -> Option<u64> {
        self.view().map(View::cluster)
    }

    /// Whether it is over.
    pub fn is_ended(&self) -> bool {
        matches!(self.phase, Phase::Ended)
    }

    /// Who is known to believe exactly what this node believes.
    pub fn seen(&self) -> &BTreeSet<Node> {
        &self.seen
    }

    /// Whether every member that is not down has seen this view.
    pub fn is_converged(&self) -> bool {
        self.view().is_some_and(|view| {
            self.seen.len() == view.members().len()
                || view
                    .members()
                    .filter(|(_, member)| member.status < Status::Down)
                    .all(|(node, _)| self.seen.contains(node))
        })
    }

    /// Remembers who counts, if everybody has seen this view.
    fn note_convergence(&mut self) {
        let Phase::Inside(view) = &self.phase else { return };
        if self.converged_on != Some(view.digest()) && self.is_converged() {
            self.converged_on = Some(view.digest());
            self.converged = Some(Arc::new(Converged::of(view)));
        }
    }

    /// The others that nobody calls unreachable.
    fn answering(&self) -> Vec<Node> {
        let Some(view) = self.view() else { return Vec::new() };
        view.members()
            .map(|(node, _)| node)
            .filter(|node| **node != self.me && !self.told.unreachable.contains(*node))
            .cloned()
            .collect()
    }

    fn enter(&mut self, view: View, now: Moment) {
        self.phase = Phase::Inside(view);
        self.seen = BTreeSet::from([self.me.clone()]);
        self.heartbeat_at = now;
        self.gossip_at = now;
    }

    fn end(&mut self, ending: Ending) {
        if !self.is_ended() {
            self.phase = Phase::Ended;
            self.seen.clear();
            self.effects.push(Effect::End(ending));
        }
    }

    fn view_mut(&mut self) -> Option<&mut View> {
        match &mut self.phase {
            Phase::Inside(view) => Some(view),
            Phase::Outside { .. } | Phase::Ended => None,
        }
    }

    /// Raises a member's status, by this node's own doing.
    fn raise(&mut self, node: &Node, status: Status, now: Moment) {
        let Some(view) = self.view_mut() else { return };
        let Some(member) = view.member(node) else { return };
        let before = member.status;
        if before < status {
            if status == Status::Down {
                view.skip_up_numbers();
            }
            let Some(member) = view.member(node) else { return };
            let raised = Member { status, ..member.clone() };
            view.set_member(node, raised);
            self.tell_change(Some(before), Some(status), node.clone());
            self.changed(now);
            if status == Status::Down && *node != self.me {
                // If it lives, it should stop at once, and know why.
                self.push_state(node, false, now);
            }
        }
    }

    /// This node changed its view: nobody else has seen it.
    fn changed(&mut self, now: Moment) {
        self.seen.clear();
        self.seen.insert(self.me.clone());
        self.after_change(now);
    }

    /// The view is another one than before, whoever changed it.
    fn after_change(&mut self, now: Moment) {
        let Phase::Inside(view) = &self.phase else { return };
        let farewell = matches!(self.leaving, Some(Leaving::Down { .. }));
        match view.member(&self.me) {
            None if farewell => return self.end(Ending::Left),
            None => return self.end(Ending::Removed),
            Some(member) if member.status == Status::Down && !farewell => {
                let never_up = member.up_number == 0;
                let ending = if never_up { Ending::LostWhileJoining } else { Ending::Downed };
                return self.end(ending);
            }
            Some(_) => {}
        }
        let alive =
            view.members().filter(|(_, member)| member.status < Status::Down).map(|(node, _)| node);
        let unreachable: BTreeSet<Node> =
            view.observations().map(|(_, subject)| subject.clone()).collect();
        let is_unreachable = |node: &Node| unreachable.contains(node);
        self.watch.set_members(&self.me, alive, is_unreachable, &self.settings, now);
        if self.has_foreign_row() {
            return self.observed(Vec::new(), now);
        }
        self.tell_reachability(unreachable);
        self.hurry(now);
        self.exiting(now);
    }
}
