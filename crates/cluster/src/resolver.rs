//! The split-brain resolver: when to decide, by whom, and how a lease settles it.
//!
//! A [`Strategy`] says what a side should do if what it sees is the whole
//! truth. This says when to believe that: after the view has been the same for a while (a split is
//! noticed node by node, and counted too early half of a cluster looks like a few that are
//! missing), and only one node of a side decides, for all of it. The others follow what it gossips,
//! and what the lease's record says.
//!
//! # The verdict
//!
//! With [`LeaseMajority`](crate::downing::LeaseMajority) the decision is written into the record
//! of a lease, as a [`Verdict`]: its generation, and who survives. The rules, each of which closes a
//! hole that is real:
//!
//! - The record is read before anything is decided, and by everybody on a side, also by those who
//!   do not decide: their decider may be the one that cannot. A verdict in it that is newer than the
//!   one in the view is followed: by its survivors, who declare all others down, and by those
//!   others, who stop, however late they come.
//! - A verdict about another cluster is none: the record outlives the cluster that wrote it, and
//!   without this the first split of the next one would end it whole. (About a newer one it says
//!   that this cluster is over.)
//! - The lease is acquired on condition that the record is still the one that was read. Whoever
//!   was late finds another record and reads that.
//! - A record that is not understood was perhaps written by a newer version: wait, and leave it as
//!   it is.
//! - *Lost* without a newer verdict means wait. *Unknown* means wait. Only a verdict downs.
//! - In `ties`, before a side asks, its leader announces the generation that it will ask for, and
//!   everybody on the side has seen the announcement: so a majority that one of them belongs to
//!   later knows that an answer may still be on its way, and asks the lease as well.
//! - The winner holds the lease until the losers are removed, or the next split begins.
//!
//! Pure, like the membership that it advises.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure_lease::Moment;
use tenure_lease::backend::Expected;
use tenure_lease::keeper::Random;

use crate::Node;
use crate::downing::{Decision, Mode, Situation, Standing, Strategy, default_stable_after};
use crate::membership::Membership;
use crate::settings::{MembershipSettings, Rule};
use crate::view::{Status, Survivors, Verdict, VerdictError, View};

/// The resolver of one node.
#[derive(Clone, Debug)]
pub struct Resolver {
    strategy: Strategy,
    timing: ResolverSettings,
    /// Which rules to obey, for tests.
    rules: MembershipSettings,
    random: Random,
    split: Option<Split>,
    step: Step,
    /// This node holds the lease, with this verdict.
    holding: Option<u64>,
}

/// When the resolver decides.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ResolverSettings {
    /// For how long a view must be the same before anything is decided on it. Longer than it takes
    /// until all of a side have noticed a split: heartbeats differ by about an interval, and gossip
    /// takes a few. Every failover takes that much longer. Default: 3 s up to 10 members, 5 s up to
    /// 50, then more.
    #[serde(with = "crate::humane::option")]
    pub stable_after: Option<Duration>,
    /// A view that never becomes stable is decided on as it is after five times `stable_after`. If
    /// it is still not settled this long after that, everybody is declared down: for strategies
    /// without a lease, in which two sides that see different things may both go on. Default: never.
    #[serde(with = "crate::humane::option")]
    pub down_all_when_unstable: Option<Duration>,
}

#[derive(Clone, Copy, Debug)]
struct Split {
    picture: u128,
    /// Since when somebody is unreachable.
    since: Moment,
    /// Since when the picture is the same.
    stable_since: Moment,
    /// Since when it has not been the same for long enough.
    unstable_since: Moment,
    /// Since when something may be decided.
    ready_since: Option<Moment>,
}

/// How far a decision by lease has come.
#[derive(Clone, Debug)]
enum Step {
    /// Nothing is going on.
    Idle,
    /// The record is being read.
    Reading { until: Moment },
    /// It was read; good for a while, since an acquisition is conditional on it anyway.
    Read { sighting: Sighting, until: Moment },
    /// It could not be read.
    Blind,
    /// The lease was asked for, with this verdict.
    Asking { verdict: Verdict, until: Moment },
    /// To look again.
    Waiting { until: Moment },
}

