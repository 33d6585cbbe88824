//! Numbered workers on real nodes: all run, each in one place, and are back soon.
#![allow(clippy::disallowed_methods, reason = "real nodes take real time")]

mod kit;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kit::{TTL, World, settings, soon, until};
use tenure_sharding::{BoxError, Daemon, Daemons, Hosted, Shardings as _};
use tokio::time::sleep;

const COUNT: u32 = 12;

#[derive(Default)]
struct Book {
    /// Who runs which, since when.
    running: Mutex<BTreeMap<u32, usize>>,
    overlaps: AtomicU64,
    starts: AtomicU64,
}

struct Worker {
    number: u32,
    node: usize,
    book: Arc<Book>,
    failing: bool,
}

/// Runs for as long as this is kept.
struct Run<'a>(&'a Worker);

impl<'a> Run<'a> {
    fn begin(worker: &'a Worker) -> Self {
        worker.book.starts.fetch_add(1, SeqCst);
        let before = worker.book.running.lock().unwrap().insert(worker.number, worker.node);
        worker.book.overlaps.fetch_add(u64::from(before.is_some()), SeqCst);
        Self(worker)
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        self.0.book.running.lock().unwrap().remove(&self.0.number);
    }
}

impl Daemon for Worker {
    async fn run(&mut self, hosted: &Hosted) -> Result<(), BoxError> {
        assert_eq!(hosted.id(), self.number.to_string());
        let _run = Run::begin(self);
        if self.failing {
            sleep(Duration::from_millis(20)).await;
            return Err("as it was told".into());
        }
        std::future::pending().await
    }
}

fn start(world: &World, book: &Arc<Book>, node: usize, failing: bool) -> Daemons {
    let book = book.clone();
    let builder = world.clusters[node].sharding("worker").settings(settings());
    let builder = builder.lease(world.store.lease("shop.workers").ttl(TTL));
    let builder = builder.session(&world.session(node));
    builder
        .daemons(COUNT, move |number| Worker { number, node, book: book.clone(), failing })
        .unwrap()
}

fn all_run(book: &Book, nodes: &[usize]) -> bool {
    let running = book.running.lock().unwrap();
    let least = COUNT as usize / nodes.len();
    let many = |node: usize| running.values().filter(|it| **it == node).count();
    running.len() == COUNT as usize && nodes.iter().all(|node| many(*node) >= least)
}

/// All run, spread; a node that leaves hands its workers over, one that loses its session loses them, and
/// they are back within the ttl and two seconds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_run_spread_and_are_back_soon() {
    let mut world = World::new(3).await;
    let book = Arc::<Book>::default();
    let workers: Vec<_> = (0..3).map(|node| start(&world, &book, node, false)).collect();
    until("all to run", || all_run(&book, &[0, 1, 2])).await;
    assert_eq!(workers[1].status().shards, COUNT);
    // Its session is gone from the store.
    let (began, starts) = (Instant::now(), book.starts.load(SeqCst));
    assert!(world.records.delete(&kit::session_name(1).parse().unwrap()));
    until("some to begin elsewhere", || book.starts.load(SeqCst) > starts).await;
    until("all to run", || book.running.lock().unwrap().len() == COUNT as usize).await;
    let took = began.elapsed();
    println!("after the loss of a session all run again after {took:?}");
    assert!(took < TTL + Duration::from_secs(2), "{took:?}");
    until("all nodes to have some", || all_run(&book, &[0, 1, 2])).await;
    let leaving = world.clusters.remove(0);
    let began = Instant::now();
    soon(leaving.leave()).await;
    until("all to run", || all_run(&book, &[1, 2])).await;
    let took = began.elapsed();
    println!("after a node has left all run again after {took:?}");
    assert!(took < TTL + Duration::from_secs(2), "{took:?}");
    assert_eq!(book.overlaps.load(SeqCst), 0, "each number runs at most once");
    world.end().await;
    assert!(book.running.lock().unwrap().is_empty());
}

/// A worker that fails is begun again, after pauses that grow.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_fails_is_begun_again() {
    let world = World::new(1).await;
    let book = Arc::<Book>::default();
    let _workers = start(&world, &book, 0, true);
    until("all to run twice", || book.starts.load(SeqCst) >= 2 * u64::from(COUNT)).await;
    sleep(Duration::from_millis(500)).await;
    let starts = book.starts.load(SeqCst);
    assert!(starts <= 3 * u64::from(COUNT), "{starts}: they pause");
    until("all to run again", || book.starts.load(SeqCst) >= 3 * u64::from(COUNT)).await;
    world.end().await;
}
