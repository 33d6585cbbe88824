//! One incarnation, from its first word to its last.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tenure_lease::planted::{self, GlueBug};
use tenure_lease::{Lease, Moment, world};
use tenure_wire::{Unreadable, Version};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::arbiter::{ArbiterNews, ArbiterOrder, arbitrate};
use super::discover::Discoverer;
use super::formation::{LeaseNews, LeaseOrder, tend, tied_to_loop};
use super::outside::Outside;
use super::warnings::Warnings;
use super::{Command, Driver, Proof, entropy};
use crate::downing::Strategy;
use crate::formation::{Formation, FormationEffect};
use crate::membership::{Effect, Ending, Membership};
use crate::resolver::{Asked, RecordRead, Resolver, ResolverEffect};
use crate::transport::{self, Direction, Down, Lane, Peer, Transport};
use crate::view::{Digest, MemberVersions, Role, Status, Verdict, facts_of};
use crate::wire::{Control, decode, encode};
use crate::{Address, Incarnation, Node, telemetry};

/// A transport that listens.
pub(super) struct Bound {
    pub(super) transport: Arc<Transport>,
    pub(super) events: mpsc::Receiver<transport::Event>,
}

struct Life<'a> {
    driver: &'a mut Driver,
    transport: Arc<Transport>,
    membership: Membership,
    formation: Formation,
    lease: mpsc::Sender<LeaseOrder>,
    resolver: Option<Resolver>,
    arbiter: mpsc::Sender<ArbiterOrder>,
    /// Told when everything is handed over.
    hand_over: mpsc::Sender<()>,
    discoverer: Discoverer,
    outside: Outside,
    warnings: Warnings,
    published: Option<(Digest, bool, usize)>,
    /// Members that are gone, and with whom nobody should begin to talk any more.
    removed: Vec<Node>,
    /// How many members run what, as the metrics were last told.
    versions: BTreeMap<MemberVersions, u32>,
    /// When it was last said that something could not be read.
    unreadable_logged: Option<Moment>,
    ended: Option<Ending>,
}

impl Driver {
    /// Lives until it is over.
    pub(super) async fn live(&mut self, me: &Node, bound: Bound) -> Ending {
        let settings = &self.settings;
        let roles = settings.roles.iter().map(|role| Role::from(role.as_str())).collect();
        let formation = match &settings.formation {
            Some(lease) => Formation::by_lease(lease.timing().ttl, &settings.membership),
            None => Formation::by_seed_order(settings.seed_patience),
        };
        let formation = formation.contacts_min(settings.contacts_min);
        let mut membership = Membership::new(
            me.clone(),
            Arc::new(roles),
            must_agree(settings),
            settings.membership.clone(),
            entropy(),
        )
        .with_facts(facts_of(
            &settings.name,
            Version::announced(),
            settings.version.as_deref(),
        ));
        membership.refuse_clusters_below(self.newest_cluster);
        if let Some(strategy) = &settings.downing
            && strategy.only_by_verdict()
        {
            membership = membership.only_by_verdict();
        }
        let (lease, orders) = mpsc::channel(ORDERS);
        let (news_in, mut news) = mpsc::channel(ORDERS);
        let (questions, mut signs_of_life) = mpsc::channel(1);
        let lease_task = settings
            .formation
            .clone()
            .map(|lease| tokio::spawn(tend(tied_to_loop(lease, questions), orders, news_in)));
        let resolver = settings.downing.clone().map(|strategy| {
            let (timing, rules) = (settings.resolver.clone(), settings.membership.clone());
            Resolver::new(strategy, timing, rules, entropy())
        });
        let (arbiter, arbiter_orders) = mpsc::channel(ORDERS);
        let (arbiter_news_in, mut arbiter_news) = mpsc::channel(ORDERS);
        let arbiter_task = match (&settings.arbitration, &settings.downing) {
            (Some(lease), Some(Strategy::LeaseMajority(strategy))) => {
                let patience = strategy.acquire_timeout;
                let task = arbitrate(lease.clone(), patience, arbiter_orders, arbiter_news_in);
                Some(tokio::spawn(task))
            }
            _ => None,
        };
        let discoverer = Discoverer::new(&settings.discover, &settings.discover_with);
        let Bound { transport, mut events } = bound;
        let mut proof = Some(self.proof.clone());
        let (hand_over, mut handed_over) = mpsc::channel(1);
        // Nobody is left who could ask for anything.
        let mut abandoned = false;
        let mut life = Life {
            driver: self,
            transport,
            membership,
            formation,
            lease,
            resolver,
            arbiter,
            hand_over,
            discoverer,
            outside: Outside::default(),
            warnings: Warnings::default(),
            published: None,
            removed: Vec::new(),
            versions: BTreeMap::new(),
            unreadable_logged: None,
            ended: None,
        };
        life.driver.messaging.attach(me.clone(), life.transport.clone());
        life.driver.questions.reopen();
        loop {
            life.settle();
            if let Some(ending) = life.ended.take() {
                life.close(&mut events).await;
                drop(life);
                // Leases are released before the node is gone, if the store answers; otherwise
                // they expire.
                for task in [lease_task, arbiter_task].into_iter().flatten() {
                    let _ = tokio::time::timeout(RELEASE, task).await;
                }
                return ending;
            }
            let wake = life.next_wake();
            tokio::select! {
                biased;
                () = tokio::time::sleep(wake.since(Moment::now())) => {}
                Some(sign) = signs_of_life.recv() => drop(sign.send(())),
                Some(news) = news.recv() => life.lease_news(news),
                Some(news) = arbiter_news.recv() => life.arbiter_news(news),
                () = refused(&mut proof) => life.membership.leave(Moment::now()),
                Some(()) = handed_over.recv() => life.membership.handed_over(Moment::now()),
                command = life.driver.commands.recv(), if !abandoned => {
                    abandoned = command.is_none();
                    life.command(command);
                }
                Some(event) = events.recv() => life.transport_event(event),
                found = life.discoverer.next(), if life.membership.cluster().is_none() => {
                    life.formation.discovered(found);
                }
            }
            // What has arrived meanwhile, in one go, and whatever else there was to do.
            for _ in 0..AT_ONCE {
                let Ok(event) = events.try_recv() else { break };
                life.transport_event(event);
            }
            life.membership.poll(Moment::now());
        }
    }
}

