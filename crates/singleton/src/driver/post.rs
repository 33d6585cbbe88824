//! What the nodes say to each other about their singletons: one receiver for all of them.

use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;

use tenure_cluster::messaging::{
    AskError, BOARD, DeadLetter, Lost, NotDone, Protocol, Received, Receiver, ReceiverError,
};
use tenure_cluster::{Cluster, Node};
use tenure_lease::Token;

use super::PATIENCE;
use super::frame::{FAREWELL, RETURNED, Returned};
use crate::hosted::inbox;
use crate::wire::{Farewell, Letter};
use crate::{StopReason, Word};

/// One for each cluster that this process is in.
#[derive(Default)]
pub(super) struct Post {
    slots: Mutex<HashMap<Arc<str>, Slot>>,
    /// How many proxies there were.
    proxies: AtomicU32,
    happenings: Feed,
}

/// A proxy on this node, whatever its messages are.
pub(super) trait AnyProxy: Send + Sync {
    /// A message came back from a node that does not host the singleton.
    fn returned(&self, from: &Node, bytes: Bytes);

    /// Everything that was sent to that node is back, or was handled.
    fn marked(&self, from: &Node);

    /// A node that does not host the singleton is about to go: waits until nothing is on its way there.
    fn let_go(self: Arc<Self>, node: Node) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}

struct Feed(broadcast::Sender<Happening>);

impl Default for Feed {
    fn default() -> Self {
        Self(broadcast::channel(WORDS).0)
    }
}

/// Something that a singleton did on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Happening {
    /// Which singleton.
    pub singleton: Arc<str>,
    /// What.
    pub what: Did,
}

/// What a singleton did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Did {
    /// It began here, under this token.
    Start(Token),
    /// It was told to stop, for this reason.
    Stop(StopReason),
    /// It failed: it panicked, returned an error, or did not stop in time.
    Fail(String),
}

impl fmt::Display for Happening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { singleton, what } = self;
        match what {
            Did::Start(token) => write!(f, "{singleton} starts here, with token {token}"),
            Did::Stop(reason) => write!(f, "{singleton} stops here: {reason}"),
            Did::Fail(error) => write!(f, "{singleton} failed here: {error}"),
        }
    }
}

/// What the singletons of a cluster do on this node, from now on.
#[derive(Debug)]
pub struct Happenings(broadcast::Receiver<Happening>);

impl Happenings {
    /// Of the singletons of this cluster that this node may host.
    pub fn of(cluster: &Cluster) -> Result<Self, ReceiverError> {
        Ok(Self(Post::of(cluster)?.happenings.0.subscribe()))
    }

    /// The next; whoever falls far behind misses some.
    pub async fn next(&mut self) -> Happening {
        loop {
            match self.0.recv().await {
                Ok(happening) => return happening,
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                // This node is out of the cluster for good.
                Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
            }
        }
    }
}

/// Of one singleton.
struct Slot {
    words: broadcast::Sender<(Node, Word)>,
    /// There is a manager of it here, and this is why it does not host it.
    managed: Option<String>,
    /// The way to that manager. One that finds the other end dropped has been replaced.
    manager: Option<mpsc::Sender<Wish>>,
    /// It was stopped here, and another manager may take the place of this one.
    replaceable: bool,
    /// By their numbers.
    proxies: HashMap<u32, Weak<dyn AnyProxy>>,
}

/// Which manager of a singleton there is on this node.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Managed {
    First,
    /// It was stopped here.
    Again,
}

/// What is wanted of a manager on this node.
pub(super) enum Wish {
    /// Another node should host it; answered with who that is, or why not.
    HandOver(oneshot::Sender<Result<Node, String>>),
    /// This node should host it no more; answered when nothing of it is left here.
    Stop(oneshot::Sender<()>),
}

impl Post {
    /// Opens it, when it is first asked for.
    pub(super) fn of(cluster: &Cluster) -> Result<Arc<Self>, ReceiverError> {
        let mut opened = Ok(());
        let post = cluster.local(|| {
            let post = Arc::new(Self::default());
            opened = post.clone().listen(cluster).and_then(|()| post.clone().take_back(cluster));
            post
        });
        opened?;
        Ok(Arc::clone(&post))
    }

