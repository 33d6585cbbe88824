use std::sync::atomic::{AtomicUsize, Ordering};

use hyper::StatusCode;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::http::{self, Trust};

use super::*;

/// However many ask at once, and however many of them lose interest.
#[tokio::test]
async fn no_more_connections_than_places() {
    let (pool, counts) = serve(After::Keep).await;
    let (mut wanted, mut unwanted) = (JoinSet::new(), JoinSet::new());
    for _ in 0..500 {
        for asking in [&mut wanted, &mut unwanted] {
            let pool = Arc::clone(&pool);
            asking.spawn(async move {
                pool.send(Lane::Other, get("/")).await.map(|reply| reply.status)
            });
        }
    }
    // In the middle of it: some of both have an answer, some a connection, some wait.
    for _ in 0..100 {
        assert_eq!(wanted.join_next().await.unwrap().unwrap(), Ok(StatusCode::OK));
    }
    unwanted.abort_all();
    while let Some(answer) = wanted.join_next().await {
        assert_eq!(answer.unwrap(), Ok(StatusCode::OK));
    }
    assert_eq!(counts.open_max.load(Ordering::SeqCst), PLACES.others);
    assert_eq!(counts.open.load(Ordering::SeqCst), PLACES.others, "they are kept");
}

/// A server that hangs takes no place away for ever.
#[tokio::test]
async fn places_come_back() {
    let (pool, counts) = serve(After::Keep).await;
    let mut hanging = JoinSet::new();
    for _ in 0..PLACES.others {
        let pool = Arc::clone(&pool);
        hanging.spawn(async move { drop(pool.send(Lane::Other, get("/never")).await) });
    }
    while counts.open.load(Ordering::SeqCst) < PLACES.others {
        tokio::task::yield_now().await;
    }
    hanging.abort_all();
    let reply = tokio::time::timeout(GRACE * 10, pool.send(Lane::Other, get("/"))).await.unwrap();
    assert_eq!(reply.unwrap().body, "ok");
}

/// Renewals have connections of their own, and one that may hang is followed by another one on a
/// connection that everybody uses from then on.
#[tokio::test]
async fn renewals_come_first() {
    let (pool, counts) = serve(After::Keep).await;
    assert_eq!(pool.send(Lane::Other, get("/")).await.unwrap().body, "ok");
    let mut hanging = JoinSet::new();
    for _ in 0..PLACES.others {
        let pool = Arc::clone(&pool);
        hanging.spawn(async move { drop(pool.send(Lane::Other, get("/never")).await) });
    }
    for _ in 0..PLACES.renewals - 1 {
        let pool = Arc::clone(&pool);
        hanging.spawn(async move { drop(pool.send(Lane::Renewal, get("/never")).await) });
    }
    while counts.open.load(Ordering::SeqCst) < PLACES.others + PLACES.renewals - 1 {
        tokio::task::yield_now().await;
    }
    let soon = Duration::from_secs(1);
    let renewed = tokio::time::timeout(soon, pool.send(Lane::Renewal, get("/"))).await;
    assert_eq!(renewed.expect("a place").unwrap().body, "ok");
    // What was opened a moment ago would count as fresh.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let fresh = tokio::time::timeout(soon, pool.send(Lane::FreshRenewal, get("/"))).await;
    assert_eq!(fresh.expect("a connection").unwrap().body, "ok");
    // Nobody waits for what hangs.
    let other = tokio::time::timeout(soon, pool.send(Lane::Other, get("/"))).await;
    assert_eq!(other.expect("a place").unwrap().body, "ok");
}

/// However many connections have gone silent, one time-out is all that they cost.
#[tokio::test]
async fn silent_connections_cost_one_time_out() {
    let (pool, counts) = serve(After::Freeze).await;
    let mut burst = JoinSet::new();
    for _ in 0..20 {
        let pool = Arc::clone(&pool);
        burst.spawn(async move { pool.send(Lane::Other, get("/")).await.map(drop) });
    }
    assert!(burst.join_all().await.iter().all(Result::is_ok));
    assert!(counts.open.load(Ordering::SeqCst) >= 2, "idle ones besides the one that is used next");
    let late = tokio::time::timeout(Duration::from_millis(200), pool.send(Lane::Other, get("/")));
    assert!(late.await.is_err(), "it is silent");
    let next = tokio::time::timeout(Duration::from_secs(1), pool.send(Lane::Other, get("/")));
    assert_eq!(next.await.expect("a new connection").unwrap().body, "ok");
}

/// A connection that the server has closed is not used, and one that it closes is no error.
#[tokio::test]
async fn closed_connections_are_replaced() {
    let (pool, counts) = serve(After::Close).await;
    for _ in 0..20 {
        assert_eq!(pool.send(Lane::Other, get("/")).await.unwrap().body, "ok");
        while counts.open.load(Ordering::SeqCst) > 0 {
            tokio::task::yield_now().await;
        }
    }
}

/// The connections of a server.
#[derive(Default)]
struct Counts {
    open: AtomicUsize,
    open_max: AtomicUsize,
}

/// What the server does with a connection after an answer.
#[derive(Clone, Copy)]
enum After {
    Keep,
    Close,
    /// Answers no further request, and says nothing of it.
    Freeze,
}

/// A server that answers each request after a while, and a pool for it.
async fn serve(after: After) -> (Arc<Pool>, Arc<Counts>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    let counts = Arc::new(Counts::default());
    let shared = Arc::clone(&counts);
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let counts = Arc::clone(&shared);
            tokio::spawn(async move {
                let open = counts.open.fetch_add(1, Ordering::SeqCst) + 1;
                counts.open_max.fetch_max(open, Ordering::SeqCst);
                answer(socket, after).await;
                counts.open.fetch_sub(1, Ordering::SeqCst);
            });
        }
    });
    (Arc::new(Pool::new(http::connector(&Trust::Nothing, None).unwrap(), server)), counts)
}

async fn answer(mut socket: TcpStream, after: After) {
    let mut request = [0; 1024];
    while let Ok(1..) = socket.read(&mut request).await {
        if request.starts_with(b"GET /never") {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(Duration::from_millis(3)).await;
        socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
        match after {
            After::Keep => {}
            After::Close => return,
            After::Freeze => std::future::pending().await,
        }
    }
}

fn get(path: &str) -> Request<Full<Bytes>> {
    Request::get(path).header("host", "here").body(Full::default()).unwrap()
}
