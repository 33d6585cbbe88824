//! Talks gRPC to the members of an etcd cluster.
//!
//! A request that changes nothing goes on to the next member if one does not answer soon. A
//! transaction does so only if etcd certainly has not done it: one that may have been applied and is
//! sent again would be refused by its own effect. It is an error, and the keeper asks again.
#![allow(clippy::disallowed_methods)] // It drives: time-outs.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ::http::uri::PathAndQuery;
use prost::Message;
use tenure_lease::backend::{StoreError, StoreErrorKind};
use tenure_lease::{Nonce, OpenError};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::client::Grpc;

use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Status, Streaming};
use tonic_prost::ProstCodec;

use super::address::{Address, Login, TlsFiles};
use super::link::{Lane, Link, OpenLink};
use super::messages::{
    AUTHENTICATE, AuthenticateRequest, AuthenticateResponse, RANGE, RangeRequest, RangeResponse,
    TXN, TxnRequest, TxnResponse, WATCH, WatchRequest, WatchResponse,
};

/// A client of a cluster, shared by all leases of a store.
pub(super) struct Client {
    members: Vec<Member>,
    login: Option<Login>,
    /// For renewals and releases.
    holding: Lane,
    /// For everything else.
    asking: Lane,
}

struct Member {
    /// `host:port`.
    address: String,
    endpoint: Endpoint,
}

/// Which connection a request takes.
#[derive(Clone, Copy)]
pub(super) enum Route<'a> {
    /// That of reads and acquisitions.
    Asking,
    /// That of renewals and releases.
    Holding(Sender<'a>),
}

/// A renewal or a release, as far as it matters for the choice of a connection.
#[derive(Clone, Copy)]
pub(super) struct Sender<'a> {
    /// The highest number of a connection that this tenure has sent a request on.
    pub(super) sent_on: &'a AtomicU64,
    /// An earlier request of this tenure has had no answer: take a connection that is newer.
    pub(super) fresh: bool,
}

/// Why a call was not answered with what was asked for.
#[derive(Debug)]
pub(super) enum Failure {
    /// In etcd's own words.
    Said { code: Code, message: String },
    /// Nothing that can be understood; it may have been done.
    Silent(String),
    /// Nothing, and it was not sent.
    Unsent(String),
}

/// What a call does if it is sent twice.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Repeated {
    /// The same as once.
    Harmless,
    /// It meets its own effect.
    Refused,
}

/// A watch stream: what to send, what comes, and the connection that it is on.
pub(super) struct WatchStream {
    pub(super) requests: mpsc::Sender<WatchRequest>,
    pub(super) responses: Streaming<WatchResponse>,
    pub(super) link: Arc<Link>,
}

impl Client {
    /// A client; it connects when it is asked something.
    pub(super) fn new(address: Address) -> Result<(Self, String), OpenError> {
        let Address { members, prefix, login, tls } = address;
        let tls = tls.as_ref().map(tls_config).transpose()?;
        let members = members.into_iter().map(|address| Member::new(address, tls.as_ref()));
        let members = members.collect::<Result<Vec<_>, _>>()?;
        // Spread: everybody lists the members in the same order.
        let first = Nonce::random().bits() as usize % members.len();
        let lane = || Lane::new(members.len(), first);
        Ok((Self { holding: lane(), asking: lane(), members, login }, prefix))
    }

    pub(super) async fn range(
        &self,
        route: Route<'_>,
        range: RangeRequest,
    ) -> Result<RangeResponse, Failure> {
        self.call(route, RANGE, range, Repeated::Harmless).await
    }

    /// Several ranges, read at one revision. etcd answers it like a range, without a proposal.
    pub(super) async fn ranges(&self, ranges: Vec<RangeRequest>) -> Result<TxnResponse, Failure> {
        let success = ranges.into_iter().map(Into::into).collect();
        let txn = TxnRequest { success, ..Default::default() };
        self.call(Route::Asking, TXN, txn, Repeated::Harmless).await
    }

    /// A transaction that writes.
    pub(super) async fn write(
        &self,
        route: Route<'_>,
        txn: TxnRequest,
    ) -> Result<TxnResponse, Failure> {
        self.call(route, TXN, txn, Repeated::Refused).await
    }

