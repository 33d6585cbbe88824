//! The task that drives coordinator and region of one kind on this node.

use std::any::Any;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use tenure_cluster::messaging::{Message, Received, Receiver, Sender};
use tenure_cluster::{Cluster, Node, Status as MemberStatus, View, Views};
use tenure_lease::record::SessionRef;
use tenure_lease::{Loss, Moment, Session, Tenure, Token};

use super::guard::{Guard, Guarded, Guards};
use super::handle::{Sharding, Shared};
use super::letter::{Letter, board};
use super::outbox::Outbox;
use super::remote::{self, Frame};
use super::routes::{Item, Routes};
use super::shard::{Begin, Ended, StopOrder};
use super::{Event, Factory, Parcel, inbox, reliable_inbox, shard};
use crate::builder::StartError;
use crate::{
    Coordinator, Entity, Message as Word, Region, Settings, Shard, Status, StopReason, telemetry,
};

/// What to start.
pub(crate) struct Start {
    pub(crate) cluster: Cluster,
    pub(crate) kind: Arc<str>,
    pub(crate) guards: Guards,
    pub(crate) settings: Settings,
}

/// How a shard is run.
pub(super) type Spawn<M> = Box<dyn Fn(Begin<M>) -> Work<M> + Send + Sync>;
type Work<M> = Pin<Box<dyn Future<Output = Ended<M>> + Send>>;

/// The kinds that this node has something to do with.
#[derive(Default)]
struct Kinds(Mutex<HashMap<Arc<str>, Weak<dyn Any + Send + Sync>>>);

/// Starts hosting a kind, or, without a factory, only sending to it.
pub(crate) fn start<E: Entity>(
    start: Start,
    make: Option<Factory<E>>,
) -> Result<Sharding<E::Message>, StartError> {
    let kinds = start.cluster.local(Kinds::default);
    let mut kinds = kinds.0.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = kinds.get(&start.kind).and_then(Weak::upgrade) {
        return match (make, known.downcast::<Shared<E::Message>>()) {
            (None, Ok(shared)) if shared.settings.shards == start.settings.shards => {
                Ok(Sharding { shared })
            }
            _ => Err(StartError::Started(start.kind)),
        };
    }
    let kind = start.kind.clone();
    let sharding = begin(start, make)?;
    let shared: Arc<dyn Any + Send + Sync> = sharding.shared.clone();
    kinds.insert(kind, Arc::downgrade(&shared));
    Ok(sharding)
}

fn begin<E: Entity>(
    start: Start,
    make: Option<Factory<E>>,
) -> Result<Sharding<E::Message>, StartError> {
    let Start { cluster, kind, guards, settings } = start;
    let inbox: Arc<str> = inbox(&kind).into();
    let frames = cluster.receiver_with_room::<Frame<E::Message>>(&inbox, ROOM)?;
    let letters = cluster.receiver::<Letter>(&board(&kind))?;
    let numbered = cluster.reliable_receiver(&reliable_inbox(&kind))?;
    let (control, events) = mpsc::channel(EVENTS);
    let shared = Arc::new(Shared {
        routes: Routes::new(settings.shards),
        status: Mutex::new(Arc::new(Status { shards: settings.shards, ..Status::default() })),
        control: control.clone(),
        cluster: cluster.clone(),
        kind,
        inbox,
        settings,
    });
    tokio::spawn(remote::receive(shared.clone(), frames, control));
    tokio::spawn(remote::receive_numbered(shared.clone(), numbered));
    let spawn = make.map(|make| {
        let shared = shared.clone();
        let spawn: Spawn<E::Message> =
            Box::new(move |begin| Box::pin(shard::run::<E>(shared.clone(), make.clone(), begin)));
        spawn
    });
    let (leave, leaving) = mpsc::channel(1);
    let (over, is_over) = watch::channel(false);
    cluster.before_leaving(move || {
        let (leave, mut is_over) = (leave.clone(), is_over.clone());
        async move {
            let _ = leave.try_send(()); // Asked already, or over, is as good.
            let _ = is_over.wait_for(|over| *over).await;
        }
    });
    let control = Control::new(shared.clone(), guards, spawn, over);
    tokio::spawn(control.run(Incoming { events, letters, leaving }));
    Ok(Sharding { shared })
}

