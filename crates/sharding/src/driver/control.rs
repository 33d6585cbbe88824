//! The task that drives coordinator and region of one kind on this node.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::{Notify, mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};

use tenure_cluster::messaging::{Message, Protocol, Received, Receiver, Reply, Sender};
use tenure_cluster::{Node, Status as MemberStatus, View, Views};
use tenure_lease::planted::{self, GlueBug};
use tenure_lease::record::SessionRef;
use tenure_lease::{Loss, Moment, Session, Tenure, Token};

use super::crew::{Crew, Ended, Inlet, News};
use super::guard::{Guard, Guarded, Guards};
use super::handle::Shared;
use super::hosting::{Hosting, Stopping};
use super::letter::{Farewell, board, farewells};
use super::observer::Observer;
use super::outbox::Outbox;
use super::strangers::Strangers;
use super::{Event, Parcel};
use crate::hosted_guard::GuardCount;
use crate::wire::{GuardedBy, Letter, SetupHere};
use crate::{Coordinator, Message as Word, Region, Setup, Shard, StopReason};

/// How shards are run.
pub(super) type Spawn<M> = Arc<dyn Fn(Inlet<M>) -> Work + Send + Sync>;
type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What control listens to.
pub(super) struct Incoming<M> {
    pub(super) events: mpsc::Receiver<Event<M>>,
    pub(super) letters: Receiver<Protocol<Letter>>,
    pub(super) farewells: Receiver<Farewell>,
    pub(super) leaving: mpsc::Receiver<()>,
    pub(super) hosting: mpsc::Receiver<Hosting<M>>,
    /// How shards are run on this node, if they are, and what guards them.
    pub(super) work: (Option<Spawn<M>>, Guards),
    /// It was asked to leave.
    pub(super) asked: bool,
}

pub(super) struct Control<M: Message> {
    pub(super) shared: Arc<Shared<M>>,
    /// Kept by everything that it runs.
    pub(super) life: Arc<()>,
    /// The incarnation that the cores are for.
    pub(super) me: Node,
    pub(super) spawn: Option<Spawn<M>>,
    pub(super) region: Region<Parcel<M>>,
    pub(super) coordinator: Option<Coordinator>,
    pub(super) guards: Guards,
    pub(super) guard: Guard,
    pub(super) guarded: mpsc::UnboundedReceiver<Guarded>,
    views: Views,
    pub(super) tenure: Option<Arc<Tenure>>,
    /// Until when the coordinator was last told that its lease is held.
    renewed_until: Moment,
    pub(super) session: Option<Arc<Session>>,
    /// There is a session, in another store than that of the coordinator's lease.
    pub(super) elsewhere: bool,
    /// Why the session was lost, while shards stop because of it.
    pub(super) loss: Option<Loss>,
    pub(super) observe: BTreeSet<SessionRef>,
    pub(super) take_over: BTreeSet<SessionRef>,
    pub(super) shards: HashMap<Shard, Running<M>>,
    /// Those that run shards; none, if this node hosts none.
    pub(super) crews: Vec<Crew<M>>,
    pub(super) tasks: JoinSet<()>,
    news: (mpsc::UnboundedSender<News<M>>, mpsc::UnboundedReceiver<News<M>>),
    /// By the number of the shard.
    pub(super) published: Vec<Published>,
    /// Shards of which something else is to be said.
    pub(super) unsaid: BTreeSet<Shard>,
    /// Shards that something waits for until they have room.
    pub(super) crowded: BTreeSet<Shard>,
    /// Shards that have ended, and of which guards are kept.
    pub(super) kept: BTreeSet<Shard>,
    /// Told when a shard has no guards any more.
    pub(super) guards_dropped: Arc<Notify>,
    pub(super) outboxes: HashMap<Node, Outbox<M>>,
    pub(super) letters: HashMap<Node, Sender<Protocol<Letter>>>,
    /// What the cores of this node say to each other.
    pub(super) own: Vec<Word>,
    /// How this kind is set up here.
    pub(super) setup: SetupHere,
    /// Nodes where it is set up so that they cannot work together with this one.
    pub(super) strangers: Strangers,
    /// Nodes where it has sessions and here it has none, or the other way round, and what to do.
    pub(super) unlike: BTreeMap<Node, String>,
    pub(super) left: bool,
    pub(super) stopping: Option<Stopping>,
    /// It is stopped here, and this node coordinates no more.
    pub(super) withdrawn: bool,
    pub(super) out: bool,
    /// Since when it hosts nothing any more, because it leaves.
    pub(super) handed_over: Option<Moment>,
    /// When metrics are to be told next what passes here.
    pub(super) traffic_at: Moment,
    /// Asks everybody, once it is known where its shards are, whether it may go.
    farewell: Option<JoinHandle<()>>,
    /// Those who go, and are told when they may.
    pub(super) goers: Vec<(Node, Reply)>,
    over: watch::Sender<bool>,
}

