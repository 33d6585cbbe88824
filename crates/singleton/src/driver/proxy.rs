//! The way to a singleton.

mod returns;

use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, broadcast, mpsc, oneshot, watch};
use tokio::time::{Instant, timeout_at};

use tenure_cluster::clients::{Gate, Gateway, Passing};
use tenure_cluster::messaging::reliable::ReliableSender;
use tenure_cluster::messaging::{
    Ask, AskError, DeadLetter, Expects, Lost, Message, NotDone, ReceiverError, Sender, Unknown,
    decode,
};
use tenure_cluster::transport::Closed;
use tenure_cluster::{Cluster, Node, Views};
use tenure_lease::planted::{self, GlueBug};
use tenure_lease::{Moment, Token};

use super::frame::{Frame, Raw};
use super::post::{Post, Wish};
use crate::hosted::{inbox, reliable_inbox};
use crate::proxy::{Finder, Host, Put};
use crate::{Settings, Word, telemetry};
use returns::{Sending, mark};

/// The way to a singleton, wherever it is, from any node of the cluster. Cheap to clone; clones
/// share what waits.
///
/// Messages of one sender arrive in order, each at most once. While nobody hosts the singleton they
/// wait here ([`Settings::buffer`]); one that was on its way to a host that died is lost, with a
/// [`DeadLetter`](tenure_cluster::messaging::DeadLetter). For *exactly once in effect*, through
/// every failover, see [`Proxy::reliable`].
pub struct Proxy<M> {
    shared: Arc<Shared<M>>,
}

struct Shared<M> {
    weak: Weak<Self>,
    cluster: Cluster,
    post: Arc<Post>,
    name: Arc<str>,
    inbox: Arc<str>,
    /// Which of this node's proxies it is.
    number: u32,
    asking_max: usize,
    /// The way to the host, while nothing waits for it here.
    direct: RwLock<Option<Arc<Sender<Frame<M>>>>>,
    /// How many messages are about to be on the way to a host: a mark follows them.
    sending: AtomicUsize,
    /// A former host has returned everything.
    settled: Notify,
    finder: Mutex<Finder<Bytes>>,
    host: watch::Sender<Option<Host>>,
    since: Mutex<Moment>,
    /// Questions that wait for a host.
    asking: AtomicUsize,
    /// Something waits, or the host is in doubt.
    wake: mpsc::Sender<()>,
}

/// Opens a proxy.
pub(crate) fn proxy<M: Message>(
    cluster: Cluster,
    name: Arc<str>,
    settings: Settings,
) -> Result<Proxy<M>, ReceiverError> {
    let post = Post::of(&cluster)?;
    let (host, _) = watch::channel(None);
    let (wake, woken) = mpsc::channel(1);
    let shared = Arc::new_cyclic(|weak| Shared {
        weak: weak.clone(),
        inbox: inbox(&name).into(),
        number: post.next_proxy(),
        asking_max: settings.buffer,
        direct: RwLock::new(None),
        sending: AtomicUsize::new(0),
        settled: Notify::new(),
        finder: Mutex::new(Finder::new(settings)),
        host,
        since: Mutex::new(Moment::now()),
        asking: AtomicUsize::new(0),
        wake,
        cluster,
        post,
        name,
    });
    shared.post.add_proxy(&shared.name, shared.number, shared.weak.clone());
    let gate: Arc<dyn Gate> = shared.clone();
    shared.cluster.open_gate(Gateway::Singleton, &shared.name, &gate);
    let (words, views) = (shared.post.words(&shared.name), shared.cluster.views());
    tokio::spawn(find(shared.weak.clone(), words, views, woken));
    Ok(Proxy { shared })
}