    /// Opens a stream of watches, with the first of them: etcd answers only then.
    pub(super) async fn watch(&self, first: WatchRequest) -> Result<WatchStream, Failure> {
        let link = self.asking.link();
        let attempt = Attempt { lane: &self.asking, link: &link };
        let opened = async {
            let open = self.open(&link).await?;
            let (requests, outgoing) = mpsc::channel(WATCH_REQUESTS_MAX);
            // It is empty, and its receiver is here.
            let _ = requests.try_send(first);
            let request = request(&open, ReceiverStream::new(outgoing));
            let mut grpc = Grpc::new(open.channel);
            grpc.ready().await.map_err(unready)?;
            let codec = ProstCodec::<WatchRequest, WatchResponse>::default();
            let reply = grpc.streaming(request, PathAndQuery::from_static(WATCH), codec).await?;
            Ok((requests, reply.into_inner()))
        };
        let (requests, responses) = timeout(PATIENCE_TO_WATCH, opened).await?;
        attempt.answered();
        Ok(WatchStream { requests, responses, link })
    }

    /// Retires the connection of a watch stream: its member hangs, or has forgotten the log-in.
    pub(super) fn retire_watch_link(&self, link: &Link) {
        self.asking.retire(link);
    }

    async fn call<Q, A>(
        &self,
        route: Route<'_>,
        path: &'static str,
        message: Q,
        repeated: Repeated,
    ) -> Result<A, Failure>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        // One more than members: with a single one, too, a forgotten log-in is worth a second try.
        let mut left = self.members.len() + 1;
        let deadline = Instant::now() + LIMIT;
        let mut fresh = matches!(route, Route::Holding(Sender { fresh: true, .. }));
        loop {
            left -= 1;
            let lane = match route {
                Route::Asking => &self.asking,
                Route::Holding(_) => &self.holding,
            };
            let link = match route {
                Route::Holding(sender) if std::mem::take(&mut fresh) => {
                    lane.link_newer_than(sender.sent_on.load(Ordering::Relaxed))
                }
                _ => lane.link(),
            };
            if let Route::Holding(sender) = route {
                sender.sent_on.fetch_max(link.number, Ordering::Relaxed);
            }
            let attempt = Attempt { lane, link: &link };
            let others = left > 0 && self.members.len() > 1;
            let patience = repeated == Repeated::Harmless && others;
            let limit = deadline.saturating_duration_since(Instant::now());
            let limit = if patience { limit.min(PATIENCE) } else { limit };
            let asked = self.ask(&link, path, message.clone());
            let failure = match timeout(limit, asked).await {
                Ok(answer) => {
                    attempt.answered();
                    return Ok(answer);
                }
                Err(failure) if !failure.is_of_link() => {
                    attempt.answered();
                    return Err(failure.at(&self.members[link.member]));
                }
                Err(failure) => failure,
            };
            drop(attempt);
            let again = repeated == Repeated::Harmless || failure.is_not_done();
            if left == 0 || !again || Instant::now() >= deadline {
                return Err(failure.at(&self.members[link.member]));
            }
        }
    }

    async fn ask<Q, A>(&self, link: &Link, path: &'static str, message: Q) -> Result<A, Failure>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let open = self.open(link).await?;
        let request = request(&open, message);
        unary(open, path, request).await
    }

    /// Connects and logs in, unless another request has.
    async fn open(&self, link: &Link) -> Result<OpenLink, Failure> {
        let open = || async {
            let connected = self.members[link.member].endpoint.connect().await;
            let channel = connected.map_err(|error| Failure::Unsent(causes(&error)))?;
            let token = self.log_in(OpenLink { channel: channel.clone(), token: None }).await?;
            Ok(OpenLink { channel, token })
        };
        link.opened.get_or_try_init(open).await.cloned()
    }

    async fn log_in(&self, open: OpenLink) -> Result<Option<MetadataValue<Ascii>>, Failure> {
        let Some(Login { user, password }) = &self.login else { return Ok(None) };
        let message = AuthenticateRequest { name: user.clone(), password: password.clone() };
        let request = request(&open, message);
        match unary::<_, AuthenticateResponse>(open, AUTHENTICATE, request).await {
            Ok(answer) => match MetadataValue::try_from(answer.token) {
                Ok(token) => Ok(Some(token)),
                Err(_) => Err(Failure::Unsent("its log-in token is not ASCII".into())),
            },
            Err(failure) if failure.says("authentication is not enabled") => Ok(None),
            // What was to be asked was not sent.
            Err(Failure::Silent(message)) => Err(Failure::Unsent(message)),
            Err(failure) => Err(failure),
        }
    }
}

