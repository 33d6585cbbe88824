//! Messages to entities: order, bounds, failures.
#![allow(clippy::disallowed_methods, reason = "real nodes take real time")]

mod kit;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use kit::{All, LONG, Message, SHARDS, Where, World, placed, settings, soon, until};
use tenure_cluster::messaging::{AskError, Lost, NotDone};
use tenure_sharding::{Settings, Shardings as _, shard_of};
use tokio::time::{Instant, sleep};

/// Ids of entities that the node at this place hosts.
fn hosted(
    hosted: &[(tenure_sharding::Shard, tenure_lease::Token)],
) -> impl Iterator<Item = String> {
    let hosted: Vec<_> = hosted.iter().map(|(shard, _)| *shard).collect();
    (0..).map(|id| id.to_string()).filter(move |id| hosted.contains(&shard_of(id, SHARDS)))
}

/// Told, asked and sent reliably, from a node that hosts it, one that does not, and one that hosts none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn told_asked_and_sent_reliably_from_anywhere() {
    let mut world = World::new(2).await;
    let mut carts = world.start(|it, _| it.lease(world.lease()));
    placed(&carts).await;
    world.join().await;
    let proxy = world.clusters[2].sharding("cart").settings(settings()).proxy::<Message>().unwrap();
    carts.push(proxy);
    for (place, from) in carts.iter().enumerate() {
        for id in 0..20 {
            let cart = from.entity(&format!("{place}-{id}"));
            cart.tell(Message::Add(1)).await.unwrap();
            assert_eq!(cart.ask(All).within(LONG).await.unwrap(), [1]);
            let reliable = cart.reliable("test").unwrap();
            let number = reliable.send(Message::Add(2)).await.unwrap();
            soon(reliable.done(number)).await.unwrap();
            let all = cart.ask(All).within(LONG).await.unwrap();
            assert_eq!(all, [1, 2]);
            let (_, token) = cart.ask(Where).within(LONG).await.unwrap();
            assert!(token.term > 0 && token.step > 0);
        }
    }
    assert!(carts[2].status().hosted.is_empty());
    let too_long = carts[0].entity(&"x".repeat(2000)).tell(Message::Add(1)).await.unwrap_err();
    assert!(too_long.to_string().contains("1 to 1000 bytes"), "{too_long}");
    drop(carts);
    world.end().await;
}

/// While shards move from node to node and back, what each sender tells arrives in order, nothing twice,
/// nothing lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn order_holds_and_nothing_is_lost_while_shards_move() {
    let mut world = World::new(2).await;
    let mut carts = world.start(|it, _| it.lease(world.lease()));
    placed(&carts).await;
    let (stop, told) = (AtomicBool::new(false), AtomicU64::new(0));
    let senders = [carts[0].clone(), carts[1].clone()];
    let telling = |sender: usize, carts: tenure_sharding::Sharding<Message>| {
        let (stop, told) = (&stop, &told);
        async move {
            let mut number = 0;
            while !stop.load(SeqCst) {
                number += 1;
                for id in 0..40 {
                    let cart = carts.entity(&format!("{sender}-{id}"));
                    cart.tell(Message::Add(number)).await.unwrap();
                    told.fetch_add(1, SeqCst);
                }
                if number % 16 == 0 {
                    sleep(Duration::from_millis(1)).await;
                }
            }
            number
        }
    };
    let moving = async {
        sleep(Duration::from_millis(300)).await;
        for _ in 0..2 {
            world.join().await;
            carts.push(world.host(world.carts(2).lease(world.lease()), 2));
            placed(&carts).await;
            until("its share", || carts[2].status().hosted.len() >= 5).await;
            sleep(Duration::from_millis(200)).await;
            let leaving = world.clusters.remove(2);
            carts.remove(2);
            soon(leaving.leave()).await;
            placed(&carts).await;
            sleep(Duration::from_millis(200)).await;
        }
        stop.store(true, SeqCst);
    };
    let [one, two] = senders;
    let (first, second, ()) = tokio::time::timeout(LONG * 3, async {
        tokio::join!(telling(0, one), telling(1, two), moving)
    })
    .await
    .expect("in time");
    for (sender, last) in [first, second].into_iter().enumerate() {
        for id in 0..40 {
            let id = format!("{sender}-{id}");
            until("the last", || world.book.received(&id).last() == Some(&last)).await;
            let received = world.book.received(&id);
            // Those that are not one after the one before.
            let odd: Vec<_> = received.windows(2).filter(|it| it[1] != it[0] + 1).collect();
            assert!(odd.is_empty() && received[0] == 1, "{id}: {odd:?}");
        }
    }
    println!("{} messages told", told.load(SeqCst));
    world.end().await;
}

