//! The example with accounts in shards, with SQLite.
#![cfg(all(feature = "sharding", feature = "sqlite", feature = "postgres"))]

#[allow(dead_code, reason = "an example has a main")]
#[path = "../examples/sharding_bank/main.rs"]
mod bank;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_zombie_is_refused() {
    bank::run(bank::books::Books::sqlite().unwrap()).await.unwrap();
}