/// The lease's record, as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// What an acquisition must still find.
    pub expected: Expected,
    /// What stands in the note.
    pub verdict: Verdict,
}

/// What came of reading the lease's record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordRead {
    /// It was read.
    Seen(Sighting),
    /// It was read and is not understood: a newer version may have written it. It may say that this
    /// side is down, so nothing is decided, and nothing written.
    Unreadable(VerdictError),
    /// Nobody knows what it says.
    Unknown,
}

impl Sighting {
    fn is_newer_than(&self, view: &View) -> bool {
        self.verdict.cluster == view.cluster()
            && self.verdict.generation > view.verdict().generation
    }

    /// Of a record's term and note; an empty note is no verdict.
    pub fn new(term: Option<u64>, note: &[u8]) -> Result<Self, VerdictError> {
        let expected = term.map_or(Expected::Absent, Expected::Term);
        Ok(Self { expected, verdict: Verdict::parse_note(note)? })
    }
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResolverEffect {
    /// Declare these down, this node perhaps among them.
    Down {
        /// Who.
        nodes: Vec<Node>,
        /// Why, in a sentence.
        reason: String,
    },
    /// Follow this verdict.
    Adopt {
        /// What was decided.
        verdict: Verdict,
        /// Why, in a sentence.
        reason: String,
    },
    /// Say that this side will ask for this generation.
    Announce(u64),
    /// Read the lease's record, then call [`Resolver::read`].
    Read,
    /// Acquire the lease once, if its record is still this one, with the verdict as its note; then
    /// call [`Resolver::answered`].
    Ask {
        /// What the record must be. `None` only where a test leaves the rule out.
        expected: Option<Expected>,
        /// What to write into it.
        verdict: Verdict,
    },
    /// Give the lease back.
    Release,
}

/// What became of an attempt to acquire the lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// It is ours.
    Won,
    /// It is not; this is what its record says.
    Lost(Sighting),
    /// Nobody knows.
    Unknown,
}

impl Resolver {
    /// A resolver with a strategy, which must be the same on every node.
    pub fn new(
        strategy: Strategy,
        timing: ResolverSettings,
        rules: MembershipSettings,
        seed: u64,
    ) -> Self {
        let random = Random::new(seed);
        Self { strategy, timing, rules, random, split: None, step: Step::Idle, holding: None }
    }

    /// The strategy.
    pub fn strategy(&self) -> &Strategy {
        &self.strategy
    }

    /// What is to be done now. To be called whenever the membership changed, after each answer, and
    /// at [`next_wake`](Self::next_wake).
    pub fn poll(&mut self, membership: &Membership, now: Moment) -> Vec<ResolverEffect> {
        let mut effects = Vec::new();
        let Some(view) = membership.view() else {
            if self.holding.take().is_some() {
                effects.push(ResolverEffect::Release);
            }
            self.split = None;
            return effects;
        };
        let split = view.observations().next().is_some();
        self.release_if_done(view, split || membership.owes_verdict(), &mut effects);
        let is_time = if split {
            self.is_time(view, now, &mut effects)
        } else if membership.owes_verdict() {
            self.split = None;
            // Nobody is missing, so there is nothing to wait for.
            membership.is_converged()
        } else {
            self.split = None;
            if !matches!(self.step, Step::Asking { .. }) {
                self.step = Step::Idle;
            }
            false
        };
        if is_time {
            self.decide(membership, view, now, &mut effects);
        }
        effects
    }

    /// When [`poll`](Self::poll) has something to do by itself.
    pub fn next_wake(&self, now: Moment) -> Moment {
        let is_idle = self.split.is_none() && matches!(self.step, Step::Idle);
        if is_idle { Moment::NEVER } else { now + LOOK }
    }

