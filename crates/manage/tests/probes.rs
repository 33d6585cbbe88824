//! What probes are told, and who is told why; tokens that change; strangers that take no place away.
#![allow(clippy::disallowed_methods, reason = "real nodes take real time")]

mod kit;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use kit::{READ, WRITE, get, manage, nodes, post, soon};
use tenure_manage::{Manage, Running};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

/// A probe restarts it: nobody else would.
#[tokio::test]
async fn a_node_that_is_out_for_good_is_not_alive() {
    let (_, clusters) = nodes(3).await;
    let mut servers = Vec::new();
    for cluster in &clusters {
        servers.push(manage(cluster).start().await.unwrap());
        assert_eq!(get(&servers[servers.len() - 1], "/alive", "").await.status, 200);
    }
    clusters[0].down(&clusters[1].me()).await;
    soon(clusters[1].ended()).await;
    is_over(&servers[1], "it was declared down").await;
    soon(clusters[2].leave()).await;
    is_over(&servers[2], "it left").await;
    assert_eq!(get(&servers[0], "/alive", "").await.status, 200);
    clusters[0].panic().await;
    soon(clusters[0].ended()).await;
    is_over(&servers[0], "its thread panicked: planted").await;
}

/// Neither alive nor ready; and only who may read is told why.
async fn is_over(server: &Running, why: &str) {
    for path in ["/alive", "/ready"] {
        let stranger = get(server, path, "").await;
        assert_eq!(stranger.status, 503, "{stranger:?}");
        assert!(!stranger.error().contains(why), "{stranger:?}");
        let reader = get(server, path, READ).await;
        assert_eq!(reader.status, 503, "{reader:?}");
        assert!(reader.error().contains(why), "{reader:?}");
    }
}

#[tokio::test]
async fn a_token_that_is_replaced_in_its_file_counts_soon() {
    let (_, clusters) = nodes(1).await;
    let dir = tempfile::tempdir().unwrap();
    let (read, write) = (dir.path().join("read"), dir.path().join("write"));
    std::fs::write(&read, READ).unwrap();
    std::fs::write(&write, WRITE).unwrap();
    let plain = Manage::new(&clusters[0]).listen("127.0.0.1:0");
    let server = plain.read_token_file(&read).write_token_file(&write).start().await.unwrap();
    assert_eq!(get(&server, "/api/cluster", READ).await.status, 200);
    let status = |token: &'static str| {
        let server = &server;
        async move { get(server, "/api/cluster", token).await.status }
    };
    const NEXT: &str = "another-token-that-may-read";
    assert_eq!(status(NEXT).await, 401);
    // What cannot be used changes nothing: a token that is too short, and the same for both.
    std::fs::write(&read, "short").unwrap();
    sleep(Duration::from_secs(7)).await;
    assert_eq!(status(READ).await, 200);
    std::fs::write(&read, NEXT).unwrap();
    let began = Instant::now();
    while status(NEXT).await != 200 {
        assert!(began.elapsed() < Duration::from_secs(30));
        sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(status(READ).await, 401, "the old one is no use any more");
    assert_eq!(status(WRITE).await, 200);
    let missing = Manage::new(&clusters[0]).listen("127.0.0.1:0").read_token_file("/nowhere");
    let refused = missing.start().await.unwrap_err().to_string();
    assert!(refused.contains("/nowhere"), "{refused}");
}

