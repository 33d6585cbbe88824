//! What operators do with psql, and how the holder learns of it.

use std::time::Duration;

use tenure_lease::backend::Acquire;
use tenure_lease::{Loss, Nonce, Owner, Token};
use tokio_postgres::error::SqlState;

use super::support::{block_on, connect, name, server, server_alone, settings, within};

#[test]
fn a_holder_learns_why_within_a_renewal_interval() {
    let Some((_turn, server)) = server() else { return };
    block_on(async {
        let store = server.store().await;
        let edits: [Edit; 6] = [
            ("DELETE FROM tenure_leases WHERE name = ", |loss| *loss == Loss::Deleted),
            (
                "UPDATE tenure_leases SET owner = 'bob' WHERE name = ",
                |loss| matches!(loss, Loss::Stolen { by: Some(by) } if by.name == "bob"),
            ),
            ("UPDATE tenure_leases SET owner = NULL WHERE name = ", |loss| {
                matches!(loss, Loss::Stolen { by: None })
            }),
            ("UPDATE tenure_leases SET term = term + 1 WHERE name = ", |loss| {
                matches!(loss, Loss::Stolen { .. })
            }),
            ("UPDATE tenure_leases SET nonce = 'mine' WHERE name = ", |loss| {
                matches!(loss, Loss::Stolen { .. })
            }),
            ("TRUNCATE tenure_leases; SELECT ", |loss| *loss == Loss::Deleted),
        ];
        for (edit, expected) in edits {
            let name = name("edited");
            let settings = settings(TTL * 2);
            let lease = store.lease(name.as_str()).settings(settings.clone());
            let tenure = lease.acquire().await.unwrap();
            tokio::task::block_in_place(|| server.psql(&format!("{edit}'{name}'")));
            // A fifth of jitter, and the renewal itself.
            let limit = settings.renew_interval * 6 / 5 + settings.operation_timeout;
            let loss = within(limit, edit, tenure.lost()).await;
            assert!(expected(&loss), "{edit}: {loss:?}");
            assert!(!tenure.is_held());
            let token = tenure.token();
            tenure.release().await;
            let next = within(TTL * 5, "the next tenure", lease.acquire()).await.unwrap();
            assert!(next.token() > token, "{edit}: {} after {token}", next.token());
        }
    });
}

/// The holder's row, deleted after its term was raised far above the server's clock, comes back
/// above it.
#[test]
fn a_deleted_row_leaves_its_term_behind() {
    let Some((_turn, server)) = server() else { return };
    block_on(async {
        let lease = server.store().await.lease("raised");
        let above = lease.acquire().await.unwrap().token().term + (1 << 50);
        for delete in ["DELETE FROM tenure_leases", "TRUNCATE tenure_leases"] {
            let tenure = lease.clone().above(above).acquire().await.unwrap();
            let raised = tenure.token();
            tenure.release().await;
            server.execute(delete).await;
            let tenure = lease.acquire().await.unwrap();
            assert!(tenure.token() > raised, "{delete}: {} after {raised}", tenure.token());
            tenure.release().await;
        }
    });
}

/// A table that was dropped is a table without records: the holder has lost, contenders start anew.
#[test]
fn a_dropped_table_is_created_again() {
    let Some((_turn, server)) = server() else { return };
    block_on(async {
        let store = server.store().await;
        let lease = store.lease("dropped").settings(settings(TTL));
        let tenure = lease.acquire().await.unwrap();
        server.execute("DROP TABLE tenure_leases").await;
        assert_eq!(within(TTL, "lost", tenure.lost()).await, Loss::Deleted);
        assert_eq!(store.inspect("dropped").await.unwrap(), None);
        let token = tenure.token();
        tenure.release().await;
        assert!(within(TTL * 2, "won", lease.acquire()).await.unwrap().token() > token);
    });
}