/// Finds the host, and sends what waits for it.
async fn find<M: Message>(
    weak: Weak<Shared<M>>,
    mut words: broadcast::Receiver<(Node, Word)>,
    mut views: Views,
    mut woken: mpsc::Receiver<()>,
) {
    let mut out = false;
    let mut ask_at = Instant::now();
    loop {
        let Some(shared) = weak.upgrade() else { return };
        shared.drain().await;
        let lost = shared.host.borrow().is_none();
        if lost && Instant::now() >= ask_at {
            shared.who();
            ask_at = Instant::now() + ASK_INTERVAL;
        }
        let retry_at = Instant::now() + RETRY_PAUSE;
        let pause = match lock(&shared.finder).waiting() {
            0 if !lost => Instant::now() + IDLE,
            // `ask_at` has passed long ago if the host is known.
            _ if lost || planted::has(GlueBug::ProxyDoesNotPause) => ask_at.min(retry_at),
            _ => retry_at,
        };
        drop(shared);
        tokio::select! {
            word = words.recv() => {
                let Some(shared) = weak.upgrade() else { return };
                match word {
                    Ok((from, word)) => shared.update(|finder| finder.heard(&from, &word)),
                    Err(broadcast::error::RecvError::Lagged(_)) => shared.who(),
                    Err(broadcast::error::RecvError::Closed) => out = true,
                }
            }
            view = views.next(), if !out => {
                let Some(shared) = weak.upgrade() else { return };
                match view {
                    Some(view) => shared.update(|finder| finder.view(&view)),
                    None => out = true,
                }
            }
            more = woken.recv() => if more.is_none() { return },
            () = tokio::time::sleep_until(pause) => {}
        }
        if out {
            weak.upgrade().iter().for_each(|shared| shared.give_up());
            return;
        }
    }
}

impl<M: Message> Shared<M> {
    /// Asks everybody who may host it.
    fn who(&self) {
        for (node, _) in self.cluster.view().members() {
            self.post.tell(&self.cluster, &self.name, node, Word::Who);
        }
    }

    /// Changes what is known of the host.
    fn update(&self, change: impl FnOnce(&mut Finder<Bytes>) -> bool) {
        let mut finder = lock(&self.finder);
        if change(&mut finder) {
            let (now, mut since) = (Moment::now(), lock(&self.since));
            let before = self.host.send_replace(finder.host().cloned());
            // From host to host it was nowhere for no time; before the first there was none to miss.
            if finder.host().is_some() && finder.has_moved() {
                let gap = before.map_or(now.since(*since), |_| Duration::ZERO);
                telemetry::gap(&self.name, gap);
            }
            *since = now;
        }
        self.set_direct(&mut finder);
        if let Some(former) = finder.next_mark() {
            tokio::spawn(mark(self.weak.clone(), former));
        }
    }

    /// Messages go straight to the host if none waits before them.
    fn set_direct(&self, finder: &mut Finder<Bytes>) {
        let host = finder.way();
        let mut direct = self.direct.write().unwrap_or_else(PoisonError::into_inner);
        if direct.as_ref().map(|sender| sender.node()) != host {
            *direct = host.map(|node| Arc::new(self.cluster.to(node, &self.inbox)));
        }
    }

    fn direct(&self) -> Option<(Arc<Sender<Frame<M>>>, Sending<'_>)> {
        let direct = self.direct.read().unwrap_or_else(PoisonError::into_inner);
        // Counted while the way cannot change.
        direct.as_ref().map(|sender| (sender.clone(), self.begin_to_send()))
    }