    /// What became of [`ResolverEffect::Read`].
    pub fn read(&mut self, read: RecordRead, now: Moment) {
        if !matches!(self.step, Step::Reading { .. }) {
            return;
        }
        match read {
            RecordRead::Seen(sighting) => self.step = Step::Read { sighting, until: now + AGAIN },
            RecordRead::Unreadable(_) => self.wait(now),
            RecordRead::Unknown => self.step = Step::Blind,
        }
    }

    /// What became of [`ResolverEffect::Ask`].
    pub fn answered(
        &mut self,
        asked: Asked,
        membership: &Membership,
        now: Moment,
    ) -> Vec<ResolverEffect> {
        let step = std::mem::replace(&mut self.step, Step::Idle);
        let generation = membership.view().map_or(u64::MAX, |view| view.verdict().generation);
        let Step::Asking { verdict, .. } = step else {
            self.step = step;
            // It was given up meanwhile, for instance because this node ended.
            return if asked == Asked::Won { vec![ResolverEffect::Release] } else { Vec::new() };
        };
        match asked {
            // Only if nothing newer was merged while it was on its way.
            Asked::Won if verdict.generation > generation => {
                self.holding = Some(verdict.generation);
                let reason = "this side won the lease".into();
                vec![ResolverEffect::Adopt { verdict, reason }]
            }
            Asked::Won => vec![ResolverEffect::Release],
            Asked::Lost(sighting)
                if membership.view().is_some_and(|v| sighting.is_newer_than(v)) =>
            {
                let reason = "another side won the lease".into();
                vec![ResolverEffect::Adopt { verdict: sighting.verdict, reason }]
            }
            Asked::Lost(_) if !self.rules.obeys(Rule::LostMeansWait) => {
                let mut nodes = membership.view().map(alive).unwrap_or_default();
                nodes.retain(|node| verdict.survivors.contains(node));
                vec![ResolverEffect::Down { nodes, reason: "the lease is another's".into() }]
            }
            Asked::Lost(_) | Asked::Unknown => {
                self.wait(now);
                Vec::new()
            }
        }
    }

    /// The lease was lost, by expiry or to an operator. The verdict stands all the same.
    pub fn lease_lost(&mut self) {
        self.holding = None;
    }

    /// The losers are removed, or there is more to decide, perhaps by somebody else on this side:
    /// the lease has done its work.
    fn release_if_done(&mut self, view: &View, more: bool, effects: &mut Vec<ResolverEffect>) {
        if let Some(generation) = self.holding
            && (more
                || view.verdict().generation > generation
                || view.members().all(|(_, member)| member.status < Status::Down))
        {
            self.holding = None;
            effects.push(ResolverEffect::Release);
        }
    }

    /// Whether the view has been the same for long enough.
    fn is_time(&mut self, view: &View, now: Moment, effects: &mut Vec<ResolverEffect>) -> bool {
        let picture = view.picture();
        let stable_after = stable_after(&self.timing, view);
        let split = self.split.get_or_insert(Split {
            picture,
            since: now,
            stable_since: now,
            unstable_since: now,
            ready_since: None,
        });
        if split.picture != picture {
            if now.since(split.stable_since) >= stable_after {
                split.unstable_since = now;
            }
            split.picture = picture;
            split.stable_since = now;
            // What was read is as old as the picture it was read for.
            if !matches!(self.step, Step::Asking { .. }) {
                self.step = Step::Idle;
            }
        }
        let long = stable_after * 5;
        if let Some(more) = self.timing.down_all_when_unstable
            && now.since(split.since) >= long + more
        {
            let nodes = alive(view);
            let reason = format!("the view has not been stable for {:?}", long + more);
            effects.push(ResolverEffect::Down { nodes, reason });
            return false;
        }
        let ready = now.since(split.stable_since) >= stable_after
            || now.since(split.unstable_since) >= long;
        split.ready_since = if ready { split.ready_since.or(Some(now)) } else { None };
        ready
    }