/// What control listens to.
struct Incoming<M> {
    events: mpsc::Receiver<Event<M>>,
    letters: Receiver<Letter>,
    leaving: mpsc::Receiver<()>,
}

pub(super) struct Control<M: Message> {
    pub(super) shared: Arc<Shared<M>>,
    /// The incarnation that the cores are for.
    pub(super) me: Node,
    pub(super) spawn: Option<Spawn<M>>,
    pub(super) region: Region<Parcel<M>>,
    pub(super) coordinator: Option<Coordinator>,
    pub(super) guards: Guards,
    pub(super) guard: Guard,
    guarded: mpsc::UnboundedReceiver<Guarded>,
    views: Views,
    pub(super) tenure: Option<Arc<Tenure>>,
    /// Until when the coordinator was last told that its lease is held.
    renewed_until: Moment,
    pub(super) session: Option<Arc<Session>>,
    /// Why the session was lost, while shards stop because of it.
    pub(super) loss: Option<Loss>,
    pub(super) observe: BTreeSet<SessionRef>,
    pub(super) take_over: BTreeSet<SessionRef>,
    pub(super) shards: HashMap<Shard, Running<M>>,
    pub(super) tasks: JoinSet<Ended<M>>,
    /// By the number of the shard.
    pub(super) published: Vec<Published>,
    pub(super) outboxes: HashMap<Node, Outbox<M>>,
    pub(super) letters: HashMap<Node, Sender<Letter>>,
    /// What the cores of this node say to each other.
    pub(super) own: Vec<Word>,
    /// A node that has another number of shards, that number, and until when that counts.
    pub(super) stranger: Option<(Node, u32, Moment)>,
    pub(super) left: bool,
    pub(super) out: bool,
    /// Since when it hosts nothing any more, because it leaves.
    pub(super) handed_over: Option<Moment>,
    /// When something last came for a shard that is not here.
    pub(super) arrived_at: Moment,
    over: watch::Sender<bool>,
}

/// A shard that is here.
pub(super) struct Running<M> {
    pub(super) token: Token,
    pub(super) task: tokio::task::Id,
    pub(super) items: mpsc::Sender<Item<M>>,
    pub(super) orders: watch::Sender<Option<StopOrder>>,
    pub(super) stop: watch::Sender<Option<StopReason>>,
    /// What found no room yet.
    pub(super) pending: VecDeque<Parcel<M>>,
    /// It stops, and this came meanwhile from other nodes: to be looked at when it has.
    pub(super) held: Option<VecDeque<Event<M>>>,
}

/// What was last said about the way to a shard.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Published {
    Slow,
    Wait,
    Here(Token),
    There(Node),
}