    fn begin_to_send(&self) -> Sending<'_> {
        self.sending.fetch_add(1, Ordering::SeqCst);
        Sending(&self.sending)
    }

    async fn tell_raw(&self, node: &Node, bytes: Bytes) -> Result<(), NotDone> {
        let message = Frame::Message { proxy: self.number, message: Raw(bytes) };
        self.cluster.to::<Frame<Raw>>(node, &self.inbox).tell(message).await
    }

    fn lost(&self, to: &Node, count: usize, why: Lost) {
        let receiver = Some(self.inbox.clone());
        self.cluster.dead_letter(DeadLetter {
            to: to.clone(),
            receiver,
            id: None,
            count: count as u64,
            why,
            detail: None,
        });
    }

    /// This node is out of the cluster: what waits will not be sent.
    fn give_up(&self) {
        let waiting = lock(&self.finder).give_up();
        self.lost(&self.cluster.me(), waiting, Lost::Unsent);
    }

    /// Sends what waits, until there is no more, or no host.
    async fn drain(&self) {
        loop {
            let taken = {
                let mut finder = lock(&self.finder);
                let taken = finder.take().map(|taken| (taken, self.begin_to_send()));
                telemetry::waiting(&self.name, finder.waiting());
                if taken.is_none() {
                    self.set_direct(&mut finder);
                }
                taken
            };
            let Some(((node, bytes), sending)) = taken else { return };
            let sent = self.tell_raw(&node, bytes.clone()).await;
            drop(sending);
            match sent {
                Ok(()) => lock(&self.finder).sent(),
                Err(why) if retriable(&why) => {
                    let length = bytes.len();
                    self.update(|finder| {
                        finder.unsent(bytes, length);
                        finder.not_there(&node)
                    });
                }
                Err(why) => {
                    telemetry::refused(&self.name);
                    tracing::warn!(singleton = %self.name, "a message that waited is lost: {why}");
                    let lost = if why == NotDone::Full { Lost::Full } else { Lost::Unsent };
                    self.lost(&node, 1, lost);
                    lock(&self.finder).sent();
                }
            }
        }
    }

    async fn tell(&self, message: M) -> Result<(), NotDone> {
        let Some((sender, sending)) = self.direct() else {
            return self.keep(encode(&message)?).await;
        };
        let mut frame = Some(Frame::Message { proxy: self.number, message });
        let told = sender.tell_from(&mut frame).await;
        drop(sending);
        match (told, frame) {
            (Err(why), Some(Frame::Message { message, .. })) if retriable(&why) => {
                self.update(|finder| finder.not_there(sender.node()));
                self.keep(encode(&message)?).await
            }
            (told, _) => told,
        }
    }

    /// Keeps a message until there is a host.
    async fn keep(&self, bytes: Bytes) -> Result<(), NotDone> {
        let length = bytes.len();
        if self.cluster.is_over() {
            return Err(NotDone::Closed(Arc::new(Closed::Transport)));
        }
        loop {
            let (put, sending) = {
                let mut finder = lock(&self.finder);
                let put = finder.put(bytes.clone(), length);
                telemetry::waiting(&self.name, finder.waiting());
                (put, self.begin_to_send())
            };
            match put {
                Put::Kept => {
                    self.set_direct(&mut lock(&self.finder));
                    let _ = self.wake.try_send(()); // It is awake already, or it is all over.
                    return Ok(());
                }
                Put::Full(_) => {
                    telemetry::refused(&self.name);
                    return Err(NotDone::Full);
                }
                Put::Send(node, bytes) => {
                    let told = self.tell_raw(&node, bytes).await;
                    drop(sending);
                    match told {
                        Err(why) if retriable(&why) => {
                            self.update(|finder| finder.not_there(&node));
                        }
                        done => return done,
                    }
                }
            }
        }
    }

    /// Sends it as soon as there is a host, and waits for the bytes of the answer, or until it was
    /// handled.
    async fn send_expecting(
        &self,
        bytes: Bytes,
        expects: Expects,
        time: Duration,
    ) -> Result<Vec<u8>, AskError> {
        let deadline = Instant::now() + time;
        let _question = self.cluster.question()?;
        let _turn = Turn::take(&self.asking, self.asking_max).ok_or(NotDone::Full)?;
        let mut hosts = self.host.subscribe();
        // Who refused it before: a manager on this node says at once that the host is still there, as
        // long as it believes so.
        let mut refused_before: Option<Node> = None;
        let mut full = 0;
        loop {
            let Some((sender, _)) = self.direct() else {
                let _ = self.wake.try_send(());
                let wait = async {
                    tokio::select! {
                        _ = hosts.changed() => {}
                        () = tokio::time::sleep(RETRY_PAUSE) => {}
                    }
                };
                if timeout_at(deadline, wait).await.is_err() {
                    return Err(NotDone::NotSentWithin(time).into());
                }
                continue;
            };
            let left = deadline.saturating_duration_since(Instant::now());
            let message = Frame::Message { proxy: self.number, message: Raw(bytes.clone()) };
            let raw = self.cluster.to::<Frame<Raw>>(sender.node(), &self.inbox);
            match raw.send_expecting(message, expects, left).await {
                Err(AskError::NotDone(why)) if retriable(&why) && Instant::now() < deadline => {
                    self.update(|finder| finder.not_there(sender.node()));
                    self.who();
                    if refused_before.as_ref() == Some(sender.node())
                        && !planted::has(GlueBug::AskDoesNotPause)
                    {
                        tokio::time::sleep_until(deadline.min(Instant::now() + RETRY_PAUSE)).await;
                    }
                    refused_before = Some(sender.node().clone());
                }
                // Many messages have come before it. If there is still no room, the singleton does not
                // keep up.
                Err(AskError::NotDone(NotDone::Full))
                    if full < FULL_MAX && Instant::now() + RETRY_PAUSE * (1 << full) < deadline =>
                {
                    tokio::time::sleep(RETRY_PAUSE * (1 << full)).await;
                    full += 1;
                }
                answer => return answer,
            }
        }
    }
}