    fn decide(
        &mut self,
        membership: &Membership,
        view: &View,
        now: Moment,
        effects: &mut Vec<ResolverEffect>,
    ) {
        let converged = match self.rules.obeys(Rule::CountOnBoth) {
            true => membership.converged().cloned(),
            false => None,
        };
        let situation = Situation::of(membership.me(), view, membership.seen(), converged);
        let is_decider = self.strategy.decider(&situation).as_ref() == Some(membership.me())
            || !self.rules.obeys(Rule::OneAsks);
        if !is_decider {
            self.follow_record(view, now, effects);
            return;
        }
        let decision = match view.observations().next() {
            Some(_) => self.strategy.decide(&situation),
            None => Decision::AskLease {
                after: Duration::ZERO,
                survivors: alive(view),
                down: Vec::new(),
                reason: "somebody was replaced at its address".into(),
            },
        };
        let Strategy::LeaseMajority(lease) = &self.strategy else {
            if let Decision::Down { nodes, reason } = decision {
                effects.push(ResolverEffect::Down { nodes, reason });
            }
            return;
        };
        let (mode, timeout) = (lease.mode, lease.acquire_timeout);
        let standing = lease.standing(&situation);
        match &self.step {
            Step::Idle => {
                self.step = Step::Reading { until: now + timeout };
                effects.push(ResolverEffect::Read);
            }
            Step::Reading { until } if *until <= now => self.step = Step::Blind,
            Step::Waiting { until } if *until <= now => self.step = Step::Idle,
            // Whoever makes the attempt says what became of it; this is for when nobody does.
            Step::Asking { until, .. } if *until + timeout <= now => self.wait(now),
            Step::Reading { .. } | Step::Waiting { .. } | Step::Asking { .. } => {}
            Step::Blind => {
                let may = mode == Mode::Ties && view.asked() <= view.verdict().generation
                    || mode == Mode::Always && !self.rules.obeys(Rule::UnknownMeansWait);
                match decision {
                    Decision::Down { nodes, reason }
                        if standing == Some(Standing::Majority) && may =>
                    {
                        effects.push(ResolverEffect::Down { nodes, reason });
                    }
                    Decision::AskLease { down, reason, .. }
                        if standing == Some(Standing::Majority) && may && !down.is_empty() =>
                    {
                        effects.push(ResolverEffect::Down { nodes: down, reason });
                    }
                    _ => self.wait(now),
                }
            }
            Step::Read { until, .. } if *until <= now => self.step = Step::Idle,
            Step::Read { sighting, .. } => {
                let sighting = sighting.clone();
                self.decide_on(sighting, decision, standing, view, now, effects);
            }
        }
    }

    /// For a node that does not decide for its side: reads the record again and again, and follows a
    /// verdict that another side wrote. Its own decider may be unable to read it, or may have ended
    /// and its successor not be known yet: with one-way cuts, losers that waited for their decider
    /// went on for up to a minute after the verdict.
    fn follow_record(&mut self, view: &View, now: Moment, effects: &mut Vec<ResolverEffect>) {
        let Strategy::LeaseMajority(lease) = &self.strategy else { return };
        match &self.step {
            Step::Idle => {
                self.step = Step::Reading { until: now + lease.acquire_timeout };
                effects.push(ResolverEffect::Read);
            }
            Step::Reading { until } if *until <= now => self.step = Step::Blind,
            Step::Waiting { until } if *until <= now => self.step = Step::Idle,
            Step::Reading { .. } | Step::Waiting { .. } => {}
            Step::Blind => self.wait(now),
            Step::Read { sighting, .. } => {
                let sighting = sighting.clone();
                if !self.follow_sighting(&sighting, view, effects) {
                    // Half as often as the decider: every node of the cluster does this.
                    self.step = Step::Waiting { until: now + self.random.around(AGAIN * 2) };
                }
            }
            // It was the decider when it asked; the answer counts, and a missing one is given up.
            Step::Asking { until, .. } if *until + lease.acquire_timeout <= now => self.wait(now),
            Step::Asking { .. } => {}
        }
    }

