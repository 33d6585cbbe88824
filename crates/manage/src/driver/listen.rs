//! The listener: bounded in every way, and always with a place for one more.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use axum::Router;
use axum::http::{HeaderValue, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use tenure_lease::Moment;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt as _;

use super::connections::{ConnectionId, Connections};
use super::{PATIENCE, Peer, Stop, tls};
use crate::access::{Needs, Rules};
use crate::board::Board;
use crate::manage::{ManageError, Managed};
use crate::routes::{Shared, metrics_router, router};
use crate::{Recorder, Settings, openapi};

/// Listens; where, whether with TLS, and how to end it.
pub(crate) async fn listen(
    settings: Settings,
    board: Arc<Board>,
    managed: Arc<dyn Managed>,
    metrics: Option<Recorder>,
    looked: super::Looked,
) -> Result<(SocketAddr, bool, Stop), ManageError> {
    let address = settings.check()?;
    let config = tls::load(&settings)?;
    let failed = |source| ManageError::Listen { address, source };
    let listener = bind(address).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let rules = Arc::new(RwLock::new(Arc::new(settings.rules(address)?)));
    let shared = Shared {
        rules: rules.clone(),
        openapi: openapi::document(managed.is_demo()).to_string().into(),
        board,
        managed,
        metrics,
        streams: Arc::new(Semaphore::new(STREAMS)),
        asking: Arc::new(Semaphore::new(ASKING)),
        looked,
    };
    let tls = config.is_some();
    let mut stop = Stop::default();
    if settings.read_token_file.is_some() || settings.write_token_file.is_some() {
        let reading = reread_tokens(settings.clone(), address, rules);
        stop.0.push(tokio::spawn(reading).abort_handle());
    }
    let door = Arc::new(Door { router: router(shared), config: config.map(RwLock::new), settings });
    if tls {
        stop.0.push(tokio::spawn(renew(door.clone())).abort_handle());
    }
    stop.0.push(tokio::spawn(accept(listener, door)).abort_handle());
    Ok((address, tls, stop))
}

/// Listens for those who read metrics, and nothing else.
pub(crate) async fn listen_for_scrapes(
    address: SocketAddr,
    recorder: Recorder,
) -> Result<(SocketAddr, Stop), ManageError> {
    let failed = |source| ManageError::Listen { address, source };
    let listener = bind(address).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let door = Door {
        router: metrics_router(recorder),
        config: None,
        settings: Settings { listen: address.to_string(), ..Settings::default() },
    };
    let accepting = tokio::spawn(accept(listener, Arc::new(door)));
    Ok((address, Stop(vec![accepting.abort_handle()])))
}

/// With room in the kernel for a crowd that comes at once: whoever finds none there tries again after a
/// second, and a probe's second is over then.
fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

struct Door {
    router: Router,
    config: Option<RwLock<Arc<ServerConfig>>>,
    settings: Settings,
}

/// Reads the certificate again from time to time: it is replaced before it expires.
async fn renew(door: Arc<Door>) {
    loop {
        sleep(RENEW).await;
        match (tls::load(&door.settings), &door.config) {
            (Ok(Some(new)), Some(config)) => {
                *config.write().unwrap_or_else(PoisonError::into_inner) = new;
            }
            (Err(error), _) => tracing::warn!("the old certificate stays: {error}"),
            _ => {}
        }
    }
}

/// Reads the files with tokens again and again. Files that cannot be used change nothing.
async fn reread_tokens(settings: Settings, address: SocketAddr, rules: Arc<RwLock<Arc<Rules>>>) {
    let mut wrong = None;
    loop {
        sleep(TOKENS).await;
        match settings.rules(address) {
            Ok(new) => {
                wrong = None;
                let mut rules = rules.write().unwrap_or_else(PoisonError::into_inner);
                if **rules != new {
                    *rules = Arc::new(new);
                    tracing::info!("the management API has new tokens");
                }
            }
            Err(error) => {
                let text = error.to_string();
                if wrong.as_ref() != Some(&text) {
                    tracing::warn!("the old tokens stay: {text}");
                    wrong = Some(text);
                }
            }
        }
    }
}

async fn accept(listener: TcpListener, door: Arc<Door>) {
    // Connections end with the listener.
    let mut tasks = JoinSet::new();
    let places = Arc::new(Places::default());
    loop {
        while tasks.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, from)) => {
                let place = Arc::new(places.take(from.ip()));
                let door = door.clone();
                let task = tasks.spawn({
                    let place = place.clone();
                    async move { door.converse(stream, place).await }
                });
                place.can_be_closed_by(task);
            }
            Err(error) => {
                tracing::warn!("management listener: {error}");
                sleep(AFTER_ERROR).await;
            }
        }
    }
}

/// The places of everybody who is connected.
#[derive(Debug, Default)]
struct Places(Mutex<Taken>);

#[derive(Debug, Default)]
struct Taken {
    connections: Connections,
    tasks: HashMap<ConnectionId, AbortHandle>,
    /// How many had to give way since that was last said.
    gave_way: u64,
    said_at: Option<Moment>,
}

