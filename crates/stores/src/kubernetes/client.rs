//! The requests to the API server, each sent once.

use std::error::Error as _;
use std::fmt::Write as _;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use kube::Api;
use kube::api::{ListParams, PostParams, WatchEvent, WatchParams};
use kube::core::{ObjectList, Status};

use tenure_lease::LeaseName;
use tenure_lease::backend::{StoreError, StoreErrorKind};

use super::credentials::{Credentials, Login, Target};
use super::object::LeaseObject;
use crate::generations::Lane;

/// The answer to a conditional write.
pub(super) enum Written {
    Yes(Box<LeaseObject>),
    /// The condition did not hold; nothing was written.
    Conflict,
}

pub(super) type Events = BoxStream<'static, kube::Result<WatchEvent<LeaseObject>>>;

/// The API server.
pub(super) struct Server {
    login: Login,
}

impl Server {
    pub(super) fn new(target: Target) -> Self {
        Self { login: Login::new(target) }
    }

    /// Reads the configuration, to say early what is wrong with it.
    pub(super) async fn check(&self) -> Result<(), StoreError> {
        self.login.check().await
    }

    /// The Lease as it is now, by a consistent read; `None` if there is none.
    pub(super) async fn get(
        &self,
        lane: Lane,
        name: &LeaseName,
    ) -> Result<Option<LeaseObject>, StoreError> {
        let name = name.as_str();
        match self.ask(lane, |leases| async move { leases.get(name).await }).await? {
            Ok(object) => Ok(Some(object)),
            // Not any 404: a proxy in between has its own.
            Err(kube::Error::Api(status)) if status.reason == "NotFound" => Ok(None),
            Err(error) => Err(explain(&error)),
        }
    }

    /// Creates the Lease, unless there is one.
    pub(super) async fn create(
        &self,
        object: &LeaseObject,
        dry_run: bool,
    ) -> Result<Written, StoreError> {
        let params = &params(dry_run);
        let create = |leases: Api<LeaseObject>| async move { leases.create(params, object).await };
        match self.ask(Lane::Other, create).await? {
            Ok(object) => Ok(Written::Yes(Box::new(object))),
            Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {
                Ok(Written::Conflict)
            }
            Err(error) => Err(explain(&error)),
        }
    }

    /// Replaces the Lease, if it still is the one that the object was made of.
    pub(super) async fn replace(
        &self,
        lane: Lane,
        object: &LeaseObject,
        dry_run: bool,
    ) -> Result<Written, StoreError> {
        assert!(dry_run || object.is_conditional(), "every write names what it replaces");
        let params = &params(dry_run);
        let replace = |leases: Api<LeaseObject>| async move {
            leases.replace(object.name(), params, object).await
        };
        match self.ask(lane, replace).await? {
            Ok(object) => Ok(Written::Yes(Box::new(object))),
            Err(kube::Error::Api(status))
                if status.reason == "Conflict" || status.reason == "NotFound" =>
            {
                Ok(Written::Conflict)
            }
            Err(error) => Err(explain(&error)),
        }
    }

    /// A watch from a version on; without one, it first tells what there is.
    pub(super) async fn watch(
        &self,
        params: &WatchParams,
        version: Option<&str>,
    ) -> Result<Events, Refusal> {
        let version = version.unwrap_or("");
        let watch = |leases: Api<LeaseObject>| async move {
            leases.watch(params, version).await.map(StreamExt::boxed)
        };
        match self.ask(Lane::Other, watch).await.map_err(Refusal::other)? {
            Ok(events) => Ok(events),
            Err(kube::Error::Api(status)) => {
                Err(Refusal { code: status.code, error: explain_status(&status) })
            }
            Err(error) => Err(Refusal::other(explain(&error))),
        }
    }

    /// A page of the Leases of the namespace, and where the next one begins. Needs the verb `list`,
    /// which nothing else does.
    pub(super) async fn page(
        &self,
        begin: Option<&str>,
    ) -> Result<(Vec<LeaseObject>, Option<String>), StoreError> {
        let mut params = ListParams::default().limit(PAGE);
        params.continue_token = begin.map(str::to_owned);
        let params = &params;
        match self.ask(Lane::Other, |leases| async move { leases.list(params).await }).await? {
            Ok(ObjectList { items, metadata, .. }) => {
                Ok((items, metadata.continue_.filter(|next| !next.is_empty())))
            }
            Err(kube::Error::Api(status)) if status.code == FORBIDDEN => {
                let refused = explain_status(&status);
                let text = format!("{refused}; add the verb \"list\" on leases to its Role");
                Err(StoreError::new(StoreErrorKind::Denied, text))
            }
            Err(error) => Err(explain(&error)),
        }
    }

    /// Puts a request, and judges credentials and connection by how it went.
    async fn ask<T, F: Future<Output = kube::Result<T>>>(
        &self,
        lane: Lane,
        request: impl FnOnce(Api<LeaseObject>) -> F,
    ) -> Result<kube::Result<T>, StoreError> {
        let credentials = self.login.credentials().await?;
        let passage = credentials.enter(lane).await;
        let mut patience = Patience { credentials: &credentials, rewarded: false };
        let answer = request(passage.pool().clone()).await;
        patience.rewarded = true;
        match &answer {
            Ok(_) => passage.answered(),
            Err(kube::Error::Api(status)) => {
                if status.code == UNAUTHORIZED {
                    credentials.refuse();
                }
                passage.answered();
            }
            Err(error) => {
                if behind(error).any(is_auth) {
                    credentials.refuse();
                }
                passage.failed();
            }
        }
        Ok(answer)
    }
}

/// Notes that a request was given up without an answer.
struct Patience<'a> {
    credentials: &'a Credentials,
    rewarded: bool,
}

impl Drop for Patience<'_> {
    fn drop(&mut self) {
        if !self.rewarded {
            self.credentials.suspect();
        }
    }
}

pub(super) fn explain(error: &kube::Error) -> StoreError {
    match error {
        kube::Error::Api(status) => explain_status(status),
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

fn explain_status(status: &Status) -> StoreError {
    let kind = match status.code {
        UNAUTHORIZED | FORBIDDEN => StoreErrorKind::Denied,
        400 | 404 | 405 | 406 | 413 | 415 | 422 => StoreErrorKind::Unsuitable,
        _ => StoreErrorKind::Unavailable,
    };
    // What is not the API server's own may be a whole page.
    let message: String = status.message.chars().take(300).collect();
    StoreError::new(kind, format!("the API server answers {}: {message}", status.code))
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

/// An error and what is behind it. What a credential plugin printed is left out.
fn chain(error: &kube::Error) -> String {
    if behind(error).any(is_auth) {
        return CREDENTIALS.to_owned();
    }
    // The outermost text repeats what is behind it.
    let Some(cause) = error.source() else { return error.to_string() };
    let mut text = String::new();
    for cause in behind(cause) {
        let said = cause.to_string();
        if !text.ends_with(&said) {
            let colon = if text.is_empty() { "" } else { ": " };
            // Writing to a String cannot fail.
            let _ = write!(text, "{colon}{said}");
        }
    }
    text
}

/// An error, and all that caused it.
fn behind<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
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
/// How many Leases are listed at once.
const PAGE: u32 = 500;
const UNAUTHORIZED: u16 = 401;
const FORBIDDEN: u16 = 403;