impl Member {
    fn new(address: String, tls: Option<&ClientTlsConfig>) -> Result<Self, OpenError> {
        let wrong = |error: tonic::transport::Error| {
            OpenError::Url(format!("{address}: {}", causes(&error)))
        };
        let scheme = if tls.is_some() { "https" } else { "http" };
        let mut endpoint = Endpoint::from_shared(format!("{scheme}://{address}"))
            .map_err(wrong)?
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .tcp_keepalive(Some(TCP_KEEPALIVE))
            // While a watch is open; etcd minds pings on an idle connection.
            .http2_keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_TIMEOUT);
        if let Some(tls) = tls {
            let (host, _) = address.rsplit_once(':').unwrap_or((&address, ""));
            let host = host.trim_start_matches('[').trim_end_matches(']');
            endpoint = endpoint.tls_config(tls.clone().domain_name(host)).map_err(wrong)?;
        }
        Ok(Self { address, endpoint })
    }
}

fn tls_config(files: &TlsFiles) -> Result<ClientTlsConfig, OpenError> {
    let mut tls = ClientTlsConfig::new();
    tls = match &files.ca {
        None => tls.with_native_roots(),
        Some(ca) => {
            let pem = read_pem(ca, "CERTIFICATE")?;
            tls.ca_certificate(Certificate::from_pem(pem))
        }
    };
    if let Some((cert, key)) = files.cert.as_deref().zip(files.key.as_deref()) {
        let identity = Identity::from_pem(read_pem(cert, "CERTIFICATE")?, read_pem(key, "KEY")?);
        tls = tls.identity(identity);
    }
    Ok(tls)
}

/// A PEM file, which has at least one part of this kind.
fn read_pem(path: &Path, kind: &str) -> Result<Vec<u8>, OpenError> {
    let refuse = |why: String| OpenError::Url(format!("{}: {why}", path.display()));
    let pem = std::fs::read(path).map_err(|error| refuse(error.to_string()))?;
    let begins = |line: &[u8]| {
        let line = String::from_utf8_lossy(line);
        line.starts_with("-----BEGIN ") && line.trim_end().ends_with(&format!("{kind}-----"))
    };
    if !pem.split(|&byte| byte == b'\n').any(begins) {
        return Err(refuse(format!("there is no {kind} in it")));
    }
    Ok(pem)
}

fn request<T>(open: &OpenLink, message: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    let metadata = request.metadata_mut();
    // A member that has lost its leader then says so instead of falling silent.
    metadata.insert("hasleader", MetadataValue::from_static("true"));
    if let Some(token) = &open.token {
        metadata.insert("token", token.clone());
    }
    request
}

async fn unary<Q, A>(
    open: OpenLink,
    path: &'static str,
    request: tonic::Request<Q>,
) -> Result<A, Failure>
where
    Q: Message + 'static,
    A: Message + Default + 'static,
{
    let mut grpc = Grpc::new(open.channel).max_decoding_message_size(MESSAGE_MAX);
    grpc.ready().await.map_err(unready)?;
    let codec = ProstCodec::<Q, A>::default();
    Ok(grpc.unary(request, PathAndQuery::from_static(path), codec).await?.into_inner())
}

fn unready(error: tonic::transport::Error) -> Failure {
    Failure::Unsent(causes(&error))
}

async fn timeout<T>(
    limit: Duration,
    asked: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let silent = |_| Failure::Silent(format!("it did not answer within {limit:?}"));
    tokio::time::timeout(limit, asked).await.map_err(silent)?
}

/// A request under way. If it is dropped without an answer, its connection is retired.
struct Attempt<'a> {
    lane: &'a Lane,
    link: &'a Link,
}

