//! Where the API server is and who we are there.
//!
//! A credential plugin may take longer than a request is given. So credentials are made in the
//! background, once for all who wait, and are there for the next request if none of those could
//! wait. Credentials that a plugin has made are replaced before they are old, while they still work.
#![allow(clippy::disallowed_methods)] // Credentials are made on a task, and plugins block a thread.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::client::{Body, ClientBuilder, ConfigExt as _};
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Api, Client, Config};
use tokio::sync::watch;
use tower::BoxError;
use tower::util::MapErrLayer;

use tenure_lease::Moment;
use tenure_lease::backend::{StoreError, StoreErrorKind};

use super::client::explain;
use super::object::LeaseObject;
use crate::connections;
use crate::generations::{Generations, Lane, Passage, Places};

/// Where to find them. Says nothing secret.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Target {
    /// None: the one that the configuration names.
    pub(super) namespace: Option<String>,
    /// None: `KUBECONFIG`, `~/.kube/config`, or the pod's service account.
    pub(super) kubeconfig: Option<PathBuf>,
    pub(super) context: Option<String>,
}

/// Makes credentials when they are needed, and when they have grown old.
pub(super) struct Login {
    target: Target,
    state: Mutex<LoginState>,
}

#[derive(Default)]
struct LoginState {
    credentials: Option<Arc<Credentials>>,
    /// The attempt to make others, until its outcome is taken in.
    attempt: Option<watch::Receiver<Option<Outcome>>>,
    /// Why the last attempt failed, if nobody waited for it.
    unheard: Option<(StoreError, Moment)>,
    /// When credentials that work may be replaced at the earliest.
    replace_after: Moment,
}

/// How an attempt came out.
struct Outcome {
    made: Result<Arc<Credentials>, StoreError>,
    /// Whether somebody waited for it.
    heard: bool,
}

/// The means to open connections as somebody, and the connections.
pub(super) struct Credentials {
    namespace: String,
    generations: Generations<Api<LeaseObject>>,
    /// Makes a client without connections.
    client: Box<dyn Fn() -> Client + Send + Sync>,
    made_at: Moment,
    /// A plugin has made them, and may be slow to renew them.
    by_plugin: bool,
    /// A request has not been answered, perhaps because the plugin renews them just then.
    overdue: AtomicBool,
    /// The server does not take them any more.
    refused: AtomicBool,
}

impl Login {
    pub(super) fn new(target: Target) -> Self {
        Self { target, state: Mutex::default() }
    }

    /// Reads the configuration, to say early what is wrong with it.
    pub(super) async fn check(&self) -> Result<(), StoreError> {
        config(&self.target).await.map(drop)
    }

    pub(super) async fn credentials(&self) -> Result<Arc<Credentials>, StoreError> {
        let mut attempt = {
            let (mut state, now) = (self.state(), Moment::now());
            state.take_in(now);
            if let Some(credentials) = state.usable() {
                if credentials.are_due(now) && now >= state.replace_after {
                    state.replace_after = now + REPLACE_PAUSE;
                    state.attempt(&self.target);
                }
                return Ok(credentials);
            }
            match state.unheard.take() {
                Some((error, at)) if now.since(at) < UNHEARD_FOR => return Err(error),
                _ => state.attempt(&self.target),
            }
        };
        match attempt.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(outcome)) => outcome.made.clone(),
            // Another request, on a runtime that lives, begins again.
            Ok(None) | Err(_) => Err(StoreError::unavailable("the runtime has ended")),
        }
    }

    fn state(&self) -> MutexGuard<'_, LoginState> {
        // Each field is replaced whole, so it is sound after any panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LoginState {
    fn usable(&self) -> Option<Arc<Credentials>> {
        let usable = |it: &&Arc<Credentials>| !it.refused.load(Ordering::Relaxed);
        self.credentials.as_ref().filter(usable).cloned()
    }

    /// Takes in the outcome of an attempt that has ended.
    fn take_in(&mut self, now: Moment) {
        let Some(attempt) = &self.attempt else { return };
        match &*attempt.borrow() {
            Some(Outcome { made: Ok(credentials), .. }) => {
                self.credentials = Some(Arc::clone(credentials));
            }
            Some(Outcome { made: Err(error), heard }) => {
                self.unheard = (!heard).then(|| (error.clone(), now));
            }
            // It goes on; or its runtime has ended before it.
            None if attempt.has_changed().is_ok() => return,
            None => {}
        }
        self.attempt = None;
    }

    /// The attempt that is under way, or a new one.
    fn attempt(&mut self, target: &Target) -> watch::Receiver<Option<Outcome>> {
        if let Some(attempt) = &self.attempt {
            return attempt.clone();
        }
        let (sender, attempt) = watch::channel(None);
        let target = target.clone();
        tokio::spawn(async move {
            let making = tokio::time::timeout(MAKING_TIMEOUT, Credentials::new(&target));
            let made = making.await.unwrap_or_else(|_| {
                Err(StoreError::unavailable(format!(
                    "the kubeconfig's credential plugin has not ended within {MAKING_TIMEOUT:?}"
                )))
            });
            // One receiver is the store's own.
            let heard = sender.receiver_count() > 1;
            sender.send_replace(Some(Outcome { made: made.map(Arc::new), heard }));
        });
        self.attempt = Some(attempt.clone());
        attempt
    }
}

