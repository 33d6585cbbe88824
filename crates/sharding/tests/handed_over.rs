//! What is on its way, and what is held, when shards are handed over.
#![allow(clippy::disallowed_methods, reason = "real nodes take real time")]

mod kit;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use kit::{
    LONG, Message, SHARDS, Where, World, placed, session_name, settings, soon, spread, until,
};
use tenure_cluster::messaging::{Ask, AskError, NotDone, Received};
use tenure_lease::Token;
use tenure_sharding::{BoxError, Entity, EntityRef, Hosted, Shardings as _, shard_of};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

type Asked = JoinHandle<Result<(String, Token), AskError>>;

fn ask(cart: EntityRef<Message>) -> Asked {
    tokio::spawn(async move { cart.ask(Where).within(LONG).await })
}

/// A question that its shard has not looked at when it is handed over, and one that comes while it stops,
/// wait for the next host: whoever asked notices nothing, on the node that leaves neither.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn questions_go_where_their_shard_goes() {
    let mut world = World::new(3).await;
    let carts = world.start(|it, _| it.lease(world.lease()));
    spread(&carts).await;
    // The youngest, which does not coordinate.
    let here = carts[2].status().hosted;
    let at_home = |id: &String| here.iter().any(|(shard, _)| *shard == shard_of(id, SHARDS));
    let busy: Vec<String> = (0..).map(|id| id.to_string()).filter(at_home).take(3).collect();
    for id in &busy {
        carts[1].entity(id).tell(Message::Add(1)).await.unwrap();
        carts[1].entity(id).tell(Message::Sleep(1500)).await.unwrap();
        until("it to be at work", || world.book.received(id) == [1]).await;
    }
    sleep(Duration::from_millis(50)).await;
    let ask_all = || -> Vec<Asked> {
        let from = |id: &String| carts.iter().map(|it| ask(it.entity(id))).collect::<Vec<_>>();
        busy.iter().flat_map(from).collect()
    };
    // They wait in mailboxes.
    let mut asked = ask_all();
    sleep(Duration::from_millis(100)).await;
    let last = world.clusters.remove(2);
    let node = last.me().address.to_string();
    let leaving = tokio::spawn(async move { last.leave().await });
    // Those that are at nothing have gone; the others finish what they are at.
    until("it to leave", || carts[2].status().hosted.len() < here.len()).await;
    asked.extend(ask_all());
    for asked in asked {
        let (place, token) = soon(asked).await.unwrap().unwrap();
        assert_ne!(place, node, "answered by the next host");
        assert!(here.iter().all(|(_, before)| *before < token));
    }
    soon(leaving).await.unwrap();
    world.end().await;
}

/// Takes a while for each answer.
struct Slow {
    answered: Arc<AtomicUsize>,
}

impl Entity for Slow {
    type Message = u64;

    async fn receive(&mut self, received: Received<u64>, _: &Hosted) -> Result<(), BoxError> {
        sleep(Duration::from_millis(400)).await;
        self.answered.fetch_add(1, SeqCst);
        Ok(received.reply.answer::<Double>(2 * received.message).await?)
    }
}

struct Double(u64);

impl Ask for Double {
    type Reply = u64;
}

impl From<Double> for u64 {
    fn from(question: Double) -> Self {
        question.0
    }
}

