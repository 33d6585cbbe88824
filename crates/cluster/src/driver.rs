//! Where the cores meet the world: one thread per node of a cluster, with a runtime of its own, so
//! that nothing that users do keeps a node from answering.
#![allow(clippy::disallowed_methods, reason = "this is where clocks, threads and chance come in")]

mod arbiter;
mod discover;
mod formation;
mod life;
mod outside;
mod preflight;
mod questions;
mod warnings;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use tenure_lease::signals::{self, Signals};
use tokio::runtime::{self, Handle, Runtime};
use tokio::sync::{broadcast, mpsc, watch};
use tokio::task::AbortHandle;

use crate::cluster::{Cluster, End, Hooks, JoinError, State};
use crate::membership::{Ending, Event};
use crate::messaging::Messaging;
use crate::settings::Settings;
use crate::transport::{Handles, Identity, Local, Security, Transport};
use crate::{Incarnation, Node, telemetry};
pub(crate) use preflight::Proof;
pub use questions::Question;
pub(crate) use questions::Questions;

/// What users ask for.
#[derive(Debug)]
pub(crate) enum Command {
    Leave,
    AskToLeave(Node),
    Down(Node),
    #[cfg(feature = "planted")]
    Panic,
}

/// What a node's thread works with.
struct Driver {
    settings: Settings,
    security: Security,
    hooks: Hooks,
    questions: Arc<Questions>,
    /// The runtime that user code runs on.
    data: Handle,
    commands: mpsc::Receiver<Command>,
    state: watch::Sender<State>,
    events: broadcast::Sender<Event>,
    messaging: Arc<Messaging>,
    /// Whether the leases can be had.
    proof: watch::Receiver<Proof>,
    /// The newest cluster that this node has given way to. It joins none that is older.
    newest_cluster: u64,
}

/// What users get of a node.
pub(crate) struct Started {
    pub(crate) commands: mpsc::Sender<Command>,
    pub(crate) state: watch::Receiver<State>,
    pub(crate) events: broadcast::Sender<Event>,
    pub(crate) messaging: Arc<Messaging>,
    pub(crate) proof: watch::Receiver<Proof>,
    pub(crate) identity: Option<Identity>,
    pub(crate) questions: Arc<Questions>,
}

/// Starts a node's thread.
pub(crate) fn start(settings: Settings, hooks: Hooks) -> Result<Started, JoinError> {
    let failed = |what: &str, error: std::io::Error| JoinError::Failed(format!("{what}: {error}"));
    let data = Handle::try_current()
        .map_err(|_| JoinError::Failed("join must be called within a tokio runtime".into()))?;
    let security = match &settings.identity {
        Some(directory) => {
            Security::Tls(Identity::load(directory, &settings.cluster, &settings.name)?)
        }
        None => Security::PlaintextWithoutAnyProtection,
    };
    let identity = match &security {
        Security::Tls(identity) => Some(identity.clone()),
        Security::PlaintextWithoutAnyProtection => None,
    };
    let runtime = NodeRuntime::new().map_err(|error| failed("cannot start a runtime", error))?;
    let (commands, commands_out) = mpsc::channel(COMMANDS);
    let (events, _) = broadcast::channel(EVENTS);
    let me = new_node(&settings);
    let state = watch::Sender::new(State::outside(me.clone()));
    let messaging = Arc::new(Messaging::new(data.clone(), state.subscribe(), &settings.transport));
    let (proof_in, proof) = watch::channel(Proof::Pending);
    let leases = preflight::leases(&settings);
    let proving = runtime.handle().spawn(preflight::prove(leases, preflight::EVERY, proof_in));
    let questions = Arc::<Questions>::default();
    let driver = Driver {
        questions: questions.clone(),
        newest_cluster: 0,
        proof: proof.clone(),
        hooks,
        data,
        messaging: messaging.clone(),
        commands: commands_out,
        state: state.clone(),
        events: events.clone(),
        security,
        settings,
    };
    // The first time here, so that what is wrong with the port is told to whoever called.
    let first = match driver.bind(&me, runtime.handle()) {
        Ok(first) => first,
        Err(error) => {
            runtime.shut_down(&proving.abort_handle());
            return Err(error);
        }
    };
    let (told, published) = (messaging.clone(), state.clone());
    let panicked = move |panic: Box<dyn Any + Send>| publish_panic(&*panic, &told, &published);
    runtime
        .run(driver.run(me, first), proving.abort_handle(), panicked)
        .map_err(|error| failed("cannot start a thread", error))?;
    let state = state.subscribe();
    Ok(Started { commands, state, events, messaging, proof, identity, questions })
}

/// What a node's driver runs on: a thread of its own, so that user code cannot starve it.
enum NodeRuntime {
    OwnThread(Runtime),
    /// A simulated process has one thread for everything.
    #[cfg(feature = "simulation")]
    Simulated(Handle),
}

impl NodeRuntime {
    fn new() -> std::io::Result<Self> {
        #[cfg(feature = "simulation")]
        if let Some(world) = tenure_lease::world::here() {
            return Ok(Self::Simulated(world.runtime()));
        }
        Ok(Self::OwnThread(runtime::Builder::new_current_thread().enable_all().build()?))
    }

    fn handle(&self) -> &Handle {
        match self {
            Self::OwnThread(runtime) => runtime.handle(),
            #[cfg(feature = "simulation")]
            Self::Simulated(handle) => handle,
        }
    }

    /// Ends what was started. Dropped within the caller's runtime, a runtime would panic.
    fn shut_down(self, #[allow(unused)] proving: &AbortHandle) {
        match self {
            Self::OwnThread(runtime) => runtime.shutdown_background(),
            #[cfg(feature = "simulation")]
            Self::Simulated(_) => proving.abort(),
        }
    }

