//! Begins a kind on this node, once.

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{Notify, mpsc, watch};

use tenure_cluster::Cluster;

use super::control::{Control, Incoming, Spawn};
use super::count::Counts;
use super::guard::Guards;
use super::handle::{Sharding, Shared};
use super::letter::{Farewell, Letter, board, farewells};
use super::remote::{self, Frame};
use super::routes::Routes;
use super::{Factory, crew, inbox, look, reliable_inbox};
use crate::builder::StartError;
use crate::remember::Remember;
use crate::{Entity, Settings};

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
    let Start { cluster, kind, guards, settings, remember, outlives } = start;
    let inbox: Arc<str> = inbox(&kind).into();
    let frames = cluster.receiver_with_room::<Frame<E::Message>>(&inbox, ROOM)?;
    let letters = cluster.receiver::<Letter>(&board(&kind))?;
    let farewells = cluster.receiver::<Farewell>(&farewells(&kind))?;
    let numbered = cluster.reliable_receiver(&reliable_inbox(&kind))?;
    let looks = cluster.receiver(&look::name(&kind))?;
    let (control, events) = mpsc::channel(EVENTS);
    let shared = Arc::new(Shared {
        routes: Routes::new(settings.shards),
        said: Mutex::default(),
        remember,
        outlives,
        control: control.clone(),
        counts: Counts::default(),
        rebalance: Notify::new(),
        cluster: cluster.clone(),
        kind,
        inbox,
        settings,
    });
    tokio::spawn(remote::receive(shared.clone(), frames, control));
    tokio::spawn(remote::receive_numbered(shared.clone(), numbered));
    tokio::spawn(look::answer(shared.clone(), looks));
    let spawn = make.map(|make| {
        let shared = shared.clone();
        let spawn: Spawn<E::Message> =
            Box::new(move |inlet| Box::pin(crew::run::<E>(shared.clone(), make.clone(), inlet)));
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
    tokio::spawn(control.run(Incoming { events, letters, farewells, leaving }));
    Ok(Sharding { shared })
}

/// How many messages wait for the region before senders do.
const EVENTS: usize = 1024;
/// How many messages from other nodes wait.
const ROOM: usize = 16 << 10;
