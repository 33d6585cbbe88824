//! A standby takes over: with all that was committed, or without the last of it.

use std::time::Duration;

use tenure_lease::Token;
use tenure_lease::backend::StoreErrorKind;
use tenure_lease::fence::FenceError;
use tenure_stores::postgres::{PostgresFence, PostgresFenceError};
use tokio_postgres::Client;

use super::own::OwnServer;
use super::server::request;
use super::support::{block_on, connect, name, server, settings, within};

/// An asynchronous standby that lacks the last raise is promoted: the tenure that raised is told, and
/// raises again; from then on, and not before, the stale one is refused.
#[test]
fn a_raise_that_a_failover_lost_is_noticed() {
    let Some((_turn, _server)) = server() else { return };
    let mut primary = OwnServer::new("raised", &["-A", "trust"]);
    primary.start(&[], &[]);
    let old = block_on(async {
        let mut client = connect(&primary.url("postgres")).await;
        client.batch_execute("CREATE TABLE ledger (line text)").await.unwrap();
        let old = raise(7, &mut client).await.unwrap();
        write(&old, &mut client, "7").await.unwrap();
        old
    });
    let mut standby = primary.standby_of("forgetful");
    let new = block_on(async {
        // The standby is away.
        let mut client = connect(&primary.url("postgres")).await;
        let new = raise(8, &mut client).await.unwrap();
        write(&new, &mut client, "8, lost").await.unwrap();
        assert!(is_refused(&write(&old, &mut client, "stale").await.unwrap_err()));
        new
    });
    primary.kill();
    standby.start(&[], &[]);
    standby.psql("SELECT pg_promote(true, 30)");
    block_on(async {
        let mut client = connect(&standby.url("postgres")).await;
        let lost = write(&new, &mut client, "8, on lost writes").await.unwrap_err();
        let PostgresFenceError::Fence(FenceError::RaiseLost { held, fence, .. }) = &lost else {
            panic!("{lost}")
        };
        assert_eq!((*held, *fence), (Token::new(8, 0), Some(Token::new(7, 0))));
        // Nothing that this database knows tells 7 from a holder: the documented limit.
        write(&old, &mut client, "stale, unnoticed").await.unwrap();
        let new = raise(8, &mut client).await.unwrap();
        assert!(is_refused(&write(&old, &mut client, "stale").await.unwrap_err()));
        write(&new, &mut client, "8").await.unwrap();
        let rows = client.query("SELECT line FROM ledger", &[]).await.unwrap();
        let lines: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        assert_eq!(lines, ["7", "stale, unnoticed", "8"]);
    });
}

/// A synchronous standby takes over: a lease whose URL names both goes on.
#[test]
fn a_tenure_survives_a_synchronous_failover() {
    let Some((_turn, _server)) = server() else { return };
    let mut primary = OwnServer::new("first", &["-A", "trust"]);
    primary.start(&[], &[]);
    let mut standby = primary.standby_of("second");
    standby.start(&[], &[]);
    primary.psql("ALTER SYSTEM SET synchronous_standby_names = '*'");
    primary.psql("SELECT pg_reload_conf()");
    let url = format!("postgres://postgres@{},{}/postgres", primary.place(), standby.place());
    block_on(async {
        let store = tenure_stores::open(&url).await.unwrap();
        let lease = store.lease("failing-over").settings(settings(Duration::from_secs(12)));
        let tenure = lease.acquire().await.unwrap();
        tokio::task::block_in_place(|| {
            primary.kill();
            standby.psql("SELECT pg_promote(true, 30)");
        });
        let renewed = async {
            let before = store.inspect("failing-over").await.unwrap().unwrap();
            while store.inspect("failing-over").await.unwrap().unwrap().version == before.version {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        within(Duration::from_secs(12), "renewed on the standby", renewed).await;
        assert!(tenure.is_held(), "{:?}", tenure.loss());
    });
}

/// A server takes no more writes and keeps its connections, as a pooler does whose primary was
/// demoted: the answer is unknown, and the next request goes to the other one.
#[test]
fn a_read_only_server_is_left() {
    let Some((_turn, _server)) = server() else { return };
    let servers = ["left", "found"].map(|stem| {
        let mut server = OwnServer::new(stem, &["-A", "trust"]);
        server.start(&[], &[]);
        server
    });
    let [first, second] = &servers;
    let url = format!("postgres://postgres@{},{}/postgres", first.place(), second.place());
    block_on(async {
        let store = tenure_stores::open(&url).await.unwrap();
        let lease = name("read-only");
        store.lease(lease.as_str()).acquire().await.unwrap().release().await;
        first.psql("ALTER SYSTEM SET default_transaction_read_only = on");
        first.psql("SELECT pg_reload_conf()");
        let mut answers = Vec::new();
        for _ in 0..20 {
            match store.backend().acquire(request(&lease, "a", Duration::from_secs(5))).await {
                Ok(won) => {
                    eprintln!("{won:?} after {answers:?}");
                    return;
                }
                Err(error) => {
                    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
                    answers.push(error.to_string());
                }
            }
        }
        panic!("it stays where it is: {answers:?}");
    });
}

async fn raise(term: u64, client: &mut Client) -> Result<PostgresFence, PostgresFenceError> {
    PostgresFence::raise_token(Token::new(term, 0), client, "ledger").await
}

async fn write(
    fence: &PostgresFence,
    client: &mut Client,
    line: &str,
) -> Result<(), PostgresFenceError> {
    let work = fence.begin(client).await?;
    work.execute("INSERT INTO ledger VALUES ($1)", &[&line]).await?;
    Ok(work.commit().await?)
}

fn is_refused(error: &PostgresFenceError) -> bool {
    matches!(error, PostgresFenceError::Fence(FenceError::Refused { .. }))
}
