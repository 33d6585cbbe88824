use std::any::{Any, TypeId};
use std::collections::{BTreeSet, HashMap};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use rustls::pki_types::UnixTime;
use tokio::sync::{broadcast, mpsc, watch};
use tokio::task::JoinSet;

use crate::Node;
use crate::driver::{self, Command, Proof, Question, Questions, Started};
use crate::membership::{Ending, Event};
use crate::messaging::{Messaging, NotDone};
use crate::settings::{Settings, SettingsError};
use crate::transport::{Identity, IdentityError, TransportError};
use crate::view::View;

/// This process's place in a cluster. Clones share it; when the last one is dropped, the node
/// leaves in the background.
#[derive(Clone, Debug)]
pub struct Cluster {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    commands: mpsc::Sender<Command>,
    state: watch::Receiver<State>,
    events: broadcast::Sender<Event>,
    hooks: Hooks,
    questions: Arc<Questions>,
    messaging: Arc<Messaging>,
    proof: watch::Receiver<Proof>,
    identity: Option<Identity>,
    settings: Settings,
    local: Mutex<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>,
}

/// What the driver publishes.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) me: Node,
    pub(crate) view: Option<Arc<View>>,
    /// Who believes exactly this view.
    pub(crate) seen: Arc<BTreeSet<Node>>,
    pub(crate) up: bool,
    /// Why this node is in no cluster, if it is in none and something keeps it.
    pub(crate) outside: Option<Arc<str>>,
    /// What people should look at.
    pub(crate) warnings: Arc<[String]>,
    pub(crate) ended: Option<End>,
}

impl State {
    /// Of a node that is in no cluster yet.
    pub(crate) fn outside(me: Node) -> Self {
        Self {
            me,
            view: None,
            seen: Arc::default(),
            up: false,
            outside: None,
            warnings: Arc::default(),
            ended: None,
        }
    }
}

/// How it ended.
#[derive(Clone, Debug)]
pub(crate) enum End {
    Membership(Ending),
    Failed(Arc<str>),
    /// A store refused one of its leases.
    Lease(Arc<str>),
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Membership(ending) => ending.fmt(f),
            Self::Failed(why) | Self::Lease(why) => f.write_str(why),
        }
    }
}

impl From<&End> for JoinError {
    fn from(end: &End) -> Self {
        match end {
            End::Membership(ending) => Self::Ended(ending.clone()),
            End::Failed(why) => Self::Failed(why.to_string()),
            End::Lease(why) => Self::Lease(why.to_string()),
        }
    }
}

/// What to do before this node leaves.
#[derive(Clone, Default)]
pub(crate) struct Hooks(Arc<Mutex<Vec<Hook>>>);

type Hook = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

impl Cluster {
    /// Joins the cluster, or forms it. Returns when this node is a full member.
    ///
    /// That takes as long as it takes: a cluster in which somebody is unreachable lets nobody
    /// become a full member. Dropping the future gives up. A store that refuses one of the node's
    /// leases is found out first; one that does not answer is not waited for: see
    /// [`ready`](Self::ready).
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use tenure_cluster::{Cluster, Settings};
    /// let store = tenure_lease::open("file:./leases").await?;
    /// let settings = Settings::new("shop")
    ///     .address("127.0.0.1:7400".parse()?)
    ///     .identity("certs/")
    ///     .formation(store.lease("shop.formation"));
    /// let cluster = Cluster::join(settings).await?;
    /// println!("{} members", cluster.view().members().len());
    /// cluster.leave().await;
    /// # Ok(()) }
    /// ```
    pub async fn join(settings: Settings) -> Result<Self, JoinError> {
        let cluster = Self::start(settings)?;
        cluster.up().await?;
        Ok(cluster)
    }