impl Life<'_> {
    fn next_wake(&self) -> Moment {
        let now = Moment::now();
        let resolver = self.resolver.as_ref().map_or(Moment::NEVER, |it| it.next_wake(now));
        let membership = self.membership.next_wake();
        membership.min(self.formation.next_wake()).min(resolver).min(now + LONG)
    }

    /// Does what the cores ask for, until they ask for nothing more.
    fn settle(&mut self) {
        loop {
            let now = Moment::now();
            let effects: Vec<Effect> = self.membership.effects().collect();
            let formation = self.formation.poll(&self.membership, now);
            let resolver = match &mut self.resolver {
                Some(resolver) => resolver.poll(&self.membership, now),
                None => Vec::new(),
            };
            if effects.is_empty() && formation.is_empty() && resolver.is_empty() {
                break;
            }
            for effect in effects {
                self.perform(effect);
            }
            for effect in formation {
                self.form(effect, now);
            }
            for effect in resolver {
                self.resolve(effect, now);
            }
        }
        self.publish();
        // After that, since from then on nobody opens a link to them again.
        for node in std::mem::take(&mut self.removed) {
            self.transport.forget(&node);
            // A process that was started again at the address has replaced the removed one, and
            // uses the same control link.
            let view = self.membership.view();
            if view.is_none_or(|view| view.at_address(&node).next().is_none()) {
                self.transport.forget_address(&node.address);
            }
            self.driver.messaging.gone(&node);
        }
    }

    /// The last words: what waits to be sent, and what is heard of it.
    async fn close(&mut self, events: &mut mpsc::Receiver<transport::Event>) {
        let transport = self.transport.clone();
        let mut closing = std::pin::pin!(transport.close(FAREWELL));
        loop {
            tokio::select! {
                () = &mut closing => break,
                Some(event) = events.recv() => self.transport_event(event),
            }
        }
        while let Ok(event) = events.try_recv() {
            self.transport_event(event);
        }
        self.driver.messaging.detach();
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Send(to, message) => {
                self.send(&to.address, Some(to.incarnation), &message);
            }
            Effect::Greet(to, message) => {
                self.send(&to, None, &message);
            }
            Effect::Tell(event) => {
                tracing::info!(node = %self.membership.me(), "{event}");
                if let crate::Event::Removed(node) = &event {
                    self.removed.push(node.clone());
                }
                let _ = self.driver.events.send(event); // Nobody need listen.
            }
            Effect::HandOver => {
                let (hooks, questions) = (self.driver.hooks.clone(), self.driver.questions.clone());
                let hooks = self.driver.data.spawn(async move {
                    hooks.run().await;
                    questions.end().await;
                });
                let limit = self.driver.settings.membership.hand_over_timeout;
                tokio::spawn(hand_over(hooks, limit, self.hand_over.clone()));
            }
            Effect::End(ending) => self.ended = Some(ending),
        }
    }

    fn send(&self, to: &Address, only_to: Option<Incarnation>, message: &Control) {
        if let Some(frame) = encode(message, self.transport.spoken_with(to)) {
            self.transport.control(to, only_to, frame);
        }
        #[cfg(feature = "planted")]
        if let Some(frame) = tenure_wire::surplus() {
            self.transport.control(to, only_to, frame);
        }
    }

    fn form(&mut self, effect: FormationEffect, now: Moment) {
        match effect {
            FormationEffect::Join(contacts) => self.membership.join(contacts, now),
            FormationEffect::Form(cluster) => self.membership.form(cluster, now),
            FormationEffect::FormUnguarded => {
                self.membership.form(world::wall_clock().as_micros() as u64, now);
            }
            FormationEffect::Meet(contacts) => self.membership.meet(&contacts),
            FormationEffect::Contend => self.order(LeaseOrder::Contend),
            FormationEffect::Withdraw => self.order(LeaseOrder::Withdraw),
            // One that finds no room comes after others that were not answered yet.
            FormationEffect::Look => drop(self.lease.try_send(LeaseOrder::Look)),
            FormationEffect::WriteNote(note) => self.order(LeaseOrder::WriteNote(note)),
        }
    }

    fn order(&mut self, order: LeaseOrder) {
        if self.lease.try_send(order).is_err() {
            tracing::warn!("the formation lease's store does not keep up");
            self.formation.lost();
        }
    }

    fn resolve(&mut self, effect: ResolverEffect, now: Moment) {
        let node = self.membership.me();
        match effect {
            ResolverEffect::Down { nodes, reason } => {
                tracing::warn!(%node, ?nodes, "downing: {reason}");
                self.decided(nodes.clone(), reason);
                self.membership.down_all(&nodes, now);
            }
            ResolverEffect::Adopt { verdict, reason } => {
                let Verdict { generation, survivors, .. } = &verdict;
                let count = survivors.len();
                tracing::warn!(%node, generation, survivors = count, "downing: {reason}");
                let members = self.membership.view().into_iter().flat_map(|view| view.members());
                let losers = members.filter(|(node, member)| {
                    member.status < Status::Down && !survivors.contains(node)
                });
                self.decided(losers.map(|(node, _)| node.clone()).collect(), reason);
                self.membership.adopt(&verdict, now);
            }
            ResolverEffect::Announce(generation) => self.membership.announce(generation, now),
            ResolverEffect::Read => self.arbitrate(ArbiterOrder::Read),
            ResolverEffect::Ask { expected, verdict } => {
                self.arbitrate(ArbiterOrder::Ask { expected, verdict });
            }
            ResolverEffect::Release => self.arbitrate(ArbiterOrder::Release),
        }
    }

    fn decided(&self, down: Vec<Node>, reason: String) {
        let survives = !down.contains(self.membership.me());
        if let Some(strategy) = &self.driver.settings.downing {
            telemetry::decided(strategy.name(), survives);
        }
        let event = crate::Event::Decided(crate::Decided { survives, down, reason });
        let _ = self.driver.events.send(event); // Nobody need listen.
    }

    fn arbitrate(&mut self, order: ArbiterOrder) {
        if self.arbiter.try_send(order).is_err() {
            // The resolver asks again when it gets no answer.
            tracing::warn!("the arbitration lease's store does not keep up");
        }
    }

    fn arbiter_news(&mut self, news: ArbiterNews) {
        let Some(resolver) = &mut self.resolver else { return };
        let now = Moment::now();
        match news {
            ArbiterNews::Read(read) => {
                self.warnings.unreadable_verdict = match &read {
                    RecordRead::Unreadable(error) => Some(error.to_string()),
                    RecordRead::Seen(_) => None,
                    // It says what it said.
                    RecordRead::Unknown => self.warnings.unreadable_verdict.take(),
                };
                resolver.read(read, now);
            }
            ArbiterNews::Lost => resolver.lease_lost(),
            ArbiterNews::Answered(asked) => {
                telemetry::asked(match &asked {
                    Asked::Won => "won",
                    Asked::Lost(_) => "lost",
                    Asked::Unknown => "unknown",
                });
                for effect in resolver.answered(asked, &self.membership, now) {
                    self.resolve(effect, now);
                }
            }
        }
    }

    fn lease_news(&mut self, news: LeaseNews) {
        let now = Moment::now();
        match news {
            LeaseNews::Won { term, note } => {
                if let Err(error) = &note {
                    tracing::warn!("{error}");
                }
                self.formation.won(term, note, now);
            }
            LeaseNews::Saw(sight) => self.formation.saw(&sight, now),
            LeaseNews::Wrote(note) => self.formation.wrote(note),
            LeaseNews::Lost => self.formation.lost(),
        }
        if let Some(noted) = self.formation.noted_cluster() {
            self.membership.cluster_is_noted(noted);
        }
    }

    fn command(&mut self, command: Option<Command>) {
        let now = Moment::now();
        match command {
            // The last handle was dropped.
            None | Some(Command::Leave) => self.membership.leave(now),
            Some(Command::AskToLeave(node)) => self.membership.ask_to_leave(&node, now),
            Some(Command::Down(node)) => self.membership.down(&node, now),
            #[cfg(feature = "planted")]
            Some(Command::Panic) => panic!("planted"),
        }
    }

    fn transport_event(&mut self, event: transport::Event) {
        if self.membership.cluster().is_none() {
            self.outside.transport_event(&event);
        }
        match event {
            transport::Event::Control { from, frames } => {
                for frame in frames {
                    match decode(&frame) {
                        // Not of somebody who has a certificate and is no member.
                        Ok(Control::Posted(frame)) => {
                            if self.membership.is_member(&from.node) {
                                self.driver.messaging.posted(&from.node, &frame);
                            }
                        }
                        Ok(message) => {
                            let needs_proof = self.membership.needs_proof(&from.node, &message);
                            if !needs_proof || self.transport.has_proven(&from) {
                                self.outside.received(&from.node.address, &message);
                                self.membership.receive(&from.node, message, Moment::now());
                            }
                        }
                        // A newer minor version may say things that this one does not know.
                        Err(error) => self.count_unreadable(&from, &error),
                    }
                }
            }
            transport::Event::OtherNode { dialed, expected: None, actual } => {
                // A contact that calls itself something else: a service's address, for instance.
                self.discoverer.add_alias(dialed, actual.address);
            }
            transport::Event::OtherNode { dialed, expected: Some(incarnation), actual } => {
                if actual.address == dialed {
                    let gone = Node { address: dialed, incarnation };
                    self.driver.messaging.gone(&gone);
                }
            }
            transport::Event::Data { frames, account, .. } => {
                self.driver.messaging.incoming(account, frames);
            }
            transport::Event::Client(link) => {
                let waited_for = self.driver.questions.connection();
                self.driver.messaging.client(link, waited_for);
            }
            transport::Event::Down { link, why, unknown } => {
                let ours = link.lane == Lane::Data && link.direction == Direction::Outgoing;
                // Where nothing is in doubt, the link is opened again if there is more to send.
                let settled = match why {
                    Down::Idle | Down::Outdated => true,
                    Down::NotAccepted(_) => unknown == 0,
                    _ => false,
                };
                if ours && !settled {
                    let is_told = !planted::has(GlueBug::CutIsNotTold);
                    self.driver.messaging.cut(&link.peer.node, if is_told { unknown } else { 0 });
                }
            }
            transport::Event::Unsent { .. } if planted::has(GlueBug::UnsentIsNotTold) => {}
            transport::Event::Unsent { node, messages } => {
                self.driver.messaging.unsent(&node, messages);
            }
            transport::Event::Unsettled { node, messages } => {
                self.driver.messaging.unsettled(&node, messages);
            }
            transport::Event::Up(_)
            | transport::Event::Failed { .. }
            | transport::Event::Refused { .. } => {}
        }
    }

    /// Counts a control message that was skipped, and says so now and then.
    fn count_unreadable(&mut self, from: &Peer, error: &Unreadable) {
        telemetry::unreadable(error);
        let now = Moment::now();
        if self.unreadable_logged.is_none_or(|at| now.since(at) >= LOG_AGAIN) {
            self.unreadable_logged = Some(now);
            let (node, version) = (&from.node, from.version);
            tracing::warn!(%node, %version, "skipped a control message: {error}");
        }
    }

    fn publish(&mut self) {
        let me = self.membership.me();
        let Some(view) = self.membership.view() else {
            let why = self.outside.explain(&self.formation, &me.address, Moment::now());
            self.driver.state.send_if_modified(|state| {
                let changed = state.outside != why;
                state.outside = why;
                changed
            });
            return;
        };
        let own = view.member(me).map(|member| member.status);
        let up = own.is_some_and(|status| (Status::Up..Status::Down).contains(&status));
        // Those who have seen a view only become more while the view stays the same.
        let seen = self.membership.seen();
        let (now, strategy) = (Moment::now(), self.driver.settings.downing.as_ref());
        if let Some(warnings) = self.warnings.look(now, view, strategy, &self.transport) {
            self.driver.state.send_modify(|state| state.warnings = warnings);
        }
        let news = (view.digest(), up, seen.len());
        if self.published != Some(news) {
            let same = self.published.is_some_and(|(digest, ..)| digest == view.digest());
            self.published = Some(news);
            telemetry::view(view, me, up, self.membership.is_converged());
            telemetry::versions(view, &mut self.versions);
            let (view, seen) = ((!same).then(|| Arc::new(view.clone())), Arc::new(seen.clone()));
            self.driver.state.send_modify(|state| {
                state.view = view.or(state.view.take());
                state.seen = seen;
                state.outside = None;
                state.up = up;
            });
        }
    }
}

