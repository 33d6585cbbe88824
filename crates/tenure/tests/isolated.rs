//! What a singleton and an entity that do not keep up cost everything else between the same two nodes.
//!
//! ```sh
//! TENURE_ISOLATED=60 cargo test --release -p tenure --all-features --test isolated -- --nocapture
//! ```
//!
//! With the time in seconds, on a quiet machine, it also checks how long answers take.
#![cfg(all(feature = "sharding", feature = "singleton"))]
#![allow(clippy::disallowed_methods, reason = "a measurement in real time")]

mod node_kit;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use node_kit::{formation, free_address, settings};
use serde::{Deserialize, Serialize};
use tenure::cluster::Cluster;
use tenure::cluster::messaging::{Ask, NotDone, Received};
use tenure::sharding::{Entity, Shardings as _};
use tenure::singleton::{Actor, Singletons as _};
use tenure::{MemoryStore, Store};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{MissedTickBehavior, interval, sleep};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

#[derive(Serialize, Deserialize)]
enum Order {
    Work,
    Echo(u64),
}

#[derive(Serialize, Deserialize)]
struct Echo(u64);

impl Ask for Echo {
    type Reply = u64;
}

impl From<Echo> for Order {
    fn from(echo: Echo) -> Self {
        Self::Echo(echo.0)
    }
}

/// Handles a hundred messages a second.
struct Slow(Arc<AtomicU64>);

impl Actor for Slow {
    type Message = u64;

    async fn receive(
        &mut self,
        _: Received<u64>,
        _: &tenure::singleton::Hosted,
    ) -> Result<(), BoxError> {
        sleep(Duration::from_millis(10)).await;
        self.0.fetch_add(1, Relaxed);
        Ok(())
    }
}

/// Computes for five milliseconds for each message.
struct Busy(Arc<AtomicU64>);

impl Entity for Busy {
    type Message = Order;

    async fn receive(
        &mut self,
        received: Received<Order>,
        _: &tenure::sharding::Hosted,
    ) -> Result<(), BoxError> {
        match received.message {
            Order::Work => {
                let began = Instant::now();
                while began.elapsed() < Duration::from_millis(5) {
                    std::hint::spin_loop();
                }
                self.0.fetch_add(1, Relaxed);
            }
            Order::Echo(number) => received.reply.answer::<Echo>(number).await?,
        }
        Ok(())
    }
}

/// A node has threads of its own, as a process would.
fn node(store: &Store, name: &str) -> (Runtime, Cluster) {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let settings = settings("isolated", name, &free_address(), formation(store, "isolated"));
    let cluster = runtime.block_on(Cluster::join(settings)).unwrap();
    (runtime, cluster)
}

fn echo(runtime: &Runtime, cluster: &Cluster) {
    let mut echo = cluster.receiver::<Echo>("echo").unwrap();
    runtime.spawn(async move {
        while let Some(received) = echo.recv().await {
            let number = received.message.0;
            let _ = received.reply.answer::<Echo>(number).await;
        }
    });
}

/// Asks a hundred times a second, for so long; how long each answer took.
async fn probe<F, A>(name: &str, time: Duration, ask: F) -> Vec<Duration>
where
    F: Fn(u64) -> A,
    A: Future<Output = Result<u64, tenure::cluster::messaging::AskError>>,
{
    let mut tick = interval(Duration::from_millis(10));
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (began, mut took) = (Instant::now(), Vec::new());
    for number in 0.. {
        tick.tick().await;
        let asked = Instant::now();
        match ask(number).await {
            Ok(answer) => assert_eq!(answer, number),
            Err(why) => panic!("{name}: question {number} was lost: {why}"),
        }
        took.push(asked.elapsed());
        if began.elapsed() >= time {
            break;
        }
    }
    took
}

/// Tells so many each five milliseconds.
async fn tell<F, T>(each: u64, mut tell: F) -> u64
where
    F: FnMut(u64) -> T,
    T: Future<Output = Result<(), NotDone>>,
{
    let mut tick = interval(Duration::from_millis(5));
    for told in 0.. {
        if told % each == 0 {
            tick.tick().await;
        }
        tell(told).await.unwrap();
    }
    0
}

#[test]
fn those_that_do_not_keep_up_cost_their_own_senders_only() {
    let seconds = std::env::var("TENURE_ISOLATED").ok().map(|text| text.parse().unwrap());
    let time = Duration::from_secs(seconds.unwrap_or(5));
    let store = Store::new(MemoryStore::new());
    let (there, host) = node(&store, "host");
    let (here, sender) = node(&store, "sender");
    echo(&there, &host);
    echo(&here, &sender);
    let (slow, busy) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
    let (made, lease) = (slow.clone(), || store.lease("isolated.slow"));
    let _inside = there.enter();
    host.singleton("slow").lease(lease()).start(move || Slow(made.clone())).unwrap();
    let (made, kind_lease) = (busy.clone(), || store.lease("isolated.busy"));
    let kind = host.sharding("busy").shards(20).lease(kind_lease());
    let hosted = kind.start(move |_| Busy(made.clone())).unwrap();
    drop(_inside);
    let _inside = here.enter();
    let singleton = sender.singleton("slow").lease(lease()).proxy::<u64>().unwrap();
    let entities = sender.sharding("busy").shards(20).lease(kind_lease()).proxy::<Order>().unwrap();
    drop(_inside);

    let within = Duration::from_secs(30);
    here.block_on(entities.entity("other-0").ask(Echo(0)).within(within)).unwrap();
    // Twice what the one can handle, ten times what the other can.
    here.spawn(async move { tell(1, |told| singleton.tell(told)).await });
    let flood = entities.entity("busy");
    here.spawn(async move { tell(10, |_| flood.tell(Order::Work)).await });

    let (near, far) =
        (host.to::<Echo>(&sender.me(), "echo"), sender.to::<Echo>(&host.me(), "echo"));
    let other = |number: u64| format!("other-{}", number % 50);
    let probes = [
        here.spawn(async move {
            ("to the host", probe("to the host", time, |n| far.ask(Echo(n)).within(within)).await)
        }),
        there.spawn(async move {
            ("from the host", probe("from it", time, |n| near.ask(Echo(n)).within(within)).await)
        }),
        here.spawn(async move {
            let ask = async |n| entities.entity(&other(n)).ask(Echo(n)).within(within).await;
            ("to other entities", probe("to other entities", time, ask).await)
        }),
        there.spawn(async move {
            let ask = async |n| hosted.entity(&other(n)).ask(Echo(n)).within(within).await;
            ("to them on their node", probe("to them on their node", time, ask).await)
        }),
    ];
    for probed in probes {
        let (name, mut took) = here.block_on(probed).unwrap();
        took.sort();
        let at = |part: f64| took[((took.len() - 1) as f64 * part) as usize];
        let (p50, p99, max) = (at(0.5), at(0.99), at(1.0));
        println!("{name}: {} answers, p50 {p50:?}, p99 {p99:?}, max {max:?}", took.len());
        assert!(max < Duration::from_secs(10), "{name}: one took {max:?}");
        if seconds.is_some() {
            assert!(p99 <= Duration::from_millis(50), "{name}: p99 {p99:?}");
        }
    }
    println!(
        "handled: {} by the singleton, {} by the entity",
        slow.load(Relaxed),
        busy.load(Relaxed)
    );
    assert!(slow.load(Relaxed) > 0 && busy.load(Relaxed) > 0);
    // Their tasks are many; nothing of them is waited for.
    there.shutdown_background();
    here.shutdown_background();
}
