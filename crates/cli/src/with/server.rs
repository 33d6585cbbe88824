//! The listener: bounded in every way. Drives.
#![allow(clippy::disallowed_methods, reason = "this is where connections come in")]

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::StatusCode;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tenure_lease::Moment;
use tokio::net::UnixStream;
use tokio::task::JoinSet;

use super::api::{self, PATIENCE};
use super::holder::LeaseHolder;
use super::peer::Peer;
use super::refusal::Refusal;
use crate::socket::PrivateSocket;

/// Answers for as long as it is polled. Connections end with it; leases do not.
pub(super) async fn serve(socket: &PrivateSocket, holder: &Arc<LeaseHolder>) -> Infallible {
    let mut tasks = JoinSet::new();
    let places = Arc::new(Places::default());
    loop {
        while tasks.try_join_next().is_some() {}
        match socket.listener.accept().await {
            Ok((stream, _)) => {
                let peer = Peer::of(&stream, Moment::now(), socket.owner);
                let place = peer.and_then(|peer| Ok((places.take(peer.id.pid)?, peer)));
                match place {
                    Ok((place, peer)) => {
                        let holder = holder.clone();
                        tasks.spawn(async move {
                            let _place = place;
                            converse(stream, &holder, Arc::new(peer)).await;
                        });
                    }
                    Err(refusal) => refuse(&stream, &refusal),
                }
            }
            Err(error) => {
                tracing::warn!("{}: {error}", socket.path.display());
                tokio::time::sleep(AFTER_ERROR).await;
            }
        }
    }
}

async fn converse(stream: UnixStream, holder: &Arc<LeaseHolder>, peer: Arc<Peer>) {
    let service = service_fn(|request| {
        let peer = peer.clone();
        async move { Ok::<_, Infallible>(api::answer(holder, &peer, request).await) }
    });
    // Whoever hung up does not want an answer.
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .max_buf_size(HEADERS_MAX)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

/// Says no, without waiting for the request, and hangs up.
fn refuse(stream: &UnixStream, refusal: &Refusal) {
    tracing::debug!("refused: {}", refusal.message);
    let body = refusal.body().to_string();
    let answer = format!(
        "HTTP/1.1 {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        refusal.status,
        body.len()
    );
    // A new connection takes that much; if not, hanging up says it as well.
    let _: io::Result<usize> = crate::run::sys::send_now(stream, answer.as_bytes());
}

/// How many connections each process has.
#[derive(Default)]
struct Places(Mutex<BTreeMap<i32, usize>>);

impl Places {
    fn take(self: &Arc<Self>, pid: i32) -> Result<Place, Refusal> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let total: usize = counts.values().sum();
        let own = counts.get(&pid).copied().unwrap_or_default();
        if own >= CONNECTIONS_PER_PROCESS_MAX || total >= CONNECTIONS_MAX {
            let (whose, most) = match own >= CONNECTIONS_PER_PROCESS_MAX {
                true => ("this process has", CONNECTIONS_PER_PROCESS_MAX),
                false => ("all processes together have", CONNECTIONS_MAX),
            };
            let message = format!("{whose} {most} connections already, which is the most");
            return Err(Refusal::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "too_many_connections",
                message,
            ));
        }
        counts.insert(pid, own + 1);
        Ok(Place { places: self.clone(), pid })
    }
}

/// The place of one connection: free again when this is dropped.
struct Place {
    places: Arc<Places>,
    pid: i32,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.places.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = counts.get_mut(&self.pid) {
            *own -= 1;
            if *own == 0 {
                counts.remove(&self.pid);
            }
        }
    }
}

/// How many connections there may be: each costs two descriptors, of usually 1024.
const CONNECTIONS_MAX: usize = 256;
const CONNECTIONS_PER_PROCESS_MAX: usize = 64;
const HEADERS_MAX: usize = 16 << 10;
const AFTER_ERROR: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_cannot_take_all_places_and_places_come_back() {
        let places = Arc::new(Places::default());
        let taken: Vec<_> =
            (0..CONNECTIONS_PER_PROCESS_MAX).map(|_| places.take(7).unwrap()).collect();
        assert!(places.take(7).is_err());
        assert!(places.take(8).is_ok());
        drop(taken);
        assert!(places.take(7).is_ok());
        let crowd: Vec<_> = (0..).map_while(|pid| places.take(100 + pid / 8).ok()).collect();
        assert_eq!(crowd.len(), CONNECTIONS_MAX);
        drop(crowd);
        assert!(places.0.lock().unwrap().is_empty());
    }
}