impl<M> Drop for Shared<M> {
    fn drop(&mut self) {
        self.post.remove_proxy(&self.name, self.number);
        let waiting = lock(&self.finder).give_up() as u64;
        let (to, receiver) = (self.cluster.me(), Some(self.inbox.clone()));
        self.cluster.dead_letter(DeadLetter {
            to,
            receiver,
            id: None,
            count: waiting,
            why: Lost::Unsent,
            detail: None,
        });
    }
}

/// The way of clients, through this node.
impl<M: Message> Gate for Shared<M> {
    fn pass(self: Arc<Self>, _: &str, body: Bytes, expects: Expects, within: Duration) -> Passing {
        Box::pin(async move { self.send_expecting(body, expects, within).await })
    }
}

/// It certainly was not handled, and another host may.
fn retriable(why: &NotDone) -> bool {
    matches!(why, NotDone::NoSuchReceiver(_) | NotDone::NotAMember(_) | NotDone::Closed(_))
}

/// One of the questions that may wait.
struct Turn<'a>(&'a AtomicUsize);

impl<'a> Turn<'a> {
    fn take(asking: &'a AtomicUsize, most: usize) -> Option<Self> {
        let turn = Self(asking);
        (asking.fetch_add(1, Ordering::Relaxed) < most).then_some(turn)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<M: Message> Proxy<M> {
    /// Sends a message, or keeps it until there is a host. `Ok` means that it is on its way, or waits;
    /// [`NotDone::Full`] that too many wait.
    pub async fn tell(&self, message: M) -> Result<(), NotDone> {
        self.shared.tell(message).await
    }

    /// Asks a question: `.within(…)` sends it, as soon as there is a host, and waits for the answer.
    pub fn ask<Q: Ask + Into<M>>(&self, question: Q) -> Asking<'_, M, Q> {
        Asking { proxy: self, message: question.into(), _question: PhantomData }
    }

    /// Begins a stream of numbered messages whose effect happens exactly once, through every failover.
    /// The singleton takes them with [`Hosted::reliable_receiver`](crate::Hosted::reliable_receiver).
    /// `sender` is what people and ledgers call this sender; it should be the same after a restart.
    pub fn reliable(&self, sender: &str) -> Result<ReliableSender<M>, ReceiverError> {
        let receiver = reliable_inbox(&self.shared.name);
        self.shared.cluster.reliable(sender, &receiver, self.host())
    }

    /// Where the singleton is, now and whenever that changes.
    pub fn host(&self) -> watch::Receiver<Option<Node>> {
        let mut hosts = self.shared.host.subscribe();
        let node = |host: &Option<Host>| host.as_ref().map(|host| host.node.clone());
        let first = node(&hosts.borrow_and_update());
        let (nodes, receiver) = watch::channel(first);
        let proxy = self.clone(); // It finds the host for as long as somebody wants to know.
        tokio::spawn(async move {
            let _proxy = proxy;
            loop {
                tokio::select! {
                    changed = hosts.changed() => if changed.is_err() { return },
                    () = nodes.closed() => return,
                }
                // Also if it runs anew where it was.
                nodes.send_replace(node(&hosts.borrow_and_update()));
            }
        });
        receiver
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Has this node, which hosts it, hand it over to another, and stay away from it for a while
    /// ([`STAY_AWAY`](crate::manager::STAY_AWAY)) unless nobody else can host it: for operators. Says
    /// who comes next; if it is not possible, why not.
    pub async fn hand_over(&self) -> Result<Node, HandOverError> {
        let Status::Hosted { node, .. } = self.status() else {
            return Err(HandOverError("nobody hosts it".into()));
        };
        if node != self.shared.cluster.me() {
            return Err(HandOverError(format!("{node} hosts it: ask that node")));
        }
        let ended = || HandOverError("it is over on this node".into());
        let manager = self.shared.post.manager(&self.shared.name).ok_or_else(ended)?;
        let (answer, answered) = oneshot::channel();
        manager.send(Wish::HandOver(answer)).await.map_err(|_| ended())?;
        answered.await.map_err(|_| ended())?.map_err(HandOverError)
    }

    /// Stops hosting it on this node, which stays in the cluster: another node hosts it, if it may, and
    /// this proxy goes on. Returns when it has ended here and its lease is given back.
    ///
    /// With a lease it can be started here again ([`Builder`](crate::Builder)). Without one only the
    /// oldest node may host it, so this one cannot again before it has left the cluster and joined
    /// anew: [`StartError::Started`](crate::StartError::Started).
    pub async fn stop(&self) {
        let Some(manager) = self.shared.post.manager(&self.shared.name) else { return };
        let (stopper, stopped) = oneshot::channel();
        if manager.send(Wish::Stop(stopper)).await.is_ok() {
            let _ = stopped.await; // If nobody answers, this node is out of the cluster.
        }
    }

    /// Who hosts it, since when, under which token; why not, if nobody does.
    pub fn status(&self) -> Status {
        let host = self.shared.host.borrow().clone();
        let since = Moment::now().since(*lock(&self.shared.since));
        let waiting = lock(&self.shared.finder).waiting();
        let why_not = self.shared.post.why_not(&self.shared.name);
        match host {
            Some(Host { node, token }) => Status::Hosted { node, token, known_for: since },
            None => Status::Nowhere { known_for: since, waiting, why_not },
        }
    }
}

impl<M> Clone for Proxy<M> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

impl<M> std::fmt::Debug for Proxy<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Proxy").field("singleton", &self.shared.name).finish_non_exhaustive()
    }
}