/// A row that somebody has locked in a session of their own holds up its own lease only, and leaves
/// no heap of waiting sessions behind.
#[test]
fn a_locked_row_holds_up_no_other_lease() {
    let Some((_turn, server)) = server_alone() else { return };
    block_on(async {
        let store = tenure_stores::open(&server.url("connections=2&listen=off")).await.unwrap();
        let [locked, other] = ["locked", "other"].map(|name| {
            let lease = store.lease(name).settings(settings(TTL));
            async move { lease.acquire().await.unwrap() }
        });
        let (locked, other) = (locked.await, other.await);
        let mut operator = server.client().await;
        let transaction = operator.transaction().await.unwrap();
        let lock = "SELECT FROM tenure_leases WHERE name = 'locked' FOR UPDATE";
        transaction.execute(lock, &[]).await.unwrap();
        assert_eq!(within(TTL, "lost", locked.lost()).await, Loss::Expired);
        tokio::time::sleep(TTL * 2).await;
        assert!(other.is_held(), "lost as well: {:?}", other.loss());
        let waiting = "SELECT count(*) FROM pg_stat_activity
            WHERE wait_event_type = 'Lock' AND application_name = 'tenure'";
        let row = connect(server.base()).await.query_one(waiting, &[]).await.unwrap();
        assert!(row.get::<_, i64>(0) <= 2, "{} sessions wait", row.get::<_, i64>(0));
        transaction.rollback().await.unwrap();
        drop(within(TTL * 2, "free again", store.lease("locked").acquire()).await.unwrap());
    });
}

/// A role that may not is told so, and what it needs; a database that forgets is not used.
#[test]
fn what_cannot_work_is_said() {
    let Some((_turn, server)) = server() else { return };
    block_on(async {
        let role = format!("{}_role", server.schema);
        let admin = connect(server.base()).await;
        admin.batch_execute(&format!("CREATE ROLE {role} LOGIN PASSWORD 'sesame'")).await.unwrap();
        let base = server.base().replace("postgres@", &format!("{role}:sesame@"));
        let attempt = async |options: &str| {
            let url = server.url_at(&base, options);
            let store = tenure_stores::open(&url).await.unwrap();
            let request = Acquire {
                name: name("denied"),
                claim: Nonce::random(),
                owner: Owner::named("a"),
                ttl: TTL,
                session: None,
                note: None,
                create: true,
                takeover: None,
                expected: None,
                above: 0,
                unattended: false,
            };
            let answer = store.backend().acquire(request).await;
            answer.map(|_| ()).map_err(|error| (format!("{:?}", error.kind()), error.to_string()))
        };
        let (kind, text) = attempt("").await.unwrap_err();
        assert!(kind == "Denied" && text.contains("CREATE"), "{kind}: {text}");
        // What the documentation grants is enough.
        server.create_tables().await;
        let grants = format!(
            "GRANT USAGE ON SCHEMA {0} TO {role};
             GRANT SELECT, INSERT, UPDATE ON {0}.tenure_leases TO {role};
             GRANT SELECT ON {0}.tenure_terms TO {role}",
            server.schema
        );
        admin.batch_execute(&grants).await.unwrap();
        attempt("").await.unwrap();
        admin
            .batch_execute(&format!("ALTER ROLE {role} SET synchronous_commit = off"))
            .await
            .unwrap();
        let (kind, text) = attempt("").await.unwrap_err();
        assert!(kind == "Unsuitable" && text.contains("synchronous_commit"), "{kind}: {text}");
        let url = server.url("").replace("/postgres?", "/nowhere?");
        let error = tenure_stores::open(&url).await.unwrap().inspect("a").await.unwrap_err();
        assert!(error.to_string().contains("3D000"), "{error}");
        admin.batch_execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await.unwrap();
    });
}

/// The shipped file is what a process would create, and may be run again.
#[test]
fn the_shipped_schema_can_be_run_by_hand() {
    let Some((_turn, server)) = server() else { return };
    block_on(async {
        let schema = include_str!("../../src/postgres/schema.sql");
        server.execute(schema).await;
        server.execute(schema).await;
        let tenure = server.store().await.lease("by-hand").acquire().await.unwrap();
        assert!(tenure.token() > Token::new(1_000_000_000_000_000, 0), "{}", tenure.token());
        let error = server
            .client()
            .await
            .batch_execute("UPDATE tenure_leases SET ttl_ms = 0")
            .await
            .unwrap_err();
        assert_eq!(error.code(), Some(&SqlState::CHECK_VIOLATION));
    });
}

/// A statement, up to the lease's name, and the reason that it must give.
type Edit = (&'static str, fn(&Loss) -> bool);

const TTL: Duration = Duration::from_secs(3);
