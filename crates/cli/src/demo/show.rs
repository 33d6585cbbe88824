//! What happens on the stage: the news of the processes, the steps of the script, the keys.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use serde::Serialize;
use tenure_lease::{Moment, Settings, Token};

use super::book;
use super::counter::SHARDS;
use super::history::{History, middle_and_longest, millis};
use super::ledger::Audit;
use super::places::{Figures, Places};
use super::script::{Action, Named, Script, Target, numbers, sides};
use super::stage::{News, Stage, State, What};
use super::wire::{Decided, Order, Report, Sees};
use crate::exit::{self, Failure};

/// Everything that is known while it goes on.
pub(super) struct Show {
    pub(super) stage: Stage,
    pub(super) history: History,
    pub(super) script: Script,
    /// Somebody took over from the script.
    pub(super) by_hand: bool,
    /// When the worker first began: what times are counted from.
    pub(super) began: Option<Moment>,
    /// What each process believes about the cluster.
    pub(super) views: BTreeMap<usize, Sees>,
    /// How each process last called itself.
    pub(super) names: BTreeMap<usize, String>,
    /// Where each serves its own management API.
    pub(super) urls: BTreeMap<usize, String>,
    pub(super) jobs: Jobs,
    /// What the counters do, if there are any.
    pub(super) places: Option<Places>,
    pub(super) refused: u64,
    /// What happened lately, with times.
    pub(super) events: VecDeque<Event>,
    /// To be printed by who shows no picture.
    pub(super) unprinted: VecDeque<Event>,
    /// To be shown on the page.
    pub(super) unposted: VecDeque<Event>,
    pub(super) chosen: Target,
}

/// How far the client is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Jobs {
    pub(super) sent: u64,
    pub(super) acknowledged: u64,
    pub(super) finished: bool,
}

/// A line about what happened.
#[derive(Clone, Debug)]
pub(super) struct Event {
    pub(super) at: Moment,
    pub(super) kind: Kind,
    pub(super) text: String,
    /// Whom it is about.
    pub(super) node: Option<usize>,
    /// Why, in one word.
    pub(super) reason: Option<String>,
    pub(super) decided: Option<Decided>,
}

/// What a line is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Something was done to the cluster.
    Fault,
    /// The worker began or ended.
    Work,
    /// A stale write was refused.
    Refused,
    /// A split was decided.
    Decision,
    /// Anything else.
    Other,
}

impl Show {
    pub(super) fn new(stage: Stage, script: Script, timing: &Settings) -> Self {
        Self {
            places: stage.has_counters().then(|| Places::new(timing)),
            stage,
            history: History::new(timing),
            script,
            by_hand: false,
            began: None,
            views: BTreeMap::new(),
            names: BTreeMap::new(),
            urls: BTreeMap::new(),
            jobs: Jobs::default(),
            refused: 0,
            events: VecDeque::new(),
            unprinted: VecDeque::new(),
            unposted: VecDeque::new(),
            chosen: Target::Holder,
        }
    }

    pub(super) fn nodes(&self) -> usize {
        self.stage.actors.len() - 1
    }

    /// How long it has been going on.
    pub(super) fn elapsed(&self, now: Moment) -> Duration {
        self.began.map_or(Duration::ZERO, |began| now.since(began))
    }

    /// Whether everybody is in, the first job was done, and shards are where they should be.
    pub(super) fn is_whole(&self) -> bool {
        let all_up = (0..=self.nodes()).all(|number| self.views.get(&number).is_some_and(|v| v.up));
        let settled = self.places.as_ref().is_none_or(|places| places.are_settled(self.nodes()));
        all_up && self.jobs.acknowledged > 0 && settled
    }

    /// Whether everything that was sent is done.
    pub(super) fn is_finished(&self) -> bool {
        self.jobs.finished && self.places.as_ref().is_none_or(|places| places.finished)
    }

    /// Whom a script means.
    pub(super) fn named(&self) -> Named {
        let holder = self.history.holder(Moment::now()).map(|work| work.node);
        Named { holder, coordinator: self.places.as_ref().and_then(Places::coordinator) }
    }

    pub(super) fn note(&mut self, kind: Kind, text: impl Into<String>) {
        self.tell(kind, text.into(), None, None);
    }

