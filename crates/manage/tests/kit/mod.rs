//! Real nodes in this process, and a client that sends whatever it is told to.
#![allow(dead_code, clippy::disallowed_methods, reason = "real nodes take real time")]

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use serde_json::Value;
use tenure_cluster::{Address, Cluster, Settings, Status};
use tenure_lease::{MemoryStore, Store};
use tenure_manage::{Manage, Running};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

pub(crate) const READ: &str = "a-token-that-may-read";
pub(crate) const WRITE: &str = "a-token-that-may-write";

pub(crate) async fn nodes(count: usize) -> (Store, Vec<Cluster>) {
    let store = Store::new(MemoryStore::default());
    let sockets: Vec<_> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let addresses: Vec<_> = sockets.iter().map(|it| it.local_addr().unwrap().to_string()).collect();
    drop(sockets);
    let mut clusters: Vec<Cluster> = Vec::new();
    for (index, address) in addresses.iter().enumerate() {
        let mut settings = Settings::new("shop")
            .name(format!("shop-{index}"))
            .address(Address::new(address).unwrap())
            .formation(store.lease("shop.formation").ttl(Duration::from_secs(3)));
        settings.plaintext_without_any_protection = true;
        settings.membership.heartbeat_interval = Duration::from_millis(200);
        settings.membership.acceptable_pause = Duration::from_secs(2);
        settings.membership.gossip_interval = Duration::from_millis(200);
        // One after the other: the first is the oldest.
        clusters.push(soon(Cluster::join(settings)).await.unwrap());
    }
    for cluster in &clusters {
        until("all are up", || {
            cluster.view().members().filter(|it| it.1.status == Status::Up).count() == count
        })
        .await;
    }
    (store, clusters)
}

/// With both tokens.
pub(crate) fn manage(cluster: &Cluster) -> Manage {
    Manage::new(cluster).listen("127.0.0.1:0").read_token(READ).write_token(WRITE)
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The sentence of an error.
    pub(crate) fn error(&self) -> String {
        self.json()["error"].as_str().unwrap_or_else(|| panic!("{self:?}")).to_owned()
    }
}

pub(crate) async fn ask(
    to: SocketAddr,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> Answer {
    let stream = TcpStream::connect(to).await.unwrap();
    soon(converse(stream, to, method, path, headers, body)).await.expect("an answer")
}

/// None if the other end hung up.
pub(crate) async fn converse(
    mut stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    to: SocketAddr,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> Option<Answer> {
    let length = body.len();
    let host = if headers.contains("Host:") { String::new() } else { format!("Host: {to}\r\n") };
    let request = format!(
        "{method} {path} HTTP/1.1\r\n{host}Connection: close\r\nContent-Length: {length}\r\n\
         {headers}\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes).await; // A server may hang up without a goodbye.
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Some(Answer {
        status: status.unwrap_or_else(|| panic!("{head}")),
        head: head.into(),
        body: body.into(),
    })
}

pub(crate) async fn get(to: &Running, path: &str, token: &str) -> Answer {
    ask(to.address(), "GET", path, &bearer(token), "").await
}

pub(crate) async fn post(to: &Running, path: &str, token: &str, body: &str) -> Answer {
    let headers = format!("{}Content-Type: application/json\r\n", bearer(token));
    ask(to.address(), "POST", path, &headers, body).await
}

fn bearer(token: &str) -> String {
    if token.is_empty() { String::new() } else { format!("Authorization: Bearer {token}\r\n") }
}

pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(60), future).await.expect("within a minute")
}

pub(crate) async fn until(what: &str, holds: impl Fn() -> bool) {
    let waited = timeout(Duration::from_secs(60), async {
        while !holds() {
            sleep(Duration::from_millis(10)).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("waited for {what}"));
}

/// Asks again until it holds.
pub(crate) async fn eventually(
    what: &str,
    to: &Running,
    path: &str,
    holds: impl Fn(&Value) -> bool,
) -> Value {
    let mut last = Value::Null;
    for _ in 0..600 {
        last = get(to, path, READ).await.json();
        if holds(&last) {
            return last;
        }
        sleep(Duration::from_millis(100)).await;
    }
    panic!("waited for {what}: {last:#}");
}