/// Waits until everything that this node hosts has been handed over, but not for ever.
async fn hand_over(hooks: JoinHandle<()>, limit: Duration, done: mpsc::Sender<()>) {
    match tokio::time::timeout(limit, hooks).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::error!("what is done before leaving failed: {error}"),
        Err(_) => tracing::error!(
            "what is done before leaving has not ended within membership.hand_over_timeout \
             {limit:?}: this node leaves without it"
        ),
    }
    let _ = done.send(()).await; // Whoever has ended meanwhile needs no word.
}

/// Waits until a store has refused this node's leases for good; it is said once.
async fn refused(proof: &mut Option<watch::Receiver<Proof>>) {
    let refused = match proof {
        Some(proof) => proof.wait_for(|it| matches!(it, Proof::Refused(_))).await.is_ok(),
        None => false,
    };
    *proof = None;
    if !refused {
        std::future::pending().await
    }
}

/// What every node must have the same, by name, without what has its default: so a version that has a setting
/// more agrees with one that does not know it, until somebody sets it.
fn must_agree(settings: &crate::Settings) -> Arc<[(String, String)]> {
    let name = |lease: &Lease| match lease.name() {
        Ok(name) => name.to_string(),
        Err(error) => error.to_string(),
    };
    let leases = [("formation", &settings.formation), ("arbitration", &settings.arbitration)];
    let leases = leases
        .into_iter()
        .filter_map(|(what, lease)| Some((what.to_owned(), name(lease.as_ref()?))));
    let downing = settings.downing.iter().flat_map(Strategy::written);
    leases.chain(downing).chain(settings.must_agree.clone()).collect()
}

/// How long giving back a lease may take.
const RELEASE: Duration = Duration::from_secs(3);
/// How often it is said that something could not be read.
const LOG_AGAIN: Duration = Duration::from_secs(60);
/// How long the last words may take.
const FAREWELL: Duration = Duration::from_secs(1);
/// Orders and news about one lease; there are never more than a few.
const ORDERS: usize = 64;
/// How many events are handled before the cores are asked what to do.
const AT_ONCE: usize = 64;
/// However long there is nothing to do.
const LONG: Duration = Duration::from_secs(3600);
