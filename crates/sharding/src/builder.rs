use std::sync::Arc;
use std::time::Duration;

use tenure_cluster::messaging::{Message, Received, ReceiverError};
use tenure_cluster::{Cluster, Role};
use tenure_lease::{KeptSession, Lease};

use crate::driver::{self, Factory, Guards, Sharding, Start};
use crate::remember::Remember;
use crate::{
    BoxError, Entity, Hosted, Settings, SettingsError, Setup, ShardKey, Strategy, Version,
};

/// What a cluster gains by this crate.
pub trait Shardings {
    /// A kind of entities, to be hosted, or to be talked to.
    ///
    /// ```no_run
    /// # use tenure_cluster::messaging::Received;
    /// # use tenure_sharding::{BoxError, Entity, Hosted};
    /// # struct Cart { id: String, items: u64 }
    /// # impl Entity for Cart {
    /// #     type Message = u64;
    /// #     async fn receive(&mut self, received: Received<u64>, _: &Hosted) -> Result<(), BoxError> {
    /// #         self.items += received.message;
    /// #         Ok(())
    /// #     }
    /// # }
    /// # async fn example(cluster: tenure_cluster::Cluster, store: tenure_lease::Store) -> Result<(), Box<dyn std::error::Error>> {
    /// use tenure_sharding::Shardings as _;
    /// let me = store.lease("shop-0").kept_session()?; // one renewal for all that this process hosts
    /// let carts = cluster
    ///     .sharding("cart")
    ///     .shards(64)
    ///     .lease(store.lease("shop.carts"))
    ///     .session(&me)
    ///     .start(|id| Cart { id: id.to_owned(), items: 0 })?;
    /// carts.entity("customer-17").tell(1).await?;
    /// println!("{}", carts.status());
    /// # Ok(()) }
    /// ```
    fn sharding(&self, kind: &str) -> Builder;
}

impl Shardings for Cluster {
    fn sharding(&self, kind: &str) -> Builder {
        Builder {
            cluster: self.clone(),
            kind: kind.into(),
            guards: Guards::default(),
            settings: Settings::new(Setup::Gossip, 0),
            remember: None,
            outlives: false,
        }
    }
}

/// A kind of entities that is not yet started.
#[must_use = "nothing happens before it is started"]
pub struct Builder {
    cluster: Cluster,
    kind: Arc<str>,
    guards: Guards,
    settings: Settings,
    remember: Option<Arc<dyn Remember>>,
    /// What is remembered may outlive the cluster.
    outlives: bool,
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder").field("kind", &self.kind).finish_non_exhaustive()
    }
}

impl Builder {
    /// How many shards there are: the same on every node, for good. Ten for each node that there will
    /// ever be is a good number.
    pub fn shards(mut self, shards: u32) -> Self {
        self.settings.shards = shards;
        self
    }

    /// Places entities by a key of this secret, which is the same on every node, for good: whoever
    /// chooses ids cannot choose their shard then. Give it where ids come from strangers.
    pub fn shard_key(mut self, secret: &str) -> Self {
        self.settings.shard_key = Some(ShardKey::from_secret(secret));
        self
    }

    /// Only the holder of this lease coordinates. Give the lease on every node that hosts.
    pub fn lease(mut self, lease: Lease) -> Self {
        self.guards.lease = Some(lease);
        self
    }

    /// Shards live and die with this session of the process, which is kept in the same store as the
    /// lease: then a shard is never active twice. Give one on every node that hosts. When the node
    /// leaves the cluster, the session is given up, and contended for anew if it comes back.
    pub fn session(mut self, session: &KeptSession) -> Self {
        self.guards.session = Some(session.clone());
        self
    }

    /// Only members with this role host shards and coordinate.
    pub fn role(mut self, role: impl Into<Role>) -> Self {
        self.settings.role = Some(role.into());
        self
    }

    /// Lets entities go that have had no message for so long; the next message makes a new one. 15
    /// minutes, unless you say otherwise; `None`: never.
    pub fn passivate_after(mut self, idle: impl Into<Option<Duration>>) -> Self {
        self.settings.passivate_after = idle.into();
        self
    }

    /// Keeps so many entities on this node, and lets those go that have had no message for longest. A
    /// million, unless you say otherwise; `None`: any number.
    pub fn entities_max(mut self, most: impl Into<Option<usize>>) -> Self {
        self.settings.entities_max = most.into();
        self
    }