/// A shard that is here.
pub(super) struct Running<M> {
    pub(super) token: Token,
    pub(super) crew: usize,
    pub(super) stop: watch::Sender<Option<StopReason>>,
    /// What found no room yet.
    pub(super) pending: VecDeque<Parcel<M>>,
    /// It stops, and this came meanwhile from other nodes: to be looked at when it has.
    pub(super) held: Option<VecDeque<Event<M>>>,
    /// Those that its entities have given to other work.
    pub(super) guards: Arc<GuardCount>,
    /// It has ended, and guards of it are kept.
    pub(super) ended: Option<Ended<M>>,
    /// When it must have stopped, if it was told to.
    pub(super) stop_by: Option<Moment>,
}

/// What was last said about the way to a shard.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Published {
    Slow,
    Wait(Option<Node>),
    Here(Token),
    There(Node),
}

impl<M: Message> Control<M> {
    pub(super) fn new(
        shared: Arc<Shared<M>>,
        life: Arc<()>,
        guards: Guards,
        spawn: Option<Spawn<M>>,
        over: watch::Sender<bool>,
    ) -> Self {
        let me = shared.cluster.me();
        let (tell, guarded) = mpsc::unbounded_channel();
        let settings = shared.settings.clone();
        let hosts = spawn.is_some();
        Self {
            region: Region::new(me.clone(), settings.clone(), hosts),
            coordinator: hosts.then(|| Coordinator::new(me.clone(), settings.clone())),
            guard: Guard::new(guards.clone(), observer(&shared, &guards), None, tell),
            views: shared.cluster.views(),
            published: vec![Published::Slow; settings.shards as usize],
            life,
            guarded,
            me,
            spawn,
            tenure: None,
            renewed_until: Moment::ZERO,
            session: None,
            elsewhere: false,
            loss: None,
            observe: BTreeSet::new(),
            take_over: BTreeSet::new(),
            shards: HashMap::new(),
            crews: Vec::new(),
            tasks: JoinSet::new(),
            news: mpsc::unbounded_channel(),
            unsaid: (0..settings.shards).map(Shard).collect(),
            crowded: BTreeSet::new(),
            kept: BTreeSet::new(),
            guards_dropped: Arc::default(),
            outboxes: HashMap::new(),
            letters: HashMap::new(),
            own: Vec::new(),
            setup: set_up(&shared, &guards, hosts),
            strangers: Strangers::default(),
            unlike: BTreeMap::new(),
            left: false,
            stopping: None,
            withdrawn: false,
            out: false,
            handed_over: None,
            traffic_at: Moment::ZERO,
            farewell: None,
            goers: Vec::new(),
            over,
            guards,
            shared,
        }
    }