impl Places {
    fn take(self: &Arc<Self>, from: IpAddr) -> Place {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (id, gives_way) = taken.connections.add_stranger(from);
        taken.close(gives_way);
        Place { places: self.clone(), id, from }
    }
}

impl Taken {
    fn close(&mut self, id: Option<ConnectionId>) {
        let Some(id) = id else { return };
        if let Some(task) = self.tasks.remove(&id) {
            task.abort();
        }
        self.gave_way += 1;
        let now = Moment::now();
        if self.said_at.is_none_or(|at| now.since(at) >= SAY) {
            tracing::warn!(
                connections = self.gave_way,
                "too many connections to the management listener: the oldest ones were closed"
            );
            (self.gave_way, self.said_at) = (0, Some(now));
        }
    }
}

/// The place of one connection: free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Places>,
    id: ConnectionId,
    from: IpAddr,
}

impl Place {
    fn taken(&self) -> std::sync::MutexGuard<'_, Taken> {
        self.places.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The task that serves this connection, which ends when the place is needed.
    fn can_be_closed_by(&self, task: AbortHandle) {
        self.taken().tasks.insert(self.id, task);
    }

    /// Whoever is connected was allowed to read something.
    pub(crate) fn let_in(&self) {
        let mut taken = self.taken();
        let gives_way = taken.connections.let_in(self.id);
        taken.close(gives_way);
    }

    fn is_stranger(&self) -> bool {
        self.taken().connections.is_stranger(self.id)
    }

    /// Who is connected.
    pub(crate) fn from(&self) -> IpAddr {
        self.from
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.taken();
        taken.connections.remove(self.id);
        taken.tasks.remove(&self.id);
    }
}

impl Door {
    /// A stranger has [`PATIENCE`] for all of it: TLS, its request, and to take the answer.
    async fn converse(&self, stream: TcpStream, place: Arc<Place>) {
        let mut serving = std::pin::pin!(self.greet(stream, place.clone()));
        if timeout(PATIENCE, &mut serving).await.is_err() && !place.is_stranger() {
            serving.await;
        }
    }

    async fn greet(&self, stream: TcpStream, place: Arc<Place>) {
        let _ = stream.set_nodelay(true); // An event should not wait for the next.
        // Whoever takes nothing of what it is sent is hung up on.
        #[cfg(target_os = "linux")]
        let _ = socket2::SockRef::from(&stream).set_tcp_user_timeout(Some(PATIENCE));
        let Some(config) = &self.config else {
            return serve(self.router.clone(), stream, Peer { certificate: None, place }).await;
        };
        let config = config.read().unwrap_or_else(PoisonError::into_inner).clone();
        let stream = match TlsAcceptor::from(config).accept(stream).await {
            Ok(stream) => stream,
            Err(error) => return tracing::debug!("no TLS: {error}"),
        };
        let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        let certificate = shown.map(|it| self.grants(it));
        if certificate.is_some() {
            place.let_in();
        }
        serve(self.router.clone(), stream, Peer { certificate, place }).await;
    }

    /// What this certificate, which was verified, lets its owner do.
    fn grants(&self, certificate: &CertificateDer<'_>) -> Shown {
        let writer =
            self.settings.writers.iter().find(|name| {
                tls::grants(certificate, std::slice::from_ref(*name)) == Needs::Writing
            });
        Shown { writer: writer.map(|name| name.as_str().into()) }
    }
}

async fn serve(router: Router, stream: impl AsyncRead + AsyncWrite + Unpin, peer: Peer) {
    let service = service_fn(move |mut request: Request<Incoming>| {
        let place = peer.place.clone();
        request.extensions_mut().insert(peer.clone());
        let answered = router.clone().oneshot(request);
        async move {
            let mut response: Response<_> = answered.await?;
            // A stranger gets one answer: what it may ask for, it can ask for on another connection.
            if place.is_stranger() {
                let close = HeaderValue::from_static("close");
                response.headers_mut().insert(header::CONNECTION, close);
            }
            Ok::<_, Infallible>(response)
        }
    });
    // Whoever hung up does not want an answer.
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .max_buf_size(HEADERS_MAX)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

/// What a client's certificate shows.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    /// The name of `writers` that it carries.
    pub(crate) writer: Option<Arc<str>>,
}

/// How many may wait to be accepted; the kernel's own limit, `somaxconn`, is the same by default.
const BACKLOG: u32 = 4096;
/// How many may listen to events.
const STREAMS: usize = 64;
/// How many may have other nodes asked at the same time.
const ASKING: usize = 4;
const HEADERS_MAX: usize = 16 << 10;
const AFTER_ERROR: Duration = Duration::from_millis(200);
const RENEW: Duration = Duration::from_secs(60);
/// How often the files with tokens are read.
const TOKENS: Duration = Duration::from_secs(5);
/// How often it is said that connections had to give way.
const SAY: Duration = Duration::from_secs(60);
