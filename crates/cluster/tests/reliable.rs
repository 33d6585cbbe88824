//! Numbered messages between real nodes, through cuts and crashes.
#![allow(clippy::disallowed_methods, reason = "these tests run in real time, over real sockets")]

mod nodes;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use nodes::{nodes, nodes_behind_proxies, soon};
use rusqlite::{Connection, TransactionBehavior};
use tenure_cluster::Cluster;
use tenure_cluster::messaging::NotDone;
use tenure_cluster::messaging::reliable::{
    Delivery, Entered, Ledger, LedgerError, ReliableReceiver, SqliteLedger,
};
use tokio::sync::watch;
use tokio::time::timeout;

fn open(path: &Path) -> Connection {
    let database = Connection::open(path).unwrap();
    database.busy_timeout(Duration::from_secs(10)).unwrap();
    database
        .execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
             CREATE TABLE IF NOT EXISTS effects
                 (place INTEGER PRIMARY KEY AUTOINCREMENT, message INTEGER NOT NULL)",
        )
        .unwrap();
    database
}

/// Does messages, many in one transaction, until it is told to crash: then it stops where it is, and
/// nobody hears of what it had in its hands.
async fn work(
    mut receiver: ReliableReceiver<u64>,
    path: PathBuf,
    crash: Arc<AtomicBool>,
    place: u8,
) {
    let mut database = open(&path);
    loop {
        let Ok(first) = timeout(Duration::from_millis(20), receiver.recv()).await else {
            if crash.load(Relaxed) {
                return;
            }
            continue;
        };
        let Some(first) = first else { return };
        let mut deliveries = vec![first];
        while deliveries.len() < 64
            && let Some(next) = receiver.try_recv()
        {
            deliveries.push(next);
        }
        let crashed = |at: u8| crash.load(Relaxed) && place % 3 == at;
        if crashed(0) {
            return deliveries.into_iter().for_each(std::mem::forget);
        }
        let transaction =
            database.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        let mut done = Vec::new();
        for delivery in deliveries {
            match SqliteLedger::new(&transaction).unwrap().enter(delivery.record()) {
                Ok(Entered::New) => {
                    transaction
                        .prepare_cached("INSERT INTO effects (message) VALUES (?1)")
                        .unwrap()
                        .execute([delivery.message().cast_signed()])
                        .unwrap();
                    done.push(delivery);
                }
                Ok(Entered::Already) => done.push(delivery),
                Err(LedgerError::Gap { .. }) => drop(delivery),
                Err(LedgerError::Database(error)) => panic!("{error}"),
            }
        }
        if crashed(1) {
            return done.into_iter().for_each(std::mem::forget);
        }
        transaction.commit().unwrap();
        if crashed(2) {
            return done.into_iter().for_each(std::mem::forget);
        }
        done.into_iter().for_each(Delivery::done);
    }
}

fn effects(path: &Path) -> u64 {
    let count: i64 =
        open(path).query_row("SELECT count(*) FROM effects", [], |row| row.get(0)).unwrap();
    count.cast_unsigned()
}