/// What a node has asked before it has handed over everything is answered by the next host, however long
/// that takes within reason: the node is gone only then. What it asks later is refused, and certainly not
/// done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_leaves_waits_for_its_answers() {
    let world = World::new(2).await;
    let answered = Arc::<AtomicUsize>::default();
    let start = |place: usize| {
        let answered = answered.clone();
        let kind = world.clusters[place].sharding("slow").settings(settings());
        kind.start(move |_| Slow { answered: answered.clone() }).unwrap()
    };
    let slow = [start(0), start(1)];
    until("both to host", || slow.iter().all(|it| it.status().hosted.len() >= 8)).await;
    let here = slow[1].status().hosted;
    let at_home = |id: &String| here.iter().any(|(shard, _)| *shard == shard_of(id, SHARDS));
    let id = (0..).map(|id| id.to_string()).find(at_home).unwrap();
    let entity = slow[1].entity(&id);
    let asked: Vec<_> = (0..4)
        .map(|number| {
            let entity = entity.clone();
            tokio::spawn(async move { entity.ask(Double(number)).within(LONG).await })
        })
        .collect();
    until("the first to be answered", || answered.load(SeqCst) == 1).await;
    let leaving = tokio::spawn({
        let cluster = world.clusters[1].clone();
        async move { cluster.leave().await }
    });
    for (asked, number) in asked.into_iter().zip(0..) {
        assert_eq!(soon(asked).await.unwrap(), Ok(2 * number), "question {number}");
    }
    soon(leaving).await.unwrap();
    assert_eq!(answered.load(SeqCst), 4, "each of them once");
    let late = soon(entity.ask(Double(9)).within(LONG)).await;
    assert!(matches!(late, Err(AskError::NotDone(NotDone::Closed(_)))), "{late:?}");
    world.end().await;
}

/// Many questions at once, while shards go to and fro: each is answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_question_is_lost_while_shards_go_to_and_fro() {
    let mut world = World::new(2).await;
    let mut carts = world.start(|it, _| it.lease(world.lease()));
    placed(&carts).await;
    let (stop, stopped) = watch::channel(false);
    let asking: Vec<_> = (0..64)
        .map(|id| {
            let (cart, stopped) = (carts[id % 2].entity(&id.to_string()), stopped.clone());
            tokio::spawn(async move {
                let mut asked = 0_usize;
                while !*stopped.borrow() {
                    cart.ask(Where).within(LONG).await.unwrap();
                    asked += 1;
                }
                asked
            })
        })
        .collect();
    for _ in 0..3 {
        world.join().await;
        carts.push(world.host(world.carts(2).lease(world.lease()), 2));
        until("its share", || carts[2].status().hosted.len() >= 5).await;
        placed(&carts).await;
        let leaving = world.clusters.remove(2);
        carts.remove(2);
        soon(leaving.leave()).await;
        placed(&carts).await;
    }
    stop.send_replace(true);
    let mut sum = 0;
    for asked in asking {
        sum += soon(asked).await.unwrap();
    }
    println!("{sum} questions answered");
    world.end().await;
}

/// A session is of no use to a node that leaves: it is free for whoever starts in its place, though the
/// process goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_leaves_does_not_contend_for_its_session() {
    let mut world = World::new(2).await;
    // A predecessor still has it.
    let before = world.store.lease(&session_name(0)).ttl(kit::TTL).acquire().await.unwrap();
    let (go, may_go) = watch::channel(false);
    let (left, mut has_left) = watch::channel(false);
    // What is started first stops last: when sharding has.
    world.clusters[0].before_leaving(move || {
        left.send_replace(true);
        let mut may_go = may_go.clone();
        async move { drop(may_go.wait_for(|may| *may).await) }
    });
    let sessions: Vec<_> = (0..2).map(|place| world.session(place)).collect();
    let carts = world.start(|it, place| it.lease(world.lease()).session(&sessions[place]));
    until("the other to host all", || carts[1].status().hosted.len() == SHARDS as usize).await;
    let first = world.clusters.remove(0);
    let leaving = tokio::spawn(async move { first.leave().await });
    soon(has_left.wait_for(|left| *left)).await.unwrap();
    let term = before.token().term;
    before.release().await;
    sleep(Duration::from_millis(500)).await;
    let after = world.store.inspect(&session_name(0)).await.unwrap().unwrap();
    assert!(after.holder.is_none(), "nobody here wants it: {after:?}");
    assert_eq!(after.token.term, term, "nor has anybody won it");
    go.send_replace(true);
    soon(leaving).await.unwrap();
    world.end().await;
}
