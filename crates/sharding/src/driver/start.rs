//! Begins a kind on this node, once.

use std::any::Any;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{Notify, mpsc, watch};

use tenure_cluster::Cluster;
use tenure_cluster::clients::{Gate, Gateway};
use tenure_cluster::messaging::{Message, Protocol};

use super::control::{Control, Incoming, Spawn};
use super::count::Counts;
use super::guard::Guards;
use super::handle::{Sharding, Shared};
use super::hosting::Hosting;
use super::letter::{Farewell, board, farewells};
use super::remote::{self, Frame};
use super::routes::{Routes, Way};
use super::{Factory, caught, crew, inbox, look, reliable_inbox};
use crate::builder::StartError;
use crate::remember::Remember;
use crate::wire::Letter;
use crate::{Entity, Settings, Shard};

/// What to start.
pub(crate) struct Start {
    pub(crate) cluster: Cluster,
    pub(crate) kind: Arc<str>,
    pub(crate) guards: Guards,
    pub(crate) settings: Settings,
    pub(crate) remember: Option<Arc<dyn Remember>>,
    /// What is remembered may outlive the cluster.
    pub(crate) outlives: bool,
}

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
            (None, Ok(shared)) if shared.settings.placing() == start.settings.placing() => {
                Ok(Sharding { shared })
            }
            (Some(make), Ok(shared)) if shared.begin_again(&start) => {
                let spawn = spawn(&shared, make);
                // There is room: it is stopped, and only one is let through.
                let _ = shared.hosting.try_send(Hosting::Start(spawn, Box::new(start.guards)));
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
    let Start { cluster, kind, guards, settings, remember, outlives } = start;
    let inbox: Arc<str> = inbox(&kind).into();
    let frames = cluster.receiver_with_room::<Frame<E::Message>>(&inbox, ROOM)?;
    let letters = cluster.receiver::<Protocol<Letter>>(&board(&kind))?;
    let farewells = cluster.receiver::<Farewell>(&farewells(&kind))?;
    let numbered = cluster.reliable_receiver(&reliable_inbox(&kind))?;
    let looks = cluster.receiver(&look::name(&kind))?;
    let (control, events) = mpsc::channel(EVENTS);
    let (hosting, wishes) = mpsc::channel(WISHES);
    let shared = Arc::new(Shared {
        routes: Routes::new(settings.shards),
        said: Mutex::default(),
        remember,
        outlives,
        control: control.clone(),
        counts: Counts::default(),
        rebalance: Notify::new(),
        hosting,
        is_stopped: AtomicBool::new(false),
        cluster: cluster.clone(),
        kind,
        inbox,
        settings,
    });
    let gate: Arc<dyn Gate> = shared.clone();
    cluster.open_gate(Gateway::Entities, &shared.kind, &gate);
    tokio::spawn(remote::receive(shared.clone(), frames, control));
    tokio::spawn(remote::receive_numbered(shared.clone(), numbered));
    tokio::spawn(look::answer(shared.clone(), looks));
    let work = (make.map(|make| spawn(&shared, make)), guards);
    let (leave, leaving) = mpsc::channel(1);
    let (over, is_over) = watch::channel(false);
    cluster.before_leaving(move || {
        let (leave, mut is_over) = (leave.clone(), is_over.clone());
        async move {
            let _ = leave.try_send(()); // Asked already, or over, is as good.
            let _ = is_over.wait_for(|over| *over).await;
        }
    });
    let hosting = wishes;
    let incoming = Incoming { events, letters, farewells, leaving, hosting, work, asked: false };
    tokio::spawn(control_always(shared.clone(), over, incoming));
    Ok(Sharding { shared })
}

/// How shards of these entities are run.
fn spawn<E: Entity>(shared: &Arc<Shared<E::Message>>, make: Factory<E>) -> Spawn<E::Message> {
    let shared = shared.clone();
    Arc::new(move |inlet| Box::pin(crew::run::<E>(shared.clone(), make.clone(), inlet)))
}

/// Runs control, and another after one that has panicked: without any, the shards that are here would
/// stay where nobody runs them for as long as the session of this process lives.
async fn control_always<M: Message>(
    shared: Arc<Shared<M>>,
    over: watch::Sender<bool>,
    mut incoming: Incoming<M>,
) {
    loop {
        let life = Arc::new(());
        let (spawn, guards) = incoming.work.clone();
        let (kept, over) = (life.clone(), over.clone());
        let control = Control::new(shared.clone(), kept, guards, spawn, over);
        let mut control = Box::pin(control.run(&mut incoming));
        if caught(control.as_mut()).await.is_ok() {
            return;
        }
        tracing::error!(kind = %shared.kind, "what looks after its shards has panicked; they stop here, and it begins anew");
        // With it goes what it kept of users, whose end may panic as well.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(control)));
        for shard in (0..shared.settings.shards).map(Shard) {
            shared.routes.publish(shard, Way::Slow);
        }
        // The next one says that nothing is hosted here, so nothing must be.
        while Arc::strong_count(&life) > 1 {
            tokio::time::sleep(LIFE_POLL).await;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// How many messages wait for the region before senders do.
const EVENTS: usize = 1024;
/// How often to look whether anything is left of a control that has panicked.
const LIFE_POLL: Duration = Duration::from_millis(20);
/// Before the next one begins, since it may panic again.
const PAUSE: Duration = Duration::from_secs(1);
/// How many wishes to stop or start hosting wait.
const WISHES: usize = 16;
/// How many messages from other nodes wait.
const ROOM: usize = 16 << 10;