impl Attempt<'_> {
    fn answered(self) {
        std::mem::forget(self);
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        self.lane.retire(self.link);
    }
}

impl Failure {
    fn says(&self, text: &str) -> bool {
        matches!(self, Self::Said { message, .. } if message.contains(text))
    }

    /// Whether another connection might do better.
    fn is_of_link(&self) -> bool {
        match self {
            Self::Said { code, .. } => {
                matches!(code, Code::DeadlineExceeded | Code::Unavailable) || self.is_log_in_lost()
            }
            Self::Silent(_) | Self::Unsent(_) => true,
        }
    }

    /// Whether it is certain that etcd has not done what it was asked.
    fn is_not_done(&self) -> bool {
        matches!(self, Self::Unsent(_)) || self.is_log_in_lost()
    }

    /// etcd has forgotten the token of this connection: it has expired, or etcd was restarted.
    fn is_log_in_lost(&self) -> bool {
        matches!(self, Self::Said { code, message }
            if *code == Code::Unauthenticated || is_about_token(message))
    }

    fn at(self, member: &Member) -> Self {
        let at = |message| format!("{}: {message}", member.address);
        match self {
            Self::Silent(message) => Self::Silent(at(message)),
            Self::Unsent(message) => Self::Unsent(at(message)),
            said @ Self::Said { .. } => said,
        }
    }
}

/// Whether etcd refuses something because it does not know the token.
pub(super) fn is_about_token(message: &str) -> bool {
    message.contains("invalid auth token") || message.contains("revision of auth store is old")
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        match std::error::Error::source(&status) {
            None => Self::Said { code: status.code(), message: status.message().to_owned() },
            Some(error) if was_refused(error) => Self::Unsent(causes(error)),
            Some(error) => Self::Silent(causes(error)),
        }
    }
}

/// Whether nobody accepted the connection: what was to be sent on it was not.
fn was_refused(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    causes.any(|error| {
        let error = error.downcast_ref::<std::io::Error>();
        error.is_some_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
    })
}

/// An error with all that caused it.
fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let mut texts: Vec<_> = causes.map(ToString::to_string).collect();
    texts.dedup();
    texts.join(": ")
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        let (kind, message) = match failure {
            Failure::Said { code, message } => (kind_of(code, &message), message),
            Failure::Silent(message) | Failure::Unsent(message) => {
                (StoreErrorKind::Unavailable, message)
            }
        };
        let hint = match kind {
            StoreErrorKind::Denied => " (give a user with readwrite permission on the prefix)",
            StoreErrorKind::Unsuitable => " (etcd 3.4 or later is needed, with room in its quota)",
            _ => "",
        };
        Self::new(kind, format!("etcd: {message}{hint}"))
    }
}

fn kind_of(code: Code, message: &str) -> StoreErrorKind {
    let denied = ["permission denied", "authentication failed", "user name is empty", "auth token"];
    let unsuitable = ["database space exceeded", "too large", "too many operations"];
    if matches!(code, Code::PermissionDenied | Code::Unauthenticated)
        || denied.iter().any(|text| message.contains(text))
    {
        StoreErrorKind::Denied
    } else if code == Code::Unimplemented || unsuitable.iter().any(|text| message.contains(text)) {
        StoreErrorKind::Unsuitable
    } else {
        StoreErrorKind::Unavailable
    }
}

/// How long a member may take to answer a read while another one could be asked.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long a call may take in all. The keeper has less patience, but people have none.
const LIMIT: Duration = Duration::from_secs(10);
/// How long a member may take to open a watch stream.
const PATIENCE_TO_WATCH: Duration = Duration::from_secs(3);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const TCP_KEEPALIVE: Duration = Duration::from_secs(15);
/// etcd closes connections that ping more often than every 5 s.
const PING_EVERY: Duration = Duration::from_secs(8);
const PING_TIMEOUT: Duration = Duration::from_secs(3);
/// The longest answer: a hundred records with the longest notes, and some room.
const MESSAGE_MAX: usize = 64 * 1024 * 1024;
/// Requests for watches that wait to be sent.
const WATCH_REQUESTS_MAX: usize = 64;
