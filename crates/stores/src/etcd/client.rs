//! Talks to the members of an etcd cluster: which of them to ask, and under which token.
//!
//! One member is preferred until it fails. A question that changes nothing, or changes the same
//! thing however often it is asked, goes on to the next member if the preferred one does not answer
//! soon. A transaction does so only if it certainly was not sent: one that may have been applied
//! and is sent again would be refused by its own effect. It is an error, and the keeper asks anew.
//! A caller who loses patience (drops the call) has made the next call go elsewhere, too.
#![allow(clippy::disallowed_methods)] // It drives: time-outs, and clean-up that nobody waits for.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode, header};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tenure_lease::backend::{StoreError, StoreErrorKind};
use tenure_lease::{Nonce, OpenError};
use tokio::sync::Mutex;

use super::address::{Address, Login};
use super::wire::{Authenticated, Ignored, LeaseAnswer, Refusal, Streamed, Txn};
use crate::http::{Http, Trust};

/// A client of a cluster, shared by all leases of a store.
pub(super) struct Client {
    http: Http,
    scheme: &'static str,
    /// `host:port` each.
    members: Vec<String>,
    preferred: AtomicUsize,
    login: Option<Login>,
    /// What the log-in gave, until etcd forgets it.
    token: Mutex<Option<Arc<str>>>,
}

/// Why a call was not answered with what was asked for.
#[derive(Debug)]
pub(super) enum Failure {
    /// In etcd's own words.
    Said { code: u32, message: String },
    /// Nothing that can be understood; it may have been done.
    Silent(String),
    /// Nothing, and it was not sent.
    Unsent(String),
    /// Whoever answered is not etcd, or its gateway is off.
    Strange(String),
}

/// What a leader says of an etcd lease. It answers by itself, so it may have been deposed without
/// knowing it; a later answer that a majority stands behind shows that it was not, if it is of the
/// same raft term.
pub(super) struct Lasts {
    /// For how long, in whole seconds, rounded down; `None`: there is no such lease.
    pub(super) seconds: Option<u64>,
    pub(super) raft_term: i64,
}

/// What a call does if it is sent twice.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Repeated {
    /// The same as once.
    Harmless,
    /// It meets its own effect.
    Refused,
}

impl Client {
    /// A client; it connects when it is asked something.
    pub(super) fn new(address: Address) -> Result<(Self, String), OpenError> {
        let Address { members, prefix, login, tls } = address;
        let (trust, identity) = match &tls {
            None => (Trust::Nothing, None),
            Some(files) => (
                files.ca.as_deref().map_or(Trust::System, Trust::File),
                files.cert.as_deref().zip(files.key.as_deref()),
            ),
        };
        let client = Self {
            http: Http::with_identity(&trust, identity)?,
            scheme: if tls.is_some() { "https" } else { "http" },
            // Spread: everybody lists the members in the same order.
            preferred: AtomicUsize::new(Nonce::random().bits() as usize % members.len()),
            members,
            login,
            token: Mutex::new(None),
        };
        Ok((client, prefix))
    }

    /// A transaction that only reads.
    pub(super) async fn read(&self, ops: Vec<Value>) -> Result<Txn, Failure> {
        self.call("kv/txn", &json!({ "success": ops }), Repeated::Harmless).await
    }

    /// A transaction that writes.
    pub(super) async fn write(
        &self,
        compare: Vec<Value>,
        success: Vec<Value>,
        failure: Vec<Value>,
    ) -> Result<Txn, Failure> {
        let body = json!({ "compare": compare, "success": success, "failure": failure });
        self.call("kv/txn", &body, Repeated::Refused).await
    }

    /// Makes an etcd lease under a given id.
    pub(super) async fn grant(&self, lease: i64, ttl: Duration) -> Result<(), Failure> {
        let body = json!({ "ID": lease.to_string(), "TTL": ttl.as_secs().to_string() });
        match self.call::<LeaseAnswer>("lease/grant", &body, Repeated::Harmless).await {
            Ok(answer) if answer.ttl.unsigned_abs() >= ttl.as_secs() => Ok(()),
            Ok(answer) => Err(Failure::Strange(format!(
                "asked for a lease of {} s, etcd granted {} s",
                ttl.as_secs(),
                answer.ttl
            ))),
            // By this very claim, whose request came twice.
            Err(failure) if failure.is("lease already exists") => Ok(()),
            Err(failure) => Err(failure),
        }
    }

    /// Prolongs an etcd lease.
    pub(super) async fn keep_alive(&self, lease: i64) -> Result<Lasts, Failure> {
        let body = json!({ "ID": lease.to_string() });
        let answer = self
            .call::<Streamed<LeaseAnswer>>("lease/keepalive", &body, Repeated::Harmless)
            .await?;
        match (answer.result, answer.error) {
            (Some(answer), _) => Ok(Lasts {
                seconds: u64::try_from(answer.ttl).ok().filter(|ttl| *ttl > 0),
                raft_term: answer.header.raft_term,
            }),
            (None, Some(error)) => Err(error.into()),
            (None, None) => Err(Failure::Silent("it answered a keep-alive with nothing".into())),
        }
    }