    pub(super) async fn run(mut self, incoming: &mut Incoming<M>) {
        let Incoming { events, letters, farewells, leaving, hosting, work, asked } = incoming;
        self.open_crews();
        if *asked {
            self.leave(); // Whoever was asked before has failed.
        }
        let mut deaf = false;
        let shared = self.shared.clone();
        let (routes, guards_dropped) = (&shared.routes, self.guards_dropped.clone());
        loop {
            self.let_kept_go();
            self.attend();
            self.go_on_stopping();
            let mut holding = self.guard.holding();
            let holds = *holding.borrow_and_update();
            let idle = self.shards.is_empty() && !holds;
            let ended = self.is_gone();
            if idle && self.has_handed_over() {
                self.over.send_replace(true);
            }
            if ended && idle {
                if self.out {
                    self.guard.want_no_session();
                    self.traffic_at = Moment::ZERO; // For the last time.
                    self.say(&BTreeSet::new());
                    self.over.send_replace(true);
                    return;
                }
                self.next_life();
                *asked = false;
                continue;
            }
            let wake = self.next_wake();
            tokio::select! {
                biased;
                Some(guarded) = self.guarded.recv() => self.guarded(guarded),
                Some(news) = self.news.1.recv() => self.news(news),
                Some(Err(error)) = self.tasks.join_next() => self.failed(&error),
                // Without a lease there is nobody who would tell.
                Ok(()) = holding.changed(), if self.left || ended || self.withdrawn => {}
                view = self.views.next(), if !self.out => self.view(view),
                leave = leaving.recv(), if !*asked => {
                    *asked = true;
                    if leave.is_some() {
                        self.leave();
                    }
                }
                Some(wish) = hosting.recv() => *work = self.hosting(wish),
                letter = letters.recv(), if !deaf => match letter {
                    Some(letter) => self.letter(letter),
                    None => deaf = true,
                },
                Some(farewell) = farewells.recv(), if !deaf => self.goes(farewell),
                Some(event) = events.recv(), if !ended => self.event(event),
                () = guards_dropped.notified() => {}
                () = routes.drained() => {}
                () = shared.rebalance.notified() => self.rebalance(),
                () = tokio::task::yield_now(), if !self.own.is_empty() => {}
                () = until(wake) => {}
            }
        }
    }

    /// As many as there are threads to run them.
    pub(super) fn open_crews(&mut self) {
        if self.spawn.is_some() {
            let count = tokio::runtime::Handle::current().metrics().num_workers().max(1);
            self.crews = (0..count).filter_map(|_| self.open_crew(count)).collect();
        }
    }

    pub(super) fn open_crew(&mut self, count: usize) -> Option<Crew<M>> {
        let (spawn, tasks) = (self.spawn.as_ref()?, &mut self.tasks);
        let news = self.news.0.clone();
        Some(Crew::new(count, news, |inlet| tasks.spawn(spawn(inlet))))
    }

    /// Whether this node may go: others host its shards, and nothing is on its way here any more.
    fn has_handed_over(&mut self) -> bool {
        let Some(since) = self.handed_over else { return false };
        let is_known = !self.region.homes().any(|(_, node)| *node == self.me);
        if is_known && self.farewell.is_none() {
            self.farewell = Some(self.bid_farewell());
        }
        let may_go = self.farewell.as_ref().is_some_and(JoinHandle::is_finished);
        self.is_alone() || may_go || Moment::now() >= since + self.shared.settings.patience
    }

    /// Asks all others. Who has nothing to do with this kind says so, or is gone: that is as good.
    fn bid_farewell(&self) -> JoinHandle<()> {
        let (cluster, patience) = (self.shared.cluster.clone(), self.shared.settings.patience);
        let (mut others, name) = (reachable(&cluster.view()), farewells(&self.shared.kind));
        others.remove(&self.me);
        tokio::spawn(async move {
            let mut answers = JoinSet::new();
            for node in others {
                let sender = cluster.to::<Farewell>(&node, &name);
                answers.spawn(async move { drop(sender.ask(Farewell).within(patience).await) });
            }
            while answers.join_next().await.is_some() {}
        })
    }