    /// Follows what the record says, if that is about this cluster and newer, or about a newer
    /// cluster. `false`: it says nothing new.
    fn follow_sighting(
        &mut self,
        sighting: &Sighting,
        view: &View,
        effects: &mut Vec<ResolverEffect>,
    ) -> bool {
        if sighting.verdict.cluster > view.cluster() {
            let reason = "a newer cluster has written to the lease's record".into();
            effects.push(ResolverEffect::Down { nodes: alive(view), reason });
            return true;
        }
        if sighting.is_newer_than(view) {
            self.step = Step::Idle;
            let reason = "the lease's record says who survives".into();
            let verdict = sighting.verdict.clone();
            effects.push(ResolverEffect::Adopt { verdict, reason });
            return true;
        }
        false
    }

    /// The record was read.
    fn decide_on(
        &mut self,
        sighting: Sighting,
        decision: Decision<Node>,
        standing: Option<Standing>,
        view: &View,
        now: Moment,
        effects: &mut Vec<ResolverEffect>,
    ) {
        if self.follow_sighting(&sighting, view, effects) {
            return;
        }
        let generation = view.verdict().generation;
        let Strategy::LeaseMajority(lease) = &self.strategy else { return };
        let (mode, timeout) = (lease.mode, lease.acquire_timeout);
        let ready_since = self.split.and_then(|split| split.ready_since).unwrap_or(now);
        match decision {
            // An answer to an earlier question may still be on its way: ask as well.
            Decision::Down { nodes, .. }
                if standing == Some(Standing::Majority) && view.asked() > generation =>
            {
                let down: BTreeSet<Node> = nodes.into_iter().collect();
                let survivors = alive(view).into_iter().filter(|node| !down.contains(node));
                self.ask(sighting, survivors.collect(), mode, view, now + timeout, effects);
            }
            Decision::Down { nodes, reason } => {
                effects.push(ResolverEffect::Down { nodes, reason });
            }
            Decision::AskLease { after, survivors, .. } => {
                if now.since(ready_since) >= after {
                    self.ask(sighting, survivors, mode, view, now + timeout, effects);
                }
            }
            // Perhaps somebody here has not seen the announcement yet.
            Decision::Stay { .. } => {}
        }
    }

    fn ask(
        &mut self,
        sighting: Sighting,
        survivors: Vec<Node>,
        mode: Mode,
        view: &View,
        until: Moment,
        effects: &mut Vec<ResolverEffect>,
    ) {
        let generation = view.verdict().generation + 1;
        if mode == Mode::Ties && view.asked() < generation {
            // The strategy will say *stay* until everybody here has seen it.
            effects.push(ResolverEffect::Announce(generation));
            return;
        }
        if self.holding.take().is_some() {
            effects.push(ResolverEffect::Release);
        }
        let survivors: BTreeSet<Node> = survivors.into_iter().collect();
        let losers = view.members().map(|(node, _)| node).filter(|node| !survivors.contains(*node));
        let survivors = Arc::new(Survivors::new(&survivors, losers));
        let verdict = Verdict { cluster: view.cluster(), generation, survivors };
        self.step = Step::Asking { verdict: verdict.clone(), until };
        let conditional = self.rules.obeys(Rule::AskConditionally);
        let expected = conditional.then_some(sighting.expected);
        effects.push(ResolverEffect::Ask { expected, verdict });
    }

    fn wait(&mut self, now: Moment) {
        self.step = Step::Waiting { until: now + self.random.around(AGAIN) };
    }
}

fn stable_after(timing: &ResolverSettings, view: &View) -> Duration {
    timing.stable_after.unwrap_or_else(|| default_stable_after(view.members().len()))
}

fn alive(view: &View) -> Vec<Node> {
    let alive = view.members().filter(|(_, member)| member.status < Status::Down);
    alive.map(|(node, _)| node.clone()).collect()
}

/// How often to look while somebody is unreachable.
const LOOK: Duration = Duration::from_millis(200);
/// How long to wait before the record is read again.
const AGAIN: Duration = Duration::from_secs(1);
