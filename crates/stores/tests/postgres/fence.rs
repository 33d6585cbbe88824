//! The fence: nothing stale gets past it, and nothing of the past commits after it was raised.

use std::time::Duration;

use tenure_lease::Token;
use tenure_lease::fence::FenceError;
use tenure_stores::postgres::{PostgresFence, PostgresFenceError};
use tokio_postgres::Client;

use super::support::{Server, block_on, server, server_alone, within};

#[test]
fn a_lower_token_is_refused_and_writes_nothing() {
    let Some((_turn, server)) = server() else { return };
    block_on(async {
        let mut client = ledger(&server).await;
        let old = raise(7, 1, &mut client).await.unwrap();
        write(&old, &mut client, "old").await.unwrap();
        let new = raise(8, 0, &mut client).await.unwrap();
        assert!(is_refusal(&write(&old, &mut client, "stale").await.unwrap_err()));
        assert!(is_refusal(&raise(7, 9, &mut client).await.err().unwrap()));
        write(&new, &mut client, "new").await.unwrap();
        // The whole token counts, over the whole range, and raising it again changes nothing.
        let step = raise(8, 1, &mut client).await.unwrap();
        assert!(is_refusal(&write(&new, &mut client, "stale").await.unwrap_err()));
        raise(8, 1, &mut client).await.unwrap();
        write(&step, &mut client, "step").await.unwrap();
        raise(u64::MAX, u64::MAX, &mut client).await.unwrap();
        assert!(is_refusal(&write(&step, &mut client, "stale").await.unwrap_err()));
        assert_eq!(lines(&client).await, ["old", "new", "step"]);
        // Another resource is another fence.
        PostgresFence::raise_token(Token::new(1, 0), &mut client, "other").await.unwrap();
    });
}

#[test]
fn a_raise_waits_for_stale_transactions_in_flight() {
    let Some((_turn, server)) = server() else { return };
    block_on(async {
        let (mut stale, mut fresh) = (ledger(&server).await, server.client().await);
        let old = raise(7, 0, &mut stale).await.unwrap();
        // Two of one tenure at once do not wait for each other.
        let mut beside = server.client().await;
        let second = within(Duration::from_secs(2), "beside", old.begin(&mut beside)).await;
        let work = old.begin(&mut stale).await.unwrap();
        work.execute("INSERT INTO ledger VALUES ('in flight')", &[]).await.unwrap();
        second.unwrap().commit().await.unwrap();
        let (new, ()) = tokio::join!(
            async {
                let new = raise(8, 0, &mut fresh).await.unwrap();
                // It reads after its raise, and so reads all that was written before.
                assert_eq!(lines(&fresh).await, ["in flight"]);
                new
            },
            async {
                tokio::time::sleep(Duration::from_millis(500)).await;
                work.commit().await.unwrap();
            }
        );
        assert!(is_refusal(&write(&old, &mut stale, "stale").await.unwrap_err()));
        write(&new, &mut fresh, "new").await.unwrap();
        assert_eq!(lines(&fresh).await, ["in flight", "new"]);
    });
}

/// While one that was begun is open, the raise does not happen; if it ends by rollback, nothing of
/// it stays.
#[test]
fn a_raise_does_not_overtake() {
    let Some((_turn, server)) = server() else { return };
    block_on(async {
        let (mut stale, mut fresh) = (ledger(&server).await, server.client().await);
        let old = raise(7, 0, &mut stale).await.unwrap();
        let work = old.begin(&mut stale).await.unwrap();
        fresh.batch_execute("SET lock_timeout = '300ms'").await.unwrap();
        let error = raise(8, 0, &mut fresh).await.expect_err("it must wait");
        assert!(matches!(error, PostgresFenceError::Database(_)), "{error}");
        work.execute("INSERT INTO ledger VALUES ('dropped')", &[]).await.unwrap();
        drop(work);
        raise(8, 0, &mut fresh).await.unwrap();
        assert!(lines(&fresh).await.is_empty());
    });
}

#[test]
fn a_fence_that_vanished_is_no_fence() {
    let Some((_turn, server)) = server() else { return };
    block_on(async {
        let mut client = ledger(&server).await;
        let fence = raise(7, 0, &mut client).await.unwrap();
        client.batch_execute("DELETE FROM tenure_fences").await.unwrap();
        let error = write(&fence, &mut client, "x").await.unwrap_err();
        assert!(is_lost(&error), "{error}");
        // It is not raised by the way.
        assert!(is_lost(&write(&fence, &mut client, "x").await.unwrap_err()));
        raise(7, 0, &mut client).await.unwrap();
        write(&fence, &mut client, "y").await.unwrap();
        assert_eq!(lines(&client).await, ["y"]);
    });
}

/// Many that raise for the first time, at once.
#[test]
fn the_table_is_created_once() {
    let Some((_turn, server)) = server_alone() else { return };
    block_on(async {
        let mut raising = tokio::task::JoinSet::new();
        for term in 1..=16 {
            let mut client = server.client().await;
            raising.spawn(async move { raise(term, 0, &mut client).await });
        }
        for raised in raising.join_all().await {
            assert!(raised.is_ok() || is_refusal(&raised.unwrap_err()));
        }
        let fence = raise(16, 0, &mut server.client().await).await.unwrap();
        assert_eq!(fence.token(), Token::new(16, 0));
    });
}

async fn ledger(server: &Server) -> Client {
    let client = server.client().await;
    client
        .batch_execute("CREATE TABLE ledger (line text, at bigint GENERATED ALWAYS AS IDENTITY)")
        .await
        .unwrap();
    client
}

async fn raise(
    term: u64,
    step: u64,
    client: &mut Client,
) -> Result<PostgresFence, PostgresFenceError> {
    PostgresFence::raise_token(Token::new(term, step), client, "ledger").await
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

async fn lines(client: &Client) -> Vec<String> {
    let rows = client.query("SELECT line FROM ledger ORDER BY at", &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

fn is_refusal(error: &PostgresFenceError) -> bool {
    matches!(error, PostgresFenceError::Fence(FenceError::Refused { .. }))
}

fn is_lost(error: &PostgresFenceError) -> bool {
    matches!(error, PostgresFenceError::Fence(FenceError::RaiseLost { .. }))
}