    /// Another node is about to go.
    fn goes(&mut self, received: Received<Farewell>) {
        let Received { from, reply, .. } = received;
        self.region.farewell(&from, Moment::now());
        self.goers.retain(|(node, _)| *node != from);
        self.goers.push((from, reply));
    }

    /// Whether nobody else could host.
    fn is_alone(&self) -> bool {
        let (view, role) = (self.shared.cluster.view(), self.shared.settings.role.as_ref());
        view.by_age(role).all(|node| *node == self.me)
    }

    /// Whether this incarnation is out of the cluster.
    pub(super) fn is_gone(&self) -> bool {
        self.out || self.me != self.shared.cluster.me()
    }

    /// This incarnation is out of the cluster, and nothing is left of it: there is another.
    fn next_life(&mut self) {
        self.region.end(Moment::now());
        self.attend();
        let (tell, guarded) = mpsc::unbounded_channel();
        let (settings, hosts) = (self.shared.settings.clone(), self.spawn.is_some());
        self.me = self.shared.cluster.me();
        self.region = Region::new(self.me.clone(), settings.clone(), hosts);
        self.coordinator = hosts.then(|| Coordinator::new(self.me.clone(), settings));
        let observer = observer(&self.shared, &self.guards);
        self.guard = Guard::new(self.guards.clone(), observer, self.guard.last_session(), tell);
        self.guarded = guarded;
        self.views = self.shared.cluster.views();
        (self.tenure, self.loss, self.elsewhere) = (None, None, false);
        (self.strangers, self.unlike) = (Strangers::default(), BTreeMap::new());
        (self.left, self.handed_over, self.farewell) = (false, None, None);
        self.withdrawn = false;
        self.observe.clear();
        self.take_over.clear();
        self.own.clear();
        self.unsaid = (0..self.shared.settings.shards).map(Shard).collect();
        self.outboxes.clear();
        self.letters.clear();
        self.goers.clear();
        self.over.send_replace(false);
    }

