//! The example with accounts in shards, with a real PostgreSQL.
//!
//! `scripts/servers run --only postgres -- cargo test-all --test postgres_bank` starts one; without it the
//! test says so and passes.
#![cfg(all(feature = "sharding", feature = "sqlite", feature = "postgres"))]

#[allow(dead_code, reason = "an example has a main")]
#[path = "../examples/sharding_bank/main.rs"]
mod bank;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_zombie_is_refused() {
    let Ok(url) = std::env::var("TENURE_TEST_POSTGRES") else {
        eprintln!(
            "skipped: TENURE_TEST_POSTGRES is not set. Run the test by: scripts/servers run --only postgres \
             -- cargo test-all --test postgres_bank"
        );
        return;
    };
    bank::run(bank::books::Books::postgres(&url).await.unwrap()).await.unwrap();
}