    /// The same, about a process, for a reason.
    fn tell(&mut self, kind: Kind, text: String, node: Option<usize>, reason: Option<&str>) {
        let reason = reason.map(str::to_owned);
        self.push(Event { at: Moment::now(), kind, text, node, reason, decided: None });
    }

    fn push(&mut self, event: Event) {
        for events in [&mut self.events, &mut self.unprinted, &mut self.unposted] {
            events.push_back(event.clone());
            if events.len() > EVENTS {
                events.pop_front();
            }
        }
    }

    fn fault(&mut self, text: String) {
        self.history.fault(Moment::now(), text.clone());
        self.note(Kind::Fault, text);
    }

    /// Takes in what came from a process.
    pub(super) async fn hear(&mut self, news: News) -> Result<(), Failure> {
        let from = news.from;
        match news.what {
            What::Ended { at, declared_down } => {
                self.died(from, at);
                self.views.remove(&from);
                let alone = self.stage.actors[from].state == State::Runs;
                self.stage.ended(from);
                if alone && declared_down {
                    let text = format!("{} was declared down, and is started again", called(from));
                    self.tell(Kind::Other, text, Some(from), None);
                    self.stage.start(from).await?;
                } else if alone {
                    self.note(Kind::Other, format!("{} has ended by itself", called(from)));
                }
            }
            What::Said(Report::View(sees)) => {
                let up = sees.up;
                self.names.insert(from, sees.me.clone());
                let before = self.views.insert(from, sees);
                if up != before.is_some_and(|before| before.up) && self.began.is_some() {
                    let word = if up { "is a member again" } else { "is out of the cluster" };
                    self.tell(Kind::Other, format!("{} {word}", called(from)), Some(from), None);
                }
            }
            What::Said(Report::Decided(decided)) => self.decided(from, decided),
            What::Said(Report::Started { token, expired, at }) => {
                self.started(from, token, expired, Moment::from_nanos(at));
            }
            What::Said(Report::Stopped { token, why, reason, at }) => {
                self.history.stopped(from, token, Moment::from_nanos(at));
                let text = format!("{} stops: {why}", called(from));
                self.tell(Kind::Work, text, Some(from), reason.as_deref());
            }
            What::Said(Report::Refused { token, fence }) => {
                self.refused += 1;
                let (token, fence) = (said_token(token), said_token(fence));
                let text = format!(
                    "{} wrote with token {token}: refused, the fence is at {fence}",
                    called(from)
                );
                self.tell(Kind::Refused, text, Some(from), None);
            }
            What::Said(Report::Jobs { sent, acknowledged, finished }) => {
                self.jobs = Jobs { sent, acknowledged, finished };
            }
            What::Said(Report::Silence { from, to }) => {
                self.history.silence(Moment::from_nanos(from), Moment::from_nanos(to));
            }
            What::Said(Report::Listens(url)) => drop(self.urls.insert(from, url)),
            What::Said(Report::Trouble(text)) => self.note(Kind::Other, text),
            What::Said(report) => {
                if let Some(places) = &mut self.places {
                    places.hear(from, report, Moment::now());
                }
            }
        }
        Ok(())
    }

    fn died(&mut self, number: usize, at: Moment) {
        self.history.died(number, at);
        self.places.iter_mut().for_each(|places| places.died(number, at));
    }

    fn decided(&mut self, from: usize, decided: Decided) {
        let Decided { survives, down, reason } = &decided;
        let side = if *survives { "its side goes on" } else { "its side ends" };
        let text = format!("{} decided that {side}, {} down: {reason}", called(from), list(down));
        let word = if *survives { "survive" } else { "down_self" };
        self.push(Event {
            at: Moment::now(),
            kind: Kind::Decision,
            text,
            node: Some(from),
            reason: Some(word.into()),
            decided: Some(decided),
        });
    }

    fn started(&mut self, from: usize, token: Token, expired: Option<String>, at: Moment) {
        self.history.started(from, token, at);
        let gap = self.history.failovers(Moment::now()).last().map(|failover| failover.gap);
        let after = gap.map_or(String::new(), |gap| format!(", {} after the last", ms(gap)));
        let token = said_token(token);
        let whose =
            expired.as_ref().map_or(String::new(), |it| format!("; {it}'s tenure had expired"));
        let text = format!("{} works with token {token}{after}{whose}", called(from));
        self.tell(Kind::Work, text, Some(from), expired.map(|_| "expired"));
    }

