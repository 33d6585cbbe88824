//! Numbered workers that always run, spread over the cluster.

use std::fmt;
use std::future::Future;

use tenure_cluster::messaging::Received;

use crate::remember::{Place, Remember, Remembering};
use crate::{BoxError, Builder, Entity, Hosted, Sharding, StartError, Status, StopReason};

/// One of so many workers: it has a number, and runs in one place.
///
/// ```no_run
/// # use std::time::Duration;
/// # use tenure_sharding::{BoxError, Daemon, Hosted, Shardings as _};
/// struct Importer { part: u32 }
///
/// impl Daemon for Importer {
///     async fn run(&mut self, hosted: &Hosted) -> Result<(), BoxError> {
///         loop {
///             println!("part {} with {}", self.part, hosted.token());
///             tokio::time::sleep(Duration::from_secs(1)).await;
///         }
///     }
/// }
/// # async fn example(cluster: tenure_cluster::Cluster, store: tenure_lease::Store) -> Result<(), Box<dyn std::error::Error>> {
/// let me = store.lease("shop-0").kept_session()?;
/// let lease = store.lease("shop.importers");
/// let importers = cluster.sharding("importer").lease(lease).session(&me);
/// let importers = importers.daemons(8, |part| Importer { part })?;
/// # Ok(()) }
/// ```
pub trait Daemon: Send + 'static {
    /// Its work. When it has to stop, this is dropped where it awaits. If it returns, or fails, it is
    /// begun anew: at once the first time, then after a pause.
    fn run(&mut self, hosted: &Hosted) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// It has to stop, and its work was dropped. Seldom called when a session is lost: time is short
    /// then, and the worker is dropped with its work.
    fn stopped(&mut self, reason: StopReason) -> impl Future<Output = ()> + Send {
        let _ = reason;
        async {}
    }
}

impl Builder {
    /// Runs so many workers, numbered from 0, each on one of the nodes that start this. The number is the
    /// same on every node. Each is a shard of its own: what a shard is promised, it is.
    pub fn daemons<D: Daemon>(
        self,
        count: u32,
        make: impl Fn(u32) -> D + Send + Sync + 'static,
    ) -> Result<Daemons, StartError> {
        let make = move |id: &str| Running(make(id.parse().unwrap_or_default()));
        let sharding = self.shards(count).remember_here(Numbered).start(make)?;
        Ok(Daemons { sharding })
    }
}

/// The workers of a kind, as this node knows them. They run until the node leaves the cluster. Cheap to
/// clone.
#[derive(Clone)]
pub struct Daemons {
    sharding: Sharding<()>,
}

impl Daemons {
    /// Who coordinates, and which workers are where: the number of a worker is that of its shard.
    pub fn status(&self) -> Status {
        self.sharding.status()
    }
}

impl fmt::Debug for Daemons {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.sharding, f)
    }
}

/// There is exactly one in each shard, whatever happens.
struct Numbered;

impl Remember for Numbered {
    fn load(&self, place: Place<'_>) -> Remembering<'_, Vec<String>> {
        let number = place.shard.to_string();
        Box::pin(async move { Ok(vec![number]) })
    }

    fn change(&self, _: Place<'_>, _: Vec<String>, _: Vec<String>) -> Remembering<'_, ()> {
        Box::pin(async { Ok(()) })
    }
}

struct Running<D>(D);

impl<D: Daemon> Entity for Running<D> {
    type Message = ();

    async fn started(&mut self, hosted: &Hosted) -> Result<(), BoxError> {
        tokio::select! {
            ended = self.0.run(hosted) => match ended {
                Ok(()) => Err("its work has ended".into()),
                Err(error) => Err(error),
            },
            _ = hosted.stopping() => Ok(()),
        }
    }

    async fn receive(&mut self, _: Received<()>, _: &Hosted) -> Result<(), BoxError> {
        Ok(()) // Nobody sends them anything.
    }

    async fn stopped(&mut self, reason: StopReason) {
        self.0.stopped(reason).await;
    }
}