/// An entity that takes long slows only those who send to it; what waits for it is bounded, and the rest
/// is refused: a question with an error, what was told with a dead letter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_entity_slows_only_its_own_callers() {
    let world = World::new(2).await;
    let few = Settings { mailbox: 10, ..settings() };
    let carts = world.start(|it, _| it.settings(few.clone()).lease(world.lease()));
    placed(&carts).await;
    let mut letters = world.clusters[1].dead_letters();
    // In one shard, on the other node.
    let slow = hosted(&carts[0].status().hosted).next().unwrap();
    let shard = shard_of(&slow, SHARDS);
    let quick = hosted(&carts[0].status().hosted)
        .find(|id| *id != slow && shard_of(id, SHARDS) == shard)
        .unwrap();
    let (slow, quick) = (carts[1].entity(&slow), carts[1].entity(&quick));
    slow.tell(Message::Sleep(6000)).await.unwrap();
    let begin = Instant::now();
    for number in 0..50 {
        slow.tell(Message::Add(number)).await.unwrap();
        quick.tell(Message::Add(number)).await.unwrap();
    }
    let all = quick.ask(All).within(LONG).await.unwrap();
    assert_eq!(all, (0..50).collect::<Vec<_>>());
    let full = slow.ask(All).within(LONG).await.unwrap_err();
    assert_eq!(full, AskError::NotDone(NotDone::Full));
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    let mut lost = 0;
    while lost < 40 {
        let letter = soon(letters.next()).await.unwrap();
        assert_eq!(letter.why, Lost::Full);
        lost += letter.count;
    }
    until("those that waited", || world.book.received(slow.id()).len() == 10).await;
    assert_eq!(world.book.received(slow.id()), (0..10).collect::<Vec<_>>());
    assert_eq!(lost, 40);
    world.end().await;
}

/// Too much waits for a shard that has no place: that is an error to the sender.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_overflow_is_an_error() {
    let world = World::new(1).await;
    let tenure = world.lease().ttl(LONG * 2).acquire().await.unwrap();
    let few = Settings { buffer_messages: 10, ..settings() };
    let carts = world.start(|it, _| it.settings(few.clone()).lease(world.lease()));
    let cart = carts[0].entity("a");
    for number in 0..10 {
        cart.tell(Message::Add(number)).await.unwrap();
    }
    assert_eq!(cart.tell(Message::Add(10)).await, Err(NotDone::Full));
    let full = cart.ask(All).within(LONG).await.unwrap_err();
    assert_eq!(full, AskError::NotDone(NotDone::Full));
    assert_eq!(carts[0].status().waiting, 10);
    tenure.release().await;
    until("what waited", || world.book.received("a") == (0..10).collect::<Vec<_>>()).await;
    world.end().await;
}

/// An entity that fails ends alone, and is made again for the next message; one that keeps failing waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_ends_one_entity() {
    let world = World::new(1).await;
    let patient = Settings { restart_backoff: Duration::from_secs(5), ..settings() };
    let carts = world.start(|it, _| it.settings(patient.clone()).lease(world.lease()));
    placed(&carts).await;
    let cart = carts[0].entity("a");
    let begin = Instant::now();
    for trouble in [Message::Panic, Message::Fail] {
        cart.tell(Message::Add(1)).await.unwrap();
        cart.tell(trouble).await.unwrap();
        cart.ask(All).within(LONG).await.unwrap();
    }
    assert_eq!(world.book.starts.load(SeqCst), 3);
    assert!(begin.elapsed() < Duration::from_secs(5), "made again at once");
    let unanswered = cart.ask(Fails).within(LONG).await.unwrap_err();
    assert!(matches!(unanswered, AskError::Unknown(_)), "{unanswered}");
    let begin = Instant::now();
    cart.tell(Message::Fail).await.unwrap();
    cart.tell(Message::Add(2)).await.unwrap();
    carts[0].entity("b").ask(All).within(Duration::from_secs(4)).await.unwrap();
    until("the next", || world.book.received("a") == [1, 1, 2]).await;
    assert!(begin.elapsed() > Duration::from_millis(4500), "{:?}", begin.elapsed());
    world.end().await;
}

struct Fails;
impl tenure_cluster::messaging::Ask for Fails {
    type Reply = ();
}
impl From<Fails> for Message {
    fn from(_: Fails) -> Self {
        Self::Fail
    }
}

/// One that passivates is stopped, and made again for the next message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn passivated_and_made_again() {
    let world = World::new(1).await;
    let carts = world.start(|it, _| it);
    placed(&carts).await;
    let cart = carts[0].entity("a");
    cart.tell(Message::Add(1)).await.unwrap();
    cart.tell(Message::Passivate).await.unwrap();
    until("it to stop", || world.book.stops.lock().unwrap().len() == 1).await;
    assert!(world.book.active.lock().unwrap().is_empty());
    cart.tell(Message::Add(2)).await.unwrap();
    let all = cart.ask(All).within(LONG).await.unwrap();
    assert_eq!(all, [1, 2]);
    assert_eq!(world.book.starts.load(SeqCst), 2);
    world.end().await;
}
