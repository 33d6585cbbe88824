//! The connection to the API server: one client for all leases of a store, made when it is first
//! needed and made anew when it may have gone bad.
#![allow(clippy::disallowed_methods)] // Credential plugins block, so they get a thread.

use std::error::Error as _;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use kube::api::{PostParams, WatchEvent, WatchParams};
use kube::client::{Body, ClientBuilder, ConfigExt as _};
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::core::Status;
use kube::{Api, Client, Config};
use tokio::sync::Mutex;
use tower::BoxError;
use tower::util::MapErrLayer;

use tenure_lease::LeaseName;
use tenure_lease::backend::{StoreError, StoreErrorKind};

use super::object::LeaseObject;
use crate::connections;

/// Where the API server is and who we are there. Says nothing secret: only where to find it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Target {
    /// None: the one that the configuration names.
    pub(super) namespace: Option<String>,
    /// None: `KUBECONFIG`, `~/.kube/config`, or the pod's service account.
    pub(super) kubeconfig: Option<PathBuf>,
    pub(super) context: Option<String>,
}

/// The answer to a conditional write.
pub(super) enum Written {
    Yes(Box<LeaseObject>),
    /// The condition did not hold; nothing was written.
    Conflict,
}

pub(super) type Events = BoxStream<'static, kube::Result<WatchEvent<LeaseObject>>>;

/// The API server.
pub(super) struct Server {
    target: Target,
    link: Mutex<Option<Arc<Link>>>,
}

struct Link {
    leases: Api<LeaseObject>,
    /// An answer has come through it, so connections may lie idle in its pool.
    proven: AtomicBool,
    /// One of its connections went silent, or its credentials were refused: the others may be no
    /// better, and a renewal has no time to try them one by one.
    spoilt: AtomicBool,
}

impl Server {
    pub(super) fn new(target: Target) -> Self {
        Self { target, link: Mutex::new(None) }
    }

    /// The Lease as it is now, by a consistent read; `None` if there is none.
    pub(super) async fn get(&self, name: &LeaseName) -> Result<Option<LeaseObject>, StoreError> {
        let link = self.link().await?;
        match through(&link, link.leases.get(name.as_str())).await {
            Ok(object) => Ok(Some(object)),
            // Not any 404: a proxy in between has its own.
            Err(kube::Error::Api(status)) if status.reason == "NotFound" => Ok(None),
            Err(error) => Err(self.explain(&error)),
        }
    }

    /// Creates the Lease, unless there is one.
    pub(super) async fn create(
        &self,
        object: &LeaseObject,
        dry_run: bool,
    ) -> Result<Written, StoreError> {
        let link = self.link().await?;
        let params = params(dry_run);
        match through(&link, link.leases.create(&params, object)).await {
            Ok(object) => Ok(Written::Yes(Box::new(object))),
            Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {
                Ok(Written::Conflict)
            }
            Err(error) => Err(self.explain(&error)),
        }
    }

    /// Replaces the Lease, if it still is the one that the object was made of.
    pub(super) async fn replace(
        &self,
        object: &LeaseObject,
        dry_run: bool,
    ) -> Result<Written, StoreError> {
        assert!(dry_run || object.is_conditional(), "every write names what it replaces");
        let link = self.link().await?;
        let params = params(dry_run);
        match through(&link, link.leases.replace(object.name(), &params, object)).await {
            Ok(object) => Ok(Written::Yes(Box::new(object))),
            Err(kube::Error::Api(status))
                if status.reason == "Conflict" || status.reason == "NotFound" =>
            {
                Ok(Written::Conflict)
            }
            Err(error) => Err(self.explain(&error)),
        }
    }

