//! Against servers of their own.
#![allow(clippy::disallowed_methods)] // Real sockets, real time.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::*;

/// How many connections two requests take, if every answer has this header.
async fn connections_of_two_requests(header: &str) -> usize {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let connections = Cell::new(0);
    let serve = async {
        loop {
            let (stream, _) = listener.accept().await.expect("a client");
            connections.set(connections.get() + 1);
            let (from, mut to) = stream.into_split();
            let mut lines = BufReader::new(from).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                if line.is_empty() {
                    let answer = format!("HTTP/1.1 200 OK\r\n{header}content-length: 0\r\n\r\n");
                    to.write_all(answer.as_bytes()).await.expect("a listener");
                }
            }
        }
    };
    let ask = async {
        let http = Http::new(&Trust::Nothing).expect("a client");
        for _ in 0..2 {
            let request = Request::get(format!("http://{address}/")).body(Full::default());
            http.send(Lane::Other, request.expect("a request")).await.expect("an answer");
            // The connection goes back to the pool on another task.
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        () = serve => {}
        () = ask => {}
    }
    connections.get()
}

#[tokio::test]
async fn a_connection_is_kept_while_the_server_keeps_it() {
    assert_eq!(connections_of_two_requests("").await, 1);
    assert_eq!(connections_of_two_requests("Keep-Alive: timeout=75\r\n").await, 1);
    assert_eq!(connections_of_two_requests("Keep-Alive: max=9, timeout=5\r\n").await, 2);
}

/// A server whose connections can be made to hang for ever, while new ones work. Counts what it
/// accepts.
struct Hanging {
    address: std::net::SocketAddr,
    accepted: Arc<AtomicUsize>,
    /// Connections accepted before this one hang.
    hang_before: Arc<AtomicUsize>,
}

impl Hanging {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (accepted, hang_before) =
            (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let (count, before) = (Arc::clone(&accepted), Arc::clone(&hang_before));
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.expect("a client");
                let (own, before) = (count.fetch_add(1, Ordering::SeqCst), Arc::clone(&before));
                tokio::spawn(async move {
                    let (from, mut to) = stream.into_split();
                    let mut lines = BufReader::new(from).lines();
                    while let Ok(Some(line)) = lines.next_line().await {
                        if own < before.load(Ordering::SeqCst) {
                            std::future::pending::<()>().await;
                        }
                        if line.is_empty() {
                            // So that the requests of a burst are under way together.
                            tokio::time::sleep(Duration::from_millis(20)).await;
                            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
                            to.write_all(answer).await.expect("a listener");
                        }
                    }
                });
            }
        });
        Self { address, accepted, hang_before }
    }

    fn hang(&self) {
        self.hang_before.store(self.accepted.load(Ordering::SeqCst), Ordering::SeqCst);
    }

    fn request(&self) -> Request<Full<Bytes>> {
        Request::get(format!("http://{}/", self.address)).body(Full::default()).expect("a request")
    }

    async fn burst(&self, http: &Http, size: usize) {
        let mut requests = JoinSet::new();
        for _ in 0..size {
            let (http, request) = (http.clone(), self.request());
            requests.spawn(async move { http.send(Lane::Other, request).await.is_ok() });
        }
        assert!(requests.join_all().await.into_iter().all(|answered| answered));
    }

    /// Whether a request is answered before its time is over.
    async fn answers(&self, http: &Http, lane: Lane) -> bool {
        let sent = http.send(lane, self.request());
        tokio::time::timeout(PATIENCE, sent).await.is_ok_and(|reply| reply.is_ok())
    }
}

const PATIENCE: Duration = Duration::from_millis(500);

/// A burst leaves many idle connections, and then all of them hang: one time-out is enough.
#[tokio::test]
async fn connections_that_hang_cost_one_time_out() {
    let (server, http) = (Hanging::start().await, Http::new(&Trust::Nothing).expect("a client"));
    server.burst(&http, 24).await;
    assert!(server.accepted.load(Ordering::SeqCst) >= 20);
    server.hang();
    assert!(!server.answers(&http, Lane::Other).await, "the first one meets a dead connection");
    for index in 0..24 {
        assert!(server.answers(&http, Lane::Other).await, "request {index} after it");
    }
}

/// A request for a fresh connection meets none of those that hang, while the earlier request is
/// still waiting; and then everybody uses its connection.
#[tokio::test]
async fn a_fresh_connection_is_a_way_out_for_all() {
    let (server, http) = (Hanging::start().await, Http::new(&Trust::Nothing).expect("a client"));
    server.burst(&http, 24).await;
    tokio::time::sleep(Duration::from_millis(60)).await;
    server.hang();
    let stuck = http.send(Lane::Renewal, server.request());
    tokio::pin!(stuck);
    let waited = tokio::time::timeout(Duration::from_millis(100), &mut stuck).await;
    assert!(waited.is_err(), "the earlier request hangs");
    assert!(server.answers(&http, Lane::FreshRenewal).await);
    let opened = server.accepted.load(Ordering::SeqCst);
    for _ in 0..24 {
        assert!(server.answers(&http, Lane::Renewal).await);
    }
    assert_eq!(server.accepted.load(Ordering::SeqCst), opened, "they share the fresh connection");
    // Nobody cancelled the earlier one.
    assert!(tokio::time::timeout(Duration::from_millis(10), &mut stuck).await.is_err());
}

/// However many ask for fresh connections at once, they open no more than there are requests, and
/// they reuse what works.
#[tokio::test]
async fn fresh_connections_are_shared() {
    let (server, http) = (Hanging::start().await, Http::new(&Trust::Nothing).expect("a client"));
    for _ in 0..10 {
        assert!(server.answers(&http, Lane::FreshRenewal).await);
    }
    // One answer takes 20 ms, and those of 50 ms share a connection.
    let opened = server.accepted.load(Ordering::SeqCst);
    assert!((2..=7).contains(&opened), "{opened} connections");
}

/// Renewals do not wait for other requests, of which only so many are under way.
#[tokio::test]
async fn renewals_pass_by_a_crowd() {
    let (server, http) = (Hanging::start().await, Http::new(&Trust::Nothing).expect("a client"));
    server.hang_before.store(PLACES.others, Ordering::SeqCst);
    let mut crowd = JoinSet::new();
    for _ in 0..10 * PLACES.others {
        let (http, request) = (http.clone(), server.request());
        crowd.spawn(async move { http.send(Lane::Other, request).await.is_ok() });
    }
    while server.accepted.load(Ordering::SeqCst) < PLACES.others {
        tokio::task::yield_now().await;
    }
    assert!(!server.answers(&http, Lane::Other).await, "the crowd fills its lane");
    assert_eq!(server.accepted.load(Ordering::SeqCst), PLACES.others);
    assert!(server.answers(&http, Lane::Renewal).await);
}