    /// Begins to join, and returns at once, to be asked meanwhile how far it has come: for a program
    /// that shows it. See [`up`](Self::up).
    pub fn start(settings: Settings) -> Result<Self, JoinError> {
        settings.check()?;
        let hooks = Hooks::default();
        let Started { commands, state, events, messaging, proof, identity, questions } =
            driver::start(settings.clone(), hooks.clone())?;
        let shared = Shared {
            commands,
            state,
            events,
            hooks,
            questions,
            messaging,
            proof,
            identity,
            settings,
            local: Mutex::default(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Waits until this node is a full member.
    pub async fn up(&self) -> Result<(), JoinError> {
        let mut state = self.shared.state.clone();
        let settled = state.wait_for(|state| state.up || state.ended.is_some()).await;
        let ended =
            settled.map_or(Some(End::Failed("its thread ended".into())), |s| s.ended.clone());
        match ended {
            None => Ok(()),
            Some(end) => Err((&end).into()),
        }
    }

    /// Whether this node can do its part now; if not, why: it is no full member, its certificate has
    /// expired, or one of its leases could not be had when that was last tried, which is about once
    /// a minute. For a readiness
    /// check; a node that is not ready stays in the cluster.
    pub fn ready(&self) -> Result<(), NotReady> {
        let not = |why: &str| Err(NotReady(why.into()));
        let state = self.shared.state.borrow();
        if let Some(end) = &state.ended {
            return not(&format!("this node is out of the cluster: {end}"));
        }
        if !state.up {
            let why = state.outside.as_ref().map_or(String::new(), |why| format!(": {why}"));
            return not(&format!("this node is no full member yet{why}"));
        }
        let expired = |identity: &Identity| identity.expired(UnixTime::now());
        if let Some(why) = self.shared.identity.as_ref().and_then(expired) {
            return not(&why);
        }
        match &*self.shared.proof.borrow() {
            Proof::Usable => Ok(()),
            Proof::Pending => not("it is not yet known whether its leases can be had"),
            Proof::Doubtful(why) | Proof::Refused(why) => not(why),
        }
    }

    /// What somebody should look at although this node does its part, a sentence each: a role that
    /// downing counts and nobody has, a verdict that this version cannot read, a member that counts
    /// as reachable and that nothing gets through to. Empty when all is well. The log has them too.
    pub fn warnings(&self) -> Arc<[String]> {
        self.shared.state.borrow().warnings.clone()
    }

    /// What this node was started with.
    pub fn settings(&self) -> &Settings {
        &self.shared.settings
    }

    /// This node.
    pub fn me(&self) -> Node {
        self.shared.state.borrow().me.clone()
    }

    /// What this node believes now. Once it is out of the cluster, what it believed last.
    pub fn view(&self) -> Arc<View> {
        self.seen().0
    }

    /// What this node believes, as [`view`](Self::view), and who is known to believe exactly the
    /// same: itself at least. When these are all members that are not down, the view is converged.
    pub fn seen(&self) -> (Arc<View>, Arc<BTreeSet<Node>>) {
        let state = self.shared.state.borrow();
        let view = state.view.clone().unwrap_or_else(|| Arc::new(View::new(0)));
        (view, state.seen.clone())
    }

    /// The view, now and whenever a member, a status or a reachability in it changes: always the
    /// newest, so that a slow listener skips some.
    ///
    /// ```no_run
    /// # async fn example(cluster: tenure_cluster::Cluster) {
    /// let mut views = cluster.views();
    /// while let Some(view) = views.next().await {
    ///     println!("{} members", view.members().len());
    /// }
    /// # }
    /// ```
    pub fn views(&self) -> Views {
        let state = self.shared.state.clone();
        let me = state.borrow().me.clone();
        Views { state, me, picture: None }
    }

    /// What happens from now on, as this node sees it.
    pub fn events(&self) -> Events {
        Events(self.shared.events.subscribe())
    }

    /// Leaves: tells the others, hands over what this node hosts, is gone. Returns when it is.
    ///
    /// Drain your server first, and then leave: while this node leaves, what it tells and asks still finds
    /// its way. When it has handed over everything, it waits for the answers of singletons and entities
    /// that it has asked, 5 s at most; what is asked from then on is refused, and afterwards every call is
    /// an error.
    pub async fn leave(&self) {
        let _ = self.shared.commands.send(Command::Leave).await; // Gone already is as good.
        self.ended().await;
    }

    /// What a program's `main` ends with: waits until this process is told to end (SIGTERM, SIGINT or
    /// SIGHUP), and leaves, so that whatever this node hosts is handed over.
    ///
    /// An error if the node is out of the cluster for another reason: it was declared down, say. Return
    /// it from `main`, so that the process fails and whoever runs it starts it again; then it joins as
    /// a new incarnation, with nothing left over from before. A second signal ends the wait at once,
    /// with an error, too.
    ///
    /// ```no_run
    /// # use tenure_cluster::{Cluster, Settings};
    /// # async fn example(settings: Settings) -> Result<(), Box<dyn std::error::Error>> {
    /// let cluster = Cluster::join(settings).await?;
    /// // … start singletons and shards …
    /// cluster.leave_when_terminated().await?;
    /// # Ok(()) }
    /// ```
    pub async fn leave_when_terminated(&self) -> Result<(), JoinError> {
        driver::leave_when_terminated(self).await
    }

    /// Asks another member to leave.
    pub async fn ask_to_leave(&self, node: &Node) {
        let _ = self.shared.commands.send(Command::AskToLeave(node.clone())).await;
    }

    /// Declares a member down. It stops as soon as it hears of it; if it cannot, make sure that it
    /// has stopped before you say so: the others will go on without it.
    pub async fn down(&self, node: &Node) {
        let _ = self.shared.commands.send(Command::Down(node.clone())).await;
    }

    /// Has this node's thread panic, so that a test can see what becomes of it.
    #[cfg(feature = "planted")]
    pub async fn panic(&self) {
        let _ = self.shared.commands.send(Command::Panic).await;
    }

    /// Why this node is out of the cluster, unless it left.
    pub(crate) fn out(&self) -> Result<(), JoinError> {
        match &self.shared.state.borrow().ended {
            None | Some(End::Membership(Ending::Left)) => Ok(()),
            Some(end) => Err(end.into()),
        }
    }

    /// Whether this node is out of the cluster for good.
    pub fn is_over(&self) -> bool {
        self.shared.state.borrow().ended.is_some()
    }

    /// Waits until this node is out of the cluster, and says why.
    pub async fn ended(&self) -> Ending {
        let mut state = self.shared.state.clone();
        let ended = state.wait_for(|state| state.ended.is_some()).await;
        match ended.map(|state| state.ended.clone()) {
            Ok(Some(End::Membership(ending))) => ending,
            Ok(Some(End::Failed(why) | End::Lease(why))) => Ending::Failed(why),
            Ok(None) | Err(_) => Ending::Failed("its thread ended".into()),
        }
    }

    /// What this machine, or the store of its leases, could not do, if that is why this node is out
    /// of the cluster.
    pub fn failure(&self) -> Option<JoinError> {
        match &self.shared.state.borrow().ended {
            Some(end @ (End::Failed(_) | End::Lease(_))) => Some(end.into()),
            _ => None,
        }
    }

    /// The one value of this type that goes with this node's place in the cluster, made when it is
    /// first asked for: for what is built on the cluster, and must be there once. It must not keep a
    /// [`Cluster`], or the node would never leave by itself.
    pub fn local<T: Send + Sync + 'static>(&self, make: impl FnOnce() -> T) -> Arc<T> {
        let mut local = self.shared.local.lock().unwrap_or_else(PoisonError::into_inner);
        let value = local.entry(TypeId::of::<T>()).or_insert_with(|| Arc::new(make()));
        match value.clone().downcast() {
            Ok(value) => value,
            Err(_) => unreachable!("it is filed under its type"),
        }
    }

    /// Begins a question that this node waits for when it leaves: after everything was handed over, until
    /// this is dropped, and 5 s at most. Refused once it waits: this node is about to go. For what is built
    /// on the cluster, and asks again elsewhere.
    pub fn question(&self) -> Result<Question, NotDone> {
        self.shared.questions.begin()
    }

    pub(crate) fn messaging(&self) -> &Arc<Messaging> {
        &self.shared.messaging
    }

    /// Has this done when this node leaves, before it goes: whatever it hosts must have stopped, or
    /// be somebody else's, when the future ends.
    ///
    /// All of these together have
    /// [`hand_over_timeout`](crate::MembershipSettings::hand_over_timeout). Then the node goes, and
    /// the log says so; what has not ended runs on in this process, unguarded by the cluster.
    pub fn before_leaving<F>(&self, hand_over: impl Fn() -> F + Send + Sync + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let hook: Hook = Arc::new(move || Box::pin(hand_over()));
        self.shared.hooks.0.lock().unwrap_or_else(PoisonError::into_inner).push(hook);
    }
}

impl Hooks {
    /// Does all of it, the last one first: what was started last stops first.
    pub(crate) async fn run(self) {
        let hooks = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for hook in hooks.into_iter().rev() {
            // In a task of its own: if it panics, the others are run nevertheless.
            let mut task = JoinSet::new();
            task.spawn(async move { hook().await });
            if let Some(Err(error)) = task.join_next().await {
                tracing::error!("something that is done before leaving failed: {error}");
            }
        }
    }
}

impl std::fmt::Debug for Hooks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hooks")
    }
}