#[tokio::test]
async fn the_timeline_says_which_operator() {
    let (_, clusters) = nodes(2).await;
    let server = manage(&clusters[0]).start().await.unwrap();
    let whom = clusters[1].me();
    let body = format!("{{\"node\":\"{}\"}}", whom.address);
    assert_eq!(post(&server, "/api/down", WRITE, &body).await.status, 202);
    let mut stream = TcpStream::connect(server.address()).await.unwrap();
    let head =
        format!("GET /api/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {READ}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut said = String::new();
    let expected =
        format!("an operator at 127.0.0.1 with the write token: {whom} is declared down");
    while !said.contains(&expected) {
        let mut bytes = [0; 4096];
        let count = soon(stream.read(&mut bytes)).await.unwrap();
        assert!(count > 0, "{said}");
        said.push_str(&String::from_utf8_lossy(&bytes[..count]));
    }
}

/// Strangers that connect, and those that ask and do not listen: more than there are places. Whoever has
/// a token goes on with its stream of events; a probe is answered at once.
#[tokio::test]
async fn strangers_take_no_place_from_those_who_were_let_in() {
    let (_, clusters) = nodes(1).await;
    let server = manage(&clusters[0]).start().await.unwrap();
    let at = server.address();
    let mut events = TcpStream::connect(at).await.unwrap();
    let head =
        format!("GET /api/events HTTP/1.1\r\nHost: {at}\r\nAuthorization: Bearer {READ}\r\n\r\n");
    events.write_all(head.as_bytes()).await.unwrap();
    soon(events.read(&mut [0; 64])).await.unwrap();
    let mut strangers = Vec::new();
    for index in 0..600 {
        let mut stranger = TcpStream::connect(at).await.unwrap();
        if index % 2 == 0 {
            let _ = stranger.write_all(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n").await;
        }
        strangers.push(stranger);
    }
    for _ in 0..20 {
        let began = Instant::now();
        assert_eq!(get(&server, "/alive", "").await.status, 200);
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    }
    let mut bytes = vec![0; 1 << 16];
    let more = async {
        let mut said = String::new();
        while !said.contains("event: beat") {
            let count = events.read(&mut bytes).await.unwrap();
            assert!(count > 0, "the stream of one with a token was closed");
            said.push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
    };
    soon(more).await;
}

/// One answer for a stranger, whatever it asks for; as many as it likes for one with a token.
#[tokio::test]
async fn a_stranger_gets_one_answer() {
    let (_, clusters) = nodes(1).await;
    let server = manage(&clusters[0]).start().await.unwrap();
    assert_eq!(answers(server.address(), "/alive", "").await, 1);
    assert_eq!(answers(server.address(), "/nowhere", "").await, 1);
    assert_eq!(answers(server.address(), "/api/cluster", "").await, 1);
    let token = format!("Authorization: Bearer {READ}\r\n");
    assert_eq!(answers(server.address(), "/api/cluster", &token).await, 3);
}

/// How many of three requests on one connection are answered.
async fn answers(at: SocketAddr, path: &str, headers: &str) -> usize {
    let mut stream = TcpStream::connect(at).await.unwrap();
    let ask = format!("GET {path} HTTP/1.1\r\nHost: {at}\r\n{headers}\r\n");
    let last = format!("GET {path} HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n{headers}\r\n");
    stream.write_all(format!("{ask}{ask}{last}").as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    let _ = soon(stream.read_to_end(&mut bytes)).await;
    String::from_utf8_lossy(&bytes).matches("HTTP/1.1 ").count()
}

/// Whoever sends its head byte by byte, or nothing, is hung up on; so is whoever takes no answer.
#[tokio::test]
async fn a_stranger_has_ten_seconds_for_all_of_it() {
    let (_, clusters) = nodes(1).await;
    let server = manage(&clusters[0]).start().await.unwrap();
    let slow = async {
        let mut stream = TcpStream::connect(server.address()).await.unwrap();
        let began = Instant::now();
        for byte in b"GET /alive HTTP/1.1\r\nX: ".iter().chain([b'x'; 1000].iter()) {
            let said = timeout(Duration::from_millis(200), stream.read(&mut [0; 512])).await;
            if said.is_ok() || stream.write_all(&[*byte]).await.is_err() {
                break;
            }
        }
        began.elapsed()
    };
    let silent = async {
        let mut stream = TcpStream::connect(server.address()).await.unwrap();
        let began = Instant::now();
        let _ = stream.read(&mut [0; 512]).await;
        began.elapsed()
    };
    let (slow, silent) = soon(async { tokio::join!(slow, silent) }).await;
    assert!(
        slow < Duration::from_secs(15) && silent < Duration::from_secs(15),
        "{slow:?} {silent:?}"
    );
}