    /// Does what is due.
    pub(super) async fn advance(&mut self, now: Moment) -> Result<(), Failure> {
        for number in 1..=self.nodes() {
            if let State::Paused(until) = self.stage.actors[number].state
                && until <= now
            {
                self.resume(number);
            }
        }
        let elapsed = self.elapsed(now);
        let is_due = |step: Option<&(Duration, Action)>| step.is_some_and(|(at, _)| *at <= elapsed);
        while !self.by_hand && is_due(self.script.steps.front()) {
            let named = self.named();
            let waits = self.script.steps.front().is_some_and(|(_, it)| it.misses(&named));
            if waits && !is_due(self.script.steps.get(1)) {
                break;
            }
            let Some((_, action)) = self.script.steps.pop_front() else { break };
            match waits {
                true => self.note(Kind::Other, "left out: nobody works that it could be done to"),
                false => self.act(&action).await?,
            }
        }
        Ok(())
    }

    fn resume(&mut self, number: usize) {
        let at = self.stage.resume(number);
        self.history.resumed(number, at);
        self.places.iter_mut().for_each(|places| places.resumed(number, at));
        self.note(Kind::Fault, format!("{} goes on (SIGCONT)", called(number)));
    }

    /// Does one thing.
    pub(super) async fn act(&mut self, action: &Action) -> Result<(), Failure> {
        let named = self.named();
        let whom = |targets: &[Target]| numbers(targets, &named);
        match action {
            Action::Cut(groups) => {
                let sides = sides(groups, &named, self.nodes());
                self.fault(format!("cut {}", said_sides(&sides)));
                self.stage.cut(sides).await;
            }
            Action::Heal => {
                self.fault("heal the network".into());
                self.stage.cut(Vec::new()).await;
            }
            Action::Kill(targets) => {
                for number in whom(targets) {
                    self.kill(number);
                }
            }
            Action::Pause(targets, time) => {
                for number in whom(targets) {
                    self.pause(number, *time).await;
                }
            }
            Action::Leave(targets) => {
                for number in whom(targets) {
                    self.leave(number).await;
                }
            }
            Action::Program(program) => {
                self.fault(format!("start {} from now on", program.display()));
                self.stage.program = program.clone();
            }
            Action::Restart(targets) => {
                let all = self.stage.gone();
                let named = whom(targets);
                for number in all.into_iter().filter(|it| named.is_empty() || named.contains(it)) {
                    self.fault(format!("start {} again", called(number)));
                    self.stage.start(number).await?;
                }
            }
            Action::StoreAway(targets) => {
                let whom: BTreeSet<usize> = match &targets[..] {
                    [] => (0..=self.nodes()).collect(),
                    targets => whom(targets).into_iter().collect(),
                };
                let from = if targets.is_empty() { "everybody".into() } else { list(&whom) };
                self.fault(format!("take the store away from {from}"));
                self.stage.take_store_from(whom).await;
            }
            Action::StoreBack => {
                self.fault("give the store back".into());
                self.stage.take_store_from(BTreeSet::new()).await;
            }
        }
        Ok(())
    }

    fn runs(&self, number: usize) -> bool {
        self.stage.actors[number].state == State::Runs
    }

    fn kill(&mut self, number: usize) {
        if matches!(self.stage.actors[number].state, State::Gone(_)) {
            return;
        }
        let at = self.stage.kill(number);
        self.died(number, at);
        self.views.remove(&number);
        self.fault(format!("kill -9 {}", called(number)));
    }

    async fn leave(&mut self, number: usize) {
        if self.runs(number) {
            self.fault(format!("ask {} to leave", called(number)));
            self.stage.leave(number).await;
        }
    }

    async fn pause(&mut self, number: usize, time: Duration) {
        if !self.runs(number) {
            return;
        }
        match self.stage.pause(number, Moment::now() + time).await {
            Some(since) => {
                self.history.paused(number, since);
                self.places.iter_mut().for_each(|places| places.paused(number, since));
                self.history.fault(since, format!("stop {}", called(number)));
                self.note(Kind::Fault, format!("stop {} for {time:?} (SIGSTOP)", called(number)));
            }
            None => self.note(Kind::Other, format!("{} does not stop", called(number))),
        }
    }