    /// How much longer an etcd lease lasts.
    pub(super) async fn time_to_live(&self, lease: i64) -> Result<Lasts, Failure> {
        let body = json!({ "ID": lease.to_string() });
        let answer =
            self.call::<LeaseAnswer>("lease/timetolive", &body, Repeated::Harmless).await?;
        Ok(Lasts { seconds: u64::try_from(answer.ttl).ok(), raft_term: answer.header.raft_term })
    }

    /// Ends an etcd lease, some time soon; if that fails, time ends it.
    pub(super) fn revoke_aside(self: &Arc<Self>, lease: i64) {
        let client = Arc::clone(self);
        tokio::spawn(async move {
            let body = json!({ "ID": lease.to_string() });
            let revoked = client.call::<Ignored>("lease/revoke", &body, Repeated::Harmless);
            let _ = tokio::time::timeout(ASIDE, revoked).await;
        });
    }

    /// Begins to watch a key: the answer's body, which does not end.
    pub(super) async fn watch(&self, key: &str) -> Result<Response<Incoming>, Failure> {
        let body = json!({ "create_request": { "key": super::wire::encode(key) } }).to_string();
        let turn = Turn::take(self);
        let token = self.token(turn.member).await?;
        let reply = self.send(turn.member, WATCH, &body, token.as_deref()).await?;
        if reply.status() != StatusCode::OK {
            let failure = self.failure(reply).await;
            if failure.is_about_token() {
                self.forget(token).await;
            }
            return Err(failure);
        }
        turn.answered();
        Ok(reply)
    }

    async fn call<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &Value,
        repeated: Repeated,
    ) -> Result<T, Failure> {
        let body = body.to_string();
        let mut left = self.members.len();
        loop {
            left -= 1;
            let turn = Turn::take(self);
            let asked = self.ask_within_reason(&turn, path, &body, repeated, left > 0);
            let failure = match asked.await {
                Ok(answer) => {
                    turn.answered();
                    let unread = |error| Failure::Strange(format!("its answer is odd: {error}"));
                    return serde_json::from_slice(&answer).map_err(unread);
                }
                Err(failure) if !failure.is_of_member() => {
                    turn.answered();
                    return Err(failure);
                }
                Err(failure) => failure,
            };
            let again = repeated == Repeated::Harmless || matches!(failure, Failure::Unsent(_));
            if left == 0 || !again {
                return Err(failure);
            }
        }
    }

    async fn ask_within_reason(
        &self,
        turn: &Turn<'_>,
        path: &str,
        body: &str,
        repeated: Repeated,
        others: bool,
    ) -> Result<Bytes, Failure> {
        let asked = self.ask(turn.member, path, body);
        let limit = if repeated == Repeated::Harmless && others { PATIENCE } else { LIMIT };
        let silent = |_| {
            Failure::Silent(format!(
                "{} did not answer within {limit:?}",
                self.members[turn.member]
            ))
        };
        tokio::time::timeout(limit, asked).await.map_err(silent)?
    }

    /// Asks one member, with a new log-in if etcd has forgotten the old one. (What it refuses for
    /// that reason it has not done.)
    async fn ask(&self, member: usize, path: &str, body: &str) -> Result<Bytes, Failure> {
        let token = self.token(member).await?;
        match self.post(member, path, body, token.as_deref()).await {
            Err(failure) if failure.is_about_token() && self.login.is_some() => {
                self.forget(token).await;
                let token = self.token(member).await?;
                self.post(member, path, body, token.as_deref()).await
            }
            answer => answer,
        }
    }

    async fn token(&self, member: usize) -> Result<Option<Arc<str>>, Failure> {
        let Some(Login { user, password }) = &self.login else { return Ok(None) };
        // Held while it asks, so that a thousand leases log in once.
        let mut token = self.token.lock().await;
        if token.is_none() {
            let body = json!({ "name": user, "password": password }).to_string();
            let answer = self.post(member, "auth/authenticate", &body, None).await?;
            let answer: Authenticated = serde_json::from_slice(&answer)
                .map_err(|_| Failure::Strange("it answered a log-in without a token".into()))?;
            *token = Some(answer.token.into());
        }
        Ok(token.clone())
    }

    async fn forget(&self, stale: Option<Arc<str>>) {
        let mut token = self.token.lock().await;
        if *token == stale {
            *token = None;
        }
    }

    async fn post(
        &self,
        member: usize,
        path: &str,
        body: &str,
        token: Option<&str>,
    ) -> Result<Bytes, Failure> {
        let reply = self.send(member, path, body, token).await?;
        if reply.status() == StatusCode::OK {
            return Http::rest(reply.into_body()).await.map_err(Failure::Silent);
        }
        Err(self.failure(reply).await)
    }

    async fn failure(&self, reply: Response<Incoming>) -> Failure {
        let status = reply.status();
        match Http::rest(reply.into_body()).await.map(|body| serde_json::from_slice(&body)) {
            Ok(Ok(refusal)) => Refusal::into(refusal),
            Ok(Err(_)) if status.is_server_error() => {
                Failure::Silent(format!("it answered {status}"))
            }
            Ok(Err(_)) => Failure::Strange(format!("it answered {status}")),
            Err(error) => Failure::Silent(error),
        }
    }

    async fn send(
        &self,
        member: usize,
        path: &str,
        body: &str,
        token: Option<&str>,
    ) -> Result<Response<Incoming>, Failure> {
        let uri = format!("{}://{}/v3/{path}", self.scheme, self.members[member]);
        let mut request = Request::post(uri).header(header::CONTENT_TYPE, "application/json");
        if path == WATCH {
            // A member that loses its leader should end the watch, not fall silent.
            request = request.header("Grpc-Metadata-hasleader", "true");
        }
        if let Some(token) = token {
            request = request.header(header::AUTHORIZATION, token);
        }
        let request = request
            .body(Full::from(body.to_owned()))
            .map_err(|_| Failure::Strange("its address cannot be part of a URL".into()))?;
        self.http.begin(request).await.map_err(|failed| {
            let message = format!("{}: {}", self.members[member], failed.message);
            if failed.unsent { Failure::Unsent(message) } else { Failure::Silent(message) }
        })
    }
}

