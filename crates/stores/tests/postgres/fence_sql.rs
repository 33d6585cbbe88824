//! The fence as functions in SQL, for any driver: the same rows, and the same answers, as `PostgresFence`.

use tenure_lease::Token;
use tenure_stores::postgres::PostgresFence;
use tokio_postgres::{Client, Error};

use super::support::{Server, block_on, server};

#[test]
fn functions_and_the_fence_of_rust_refuse_each_other_s_stale_tokens() {
    let Some((_turn, server)) = server() else { return };
    block_on(async {
        let mut client = migrated(&server).await;
        call(&client, "tenure_raise", 7, 1).await.unwrap();
        call(&client, "tenure_hold", 7, 1).await.unwrap();
        // Rust knows what SQL has raised …
        let rust = PostgresFence::raised(Token::new(7, 1), "reports");
        rust.begin(&mut client).await.unwrap().commit().await.unwrap();
        // … and SQL what Rust has.
        PostgresFence::raise_token(Token::new(8, 0), &mut client, "reports").await.unwrap();
        assert_eq!(refused(call(&client, "tenure_hold", 7, 1).await), "TN001");
        assert_eq!(refused(call(&client, "tenure_raise", 7, 9).await), "TN001");
        call(&client, "tenure_hold", 8, 0).await.unwrap();
        call(&client, "tenure_raise", 8, 0).await.unwrap();
        // The whole token counts, over the whole range, and as two numbers.
        call(&client, "tenure_raise", 8, 9).await.unwrap();
        call(&client, "tenure_raise", 8, 41).await.unwrap();
        assert!(rust.begin(&mut client).await.is_err());
        call(&client, "tenure_raise", u64::MAX, u64::MAX).await.unwrap();
        assert_eq!(refused(call(&client, "tenure_hold", 8, 41).await), "TN001");
    });
}

#[test]
fn a_raise_in_sql_waits_for_a_transaction_that_holds_the_fence() {
    let Some((_turn, server)) = server() else { return };
    block_on(async {
        let (stale, fresh) = (migrated(&server).await, server.client().await);
        call(&stale, "tenure_raise", 7, 0).await.unwrap();
        stale.batch_execute("BEGIN").await.unwrap();
        call(&stale, "tenure_hold", 7, 0).await.unwrap();
        fresh.batch_execute("SET lock_timeout = '300ms'").await.unwrap();
        assert_eq!(refused(call(&fresh, "tenure_raise", 8, 0).await), "55P03", "it must wait");
        // Others of the same token do not wait.
        fresh.batch_execute("BEGIN").await.unwrap();
        call(&fresh, "tenure_hold", 7, 0).await.unwrap();
        fresh.batch_execute("COMMIT").await.unwrap();
        stale.batch_execute("COMMIT").await.unwrap();
        call(&fresh, "tenure_raise", 8, 0).await.unwrap();
        assert_eq!(refused(call(&stale, "tenure_hold", 7, 0).await), "TN001");
    });
}

#[test]
fn a_raise_that_the_database_forgot_is_said() {
    let Some((_turn, server)) = server() else { return };
    block_on(async {
        let client = migrated(&server).await;
        assert_eq!(refused(call(&client, "tenure_hold", 7, 0).await), "TN002", "never raised");
        call(&client, "tenure_raise", 7, 0).await.unwrap();
        client.batch_execute("UPDATE tenure_fences SET term = 6").await.unwrap();
        assert_eq!(refused(call(&client, "tenure_hold", 7, 0).await), "TN002");
        client.batch_execute("DELETE FROM tenure_fences").await.unwrap();
        assert_eq!(refused(call(&client, "tenure_hold", 7, 0).await), "TN002");
    });
}

/// As an operator or a migration tool runs it; twice, which changes nothing.
async fn migrated(server: &Server) -> Client {
    let client = server.client().await;
    for _ in 0..2 {
        client
            .batch_execute(include_str!("../../../../deploy/sql/tenure_fences.sql"))
            .await
            .unwrap();
    }
    client
}

async fn call(client: &Client, function: &str, term: u64, step: u64) -> Result<(), Error> {
    client.batch_execute(&format!("SELECT {function}('reports', {term}, {step})")).await
}

fn refused(called: Result<(), Error>) -> String {
    called.expect_err("it is refused").code().expect("by the database").code().to_owned()
}