    fn listen(self: Arc<Self>, cluster: &Cluster) -> Result<(), ReceiverError> {
        let mut letters = cluster.receiver::<Protocol<Letter>>(&board())?;
        tokio::spawn(async move {
            while let Some(received) = letters.recv().await {
                let Letter { singleton, word } = received.message.message;
                if received.reply.is_wanted() {
                    let managed = self.why_not(&singleton.as_str().into()).is_some();
                    tokio::spawn(received.reply.answer::<Letter>(managed));
                }
                self.deliver(&singleton, received.from, word);
            }
            lock(&self.slots).clear(); // Nothing more will come.
        });
        Ok(())
    }

    fn take_back(self: Arc<Self>, cluster: &Cluster) -> Result<(), ReceiverError> {
        let mut returned = cluster.receiver::<Returned>(RETURNED)?;
        let mut farewells = cluster.receiver::<Protocol<Farewell>>(FAREWELL)?;
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    biased;
                    Some(received) = returned.recv() => self.came_back(&returned, received),
                    Some(received) = farewells.recv() => self.let_go(received),
                    else => return,
                }
            }
        });
        Ok(())
    }

    fn came_back(&self, receiver: &Receiver<Returned>, received: Received<Returned>) {
        let Received { message: Returned { singleton, proxy, message }, from, .. } = received;
        let slots = lock(&self.slots);
        let proxy = slots.get(&*singleton).and_then(|slot| slot.proxies.get(&proxy)?.upgrade());
        drop(slots);
        match (proxy, message) {
            (Some(proxy), Some(message)) => {
                receiver.take_back(&from);
                proxy.returned(&from, message.into());
            }
            (Some(proxy), None) => proxy.marked(&from),
            // Nobody is left who could send it on.
            (None, Some(_)) => {
                receiver.take_back(&from);
                let (name, why) = (Some(inbox(&singleton).into()), Lost::Late);
                receiver.dead_letter(DeadLetter {
                    to: from,
                    receiver: name,
                    id: None,
                    count: 1,
                    why,
                    detail: None,
                });
            }
            (None, None) => {}
        }
    }

    /// Answers when nothing is on its way to that node from here.
    fn let_go(&self, received: Received<Protocol<Farewell>>) {
        let Received { message: farewell, from, reply } = received;
        let proxies = self.proxies_of(&farewell.message.singleton);
        tokio::spawn(async move {
            for proxy in proxies {
                let _ = timeout(PATIENCE, proxy.let_go(from.clone())).await; // As long as it asks.
            }
            let _ = reply.answer::<Farewell>(()).await; // It may be gone.
        });
    }

    fn proxies_of(&self, singleton: &str) -> Vec<Arc<dyn AnyProxy>> {
        let slots = lock(&self.slots);
        let proxies = slots.get(singleton).into_iter().flat_map(|slot| slot.proxies.values());
        proxies.filter_map(Weak::upgrade).collect()
    }

    /// Waits until nothing is on its way to this node, which hosts the singleton no more.
    pub(super) async fn bid_farewell(&self, cluster: &Cluster, singleton: &str) {
        let mut answers = JoinSet::new();
        for (node, _) in cluster.view().members() {
            let sender = cluster.to::<Protocol<Farewell>>(node, FAREWELL);
            let message = Farewell { singleton: singleton.into() };
            let farewell = Protocol { message, spoken: cluster.spoken_with(node) };
            answers.spawn(async move { drop(sender.ask(farewell).within(PATIENCE).await) });
        }
        while answers.join_next().await.is_some() {}
    }

    /// A number for a proxy on this node.
    pub(super) fn next_proxy(&self) -> u32 {
        self.proxies.fetch_add(1, Relaxed)
    }

    pub(super) fn add_proxy(&self, singleton: &Arc<str>, number: u32, proxy: Weak<dyn AnyProxy>) {
        lock(&self.slots).entry(singleton.clone()).or_default().proxies.insert(number, proxy);
    }

    pub(super) fn remove_proxy(&self, singleton: &Arc<str>, number: u32) {
        if let Some(slot) = lock(&self.slots).get_mut(singleton) {
            slot.proxies.remove(&number);
        }
    }

    /// What is said about a singleton from now on.
    pub(super) fn words(&self, singleton: &Arc<str>) -> broadcast::Receiver<(Node, Word)> {
        lock(&self.slots).entry(singleton.clone()).or_default().words.subscribe()
    }

    /// Notes that this node has a manager of the singleton: the first, or another after it was
    /// stopped here. `None` if there is one.
    pub(super) fn manage(
        &self,
        singleton: &Arc<str>,
        manager: mpsc::Sender<Wish>,
    ) -> Option<Managed> {
        let mut slots = lock(&self.slots);
        let slot = slots.entry(singleton.clone()).or_default();
        let managed = match (&slot.managed, std::mem::take(&mut slot.replaceable)) {
            (None, _) => Managed::First,
            (Some(_), true) => Managed::Again,
            (Some(_), false) => return None,
        };
        (slot.managed, slot.manager) = (Some(String::new()), Some(manager));
        Some(managed)
    }

    /// The manager has stopped it on this node, and another may take its place.
    pub(super) fn set_replaceable(&self, singleton: &Arc<str>) {
        if let Some(slot) = lock(&self.slots).get_mut(singleton) {
            slot.replaceable = true;
        }
    }

    /// The way to the manager on this node, if there is one.
    pub(super) fn manager(&self, singleton: &Arc<str>) -> Option<mpsc::Sender<Wish>> {
        lock(&self.slots).get(singleton)?.manager.clone()
    }

    /// The manager has ended.
    pub(super) fn unmanage(&self, singleton: &Arc<str>) {
        if let Some(entry) = lock(&self.slots).get_mut(singleton) {
            (entry.managed, entry.manager, entry.replaceable) = (None, None, false);
        }
    }

    /// Why this node does not host it.
    pub(super) fn say_why_not(&self, singleton: &Arc<str>, why: String) {
        if let Some(entry) = lock(&self.slots).get_mut(singleton) {
            entry.managed = Some(why);
        }
    }

    /// The same, if it could.
    pub(super) fn why_not(&self, singleton: &Arc<str>) -> Option<String> {
        lock(&self.slots).get(singleton)?.managed.clone()
    }

    /// Tells whoever watches this node.
    pub(super) fn happened(&self, singleton: &Arc<str>, what: Did) {
        let _ = self.happenings.0.send(Happening { singleton: singleton.clone(), what });
    }

    /// To whoever listens on this node.
    pub(super) fn deliver(&self, singleton: &str, from: Node, word: Word) {
        if let Some(entry) = lock(&self.slots).get(singleton) {
            let _ = entry.words.send((from, word)); // Nobody need listen.
        }
    }

    /// To a node. A word may be lost: what matters is said again.
    pub(super) fn tell(&self, cluster: &Cluster, singleton: &str, to: &Node, word: Word) {
        if *to == cluster.me() {
            return self.deliver(singleton, to.clone(), word);
        }
        let message = Letter { singleton: singleton.into(), word };
        let letter = Protocol { message, spoken: cluster.spoken_with(to) };
        let _ = cluster.to::<Protocol<Letter>>(to, &board()).post(letter);
    }

    /// The same, and asks whether there is a manager: true if it is known that there is none.
    pub(super) async fn is_absent(
        cluster: Cluster,
        singleton: Arc<str>,
        to: Node,
        word: Word,
    ) -> (Node, bool) {
        let message = Letter { singleton: (*singleton).into(), word };
        let letter = Protocol { message, spoken: cluster.spoken_with(&to) };
        let sender = cluster.to::<Protocol<Letter>>(&to, &board());
        let answer = sender.ask(letter).within(ASKING).await;
        let no_post = AskError::from(NotDone::NoSuchReceiver(board().into()));
        (to, answer == Ok(false) || answer == Err(no_post))
    }
}

impl Default for Slot {
    fn default() -> Self {
        Self {
            words: broadcast::channel(WORDS).0,
            managed: None,
            manager: None,
            replaceable: false,
            proxies: HashMap::new(),
        }
    }
}

fn board() -> String {
    format!("{BOARD}singletons")
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Maps of who listens: sound after any panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long to wait for an answer; the next question comes after as long.
const ASKING: Duration = Duration::from_secs(1);
/// Whoever falls further behind misses some; they are said again.
const WORDS: usize = 256;