    /// A watch from a version on; without one, it first tells what there is.
    pub(super) async fn watch(
        &self,
        params: &WatchParams,
        version: Option<&str>,
    ) -> Result<Events, Refusal> {
        let link = self.link().await.map_err(Refusal::other)?;
        let request = link.leases.watch(params, version.unwrap_or(""));
        match through(&link, request).await {
            Ok(events) => Ok(events.boxed()),
            Err(kube::Error::Api(status)) => {
                let error = self.explain_status(&status);
                Err(Refusal { code: status.code, error })
            }
            Err(error) => Err(Refusal::other(self.explain(&error))),
        }
    }

    /// Reads the configuration, to say early what is wrong with it.
    pub(super) async fn check(&self) -> Result<(), StoreError> {
        config(&self.target).await.map(drop)
    }

    async fn link(&self) -> Result<Arc<Link>, StoreError> {
        let mut link = self.link.lock().await;
        if let Some(link) = link.as_ref().filter(|link| !link.spoilt.load(Ordering::Relaxed)) {
            return Ok(Arc::clone(link));
        }
        let fresh = Arc::new(self.connect().await?);
        *link = Some(Arc::clone(&fresh));
        Ok(fresh)
    }

    /// Makes a client. Its tasks live on the runtime that we are on, the keeper's.
    async fn connect(&self) -> Result<Link, StoreError> {
        let config = config(&self.target).await?;
        // Does nothing if the program has chosen one. Without it, a program into which two are
        // compiled would panic.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let namespace = self.target.namespace.clone();
        let namespace = namespace.unwrap_or_else(|| config.default_namespace.clone());
        let client = tokio::task::spawn_blocking(move || client(config)).await;
        let client = match client {
            Ok(client) => client.map_err(|error| self.explain(&error))?,
            Err(error) => return Err(StoreError::unavailable(error.to_string())),
        };
        Ok(Link {
            leases: Api::namespaced(client, &namespace),
            proven: AtomicBool::new(false),
            spoilt: AtomicBool::new(false),
        })
    }

    fn explain(&self, error: &kube::Error) -> StoreError {
        match error {
            kube::Error::Api(status) => self.explain_status(status),
            kube::Error::SerdeError(_) => StoreError::new(
                StoreErrorKind::Damaged,
                format!("the API server's answer is not understood: {}", chain(error)),
            ),
            // Their text names the proxy, password and all.
            kube::Error::ProxyProtocolUnsupported { .. }
            | kube::Error::ProxyProtocolDisabled { .. } => StoreError::new(
                StoreErrorKind::Unsuitable,
                "the kubeconfig names a proxy; enable the feature \"http-proxy\" or \"socks5\" of \
                 the crate kube",
            ),
            error => StoreError::unavailable(format!("the API server: {}", chain(error))),
        }
    }

    fn explain_status(&self, status: &Status) -> StoreError {
        let kind = match status.code {
            401 | 403 => StoreErrorKind::Denied,
            400 | 404 | 405 | 406 | 413 | 415 | 422 => StoreErrorKind::Unsuitable,
            _ => StoreErrorKind::Unavailable,
        };
        // What is not the API server's own may be a whole page.
        let message: String = status.message.chars().take(300).collect();
        StoreError::new(kind, format!("the API server answers {}: {message}", status.code))
    }
}

/// Why a watch was not begun.
pub(super) struct Refusal {
    /// 0: no answer.
    pub(super) code: u16,
    pub(super) error: StoreError,
}

impl Refusal {
    fn other(error: StoreError) -> Self {
        Self { code: 0, error }
    }
}

/// Puts a request through, and judges the link by how it went.
async fn through<T>(
    link: &Link,
    request: impl Future<Output = kube::Result<T>>,
) -> kube::Result<T> {
    let mut flight = Flight { link, landed: false };
    let answer = request.await;
    match &answer {
        Ok(_) => flight.landed = true,
        Err(kube::Error::Api(status)) => flight.landed = status.code != 401,
        Err(_) => {}
    }
    if flight.landed {
        link.proven.store(true, Ordering::Relaxed);
    }
    answer
}