/// A member's turn to answer. If it passes without an answer, the next member is preferred.
struct Turn<'a> {
    client: &'a Client,
    member: usize,
}

impl<'a> Turn<'a> {
    fn take(client: &'a Client) -> Self {
        Self { client, member: client.preferred.load(Ordering::Relaxed) }
    }

    fn answered(self) {
        std::mem::forget(self);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let next = (self.member + 1) % self.client.members.len();
        // Only one of many calls that fail together moves it on.
        let _ = self.client.preferred.compare_exchange(
            self.member,
            next,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
    }
}

impl Failure {
    /// Whether etcd said this.
    pub(super) fn is(&self, text: &str) -> bool {
        matches!(self, Self::Said { message, .. } if message.contains(text))
    }

    /// The etcd lease that a key was to be attached to does not exist (any more).
    pub(super) fn is_no_lease(&self) -> bool {
        self.is("requested lease not found")
    }

    /// Whether another member might do better.
    fn is_of_member(&self) -> bool {
        match self {
            Self::Said { code, .. } => matches!(*code, DEADLINE_EXCEEDED | UNAVAILABLE),
            Self::Silent(_) | Self::Unsent(_) | Self::Strange(_) => true,
        }
    }

    fn is_about_token(&self) -> bool {
        self.is("invalid auth token") || self.is("revision of auth store is old")
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Said { code: refusal.code, message: refusal.message }
    }
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        let (kind, message) = match failure {
            Failure::Said { code, message } => (kind_of(code, &message), message),
            Failure::Silent(message) | Failure::Unsent(message) => {
                (StoreErrorKind::Unavailable, message)
            }
            Failure::Strange(message) => (StoreErrorKind::Unsuitable, message),
        };
        let hint = match kind {
            StoreErrorKind::Denied => " (give a user with readwrite permission on the prefix)",
            StoreErrorKind::Unsuitable => " (is it etcd 3.4 or later, with its JSON gateway on?)",
            _ => "",
        };
        Self::new(kind, format!("etcd: {message}{hint}"))
    }
}

fn kind_of(code: u32, message: &str) -> StoreErrorKind {
    let denied = ["permission denied", "authentication failed", "user name is empty", "auth token"];
    let unsuitable = ["database space exceeded", "too large", "too many operations"];
    if matches!(code, PERMISSION_DENIED | UNAUTHENTICATED)
        || denied.iter().any(|text| message.contains(text))
    {
        StoreErrorKind::Denied
    } else if unsuitable.iter().any(|text| message.contains(text)) {
        StoreErrorKind::Unsuitable
    } else {
        StoreErrorKind::Unavailable
    }
}

// The codes of gRPC.
const DEADLINE_EXCEEDED: u32 = 4;
const PERMISSION_DENIED: u32 = 7;
const UNAVAILABLE: u32 = 14;
const UNAUTHENTICATED: u32 = 16;

const WATCH: &str = "watch";
/// How long a member may take while another one could be asked.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long the last one may take. The keeper has less patience, but people have none.
const LIMIT: Duration = Duration::from_secs(10);
/// How long clean-up may take that nobody waits for.
const ASIDE: Duration = Duration::from_secs(5);
