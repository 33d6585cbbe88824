//! What is on its way, and what is held, when shards are handed over.
#![allow(clippy::disallowed_methods, reason = "real nodes take real time")]

mod kit;

use std::time::Duration;

use kit::{LONG, Message, SHARDS, Where, World, placed, session_name, soon, spread, until};
use tenure_cluster::messaging::{AskError, NotDone};
use tenure_lease::Token;
use tenure_sharding::{EntityRef, shard_of};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

type Asked = JoinHandle<Result<(String, Token), AskError>>;

fn ask(cart: EntityRef<Message>) -> Asked {
    tokio::spawn(async move { cart.ask(Where).within(LONG).await })
}

/// A question that its shard has not looked at when it is handed over, and one that comes while it stops,
/// wait for the next host: whoever asked notices nothing. Only on the node that leaves it may be too late:
/// then the question is certainly not done.
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
    let ask_all = || -> Vec<(usize, Asked)> {
        let from = |id: &String| {
            let asked = carts.iter().map(|it| ask(it.entity(id)));
            asked.enumerate().collect::<Vec<_>>()
        };
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
    for (asker, asked) in asked {
        let answer = soon(asked).await.unwrap();
        if asker == 2 && matches!(answer, Err(AskError::NotDone(NotDone::Closed(_)))) {
            continue;
        }
        let (place, token) = answer.unwrap();
        assert_ne!(place, node, "answered by the next host");
        assert!(here.iter().all(|(_, before)| *before < token));
    }
    soon(leaving).await.unwrap();
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