    fn view(&mut self, view: Option<Arc<View>>) {
        let now = Moment::now();
        let view = view.filter(|_| self.shared.cluster.me() == self.me);
        self.out = view.is_none() && self.shared.cluster.me() == self.me;
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.view(view.as_deref(), now);
        }
        match view {
            None => self.region.end(now),
            Some(view) => {
                let reachable = reachable(&view);
                self.outboxes.retain(|node, _| view.member(node).is_some());
                self.letters.retain(|node, _| view.member(node).is_some());
                self.goers.retain(|(node, _)| view.member(node).is_some());
                self.unlike.retain(|node, _| view.member(node).is_some());
                let margin = self.shared.settings.removal_margin;
                self.strangers.view(&view, &self.me, margin, now);
                self.region.reachable(reachable, now);
                if self.left && self.is_alone() {
                    self.region.hurry(now);
                }
            }
        }
    }

    fn rebalance(&mut self) {
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.rebalance_now(Moment::now());
        }
    }

    fn leave(&mut self) {
        let now = Moment::now();
        self.left = true;
        if self.session.is_none() {
            self.guard.want_no_session();
        }
        self.region.leave(now);
        if self.is_alone() {
            self.region.hurry(now);
        }
    }

    fn guarded(&mut self, guarded: Guarded) {
        let now = Moment::now();
        match guarded {
            // A node that goes hosts nothing under it, and whoever starts in its place wants it. One
            // that starts over may have it in its next life.
            Guarded::SessionWon(session) if !self.region.wants_session() => {
                if self.left {
                    self.guard.done_with(session, true);
                }
                return;
            }
            Guarded::SessionWon(session) => {
                let tenure = session.tenure();
                let name = tenure.name().clone();
                let session_ref = SessionRef { name, term: tenure.token().term };
                let deadline = tenure.deadline();
                self.loss = None;
                self.elsewhere = false;
                self.session = Some(session);
                return self.region.session_won(session_ref, deadline, now);
            }
            Guarded::SessionLost(..) if planted::has(GlueBug::SessionLossIgnored) => return,
            Guarded::SessionLost(term, loss) => {
                let session = self.session.as_ref().map(|session| session.tenure().token().term);
                if session == Some(term) {
                    self.loss = Some(loss);
                    self.region.session_lost(now);
                }
                return;
            }
            Guarded::SessionElsewhere => return self.elsewhere = true,
            _ => {}
        }
        let Some(coordinator) = &mut self.coordinator else { return };
        match guarded {
            Guarded::Won(tenure, withdrawals) => {
                // Withdrawn meanwhile, it is given back as soon as nobody keeps it.
                if self.guard.is_wanted(withdrawals) {
                    let (term, deadline) = (tenure.token().term, tenure.deadline());
                    coordinator.won(term, tenure.note(), deadline, now);
                    self.tenure = Some(tenure);
                }
            }
            Guarded::Lost(_) if planted::has(GlueBug::CoordinatorLossIgnored) => {}
            Guarded::Lost(term) => {
                if self.tenure.take_if(|tenure| tenure.token().term == term).is_some() {
                    coordinator.lost(now);
                }
            }
            Guarded::NoteWritten { term, number } => {
                if self.tenure.as_ref().is_some_and(|tenure| tenure.token().term == term) {
                    coordinator.note_written(number, now);
                }
            }
            Guarded::Seen(note) => coordinator.note_seen(&note, now),
            Guarded::Able(_) if self.withdrawn => {}
            Guarded::Able(able) => coordinator.able(able || self.tenure.is_some(), now),
            Guarded::SessionOver(session) => coordinator.session_over(&session, now),
            Guarded::SessionWon(_) | Guarded::SessionLost(..) | Guarded::SessionElsewhere => {}
        }
    }

    /// Something was said about this kind by another node.
    fn letter(&mut self, received: Received<Protocol<Letter>>) {
        let Received { message: Protocol { message: letter, .. }, from, .. } = received;
        let Letter { setup, serves, message } = letter;
        let kind = &self.shared.kind;
        if let Some(why) = self.setup.refuses(&setup, &from) {
            let serves = serves && setup.guarded_by != GuardedBy::SendsOnly;
            return self.stranger(&from, why, serves, message.is_some());
        }
        self.strangers.forget(&from);
        match self.setup.unlike(&setup, &from) {
            Some(why) if self.unlike.get(&from) != Some(&why) => {
                tracing::error!(%kind, "{why}");
                self.unlike.insert(from.clone(), why);
            }
            Some(_) => {}
            None => drop(self.unlike.remove(&from)),
        }
        if let Some(message) = message {
            self.word(&from, message);
        }
    }

    /// Two nodes that count differently would look for an entity in different places; two that are
    /// guarded by different things would host it in two.
    fn stranger(&mut self, from: &Node, why: String, serves: bool, tell: bool) {
        let (kind, now) = (&self.shared.kind, Moment::now());
        if self.strangers.meet(from, why.clone(), serves) {
            tracing::error!(%kind, "{why}; both nodes refuse each other");
            let margin = self.shared.settings.removal_margin;
            self.strangers.view(&self.shared.cluster.view(), &self.me, margin, now);
        }
        if tell {
            let (setup, serves) = (self.setup.clone(), !self.strangers.stands_back());
            let cluster = &self.shared.cluster;
            let message = Letter { setup, serves, message: None };
            let letter = Protocol { message, spoken: cluster.spoken_with(from) };
            let _ = cluster.to(from, &board(kind)).post(letter);
        }
    }

    /// Serves, or stands back, as strangers make it.
    pub(super) fn stand_back(&mut self, now: Moment) {
        if let Some(stands_back) = self.strangers.decide(now)
            && let Some(coordinator) = &mut self.coordinator
        {
            coordinator.stand_back(stands_back, now);
        }
    }

    pub(super) fn word(&mut self, from: &Node, message: Word) {
        let now = Moment::now();
        self.refresh(now);
        match &message {
            Word::Allocate(_) | Word::HandOff(_) => {
                return self.region.receive(from, message, now);
            }
            Word::Greeting { .. } | Word::Homes { .. } | Word::Refused(_) => {
                self.region.receive(from, message.clone(), now);
            }
            Word::Report { .. }
            | Word::Started(_)
            | Word::Stopped(_)
            | Word::Where(_)
            | Word::Able(_)
            | Word::Introduce { .. } => {}
        }
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.receive(from, message, now);
        }
    }

    /// Tells the cores until when lease and session are held.
    pub(super) fn refresh(&mut self, now: Moment) {
        if let Some(session) = &self.session {
            let until = match planted::has(GlueBug::SessionLossIgnored) {
                true => now + PLANTED_SESSION,
                false => session.tenure().deadline(),
            };
            self.region.session_renewed(until, now);
        }
        if let (Some(tenure), Some(coordinator)) = (&self.tenure, &mut self.coordinator) {
            let until = match planted::has(GlueBug::CoordinatorLossIgnored) {
                true => now + PLANTED_SESSION,
                false => tenure.deadline(),
            };
            if std::mem::replace(&mut self.renewed_until, until) != until {
                coordinator.renewed(until, now);
            }
        }
    }

    fn next_wake(&self) -> Moment {
        let coordinator = self.coordinator.as_ref().map_or(Moment::NEVER, Coordinator::next_wake);
        let goes = self.handed_over.is_some() && !*self.over.borrow() || self.stopping.is_some();
        let retry =
            if !self.crowded.is_empty() || goes { Moment::now() + RETRY } else { Moment::NEVER };
        let strangers = self.strangers.next_wake();
        let wake = self.region.next_wake().min(coordinator).min(strangers).min(retry);
        wake.min(self.traffic_at).min(self.kept_until())
    }
}

