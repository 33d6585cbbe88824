//! Members on loopback, and a proxy in front of one that can cut its connections.
#![allow(dead_code, unreachable_pub, reason = "each test uses a part of it")]
#![allow(clippy::disallowed_methods, reason = "these tests run in real time, over real sockets")]

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_cluster::{Address, Cluster, Node, Settings, Status};
use tenure_lease::{MemoryStore, Store};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Addresses on loopback that stay free while a node of theirs is away: the port is outside of the
/// range that the kernel gives away, the host is this process's own.
pub fn addresses(count: usize) -> Vec<Address> {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let pid = std::process::id();
    let (high, low) = (1 + (pid >> 8) % 254, pid & 0xff);
    let next = |_| {
        let host = NEXT.fetch_add(1, Ordering::Relaxed);
        Address::new(&format!("127.{high}.{low}.{host}:7400")).unwrap()
    };
    (0..count).map(next).collect()
}

/// A node that finds the others by a lease.
pub fn plain(address: &Address, store: &Store) -> Settings {
    let lease = store.lease("shop.formation").ttl(Duration::from_secs(3));
    let mut settings = Settings::new("shop").name("node").address(address.clone()).formation(lease);
    settings.plaintext_without_any_protection = true;
    settings
}

pub async fn join_all(settings: Vec<Settings>) -> Vec<Cluster> {
    let joins: Vec<_> =
        settings.into_iter().map(|settings| tokio::spawn(Cluster::join(settings))).collect();
    let mut clusters = Vec::new();
    for join in joins {
        clusters.push(soon(join).await.unwrap().unwrap());
    }
    clusters
}

/// So many nodes, all up, that know each other.
pub async fn nodes(count: usize) -> Vec<Cluster> {
    let store = Store::new(MemoryStore::default());
    let settings = addresses(count).iter().map(|address| plain(address, &store)).collect();
    let clusters = join_all(settings).await;
    agree(&clusters, count).await;
    clusters
}

/// The same, each behind a proxy.
pub async fn nodes_behind_proxies(count: usize) -> (Vec<Cluster>, Vec<Proxy>) {
    let store = Store::new(MemoryStore::default());
    let (mut settings, mut proxies) = (Vec::new(), Vec::new());
    for address in addresses(count) {
        let listen: SocketAddr = address.as_str().parse().unwrap();
        let proxy = Proxy::start(listen).await;
        let mut node = plain(&proxy.address, &store);
        node.transport.listen = Some(listen);
        settings.push(node);
        proxies.push(proxy);
    }
    let clusters = join_all(settings).await;
    agree(&clusters, count).await;
    (clusters, proxies)
}

/// What works takes less.
pub async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(30), future).await.expect("within half a minute")
}

/// Waits until every node sees so many members, all up, and they are one cluster.
pub async fn agree(clusters: &[Cluster], count: usize) {
    eventually(|| {
        let views: Vec<_> = clusters.iter().map(Cluster::view).collect();
        let same = views.iter().all(|view| view.digest() == views[0].digest());
        let up = views[0].members().filter(|(_, member)| member.status == Status::Up).count();
        same && up == count && views[0].members().len() == count
    })
    .await;
}

/// Waits until `cluster` sees this one up.
pub async fn sees_up(cluster: &Cluster, node: &Node) {
    eventually(|| cluster.view().member(node).is_some_and(|m| m.status == Status::Up)).await;
}

pub async fn eventually(mut holds: impl FnMut() -> bool) {
    soon(async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

/// Passes connections on, and can cut all of them.
pub struct Proxy {
    pub address: Address,
    links: Arc<Mutex<JoinSet<()>>>,
    _accepting: JoinSet<()>,
}

impl Proxy {
    pub async fn start(to: SocketAddr) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = Address::new(&listener.local_addr().unwrap().to_string()).unwrap();
        let links = Arc::new(Mutex::new(JoinSet::new()));
        let mut accepting = JoinSet::new();
        let accepted = links.clone();
        accepting.spawn(async move {
            loop {
                let (mut from, _) = listener.accept().await.unwrap();
                let pass = async move {
                    if let Ok(mut to) = tokio::net::TcpStream::connect(to).await {
                        let _ = tokio::io::copy_bidirectional(&mut from, &mut to).await;
                    }
                };
                let mut links = accepted.lock().unwrap();
                while links.try_join_next().is_some() {}
                links.spawn(pass);
            }
        });
        Self { address, links, _accepting: accepting }
    }

    /// Cuts every connection; new ones are passed on again.
    pub fn cut(&self) {
        self.links.lock().unwrap().abort_all();
    }
}