    /// Remembers which entities there are: they are made when their shard begins, wherever that is,
    /// and again when they fail, until they passivate themselves. Needs a [`lease`](Self::lease), whose
    /// terms rise from one cluster to the next.
    pub fn remember_entities(mut self, remember: impl Remember) -> Self {
        self.outlives = true;
        self.remember_here(remember)
    }

    /// The same, of something that begins anew with each cluster.
    pub(crate) fn remember_here(mut self, remember: impl Remember) -> Self {
        self.remember = Some(Arc::new(remember));
        self
    }

    /// The version of this application, such as `1.12.0`: while there are nodes with different ones,
    /// shards go to the newest only, and none moves for balance.
    pub fn version(mut self, version: Version) -> Self {
        self.settings.version = version;
        self
    }

    /// How shards are given to regions.
    pub fn strategy(mut self, strategy: Strategy) -> Self {
        self.settings.strategy = strategy;
        self
    }

    /// All settings at once. What guards it is known from [`lease`](Self::lease) and
    /// [`session`](Self::session).
    pub fn settings(self, settings: Settings) -> Self {
        Self { settings, ..self }
    }

    /// Hosts shards on this node. An entity is made from its id when its first message arrives.
    pub fn start<E: Entity>(
        self,
        make: impl Fn(&str) -> E + Send + Sync + 'static,
    ) -> Result<Sharding<E::Message>, StartError> {
        let make: Factory<E> = Arc::new(make);
        driver::start(self.check(true)?, Some(make))
    }

    /// The way to the entities, from a node that hosts none.
    pub fn proxy<M: Message>(self) -> Result<Sharding<M>, StartError> {
        driver::start::<Nobody<M>>(self.check(false)?, None)
    }

    fn check(self, hosts: bool) -> Result<Start, StartError> {
        let Self { cluster, kind, guards, mut settings, remember, outlives } = self;
        if !(1..=KIND_MAX).contains(&kind.len()) {
            return Err(StartError::Kind(kind.len()));
        }
        settings.setup = match (&guards.lease, &guards.session) {
            (None, None) => Setup::Gossip,
            (Some(_), None) => Setup::Lease,
            (Some(_), Some(_)) => Setup::Sessions,
            (None, Some(_)) => return Err(StartError::SessionAlone),
        };
        settings.check()?;
        if outlives && hosts && guards.lease.is_none() {
            return Err(StartError::RememberedAlone);
        }
        let guards = if hosts { guards } else { Guards::default() };
        if let Some(lease) = &guards.lease {
            // A session was checked when it was made.
            lease.check().map_err(|error| StartError::Lease(error.to_string()))?;
        }
        if remember.is_some() {
            settings.remember();
        }
        let passivates = settings.passivate_after.is_some() || settings.entities_max.is_some();
        if remember.is_some() && passivates {
            return Err(StartError::RememberedAndPassivated);
        }
        Ok(Start { cluster, kind, guards, settings, remember, outlives })
    }
}

/// The entity of a node that hosts none.
struct Nobody<M>(std::marker::PhantomData<fn() -> M>);

impl<M: Message> Entity for Nobody<M> {
    type Message = M;

    async fn receive(&mut self, _: Received<M>, _: &Hosted) -> Result<(), BoxError> {
        Ok(())
    }
}

/// Why a kind cannot be started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// Settings that cannot work.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The coordinator's lease could never be held, and what to change.
    #[error("the coordinator's lease cannot be held: {0}")]
    Lease(String),
    /// It cannot be a name.
    #[error("a kind's name has 1 to 150 bytes, not {0}")]
    Kind(usize),
    /// There is no coordinator that would look after sessions.
    #[error("a session needs a lease for the coordinator as well: add .lease(…)")]
    SessionAlone,
    /// The tokens of the next cluster would be below the fence.
    #[error("remembered entities need a lease for the coordinator as well: add .lease(…)")]
    RememberedAlone,
    /// One wants entities gone that the other wants back.
    #[error(
        "entities that are remembered cannot be passivated by time or number: leave out one of them"
    )]
    RememberedAndPassivated,
    /// This process has started it already.
    #[error(
        "this node has the kind {0:?} already: start it once, with one number of shards and one type of messages; or again, with the same settings, after it was stopped"
    )]
    Started(Arc<str>),
    /// The cluster is over, or somebody uses Tenure's own names.
    #[error(transparent)]
    Receiver(#[from] ReceiverError),
}

const KIND_MAX: usize = 150;