/// A request under way. One that fails, or that is given up, spoils a link that has worked before.
struct Flight<'a> {
    link: &'a Link,
    landed: bool,
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        // A link that has never worked has no idle connections; a new one would be no better.
        if !self.landed && self.link.proven.load(Ordering::Relaxed) {
            self.link.spoilt.store(true, Ordering::Relaxed);
        }
    }
}

async fn config(target: &Target) -> Result<Config, StoreError> {
    let options = KubeConfigOptions { context: target.context.clone(), cluster: None, user: None };
    let config = match (&target.kubeconfig, &target.context) {
        (Some(path), _) => {
            let kubeconfig = Kubeconfig::read_from(path).map_err(|error| unreadable(&error))?;
            Config::from_custom_kubeconfig(kubeconfig, &options).await
        }
        (None, Some(_)) => Config::from_kubeconfig(&options).await,
        (None, None) => match Config::from_kubeconfig(&options).await {
            Ok(config) => Ok(config),
            Err(error) => match Config::incluster() {
                Ok(config) => Ok(config),
                Err(inside) => {
                    return Err(StoreError::new(
                        StoreErrorKind::Unsuitable,
                        format!("{}, and not in a pod either: {inside}", unreadable(&error)),
                    ));
                }
            },
        },
    };
    let mut config = config.map_err(|error| unreadable(&error))?;
    // It repeats writes that may have been applied, up to fifteen times; retries are the keeper's.
    config.default_retry = false;
    config.connect_timeout = Some(connections::CONNECT_TIMEOUT);
    Ok(config)
}

/// A client as `kube` makes it, on connections that do not hold back their first request.
fn client(config: Config) -> kube::Result<Client> {
    if config.proxy_url.is_some() {
        return Client::try_from(config);
    }
    let connector = config.rustls_https_connector_with_connector(connections::tcp())?;
    let http = connections::pool().build::<_, Body>(connector);
    let (address, namespace) = (config.base_uri_layer(), config.default_namespace.clone());
    let client = ClientBuilder::new(http, namespace)
        .with_layer(&MapErrLayer::new(BoxError::from))
        .with_layer(&config.extra_headers_layer()?);
    Ok(match config.auth_layer()? {
        Some(auth) => client.with_layer(&auth).with_layer(&address).build(),
        None => client.with_layer(&address).build(),
    })
}

/// What is wrong with a kubeconfig, without its content.
fn unreadable(error: &KubeconfigError) -> StoreError {
    let why = match error {
        // Its text quotes the file.
        KubeconfigError::Parse(_) => "it is not valid YAML of a kubeconfig".to_owned(),
        error => error.to_string(),
    };
    StoreError::new(StoreErrorKind::Unsuitable, format!("no usable kubeconfig: {why}"))
}

/// An error and what is behind it. What a credential plugin printed is left out.
fn chain(error: &kube::Error) -> String {
    if is_auth(error) {
        return CREDENTIALS.to_owned();
    }
    // The outermost text repeats what is behind it.
    let Some(mut cause) = error.source() else { return error.to_string() };
    let mut text = String::new();
    loop {
        if is_auth(cause) {
            return CREDENTIALS.to_owned();
        }
        let said = cause.to_string();
        if !text.ends_with(&said) {
            let colon = if text.is_empty() { "" } else { ": " };
            // Writing to a String cannot fail.
            let _ = write!(text, "{colon}{said}");
        }
        match cause.source() {
            Some(next) => cause = next,
            None => return text,
        }
    }
}

fn is_auth(error: &(dyn std::error::Error + 'static)) -> bool {
    error.is::<kube::client::AuthError>()
        || matches!(error.downcast_ref::<kube::Error>(), Some(kube::Error::Auth(_)))
}

fn params(dry_run: bool) -> PostParams {
    PostParams { dry_run, field_manager: Some("tenure".to_owned()) }
}

const CREDENTIALS: &str = "the kubeconfig's credentials could not be had (its token file or its \
                           credential plugin failed)";
