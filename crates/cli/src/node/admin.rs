//! The door for `tenure cluster`: a socket that only this user, and root, can reach.
//!
//! One line of JSON for each request, one for each answer (see [`crate::cluster::Request`]). Drives:
//! it listens, and waits with a deadline.
#![allow(clippy::disallowed_methods)]

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tenure_cluster::{Cluster, Node};
use tenure_manage::sight::find;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::cluster::{Answer, Change, Changed, REQUEST_MAX, Request, Status};
use crate::exit::Failure;
use crate::socket::PrivateSocket;

/// The socket; gone when this is dropped.
pub(super) struct Admin(PrivateSocket);

impl Admin {
    pub(super) fn bind(path: &Path) -> Result<Self, Failure> {
        PrivateSocket::bind(path, "admin", "each node needs a path of its own").map(Self)
    }

    /// Answers for as long as it is polled.
    pub(super) async fn serve(&self, cluster: &Cluster, name: &str, cluster_name: &str) {
        let about = Arc::new(About {
            cluster: cluster.clone(),
            name: name.into(),
            cluster_name: cluster_name.into(),
        });
        let places = Arc::new(Semaphore::new(CONNECTIONS));
        loop {
            // Never closed; and a crowd waits in the kernel's queue, which is bounded, too.
            let place = places.clone().acquire_owned().await.ok();
            match self.0.listener.accept().await {
                // Somebody may have come before the permissions were set.
                Ok((stream, _)) if self.may(&stream) => {
                    let about = about.clone();
                    tokio::spawn(async move {
                        let _place = place;
                        // Whoever hung up does not want an answer.
                        let _ = about.converse(stream).await;
                    });
                }
                Ok(_) => tracing::warn!("another user tried the admin socket"),
                Err(error) => {
                    tracing::warn!("admin socket: {error}");
                    tokio::time::sleep(AFTER_ERROR).await;
                }
            }
        }
    }

    fn may(&self, stream: &UnixStream) -> bool {
        stream.peer_cred().is_ok_and(|peer| peer.uid() == self.0.owner || peer.uid() == 0)
    }
}

/// What it takes to answer.
struct About {
    cluster: Cluster,
    name: String,
    cluster_name: String,
}

impl About {
    async fn converse(&self, mut stream: UnixStream) -> io::Result<()> {
        let (reading, mut writing) = stream.split();
        let mut reading = BufReader::new(reading);
        let mut line = Vec::new();
        loop {
            line.clear();
            let mut bounded = (&mut reading).take(REQUEST_MAX + 1);
            match timeout(PATIENCE, bounded.read_until(b'\n', &mut line)).await {
                Ok(Ok(0)) | Err(_) => return Ok(()),
                Ok(outcome) => outcome?,
            };
            let whole = line.last() == Some(&b'\n');
            let answer = match serde_json::from_slice(&line) {
                _ if !whole => {
                    Answer::Refused(format!("a request is one line of at most {REQUEST_MAX} bytes"))
                }
                Ok(request) => self.answer(request).await,
                Err(error) => Answer::Refused(format!("not a request: {error}")),
            };
            let mut text = serde_json::to_vec(&answer)?;
            text.push(b'\n');
            timeout(PATIENCE, writing.write_all(&text)).await??;
            if !whole {
                return Ok(());
            }
        }
    }

    async fn answer(&self, request: Request) -> Answer {
        let cluster = &self.cluster;
        match request {
            Request::Status => {
                let (view, seen) = cluster.seen();
                let me = cluster.me();
                let status = Status::new(&self.cluster_name, &self.name, &me, &view, &seen);
                Answer::Status(Box::new(status.readiness(cluster.ready(), &cluster.warnings())))
            }
            Request::Leave { node: None } => {
                let leaver = cluster.clone();
                tokio::spawn(async move { leaver.leave().await });
                changed(Change::Leaving, &cluster.me())
            }
            Request::Leave { node: Some(text) } => match find(&cluster.view(), &text) {
                Ok(node) => {
                    cluster.ask_to_leave(&node).await;
                    changed(Change::Leaving, &node)
                }
                Err(why) => Answer::Refused(why),
            },
            Request::Down { node } => match find(&cluster.view(), &node) {
                Ok(node) => {
                    cluster.down(&node).await;
                    changed(Change::Down, &node)
                }
                Err(why) => Answer::Refused(why),
            },
        }
    }
}

fn changed(change: Change, node: &Node) -> Answer {
    Answer::Changed(Changed { change, node: node.to_string() })
}

/// How many may ask at the same time.
const CONNECTIONS: usize = 16;
/// How long to wait for a request, and for an answer to be taken.
const PATIENCE: Duration = Duration::from_secs(10);
const AFTER_ERROR: Duration = Duration::from_millis(200);
