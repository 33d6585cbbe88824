//! Connections to Consul, of which there are never many.
//!
//! Consul refuses whoever has 200 of them, and keeps one whose other end has hung up until it has
//! done what it was asked there. So a request takes a place before it takes a connection, and a new
//! connection is opened only when none is idle: then each belongs to somebody with a place, and there
//! are no more of them than places. Whoever loses interest in an answer leaves its connection to the
//! task that reads the answer to its end.
//!
//! The idle connections are of one [generation](crate::generations): after a request without an
//! answer none of them is used again.
#![allow(clippy::disallowed_methods)] // It starts tasks, and waits.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, Response, Uri};
use tokio::sync::oneshot;
use tower_service::Service as _;

use tenure_lease::Moment;

use crate::connections::IDLE_TIMEOUT;
use crate::generations::{Generations, Lane, Places};
use crate::http::{Connector, Http, Reply, causes};

/// The connections of one store to its server.
pub(super) struct Pool {
    dialer: Arc<Dialer>,
    generations: Generations<Arc<Connections>>,
}

struct Dialer {
    connector: Connector,
    server: Uri,
}

/// The connections of one generation.
struct Connections {
    dialer: Arc<Dialer>,
    idle: Mutex<Vec<Idle>>,
}

struct Idle {
    connection: Connection,
    since: Moment,
}

type Connection = SendRequest<Full<Bytes>>;

impl Pool {
    /// Opens no connection yet.
    pub(super) fn new(connector: Connector, server: Uri) -> Self {
        let dialer = Arc::new(Dialer { connector, server });
        Self { dialer, generations: Generations::new(PLACES) }
    }

    /// Sends a request, whose path begins with `/` and which names the host in its header, and takes
    /// the whole answer in. An error says that no answer came.
    pub(super) async fn send(
        &self,
        lane: Lane,
        request: Request<Full<Bytes>>,
    ) -> Result<Reply, String> {
        let make = || Arc::new(Connections::new(&self.dialer));
        let mut passage = self.generations.enter(lane, make).await;
        let (mut answer, answered) = oneshot::channel();
        let (connections, place) = (Arc::clone(passage.pool()), passage.take_place());
        tokio::spawn(async move {
            let _place = place;
            let unwanted = async {
                answer.closed().await;
                tokio::time::sleep(GRACE).await;
            };
            tokio::select! {
                reply = connections.exchange(request) => drop(answer.send(reply)),
                () = unwanted => {}
            }
        });
        let reply = answered.await.unwrap_or_else(|_| Err("its runtime has ended".into()));
        match &reply {
            Ok(_) => passage.answered(),
            Err(_) => passage.failed(),
        }
        reply
    }
}

impl Connections {
    fn new(dialer: &Arc<Dialer>) -> Self {
        Self { dialer: Arc::clone(dialer), idle: Mutex::default() }
    }

    async fn exchange(&self, mut request: Request<Full<Bytes>>) -> Result<Reply, String> {
        while let Some(mut connection) = self.take() {
            match connection.try_send_request(request).await {
                Ok(reply) => return self.finish(connection, reply).await,
                // The server has just closed it, and has seen nothing of the request.
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(causes(error.error())),
                },
            }
        }
        let mut connection = self.dialer.open().await?;
        let reply = connection.send_request(request).await.map_err(|error| causes(&error))?;
        self.finish(connection, reply).await
    }

    /// Reads an answer to its end, after which the next request may use the connection.
    async fn finish(
        &self,
        mut connection: Connection,
        reply: Response<Incoming>,
    ) -> Result<Reply, String> {
        let (head, body) = reply.into_parts();
        let body = Http::rest(body).await?;
        if connection.ready().await.is_ok() {
            self.idle().push(Idle { connection, since: Moment::now() });
        }
        Ok(Reply { status: head.status, headers: head.headers, body })
    }

    /// The connection that was used last, so that those of a busy time grow old and are closed.
    fn take(&self) -> Option<Connection> {
        let (mut idle, now) = (self.idle(), Moment::now());
        idle.retain(|idle| !idle.connection.is_closed() && now.since(idle.since) < IDLE_TIMEOUT);
        idle.pop().map(|idle| idle.connection)
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Idle>> {
        // A list of connections: sound after any panic.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Dialer {
    async fn open(&self) -> Result<Connection, String> {
        let opened = self.connector.clone().call(self.server.clone()).await;
        let opened = opened.map_err(|error| causes(&*error))?;
        let shaken = http1::handshake(opened).await;
        let (connection, driver) = shaken.map_err(|error| causes(&error))?;
        tokio::spawn(async {
            // Whoever uses it is told.
            let _ = driver.await;
        });
        Ok(connection)
    }
}

/// Watches have up to 17 of the last, for seconds; others go through the rest in milliseconds.
const PLACES: Places = Places { fresh: 8, renewals: 16, others: 40 };
/// How long an answer may take that nobody wants any more. Then the connection is closed, since it
/// may be dead.
const GRACE: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests;