    /// Runs the driver. When it ends, whatever else it started ends with it.
    fn run(
        self,
        driver: impl Future<Output = ()> + Send + 'static,
        #[allow(unused)] proving: AbortHandle,
        panicked: impl FnOnce(Box<dyn Any + Send>) + Send + 'static,
    ) -> std::io::Result<()> {
        match self {
            Self::OwnThread(runtime) => {
                let work = move || {
                    let run = AssertUnwindSafe(|| runtime.block_on(driver));
                    if let Err(panic) = catch_unwind(run) {
                        panicked(panic);
                    }
                };
                std::thread::Builder::new().name("tenure-cluster".into()).spawn(work)?;
            }
            #[cfg(feature = "simulation")]
            Self::Simulated(handle) => {
                let run = handle.spawn(driver);
                handle.spawn(async move {
                    if let Err(error) = run.await
                        && let Ok(panic) = error.try_into_panic()
                    {
                        panicked(panic);
                    }
                    proving.abort();
                });
            }
        }
        Ok(())
    }
}

impl Driver {
    /// One life after another, until one ends for good.
    async fn run(mut self, mut me: Node, mut bound: life::Bound) {
        let first = self.proof.wait_for(|proof| *proof != Proof::Pending);
        let _ = tokio::time::timeout(preflight::HEAD_START, first).await;
        loop {
            if let Some(why) = self.refused() {
                // Whoever tries again at once needs the port.
                bound.transport.close(Duration::ZERO).await;
                return self.end(End::Lease(why));
            }
            let ending = self.live(&me, bound).await;
            if let Some(why) = self.refused() {
                return self.end(End::Lease(why));
            }
            let again = match ending {
                Ending::LostWhileJoining | Ending::OtherCluster(_) => true,
                Ending::Downed | Ending::Removed => self.settings.rejoin,
                Ending::Left | Ending::Refused(_) | Ending::Failed(_) => false,
            };
            if let Ending::OtherCluster(newer) = ending {
                self.newest_cluster = self.newest_cluster.max(newer);
            }
            telemetry::ended(&ending);
            tracing::info!(node = %me, cluster = self.settings.cluster, again, "out of the cluster: {ending}");
            if !again || self.commands.is_closed() {
                return self.end(End::Membership(ending));
            }
            me = new_node(&self.settings);
            // At once: whoever hosts something must know that the node is out of the cluster.
            self.state.send_modify(|state| *state = State::outside(me.clone()));
            tokio::time::sleep(BETWEEN_LIVES).await;
            bound = match self.bind(&me, &Handle::current()) {
                Ok(bound) => bound,
                Err(error) => return self.end(End::Failed(error.to_string().into())),
            };
        }
    }

    /// Why the store does not let this node have its leases, if it does not.
    fn refused(&self) -> Option<Arc<str>> {
        match &*self.proof.borrow() {
            Proof::Refused(why) => Some(why.clone()),
            _ => None,
        }
    }

    fn end(&self, end: End) {
        publish_end(&self.messaging, &self.state, end);
    }

    fn bind(&self, me: &Node, control: &Handle) -> Result<life::Bound, JoinError> {
        let (sender, events) = mpsc::channel(TRANSPORT_EVENTS);
        let local = Local {
            cluster: self.settings.cluster.clone(),
            name: self.settings.name.clone(),
            node: me.clone(),
        };
        let handles = Handles { control: control.clone(), data: self.data.clone() };
        let settings = self.settings.transport.clone();
        let transport = Transport::bind(settings, self.security.clone(), local, handles, sender)?;
        Ok(life::Bound { transport: Arc::new(transport), events })
    }
}

/// Leaves when this process is told to end; see [`Cluster::leave_when_terminated`].
pub(crate) async fn leave_when_terminated(cluster: &Cluster) -> Result<(), JoinError> {
    let cannot = |error: std::io::Error| JoinError::Failed(format!("signals: {error}"));
    let mut again = Signals::catch().map_err(cannot)?;
    tokio::select! {
        () = signals::terminated() => {}
        _ = cluster.ended() => return cluster.out(),
    }
    tracing::info!(node = %cluster.me(), "told to end: leaving");
    let urged = async {
        let _ = tokio::time::timeout(signals::ECHO, again.next()).await; // The first one, perhaps.
        again.next_urgent().await;
    };
    tokio::select! {
        () = cluster.leave() => cluster.out(),
        () = urged => Err(JoinError::Failed("told to end again before it had left".into())),
    }
}

/// Says that the node has ended because of a defect: without this it would look like a full member
/// for ever.
fn publish_panic(panic: &dyn Any, messaging: &Messaging, state: &watch::Sender<State>) {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let why: Arc<str> = format!("its thread panicked: {}", text.unwrap_or("no text")).into();
    publish_end(messaging, state, End::Failed(why.clone()));
    tracing::error!("out of the cluster: {why}");
    telemetry::ended(&Ending::Failed(why));
}

fn publish_end(messaging: &Messaging, state: &watch::Sender<State>, end: End) {
    messaging.end();
    state.send_modify(|state| {
        state.up = false;
        state.ended = Some(end);
    });
}

fn new_node(settings: &Settings) -> Node {
    Node { address: settings.address.clone(), incarnation: Incarnation(entropy()) }
}

fn entropy() -> u64 {
    tenure_lease::world::random_bits().expect("the operating system's randomness")
}

/// How many requests of users may wait.
const COMMANDS: usize = 64;
/// How many events a slow listener may be behind.
const EVENTS: usize = 1024;
/// How much may wait between the transport and the core.
const TRANSPORT_EVENTS: usize = 1024;
/// So that a node that is refused again and again does not spin.
const BETWEEN_LIVES: Duration = Duration::from_millis(500);