/// Why a singleton cannot be handed over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct HandOverError(pub String);

/// A question that waits for its deadline.
#[must_use = "nothing is sent before `.within(…)` is awaited"]
pub struct Asking<'a, M, Q> {
    proxy: &'a Proxy<M>,
    message: M,
    _question: PhantomData<fn(Q)>,
}

impl<M, Q> std::fmt::Debug for Asking<'_, M, Q> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Asking").finish_non_exhaustive()
    }
}

impl<M: Message, Q: Ask> Asking<'_, M, Q> {
    /// Sends the question, as soon as there is a host, and waits for the answer, all within this time.
    pub async fn within(self, time: Duration) -> Result<Q::Reply, AskError> {
        let bytes = encode(&self.message)?;
        let answer = self.proxy.shared.send_expecting(bytes, Expects::Answer, time).await?;
        decode(&answer).map_err(|error| Unknown::Unreadable(error).into())
    }
}

/// What a node knows of a singleton.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// It runs.
    Hosted {
        /// There.
        node: Node,
        /// Under this token.
        token: Token,
        /// For so long, as far as this node has heard.
        known_for: Duration,
    },
    /// It does not run, as far as this node has heard.
    Nowhere {
        /// For so long.
        known_for: Duration,
        /// So many messages wait here.
        waiting: usize,
        /// Why this node does not host it, if it could.
        why_not: Option<String>,
    },
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Hosted { node, token, known_for } => {
                write!(f, "runs on {node} under token {token}, for {known_for:.0?}")
            }
            Self::Nowhere { known_for, waiting, why_not } => {
                write!(f, "runs nowhere, for {known_for:.0?}; {waiting} messages wait here")?;
                why_not.iter().try_for_each(|why| write!(f, "; not on this node: {why}"))
            }
        }
    }
}

fn encode<M: Message>(message: &M) -> Result<Bytes, NotDone> {
    let mut bytes = Vec::new();
    message.encode(&mut bytes).map_err(NotDone::Encoding)?;
    Ok(bytes.into())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that panics is done under it.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How often everybody is asked who hosts it, while that is not known.
const ASK_INTERVAL: Duration = Duration::from_millis(250);
/// Before what certainly did not arrive is sent again.
/// How often a question is asked again for which there was no room; each pause is twice the one before.
const FULL_MAX: u32 = 5;
const RETRY_PAUSE: Duration = Duration::from_millis(20);
const IDLE: Duration = Duration::from_secs(60);
