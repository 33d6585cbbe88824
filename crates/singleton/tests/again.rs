//! A node that starts over, as a new incarnation in the same process, can host again.
#![allow(clippy::disallowed_methods, reason = "real nodes take real time")]

mod loopback;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_cluster::{Address, Cluster, Node, Settings, Status};
use tenure_lease::{MemoryStore, Store};
use tenure_singleton::{Hosted, Singletons as _, StopReason};
use tokio::time::{sleep, timeout};

async fn join(store: &Store, address: &str) -> Cluster {
    let mut settings = Settings::new("shop")
        .name("node")
        .address(Address::new(address).unwrap())
        .formation(store.lease("shop.formation").ttl(Duration::from_secs(3)));
    settings.plaintext_without_any_protection = true;
    settings.rejoin = true;
    settings.membership.heartbeat_interval = Duration::from_millis(200);
    settings.membership.acceptable_pause = Duration::from_secs(1);
    settings.membership.gossip_interval = Duration::from_millis(200);
    timeout(LONG, Cluster::join(settings)).await.unwrap().unwrap()
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    let waited = timeout(LONG, async {
        while !holds() {
            sleep(Duration::from_millis(10)).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("waited for {what}"));
}

/// Where it runs, and why it stopped so far.
#[derive(Default)]
struct Book {
    hosts: Mutex<Vec<Node>>,
    stops: Mutex<Vec<StopReason>>,
}

impl Book {
    async fn work(self: Arc<Self>, hosted: Hosted) {
        let me = hosted.cluster().me();
        self.hosts.lock().unwrap().push(me.clone());
        let reason = hosted.stopping().await;
        self.stops.lock().unwrap().push(reason);
        self.hosts.lock().unwrap().retain(|host| *host != me);
    }

    fn is_at(&self, node: &Node) -> bool {
        *self.hosts.lock().unwrap() == [node.clone()]
    }
}

async fn starts_over(with_lease: bool) {
    let store = Store::new(MemoryStore::default());
    let one = join(&store, &loopback::address()).await;
    let two = join(&store, &loopback::address()).await;
    let book = Arc::new(Book::default());
    let mut proxies = Vec::new();
    for cluster in [&one, &two] {
        let mut singleton = cluster.singleton("cron").settings(tenure_singleton::Settings {
            removal_margin: Duration::from_millis(100),
            ..tenure_singleton::Settings::default()
        });
        if with_lease {
            singleton = singleton.lease(store.lease("shop.cron").ttl(Duration::from_secs(2)));
        }
        let book = book.clone();
        let work = move |hosted| {
            let book = book.clone();
            async move {
                book.work(hosted).await;
                Ok(())
            }
        };
        proxies.push(singleton.run(work).unwrap());
    }
    let before = one.me();
    until("the oldest to host", || book.is_at(&before)).await;

    two.down(&before).await;
    until("the other to host", || book.is_at(&two.me())).await;
    assert_eq!(*book.stops.lock().unwrap(), [StopReason::OutOfCluster]);
    let is_up = |node: &Node| two.view().member(node).is_some_and(|it| it.status == Status::Up);
    until("a new incarnation", || one.me() != before && is_up(&one.me())).await;

    timeout(LONG, two.leave()).await.unwrap();
    until("the new incarnation to host", || book.is_at(&one.me())).await;
    let host = proxies[0].host();
    until("its proxy to know", || *host.borrow() == Some(one.me())).await;
    timeout(LONG, one.leave()).await.unwrap();
    assert!(book.hosts.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_node_that_starts_over_hosts_again() {
    starts_over(true).await;
}

#[tokio::test]
async fn also_without_a_lease() {
    starts_over(false).await;
}

/// What works takes less.
const LONG: Duration = Duration::from_secs(20);
