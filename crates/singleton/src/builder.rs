use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tenure_cluster::messaging::{Message, ReceiverError};
use tenure_cluster::{Cluster, Role};
use tenure_lease::{KeptSession, Lease, LeaseError, LeaseName, Loss, Standby};

use crate::driver::{self, Work};
use crate::{Actor, BoxError, Hosted, Placement, Proxy, Settings, SettingsError};

/// What a cluster gains by this crate.
pub trait Singletons {
    /// A singleton of this name, to be started, or to be talked to.
    ///
    /// ```no_run
    /// # async fn example(cluster: tenure_cluster::Cluster, store: tenure_lease::Store) -> Result<(), Box<dyn std::error::Error>> {
    /// use tenure_singleton::Singletons as _;
    /// let cron = cluster
    ///     .singleton("cron")
    ///     .lease(store.lease("shop.cron"))
    ///     .run(async |hosted| {
    ///         while hosted.is_held() {
    ///             println!("only one of us is here, with token {}", hosted.token());
    ///             tokio::select! {
    ///                 () = tokio::time::sleep(std::time::Duration::from_secs(60)) => {}
    ///                 reason = hosted.stopping() => println!("stop: {reason}"),
    ///             }
    ///         }
    ///         Ok(())
    ///     })?;
    /// println!("{}", cron.status());
    /// # Ok(()) }
    /// ```
    fn singleton(&self, name: &str) -> Builder;
}

impl Singletons for Cluster {
    fn singleton(&self, name: &str) -> Builder {
        Builder {
            cluster: self.clone(),
            name: name.into(),
            guard: None,
            settings: Settings::default(),
        }
    }
}

/// A singleton that is not yet started.
#[must_use = "nothing happens before it is started"]
pub struct Builder {
    cluster: Cluster,
    name: Arc<str>,
    guard: Option<Guard>,
    settings: Settings,
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder").field("name", &self.name).finish_non_exhaustive()
    }
}

/// What keeps two nodes from hosting it at once.
pub(crate) enum Guard {
    Lease(Box<Lease>),
    Attached(KeptSession, String),
}

/// Waits until a store answers.
pub(crate) type Probe = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Guard {
    /// Refuses a lease that could never be held.
    fn check(&self) -> Result<(), StartError> {
        let checked = match self {
            Self::Lease(lease) => lease.check(),
            // The session was checked when it was made.
            Self::Attached(_, name) => LeaseName::new(name).map(drop).map_err(Into::into),
        };
        checked.map_err(|error| StartError::Lease(error.to_string()))
    }

    pub(crate) fn standby(&self) -> Result<Standby, LeaseError> {
        match self {
            Self::Lease(lease) => lease.standby(),
            Self::Attached(session, name) => match session.current() {
                Some(session) => session.lease(name).standby(),
                None => Err(LeaseError::Over(Loss::Released)),
            },
        }
    }

    pub(crate) fn probe(&self) -> Probe {
        match self {
            Self::Lease(lease) => {
                let lease = lease.clone();
                Box::pin(async move {
                    while !lease.is_readable().await {
                        driver::pause().await;
                    }
                })
            }
            Self::Attached(session, _) => {
                let session = session.clone();
                Box::pin(async move { drop(session.held().await) })
            }
        }
    }
}

impl Builder {
    /// Only the holder of this lease hosts it. Give the lease on every node.
    pub fn lease(self, lease: Lease) -> Self {
        Self { guard: Some(Guard::Lease(Box::new(lease))), ..self }
    }

    /// The same with a lease of this name that is attached to a session of this process: many
    /// singletons then cost one renewal. When the session is lost, all of them stop.
    pub fn session(self, session: &KeptSession, lease: &str) -> Self {
        Self { guard: Some(Guard::Attached(session.clone(), lease.into())), ..self }
    }

    /// Only members with this role host it.
    pub fn role(mut self, role: impl Into<Role>) -> Self {
        self.settings.role = Some(role.into());
        self
    }

    /// Which of them should.
    pub fn placement(mut self, placement: Placement) -> Self {
        self.settings.placement = placement;
        self
    }

    /// All settings at once.
    pub fn settings(self, settings: Settings) -> Self {
        Self { settings, ..self }
    }

    /// Runs this function on the one node that hosts the singleton; this node may become it. If it
    /// returns before it was told to stop, or panics, it is run again after a pause.
    ///
    /// When [`Hosted::stopping`] resolves it should return; what has not returned when its time is
    /// over ([`Settings::stop_within`], or the lease's stop budget) is dropped where it awaits.
    pub fn run<F, R>(self, work: F) -> Result<Proxy<()>, StartError>
    where
        F: Fn(Hosted) -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), BoxError>> + Send + 'static,
    {
        self.host(Work::function(work))
    }

    /// Runs an actor, made anew for each start, on the one node that hosts the singleton; this node
    /// may become it.
    pub fn start<A: Actor>(
        self,
        make: impl Fn() -> A + Send + Sync + 'static,
    ) -> Result<Proxy<A::Message>, StartError> {
        let name = self.name.clone();
        self.host(Work::actor(name, make))
    }

    /// The way to the singleton, from a node that does not host it.
    pub fn proxy<M: Message>(self) -> Result<Proxy<M>, StartError> {
        self.check()?;
        Ok(driver::proxy(self.cluster, self.name, self.settings)?)
    }

    fn host<M: Message>(self, work: Work) -> Result<Proxy<M>, StartError> {
        self.check()?;
        if let Some(guard) = &self.guard {
            guard.check()?;
        }
        let Self { cluster, name, guard, settings } = self;
        let proxy = driver::proxy(cluster.clone(), name.clone(), settings.clone())?;
        driver::manage(cluster, name, guard, settings, work)?;
        Ok(proxy)
    }

    fn check(&self) -> Result<(), StartError> {
        if !(1..=NAME_MAX).contains(&self.name.len()) {
            return Err(StartError::Name(self.name.len()));
        }
        Ok(self.settings.check(self.guard.is_some())?)
    }
}

/// Why a singleton cannot be started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// Settings that cannot work.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The lease could never be held, and what to change.
    #[error("the singleton's lease cannot be held: {0}")]
    Lease(String),
    /// It cannot be a name.
    #[error("a singleton's name has 1 to 200 bytes, not {0}")]
    Name(usize),
    /// This process has started it already; or it has no lease, and was stopped here.
    #[error(
        "this node has started the singleton {0:?} already: use a proxy. If it was stopped here and \
         has no lease, give it one, or have this node join anew"
    )]
    Started(Arc<str>),
    /// The cluster is over, or somebody uses Tenure's own names.
    #[error(transparent)]
    Receiver(#[from] ReceiverError),
}

const NAME_MAX: usize = 200;
