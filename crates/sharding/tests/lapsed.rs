//! A process that was held up for longer than its ttl, and goes on: whatever waited is received under the
//! next session, not under the one that is over.
#![allow(clippy::disallowed_methods, reason = "real nodes take real time")]

mod kit;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use kit::{TTL, World, settings, until};
use tenure_cluster::messaging::Received;
use tenure_lease::Token;
use tenure_sharding::{BoxError, Entity, Hosted, Shardings as _};
use tokio::time::sleep;

/// What was called, with which token, and whether the shard was held.
type Calls = Arc<Mutex<Vec<(u64, Token, bool)>>>;

struct Slow {
    calls: Calls,
    fails: bool,
}

impl Slow {
    fn note(&self, number: u64, hosted: &Hosted) {
        self.calls.lock().unwrap().push((number, hosted.token(), hosted.is_held()));
    }
}

impl Entity for Slow {
    type Message = u64;

    async fn started(&mut self, hosted: &Hosted) -> Result<(), BoxError> {
        self.note(0, hosted);
        Ok(())
    }

    async fn receive(&mut self, received: Received<u64>, hosted: &Hosted) -> Result<(), BoxError> {
        self.note(received.message, hosted);
        if received.message == 1 {
            // The next one comes, and waits.
            sleep(Duration::from_millis(37)).await;
            // Nothing of this process goes on, as if it was stopped.
            std::thread::sleep(TTL + Duration::from_secs(1));
            if self.fails {
                return Err("as it was told".into());
            }
        }
        Ok(())
    }
}

async fn held_up(fails: bool) {
    let world = World::new(1).await;
    let (session, calls) = (world.session(0), Calls::default());
    let kind = world.clusters[0].sharding("slow").settings(settings());
    let kind = kind.lease(world.store.lease("shop.slow").ttl(TTL)).session(&session);
    let book = calls.clone();
    let slow = kind.start(move |_| Slow { calls: book.clone(), fails }).unwrap();
    for number in 1..=3 {
        slow.entity("a").tell(number).await.unwrap();
    }
    until("all to be received", || calls.lock().unwrap().iter().any(|it| it.0 == 3)).await;
    let calls = calls.lock().unwrap().clone();
    assert!(calls.iter().all(|(.., held)| *held), "{calls:?}");
    let numbers: Vec<u64> = calls.iter().map(|(number, ..)| *number).collect();
    assert_eq!(numbers, [0, 1, 0, 2, 3], "{calls:?}");
    assert!(calls[1].1 < calls[2].1, "{calls:?}");
    world.end().await;
}

/// One thread: while it is held up, nobody can tell the shard to stop.
#[tokio::test]
async fn what_waited_is_received_under_the_next_session() {
    held_up(false).await;
}

#[tokio::test]
async fn one_that_failed_is_made_again_under_the_next_session() {
    held_up(true).await;
}
