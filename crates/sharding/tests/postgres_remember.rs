//! Entities that are remembered in PostgreSQL, on a real server.
//!
//! `scripts/servers run --only postgres,pgbouncer -- cargo test-all --test postgres_remember` starts one; without it
//! the tests say so and pass.
#![cfg(feature = "postgres")]
#![allow(clippy::disallowed_methods, reason = "a real server takes real time")]

mod remember;

use std::time::Duration;

use tenure_lease::{Moment, Nonce, Token};
use tenure_sharding::{Place, PostgresRemember, Remember as _, RememberError, Shard};
use tenure_stores::postgres::{PostgresClients, PostgresFence};
use tokio::task::JoinSet;

/// A schema of its own on the server.
struct Database {
    base: String,
    schema: String,
}

impl Database {
    async fn new() -> Option<Self> {
        let Ok(base) = std::env::var("TENURE_TEST_POSTGRES") else {
            eprintln!(
                "skipped: TENURE_TEST_POSTGRES is not set. Run the tests by: scripts/servers run --only \
                 postgres -- cargo test-all --test postgres_remember"
            );
            return None;
        };
        let schema = format!("test_{:016x}", Nonce::random().bits() as u64);
        let database = Self { base, schema };
        database.operate(&format!("CREATE SCHEMA {}", database.schema)).await;
        Some(database)
    }

    fn url(&self) -> String {
        format!("{}?schema={}", self.base, self.schema)
    }

    fn open(&self) -> PostgresRemember {
        PostgresRemember::open(&self.url()).unwrap()
    }

    async fn operate(&self, statements: &str) {
        let client = PostgresClients::new(&self.base).unwrap().take().await.unwrap();
        client.batch_execute(statements).await.unwrap();
    }

    async fn drop(self) {
        self.operate(&format!("DROP SCHEMA {} CASCADE", self.schema)).await;
    }
}

fn at(term: u64) -> Place<'static> {
    Place { kind: "cart", shard: Shard(7), token: Token::new(term, 0) }
}

#[tokio::test]
async fn conforms() {
    let Some(database) = Database::new().await else { return };
    remember::conforms(&database.open(), &database.open()).await;
    database.drop().await;
}

/// By transaction, where nothing of a connection stays; the tables are where the role's search path leads.
#[tokio::test]
async fn conforms_behind_a_pooler() {
    let Some(database) = Database::new().await else { return };
    let Ok(pooled) = std::env::var("TENURE_TEST_PGBOUNCER") else {
        eprintln!("skipped: TENURE_TEST_PGBOUNCER is not set; scripts/servers has one");
        return database.drop().await;
    };
    let open = || PostgresRemember::open(&pooled).unwrap();
    remember::conforms(&open(), &open()).await;
    database.operate("DROP TABLE public.tenure_entities, public.tenure_fences").await;

    // It would be the next one's as well.
    let path = format!("{pooled}?schema={}", database.schema);
    let refused = PostgresRemember::open(&path).unwrap().load(at(1)).await.unwrap_err();
    assert!(refused.to_string().contains("search_path"), "{refused}");
    database.drop().await;
}

/// Sixteen nodes that begin at once in an empty database.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_tables_are_made_once() {
    let Some(database) = Database::new().await else { return };
    for round in 0..5 {
        database
            .operate(&format!(
                "SET search_path TO {}; DROP TABLE IF EXISTS tenure_entities, tenure_fences",
                database.schema
            ))
            .await;
        let mut nodes = JoinSet::new();
        for shard in 0..16 {
            let remember = database.open();
            nodes.spawn(async move {
                let place = Place { shard: Shard(shard), ..at(1) };
                remember.load(place).await?;
                remember.change(place, vec!["a".into()], Vec::new()).await?;
                remember.load(place).await
            });
        }
        for loaded in nodes.join_all().await {
            assert_eq!(loaded.unwrap(), ["a"], "round {round}");
        }
    }
    database.drop().await;
}

