//! What users call.

use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tenure_cluster::Cluster;
use tenure_cluster::messaging::Message;
use tenure_lease::{Lease, Moment};
use tenure_sharding::{NotCoordinator, Sharding};
use tenure_singleton::{HandOverError, Proxy, Status};

use crate::board::Board;
use crate::document;
use crate::driver::{self, Stop};
use crate::{Recorder, Settings, Token, sight};

/// The management API of one node, to be started.
#[must_use = "nothing listens before it is started"]
pub struct Manage {
    pub(crate) cluster: Cluster,
    pub(crate) settings: Settings,
    /// What was wrong with a token.
    wrong: Option<ManageError>,
    pub(crate) singletons: Vec<Box<dyn Watched>>,
    pub(crate) leases: Vec<(Lease, Option<String>)>,
    pub(crate) shards: Vec<Box<dyn Sharded>>,
    pub(crate) metrics: Option<Recorder>,
}

impl std::fmt::Debug for Manage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Manage").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Manage {
    /// Of this node, with the default settings. It keeps the node in its cluster for as long as it
    /// runs.
    pub fn new(cluster: &Cluster) -> Self {
        let leases = [
            (cluster.settings().formation_lease(), "formation"),
            (cluster.settings().arbitration_lease(), "arbitration"),
        ];
        let leases = leases.into_iter().filter_map(|(lease, purpose)| {
            lease.map(|lease| (lease.clone(), Some(purpose.to_owned())))
        });
        Self {
            leases: leases.collect(),
            cluster: cluster.clone(),
            settings: Settings::default(),
            wrong: None,
            singletons: Vec::new(),
            shards: Vec::new(),
            metrics: None,
        }
    }

    /// All settings at once.
    pub fn settings(self, settings: Settings) -> Self {
        Self { settings, ..self }
    }

    /// Where to listen: `address:port`. Beyond loopback only with TLS and credentials.
    pub fn listen(mut self, address: impl Into<String>) -> Self {
        self.settings.listen = address.into();
        self
    }

    /// With this token one may read.
    pub fn read_token(mut self, token: impl AsRef<str>) -> Self {
        self.settings.read_token = self.token("read_token", token.as_ref());
        self
    }

    /// With this token one may read and change things.
    pub fn write_token(mut self, token: impl AsRef<str>) -> Self {
        self.settings.write_token = self.token("write_token", token.as_ref());
        self
    }

    /// With the token in this file one may read. The file is read again while this runs.
    pub fn read_token_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.settings.read_token_file = Some(path.into());
        self
    }

    /// With the token in this file one may read and change things. The file is read again while this
    /// runs.
    pub fn write_token_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.settings.write_token_file = Some(path.into());
        self
    }

    fn token(&mut self, setting: &str, text: &str) -> Option<Token> {
        match Token::new(text) {
            Ok(token) => Some(token),
            Err(error) => {
                self.wrong = Some(ManageError::Settings(format!("{setting}: {error}")));
                None
            }
        }
    }

    /// TLS, with the certificate and the key in these files.
    pub fn certificate(mut self, chain: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        (self.settings.certificate, self.settings.key) = (Some(chain.into()), Some(key.into()));
        self
    }

    /// Whoever shows a certificate of the authorities in this file may read; if it carries one of
    /// these names, change things, too.
    pub fn clients<N: Into<String>>(
        mut self,
        ca: impl Into<PathBuf>,
        writers: impl IntoIterator<Item = N>,
    ) -> Self {
        self.settings.client_ca = Some(ca.into());
        self.settings.writers = writers.into_iter().map(Into::into).collect();
        self
    }

    /// Shows this singleton, and lets operators hand it over.
    pub fn singleton<M: Message>(mut self, proxy: &Proxy<M>) -> Self {
        self.singletons.push(Box::new(proxy.clone()));
        self
    }

    /// Shows this lease; `purpose` says what it is for, such as `singleton cron`. The leases of the
    /// cluster itself are shown anyway.
    pub fn lease(mut self, lease: &Lease, purpose: Option<&str>) -> Self {
        self.leases.push((lease.clone(), purpose.map(str::to_owned)));
        self
    }

    /// Shows where the shards of this kind are, and lets operators have them evened out.
    pub fn sharding<M: Message>(mut self, sharding: &Sharding<M>) -> Self {
        self.shards.push(Box::new(sharding.clone()));
        self
    }

    /// Serves the metrics of this recorder at `/metrics`.
    pub fn metrics(self, recorder: Recorder) -> Self {
        Self { metrics: Some(recorder), ..self }
    }

    /// Listens. Call it within a tokio runtime.
    pub async fn start(mut self) -> Result<Running, ManageError> {
        if let Some(wrong) = self.wrong.take() {
            return Err(wrong);
        }
        let (settings, metrics) = (self.settings.clone(), self.metrics.clone());
        // First, so that what is wrong with the settings is found before anything is started.
        settings.check()?;
        let (board, managed, looked, stop) = driver::watch(self);
        let (address, tls, door) =
            driver::listen(settings, board, managed, metrics, looked).await?;
        Ok(Running { address, tls, _stops: vec![door, stop] })
    }
}

/// Serves a board, and what can be done to what it is about: for demonstrations. A node has
/// [`Manage`].
pub async fn serve(
    settings: Settings,
    board: Arc<Board>,
    managed: Arc<dyn Managed>,
    metrics: Option<Recorder>,
) -> Result<Running, ManageError> {
    let looked = driver::Looked::default();
    let (address, tls, stop) = driver::listen(settings, board, managed, metrics, looked).await?;
    Ok(Running { address, tls, _stops: vec![stop] })
}