impl Credentials {
    /// Reads the configuration, and has its plugin run if it names one.
    async fn new(target: &Target) -> Result<Self, StoreError> {
        let config = config(target).await?;
        // Does nothing if the program has chosen one. Without it, a program into which two are
        // compiled would panic.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let namespace = target.namespace.clone();
        let namespace = namespace.unwrap_or_else(|| config.default_namespace.clone());
        let by_plugin = config.auth_info.exec.is_some();
        let made = tokio::task::spawn_blocking(move || clients(config)).await;
        let client = match made {
            Ok(client) => client.map_err(|error| explain(&error))?,
            Err(error) => return Err(StoreError::unavailable(error.to_string())),
        };
        Ok(Self {
            namespace,
            generations: Generations::new(PLACES),
            client,
            made_at: Moment::now(),
            by_plugin,
            overdue: AtomicBool::new(false),
            refused: AtomicBool::new(false),
        })
    }

    /// The way to the server for one request.
    pub(super) async fn enter(&self, lane: Lane) -> Passage<'_, Api<LeaseObject>> {
        // The tasks of a client live on the runtime that we are on, the keeper's.
        let make = || Api::namespaced((self.client)(), &self.namespace);
        self.generations.enter(lane, make).await
    }

    /// Says that the server does not take them. Those that were made just now are not made again
    /// for that: others would be no better.
    pub(super) fn refuse(&self) {
        if Moment::now().since(self.made_at) > REFUSED_AFTER {
            self.refused.store(true, Ordering::Relaxed);
        }
    }

    /// Says that a request has not been answered.
    pub(super) fn suspect(&self) {
        self.overdue.store(true, Ordering::Relaxed);
    }

    fn are_due(&self, now: Moment) -> bool {
        let is_old = now.since(self.made_at) > PLUGIN_AGE_MAX;
        self.by_plugin && (is_old || self.overdue.load(Ordering::Relaxed))
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

/// What makes clients as `kube` makes them, each with connections of its own, which do not hold back
/// their first request.
fn clients(mut config: Config) -> kube::Result<Box<dyn Fn() -> Client + Send + Sync>> {
    if config.proxy_url.is_some() {
        // How to go through a proxy, `kube` keeps to itself: one client has to serve for all.
        let client = Client::try_from(config)?;
        return Ok(Box::new(move || client.clone()));
    }
    let (address, headers) = (config.base_uri_layer(), config.extra_headers_layer()?);
    let auth = config.auth_layer()?;
    if auth.is_some() {
        // `kube` runs a plugin once for a token and once for a certificate. This one gives tokens.
        (config.auth_info.exec, config.auth_info.auth_provider) = (None, None);
    }
    let connector = config.rustls_https_connector_with_connector(connections::tcp())?;
    Ok(Box::new(move || {
        let http = connections::pool().build::<_, Body>(connector.clone());
        let client = ClientBuilder::new(http, config.default_namespace.clone())
            .with_layer(&MapErrLayer::new(BoxError::from))
            .with_layer(&headers);
        match &auth {
            Some(auth) => client.with_layer(auth).with_layer(&address).build(),
            None => client.with_layer(&address).build(),
        }
    }))
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

/// A connection serves one request at a time, so each place is a connection while it is taken.
const PLACES: Places = Places { fresh: 16, renewals: 256, others: 64 };
/// A plugin that takes longer is given up, and run again when there is a request.
const MAKING_TIMEOUT: Duration = Duration::from_secs(60);
/// For so long an error that nobody waited for is told to whoever asks next.
const UNHEARD_FOR: Duration = Duration::from_secs(10);
/// Tokens of plugins last for a quarter of an hour or more, as a rule.
const PLUGIN_AGE_MAX: Duration = Duration::from_secs(5 * 60);
/// Between two attempts to replace credentials that still work.
const REPLACE_PAUSE: Duration = Duration::from_secs(10);
const REFUSED_AFTER: Duration = Duration::from_secs(1);