impl<M: Message> Control<M> {
    fn new(
        shared: Arc<Shared<M>>,
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
            guard: Guard::new(guards.clone(), None, tell),
            views: shared.cluster.views(),
            published: vec![Published::Slow; settings.shards as usize],
            guards,
            guarded,
            me,
            spawn,
            tenure: None,
            renewed_until: Moment::ZERO,
            session: None,
            loss: None,
            observe: BTreeSet::new(),
            take_over: BTreeSet::new(),
            shards: HashMap::new(),
            tasks: JoinSet::new(),
            outboxes: HashMap::new(),
            letters: HashMap::new(),
            own: Vec::new(),
            stranger: None,
            left: false,
            out: false,
            handed_over: None,
            arrived_at: Moment::ZERO,
            over,
            shared,
        }
    }

    async fn run(mut self, mut incoming: Incoming<M>) {
        let Incoming { events, letters, leaving } = &mut incoming;
        let (mut deaf, mut asked) = (false, false);
        let routes = self.shared.routes.clone();
        loop {
            self.attend();
            let mut holding = self.guard.holding();
            let holds = *holding.borrow_and_update();
            let idle = self.shards.is_empty() && !holds;
            let ended = self.is_gone();
            if idle && self.has_handed_over() {
                self.over.send_replace(true);
            }
            if ended && idle {
                if self.out {
                    self.over.send_replace(true);
                    return;
                }
                self.next_life();
                asked = false;
                continue;
            }
            let wake = self.next_wake();
            tokio::select! {
                biased;
                Some(guarded) = self.guarded.recv() => self.guarded(guarded),
                Some(ended) = self.tasks.join_next() => match ended {
                    Ok(ended) => self.ended(ended),
                    Err(error) => self.failed(&error),
                },
                _ = holding.changed(), if self.left || ended => {}
                view = self.views.next(), if !self.out => self.view(view),
                leave = leaving.recv(), if !asked => {
                    asked = true;
                    if leave.is_some() {
                        self.leave();
                    }
                }
                letter = letters.recv(), if !deaf => match letter {
                    Some(letter) => self.letter(letter),
                    None => deaf = true,
                },
                Some(event) = events.recv(), if !ended => self.event(event),
                () = routes.drained() => {}
                () = tokio::task::yield_now(), if !self.own.is_empty() => {}
                () = until(wake) => {}
            }
        }
    }

    /// Whether this node may go: others host its shards, and whatever was on its way here was sent back.
    fn has_handed_over(&self) -> bool {
        let Some(since) = self.handed_over else { return false };
        let now = Moment::now();
        let is_known = !self.region.homes().any(|(_, node)| *node == self.me);
        let is_quiet = now >= self.arrived_at + QUIET;
        self.is_alone() || is_known && is_quiet || now >= since + self.shared.settings.patience
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
        self.guard = Guard::new(self.guards.clone(), self.guard.last_session(), tell);
        self.guarded = guarded;
        self.views = self.shared.cluster.views();
        (self.tenure, self.loss, self.stranger) = (None, None, None);
        (self.left, self.handed_over) = (false, None);
        self.observe.clear();
        self.take_over.clear();
        self.own.clear();
        self.outboxes.clear();
        self.letters.clear();
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
                self.region.reachable(reachable, now);
                if self.left && self.is_alone() {
                    self.region.hurry(now);
                }
            }
        }
    }

    fn leave(&mut self) {
        let now = Moment::now();
        self.left = true;
        self.region.leave(now);
        if self.is_alone() {
            self.region.hurry(now);
        }
    }

    fn guarded(&mut self, guarded: Guarded) {
        let now = Moment::now();
        match guarded {
            Guarded::SessionWon(session) => {
                let tenure = session.tenure();
                let name = tenure.name().clone();
                let session_ref = SessionRef { name, term: tenure.token().term };
                let deadline = tenure.deadline();
                self.loss = None;
                self.session = Some(session);
                return self.region.session_won(session_ref, deadline, now);
            }
            Guarded::SessionLost(term, loss) => {
                let session = self.session.as_ref().map(|session| session.tenure().token().term);
                if session == Some(term) {
                    self.loss = Some(loss);
                    self.region.session_lost(now);
                }
                return;
            }
            _ => {}
        }
        let Some(coordinator) = &mut self.coordinator else { return };
        match guarded {
            Guarded::Won(tenure) => {
                let (term, deadline) = (tenure.token().term, tenure.deadline());
                coordinator.won(term, tenure.note(), deadline, now);
                // Withdrawn meanwhile, it is given back as soon as nobody keeps it.
                self.tenure = self.guard.is_wanted().then_some(tenure);
            }
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
            Guarded::Able(able) => {
                let is_stranger = self.stranger.as_ref().is_some_and(|(.., until)| now < *until);
                coordinator.able(able && !is_stranger || self.tenure.is_some(), now);
            }
            Guarded::SessionOver(session) => coordinator.session_over(&session, now),
            Guarded::SessionWon(_) | Guarded::SessionLost(..) => {}
        }
    }

    /// Something was said about this kind by another node.
    fn letter(&mut self, received: Received<Letter>) {
        let Received { message: Letter { shards, message }, from, .. } = received;
        let own = self.shared.settings.shards;
        if shards != own {
            return self.stranger(from, shards, message.as_ref());
        }
        if let Some(message) = message {
            self.word(&from, message);
        }
    }

    /// Two nodes that count differently would look for an entity in different places.
    fn stranger(&mut self, from: Node, shards: u32, message: Option<&Word>) {
        let (kind, own, now) = (&self.shared.kind, self.shared.settings.shards, Moment::now());
        tracing::error!(%kind, %from, "it has {shards} shards there and {own} here; both nodes refuse each other: give all nodes the same number");
        if message.is_some() {
            let letter = Letter { shards: own, message: None };
            let _ = self.shared.cluster.to(&from, &board(kind)).try_tell(letter);
        }
        let until = now + self.shared.settings.resend_interval * STRANGE_FOR;
        // Whoever is greeted by a coordinator with another number is the one that is wrong.
        if matches!(message, Some(Word::Greeting { .. }))
            && let Some(coordinator) = &mut self.coordinator
            && !coordinator.is_active(now)
        {
            coordinator.able(false, now);
        }
        self.stranger = Some((from, shards, until));
    }

    pub(super) fn word(&mut self, from: &Node, message: Word) {
        let now = Moment::now();
        self.refresh(now);
        match &message {
            Word::Greeting { .. } | Word::Allocate(_) | Word::HandOff(_) | Word::Homes { .. } => {
                return self.region.receive(from, message, now);
            }
            Word::Refused(_) => self.region.receive(from, message.clone(), now),
            Word::Report { .. }
            | Word::Started(_)
            | Word::Stopped(_)
            | Word::Where(_)
            | Word::Able(_) => {}
        }
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.receive(from, message, now);
        }
    }

    /// Tells the cores until when lease and session are held.
    pub(super) fn refresh(&mut self, now: Moment) {
        if let Some(session) = &self.session {
            self.region.session_renewed(session.tenure().deadline(), now);
        }
        if let (Some(tenure), Some(coordinator)) = (&self.tenure, &mut self.coordinator) {
            let until = tenure.deadline();
            if std::mem::replace(&mut self.renewed_until, until) != until {
                coordinator.renewed(until, now);
            }
        }
    }

    fn next_wake(&self) -> Moment {
        let coordinator = self.coordinator.as_ref().map_or(Moment::NEVER, Coordinator::next_wake);
        let pending = self.shards.values().any(|running| !running.pending.is_empty());
        let goes = self.handed_over.is_some() && !*self.over.borrow();
        let retry = if pending || goes { Moment::now() + RETRY } else { Moment::NEVER };
        self.region.next_wake().min(coordinator).min(retry)
    }

    /// Tells users how things are.
    pub(super) fn say(&self) {
        let now = Moment::now();
        let coordinates =
            self.coordinator.as_ref().is_some_and(|it| it.is_active(now) && it.is_recovered());
        let term = self.region.term();
        let status = Status {
            coordinator: self.region.coordinator().cloned().zip(term),
            coordinates,
            shards: self.shared.settings.shards,
            hosted: self.region.shards().collect(),
            homes: self.region.homes().map(|(shard, node)| (shard, node.clone())).collect(),
            waiting: 0,
            why_not: self.why_not(now),
        };
        let mut said = self.shared.status.lock().unwrap_or_else(PoisonError::into_inner);
        if **said != status {
            telemetry::hosting(&self.shared.kind, status.hosted.len());
            telemetry::coordinating(&self.shared.kind, coordinates);
            *said = Arc::new(status);
        }
    }

    fn why_not(&self, now: Moment) -> Option<String> {
        if self.out || self.handed_over.is_some() {
            return Some("this node has left the cluster".into());
        }
        if let Some((node, shards, until)) = &self.stranger
            && now < *until
        {
            let own = self.shared.settings.shards;
            return Some(format!("it has {shards} shards on {node}, and {own} here"));
        }
        let coordinator = self.coordinator.as_ref()?;
        if self.guards.session.is_some() && self.session.is_none() {
            return Some("this process does not have its session".into());
        }
        if !coordinator.is_candidate() {
            let known = self.region.coordinator().is_some();
            return (!known)
                .then(|| "another node should coordinate, and has not greeted this one".into());
        }
        if !coordinator.is_active(now) {
            return Some(
                "another node still holds the coordinator's lease, or its store does not answer"
                    .into(),
            );
        }
        if !coordinator.is_recovered() {
            return Some(
                "it coordinates, and waits for all that may host shards to answer, or to be over"
                    .into(),
            );
        }
        None
    }
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

/// How many messages wait for the region before senders do.
const EVENTS: usize = 1024;
/// How many messages from other nodes wait.
const ROOM: usize = 16 << 10;
/// For how long nothing must have come before a node goes.
const QUIET: std::time::Duration = std::time::Duration::from_millis(100);
/// Before a shard is offered again what it had no room for, and the like.
const RETRY: std::time::Duration = std::time::Duration::from_millis(1);
/// For how many resend intervals it counts that a node has another number of shards.
const STRANGE_FOR: u32 = 3;
