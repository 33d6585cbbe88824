//! What becomes of tenures when the server goes away, for a short or a long time, or when an answer
//! gets lost on its way.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinSet;

use tenure_lease::{Loss, Moment, Token};

use super::server::cost_of_attached;
use super::server::proxy::cut_replies;
use super::support::{Server, block_on, name, server, server_alone, settings};

#[test]
fn a_restart_within_the_ttl_changes_nothing() {
    let Some((_turn, server)) = server_alone() else { return };
    if !server.must_be_controlled() {
        return;
    }
    block_on(async {
        let begun = Moment::now();
        server.control("restart").await;
        let ttl = (Moment::now().since(begun) * 4).max(Duration::from_secs(8));
        let lease = server.store().await.lease("restarted").settings(settings(ttl));
        let tenure = lease.acquire().await.unwrap();
        server.control("restart").await;
        for _ in 0..8 {
            tokio::time::sleep(ttl / 8).await;
            assert!(tenure.is_held(), "lost: {:?}", tenure.loss());
        }
        let record = server.store().await.inspect("restarted").await.unwrap().unwrap();
        assert!(record.is_of(tenure.claim()));
    });
}

#[test]
fn an_outage_of_two_ttls_ends_the_tenure_and_begins_one() {
    let Some((_turn, server)) = server_alone() else { return };
    if !server.must_be_controlled() {
        return;
    }
    for (down, up) in [("pause", "resume"), ("kill", "restart")] {
        block_on(outage(&server, down, up));
    }
}

/// Two contend all the time; the server goes away for two ttls.
async fn outage(server: &Server, down: &str, up: &'static str) {
    let ttl = Duration::from_secs(3);
    let name = name(down);
    let tenures: Arc<Mutex<Vec<Held>>> = Arc::default();
    let mut contenders = JoinSet::new();
    for who in 0..2 {
        let lease = server.store().await.lease(name.as_str()).settings(settings(ttl));
        let tenures = Arc::clone(&tenures);
        contenders.spawn(async move {
            loop {
                let tenure = lease.acquire().await.unwrap();
                let index = {
                    let mut tenures = tenures.lock().unwrap();
                    let begun = Moment::now();
                    tenures.push(Held { who, token: tenure.token(), begun, ended: None });
                    tenures.len() - 1
                };
                let loss = tenure.lost().await;
                tenures.lock().unwrap()[index].ended = Some((Moment::now(), loss));
                tenure.release().await;
            }
        });
    }
    tokio::time::sleep(ttl / 2).await;
    let away = Away { server, up };
    server.control(down).await;
    let went = Moment::now();
    tokio::time::sleep(ttl * 2).await;
    {
        let tenures = tenures.lock().unwrap();
        assert_eq!(tenures.len(), 1, "{tenures:?}");
        let (ended, loss) = tenures[0].ended.as_ref().expect("the holder has stopped");
        // A busy machine may look like a pause.
        assert!(matches!(loss, Loss::Expired | Loss::Paused), "the reason is {loss}");
        assert!(*ended < went + ttl, "stopped {:?} after the server went", ended.since(went));
        eprintln!("{down}: stopped after {:?} of {ttl:?}", ended.since(went));
    }
    drop(away);
    let back = Moment::now();
    while tenures.lock().unwrap().len() < 2 {
        assert!(Moment::now() < back + Duration::from_secs(5), "nobody holds it 5 s later");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    eprintln!("{up}: held again after {:?}", Moment::now().since(back));
    tokio::time::sleep(ttl * 2).await;
    contenders.abort_all();
    let tenures = tenures.lock().unwrap();
    assert_eq!(tenures.iter().filter(|held| held.ended.is_none()).count(), 1, "{tenures:?}");
    for pair in tenures.windows(2) {
        let (ended, _) = pair[0].ended.as_ref().expect("it ended before the next began");
        assert!(*ended <= pair[1].begun && pair[0].token < pair[1].token, "{pair:?}");
    }
}

/// Brings the server back, whatever became of the test.
struct Away<'a> {
    server: &'a Server,
    up: &'static str,
}

impl Drop for Away<'_> {
    fn drop(&mut self) {
        tokio::task::block_in_place(|| self.server.control_now(self.up));
    }
}

#[derive(Debug)]
#[allow(dead_code)] // `who` is for people.
struct Held {
    who: usize,
    token: Token,
    begun: Moment,
    ended: Option<(Moment, Loss)>,
}

/// The server does what it was asked, and the connection dies before it can say so.
#[test]
fn a_reply_that_is_cut_off_leaves_no_orphan_and_deposes_nobody() {
    let Some((_turn, server)) = server() else { return };
    block_on(async {
        server.create_tables().await;
        let (direct, settings) = (server.store().await, settings(Duration::from_secs(4)));
        let through = |address: String| server.store_at(address, "listen=off");
        // A renewal prepares its statement first.
        cut_replies(&server.place(), &direct, &settings, [1, 2, 1], through).await;
    });
}

/// A thousand attached leases: one statement per renewal, one per sweep.
#[test]
fn attached_leases_cost_one_renewal() {
    let Some((_turn, server)) = server_alone() else { return };
    block_on(async {
        server.create_tables().await;
        let settings = settings(Duration::from_secs(6));
        let through = |address: String| server.store_at(address, "");
        cost_of_attached(&server.place(), &settings, 1, through).await;
    });
}