/// The view of one node, whenever it changes.
#[derive(Clone, Debug)]
pub struct Views {
    state: watch::Receiver<State>,
    me: Node,
    picture: Option<u128>,
}

impl Views {
    /// The next one; at first the present one. An empty one when the node is out of the cluster and
    /// starts over: [`Cluster::me`] is another incarnation then. `None` when it is out for good.
    pub async fn next(&mut self) -> Option<Arc<View>> {
        loop {
            {
                let state = self.state.borrow_and_update();
                if state.ended.is_some() {
                    return None;
                }
                if state.me != self.me {
                    self.me = state.me.clone();
                    self.picture = None;
                    return Some(Arc::new(View::new(0)));
                }
                if let Some(view) = &state.view {
                    let picture = Some(view.picture());
                    if self.picture != picture {
                        self.picture = picture;
                        return Some(view.clone());
                    }
                }
            }
            self.state.changed().await.ok()?;
        }
    }
}

/// What happens in the cluster, as one node sees it.
#[derive(Debug)]
pub struct Events(broadcast::Receiver<Event>);

impl Events {
    /// The next one; `None` when the node is out of the cluster and everything was told.
    ///
    /// Whoever falls more than a thousand events behind gets [`Event::Missed`], and should look at
    /// [`Cluster::view`].
    pub async fn next(&mut self) -> Option<Event> {
        match self.0.recv().await {
            Ok(event) => Some(event),
            Err(broadcast::error::RecvError::Lagged(count)) => Some(Event::Missed(count)),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}

/// Why a node is in no cluster.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// Settings that cannot work.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The certificate cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The port cannot be listened on, or the like.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// It was over before it began.
    #[error("not in the cluster: {0}")]
    Ended(Ending),
    /// What this machine could not do.
    #[error("not in the cluster: {0}")]
    Failed(String),
    /// A store refused the formation or the arbitration lease: which, and what to do.
    #[error("not in the cluster: {0}")]
    Lease(String),
}

/// Why a node cannot do its part now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not ready: {0}")]
pub struct NotReady(pub String);