/// Serves `/metrics` and `/alive`, to anybody who reaches the address and without TLS: for a process
/// that has leases and no node. Metrics have no secrets in them. A node has [`Manage::metrics`].
pub async fn serve_metrics(
    address: SocketAddr,
    recorder: Recorder,
) -> Result<Running, ManageError> {
    let (address, stop) = driver::listen_for_scrapes(address, recorder).await?;
    Ok(Running { address, tls: false, _stops: vec![stop] })
}

/// It listens; dropping this ends it.
#[derive(Debug)]
#[must_use = "it ends when this is dropped"]
pub struct Running {
    address: SocketAddr,
    tls: bool,
    _stops: Vec<Stop>,
}

impl Running {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The page.
    pub fn url(&self) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        format!("{scheme}://{}/", self.address)
    }
}

/// What can be changed, by whoever may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Have a node leave; this one if none is named.
    Leave(Option<String>),
    /// Declare a node down.
    Down(String),
    /// Have this node hand a singleton over.
    HandOver(String),
    /// Have shards of this kind moved to where fewer are.
    Rebalance(String),
    /// Break or mend something, as the demonstration's scripts say it: `cut 1,2 | 3,4,5`.
    Demo(String),
}

/// What is under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    /// What: `leaving`, `down`, `hand_over`, `rebalance`, `demo`.
    pub change: String,
    /// With whom.
    pub node: Option<String>,
    /// The same, in a sentence.
    pub text: String,
}

/// Why nothing is changed, in a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It was not said what.
    Unclear(String),
    /// There is no such thing.
    NotFound(String),
    /// It cannot be done now, or not here.
    NotNow(String),
    /// This node is out of its cluster.
    Over(String),
}

/// What is managed: a node, or a demonstration.
pub trait Managed: Send + Sync + 'static {
    /// Whether it can still do its part, now or later; if not, why. A probe restarts what is not alive.
    fn alive(&self) -> Result<(), String> {
        Ok(())
    }

    /// Whether it can do its part now; if not, why.
    fn ready(&self) -> Result<(), String>;

    /// Does what somebody asks for who may.
    fn change(&self, change: Change) -> Boxed<'_, Result<Changed, Refused>>;

    /// Asks every node what it has of each kind of shards.
    fn regions(&self) -> Boxed<'_, Vec<document::Regions>> {
        Box::pin(async { Vec::new() })
    }

    /// Whether it takes [`Change::Demo`], and nothing else.
    fn is_demo(&self) -> bool {
        false
    }
}

/// What comes later.
pub type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The entities of one kind, whatever their messages are.
pub(crate) trait Sharded: Send + Sync {
    fn kind(&self) -> &str;
    /// As far as this node knows.
    fn look(&self) -> document::Kind;
    /// As every node says it.
    fn regions(&self) -> Boxed<'static, document::Regions>;
    fn rebalance(&self) -> Result<(), NotCoordinator>;
}

impl<M: Message> Sharded for Sharding<M> {
    fn kind(&self) -> &str {
        self.kind()
    }

    fn look(&self) -> document::Kind {
        sight::shards(self.kind(), self.status())
    }

    fn regions(&self) -> Boxed<'static, document::Regions> {
        let sharding = self.clone();
        Box::pin(
            async move { sight::regions(sharding.kind(), sharding.regions(driver::ASKED).await) },
        )
    }

    fn rebalance(&self) -> Result<(), NotCoordinator> {
        self.rebalance()
    }
}

/// A singleton, whatever its messages are.
pub(crate) trait Watched: Send + Sync {
    fn name(&self) -> &str;
    fn look(&self, now_ms: u64) -> document::Singleton;
    fn hand_over(&self) -> Boxed<'_, Result<tenure_cluster::Node, HandOverError>>;
}

impl<M: Message> Watched for Proxy<M> {
    fn name(&self) -> &str {
        self.name()
    }

    fn look(&self, now_ms: u64) -> document::Singleton {
        let status = self.status();
        let (known_for, host, token, waiting, why_not) = match status {
            Status::Hosted { node, token, known_for } => {
                (known_for, Some(node.to_string()), Some(token.to_string()), 0, None)
            }
            Status::Nowhere { known_for, waiting, why_not } => {
                (known_for, None, None, waiting, why_not)
            }
        };
        let known_for = u64::try_from(known_for.as_millis()).unwrap_or(u64::MAX);
        let since_ms = now_ms.saturating_sub(known_for);
        document::Singleton { name: self.name().into(), host, token, since_ms, waiting, why_not }
    }

    fn hand_over(&self) -> Boxed<'_, Result<tenure_cluster::Node, HandOverError>> {
        Box::pin(self.hand_over())
    }
}

/// Why it does not listen.
#[derive(Debug, thiserror::Error)]
pub enum ManageError {
    /// Settings that cannot work, or would let anybody in.
    #[error("{0}")]
    Settings(String),
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why not.
        source: std::io::Error,
    },
    /// A certificate or a key cannot be used.
    #[error("{} cannot be used: {why}", path.display())]
    Certificate {
        /// The file.
        path: PathBuf,
        /// Why not.
        why: String,
    },
}

/// Two clocks at once: ours, and the one that people read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    pub(crate) moment: Moment,
    pub(crate) ms: u64,
}
