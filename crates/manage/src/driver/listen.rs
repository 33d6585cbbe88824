//! The listener: bounded, and with patience for nobody who does not finish what it began.

use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use super::{PATIENCE, Peer, Stop, tls};
use crate::board::Board;
use crate::manage::{ManageError, Managed};
use crate::routes::{Shared, metrics_router, router};
use crate::{Recorder, Settings};

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
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let shared = Shared {
        rules: Arc::new(settings.rules(address)),
        board,
        managed,
        metrics,
        streams: Arc::new(Semaphore::new(STREAMS)),
        asking: Arc::new(Semaphore::new(ASKING)),
        looked,
    };
    let tls = config.is_some();
    let door = Arc::new(Door { router: router(shared), config: config.map(RwLock::new), settings });
    let mut stop = Stop::default();
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
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let door = Door {
        router: metrics_router(recorder),
        config: None,
        settings: Settings { listen: address.to_string(), ..Settings::default() },
    };
    let accepting = tokio::spawn(accept(listener, Arc::new(door)));
    Ok((address, Stop(vec![accepting.abort_handle()])))
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

async fn accept(listener: TcpListener, door: Arc<Door>) {
    // Connections end with the listener.
    let mut connections = tokio::task::JoinSet::new();
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        // Never closed; and a crowd waits in the kernel's queue, which is bounded, too.
        let place = places.clone().acquire_owned().await.ok();
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, _)) => {
                let door = door.clone();
                connections.spawn(async move {
                    let _place = place;
                    door.converse(stream).await;
                });
            }
            Err(error) => {
                tracing::warn!("management listener: {error}");
                sleep(AFTER_ERROR).await;
            }
        }
    }
}

impl Door {
    async fn converse(&self, stream: TcpStream) {
        let _ = stream.set_nodelay(true); // An event should not wait for the next.
        let Some(config) = &self.config else {
            return self.serve(stream, Peer::default()).await;
        };
        let config = config.read().unwrap_or_else(PoisonError::into_inner).clone();
        let greeting = TlsAcceptor::from(config).accept(stream);
        let stream = match timeout(PATIENCE, greeting).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return tracing::debug!("no TLS: {error}"),
            Err(_) => return,
        };
        let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        let certificate = shown.map(|it| tls::grants(it, &self.settings.writers));
        self.serve(stream, Peer { certificate }).await;
    }

    async fn serve(&self, stream: impl AsyncRead + AsyncWrite + Unpin, peer: Peer) {
        let router = self.router.clone().layer(Extension(peer));
        // Whoever hung up does not want an answer.
        let _ = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(PATIENCE)
            .max_buf_size(HEADERS_MAX)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
            .await;
    }
}

/// How many may be connected.
const CONNECTIONS: usize = 256;
/// How many of them may listen to events.
const STREAMS: usize = 64;
/// How many may have other nodes asked at the same time.
const ASKING: usize = 4;
const HEADERS_MAX: usize = 16 << 10;
const AFTER_ERROR: Duration = Duration::from_millis(200);
const RENEW: Duration = Duration::from_secs(60);