/// 100,000 with `TENURE_RELIABLE=100000`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_message_is_lost_or_done_twice_through_cuts_and_crashes() {
    let messages: u64 = std::env::var("TENURE_RELIABLE").map_or(20_000, |n| n.parse().unwrap());
    const CUTS: u64 = 20;
    const CRASHES: u64 = 5;
    let directory = tempfile::TempDir::new().unwrap();
    let path = directory.path().join("effects.db");
    let (clusters, proxies) = nodes_behind_proxies(3).await;
    let start = |place: u8| {
        let receiver = clusters[1 + usize::from(place) % 2].reliable_receiver("numbers").unwrap();
        let crash = Arc::new(AtomicBool::new(false));
        let task = tokio::spawn(work(receiver, path.clone(), crash.clone(), place));
        (crash, task)
    };
    let host = |place: u8| Some(clusters[1 + usize::from(place) % 2].me());

    let mut place = 0;
    let mut running = start(place);
    let (target, targets) = watch::channel(host(place));
    let sender = clusters[0].reliable::<u64>("tester", "numbers", targets).unwrap();
    let sending = sender.clone();
    let database = path.clone();
    let sent = tokio::spawn(async move {
        for message in 1..=messages {
            let number = sending.send(message).await.unwrap();
            assert_eq!(number, message);
            // What is done is there, at any time.
            if number % 1000 == 0 && number > 1000 {
                sending.done(number - 500).await.unwrap();
                assert!(effects(&database) >= number - 500);
            }
        }
    });

    // Spread over the run: by how much is done.
    for event in 1..=CUTS {
        let due = messages * event / (CUTS + 2);
        timeout(Duration::from_secs(120), sender.done(due)).await.unwrap().unwrap();
        for proxy in &proxies {
            proxy.cut();
        }
        if event % (CUTS / CRASHES) == 0 {
            running.0.store(true, Relaxed);
            soon(running.1).await.unwrap();
            place += 1;
            running = start(place);
            target.send_replace(host(place));
        }
    }
    timeout(Duration::from_secs(120), sent).await.unwrap().unwrap();
    soon(sender.done(messages)).await.unwrap();

    let database = open(&path);
    let mut rows = database.prepare("SELECT place, message FROM effects ORDER BY place").unwrap();
    let rows = rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    let mut count = 0i64;
    for row in rows {
        count += 1;
        assert_eq!(row.unwrap(), (count, count), "each once, and in order");
    }
    assert_eq!(count.cast_unsigned(), messages);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_dropped_comes_again_before_what_follows() {
    let clusters = nodes(2).await;
    for node in &clusters {
        let mut receiver = node.reliable_receiver::<u64>("numbers").unwrap();
        let (_target, targets) = watch::channel(Some(node.me()));
        let sender = clusters[0].reliable::<u64>("tester", "numbers", targets).unwrap();
        for number in 1..=3 {
            assert_eq!(sender.send(number * 10).await.unwrap(), number);
        }
        let first = soon(receiver.recv()).await.unwrap();
        assert_eq!((first.record().number, *first.message()), (1, 10));
        drop(first);
        let (mut seen, mut next) = (Vec::new(), 1);
        while next <= 3 {
            let delivery = soon(receiver.recv()).await.unwrap();
            seen.push(delivery.record().number);
            if delivery.record().number == next {
                delivery.done();
                next += 1;
            }
        }
        let first = seen.iter().position(|number| *number == 1).unwrap();
        assert!(seen[first..].starts_with(&[1, 2, 3]), "{seen:?}");
        soon(sender.done(3)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_window_of_messages_waits_for_a_receiver_and_no_more() {
    let clusters = nodes(2).await;
    let mut letters = clusters[0].dead_letters();
    let (target, targets) = watch::channel(None);
    let sender = clusters[0].reliable::<u64>("tester", "late", targets).unwrap();
    let mut sent = 0;
    while timeout(Duration::from_secs(1), sender.send(sent)).await.is_ok() {
        sent += 1;
    }
    assert_eq!(sent, 256);
    // First there is a node, then a receiver.
    target.send_replace(Some(clusters[1].me()));
    soon(letters.next()).await.unwrap();
    let mut receiver = clusters[1].reliable_receiver::<u64>("late").unwrap();
    for number in 0..sent {
        let delivery = soon(receiver.recv()).await.unwrap();
        assert_eq!(*delivery.message(), number);
        delivery.done();
    }
    soon(sender.done(sent)).await.unwrap();

    let long = clusters[0].reliable::<Vec<u8>>("tester", "late", watch::channel(None).1).unwrap();
    assert!(matches!(long.send(vec![0; 2 << 20]).await, Err(NotDone::TooLong { .. })));
    soon(Cluster::leave(&clusters[0])).await;
    assert!(matches!(sender.send(1).await, Err(NotDone::Closed(_))));
    assert!(sender.done(sent).await.is_ok(), "that was known before");
    assert!(matches!(sender.done(sent + 1).await, Err(NotDone::Closed(_))));
}