    /// Mends everything, and has the client wait for what is not done.
    pub(super) async fn settle(&mut self) -> Result<(), Failure> {
        for number in 1..=self.nodes() {
            if matches!(self.stage.actors[number].state, State::Paused(_)) {
                self.resume(number);
            }
        }
        self.stage.cut(Vec::new()).await;
        self.stage.take_store_from(BTreeSet::new()).await;
        self.act(&Action::Restart(Vec::new())).await?;
        self.stage.order(0, &Order::Finish).await;
        Ok(())
    }

    /// Ends all processes, without marking their deaths as anything that was done to the cluster.
    pub(super) fn end_all(&mut self) {
        for number in self.stage.running() {
            let at = self.stage.kill(number);
            self.died(number, at);
        }
    }

    /// What came of it.
    pub(super) fn summary(&self) -> Result<Summary, Failure> {
        let now = Moment::now();
        let failed = |error| Failure::new(exit::SYSTEM, format!("the ledger: {error}"));
        let audit = Audit::of(&self.stage.ledger(), self.jobs.acknowledged).map_err(failed)?;
        let counters = match &self.places {
            Some(places) => {
                let books = book::Audit::of(self.stage.directory(), SHARDS, places.each());
                let since = self.began.unwrap_or(now);
                Some(places.figures(&books.map_err(failed)?, since, now))
            }
            None => None,
        };
        let failovers = self.history.failovers(now);
        let (middle, longest) = middle_and_longest(failovers.iter().map(|it| it.gap));
        let silences = middle_and_longest(failovers.iter().map(|it| it.silence));
        Ok(Summary {
            failovers: failovers.len(),
            gap_ms_p50: millis(middle),
            gap_ms_max: millis(longest),
            silence_ms_p50: millis(silences.0),
            silence_ms_max: millis(silences.1),
            overlaps: self.history.overlaps(now),
            stale_writes_accepted: audit.stale,
            stale_writes_refused: self.refused,
            jobs_acknowledged: self.jobs.acknowledged,
            jobs_lost: audit.lost,
            jobs_twice: audit.twice,
            counters,
        })
    }
}

/// What `--json` prints; its shape is stable.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Summary {
    pub(super) failovers: usize,
    pub(super) gap_ms_p50: f64,
    pub(super) gap_ms_max: f64,
    pub(super) silence_ms_p50: f64,
    pub(super) silence_ms_max: f64,
    pub(super) overlaps: usize,
    pub(super) stale_writes_accepted: u64,
    pub(super) stale_writes_refused: u64,
    pub(super) jobs_acknowledged: u64,
    pub(super) jobs_lost: u64,
    pub(super) jobs_twice: u64,
    #[serde(flatten)]
    pub(super) counters: Option<Figures>,
}

impl Summary {
    /// Whether nothing happened that must not.
    pub(super) fn is_clean(&self) -> bool {
        self.overlaps == 0
            && self.stale_writes_accepted == 0
            && self.jobs_lost == 0
            && self.jobs_twice == 0
            && self.counters.as_ref().is_none_or(Figures::is_clean)
    }
}

/// What people call a process.
pub(super) fn called(number: usize) -> String {
    if number == 0 { "the client".into() } else { format!("node {number}") }
}

/// A token as people read it: the step of a worker's is always 0.
pub(super) fn said_token(token: Token) -> String {
    token.term.to_string()
}

/// Sides as a cut is written.
pub(super) fn said_sides(sides: &[Vec<usize>]) -> String {
    sides.iter().map(list).collect::<Vec<_>>().join(" | ")
}

pub(super) fn list<'a>(numbers: impl IntoIterator<Item = &'a usize>) -> String {
    let word = |number: &usize| if *number == 0 { "client".into() } else { number.to_string() };
    numbers.into_iter().map(word).collect::<Vec<_>>().join(",")
}

/// A time as people read it: milliseconds below ten seconds.
pub(super) fn ms(time: Duration) -> String {
    if time < Duration::from_secs(10) {
        format!("{} ms", time.as_millis())
    } else {
        format!("{:.1} s", time.as_secs_f64())
    }
}

/// How many lines are kept.
const EVENTS: usize = 200;