pub(super) fn observer<M>(shared: &Shared<M>, guards: &Guards) -> Option<Arc<Observer>> {
    guards.lease.as_ref().map(|lease| Observer::of(&shared.cluster, lease))
}

/// How the kind is set up on this node.
pub(super) fn set_up<M>(shared: &Shared<M>, guards: &Guards, hosts: bool) -> SetupHere {
    let settings = &shared.settings;
    let lease = guards.lease.as_ref().and_then(|lease| lease.name().ok());
    let lease = lease.map(|name| name.as_str().to_owned()).unwrap_or_default();
    let guarded_by = match settings.setup {
        _ if !hosts => GuardedBy::SendsOnly,
        Setup::Gossip => GuardedBy::Gossip,
        Setup::Lease => GuardedBy::Lease(lease),
        Setup::Sessions => GuardedBy::Sessions(lease),
    };
    SetupHere { placing: settings.placing(), guarded_by }
}

/// Those that nobody calls unreachable.
fn reachable(view: &View) -> BTreeSet<Node> {
    let unreachable: BTreeSet<&Node> = view.observations().map(|(_, subject)| subject).collect();
    view.members()
        .filter(|(node, member)| member.status < MemberStatus::Down && !unreachable.contains(node))
        .map(|(node, _)| node.clone())
        .collect()
}

async fn until(moment: Moment) {
    match moment {
        Moment::NEVER => std::future::pending().await,
        moment => tokio::time::sleep(moment.since(Moment::now())).await,
    }
}

/// How long a session or a coordinator's lease lasts by a planted defect.
const PLANTED_SESSION: std::time::Duration = std::time::Duration::from_secs(60);
/// Before a shard is offered again what it had no room for, and the like.
const RETRY: std::time::Duration = std::time::Duration::from_millis(1);