/// The server ends all of its connections; nothing but that one call may fail.
#[tokio::test]
async fn a_broken_connection_is_mended() {
    let Some(database) = Database::new().await else { return };
    let url = format!("{}&application_name={}", database.url(), database.schema);
    let remember = PostgresRemember::open(&url).unwrap();
    remember.load(at(1)).await.unwrap();
    remember.change(at(1), vec!["a".into()], Vec::new()).await.unwrap();
    let end = format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '{}'",
        database.schema
    );
    for _ in 0..3 {
        database.operate(&end).await;
        // Whether it has heard of it already is a matter of luck.
        if let Err(error) = remember.load(at(1)).await {
            assert!(matches!(error, RememberError::Failed(_)), "{error}");
        }
        assert_eq!(remember.load(at(1)).await.unwrap(), ["a"]);
    }
    database.drop().await;
}

/// A host that stands still in the middle of a transaction holds its fence: the next one waits for it, for
/// a while, and says so; and then goes on.
#[tokio::test]
async fn calls_have_a_deadline() {
    let Some(database) = Database::new().await else { return };
    let remember = database.open();
    remember.load(at(1)).await.unwrap();
    let clients = PostgresClients::new(&database.url()).unwrap();
    let mut stale = clients.take().await.unwrap();
    let fence = PostgresFence::raise_token(Token::new(1, 0), &mut stale, "sharding/cart/7").await;
    let fence = fence.unwrap();
    let open = fence.begin(&mut stale).await.unwrap();
    let began = Moment::now();
    // Other shards do not wait for it.
    let (late, ()) = tokio::join!(remember.load(at(2)), async {
        let beside = Place { shard: Shard(8), ..at(2) };
        remember.load(beside).await.unwrap();
        assert!(Moment::now().since(began) < Duration::from_secs(3));
    });
    let late = late.unwrap_err().to_string();
    assert!(late.contains("was not done within 5s"), "{late}");
    assert!(Moment::now().since(began) < Duration::from_secs(8));
    open.commit().await.unwrap();
    assert!(remember.load(at(2)).await.unwrap().is_empty());
    let refused = remember.load(at(1)).await.unwrap_err();
    assert!(matches!(refused, RememberError::Refused { .. }), "{refused}");
    drop(stale);
    database.drop().await;
}

/// What is said says where and what to do, and never the password.
#[tokio::test]
async fn errors_say_what_to_do_and_no_secret() {
    let Some(database) = Database::new().await else { return };
    let role = format!("{}_app", database.schema);
    database.operate(&format!("CREATE ROLE {role} LOGIN PASSWORD 'sesame'")).await;
    let mut url = database.url().replace("postgres@", &format!("{role}:sesame@"));
    let remember = PostgresRemember::open(&url).unwrap();
    assert!(!format!("{remember:?}").contains("sesame"), "{remember:?}");
    let grant = |what: &str| format!("GRANT {what} ON SCHEMA {} TO {role}", database.schema);
    for (advice, remedy) in
        [("name another with schema=NAME", "USAGE"), ("CREATE on their schema", "CREATE")]
    {
        let denied = remember.load(at(1)).await.unwrap_err();
        let text = format!("{denied} {denied:?}");
        assert!(text.contains(advice) && !text.contains("sesame"), "{text}");
        database.operate(&grant(remedy)).await;
    }
    remember.load(at(1)).await.unwrap();

    // A port where nobody listens.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    url = format!("postgres://app:sesame@127.0.0.1:{port}/app");
    let absent = PostgresRemember::open(&url).unwrap().load(at(1)).await.unwrap_err();
    let text = format!("{absent} {absent:?}");
    assert!(text.contains(&format!("127.0.0.1:{port}")) && !text.contains("sesame"), "{text}");
    let wrong = PostgresRemember::open("postgres://app:sesame@db/app?shema=shop").unwrap_err();
    assert!(!wrong.to_string().contains("sesame"), "{wrong}");
    database.operate(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
    database.drop().await;
}
