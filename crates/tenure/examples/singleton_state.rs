//! A singleton with state that outlives every host: in SQLite, written under its token.
//!
//! Opening the state raises its fence first, and reads afterwards. So a former host that was stopped
//! for an hour and wakes up (try `kill -STOP`, wait, `kill -CONT`) cannot write: its token is lower.
//!
//! ```sh
//! cargo run -p tenure --features singleton,sqlite --example singleton_state -- 127.0.0.1:7400
//! cargo run -p tenure --features singleton,sqlite --example singleton_state -- 127.0.0.1:7401
//! ```
#![allow(clippy::disallowed_methods)] // an example is its own driver

use std::time::Duration;

use rusqlite::Connection;
use tenure::cluster::{Cluster, Settings};
use tenure::fence::SqliteFence;
use tenure::singleton::{BoxError, Hosted, Singletons as _};

async fn count(hosted: Hosted) -> Result<(), BoxError> {
    let mut database = Connection::open("state.db")?;
    database.busy_timeout(Duration::from_secs(5))?;
    let tenure = hosted.tenure().ok_or("it has a lease")?;
    let fence = SqliteFence::raise(tenure, &mut database, "counter")?; // Before the first read.
    database.execute_batch(
        "CREATE TABLE IF NOT EXISTS counter (id INTEGER PRIMARY KEY, value INTEGER);
         INSERT OR IGNORE INTO counter VALUES (1, 0);",
    )?;
    while hosted.is_held() {
        println!("{}, under token {}", add_one(&fence, &mut database)?, hosted.token());
        tokio::select! {
            () = tokio::time::sleep(Duration::from_secs(1)) => {}
            reason = hosted.stopping() => println!("stop: {reason}"),
        }
    }
    Ok(())
}

fn add_one(fence: &SqliteFence, database: &mut Connection) -> Result<i64, BoxError> {
    let transaction = fence.begin(database)?; // Refused once a newer host has raised it.
    transaction.execute("UPDATE counter SET value = value + 1", [])?;
    let value = transaction.query_row("SELECT value FROM counter", [], |row| row.get(0))?;
    transaction.commit()?;
    Ok(value)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7400".into());
    let store = std::env::var("STORE").unwrap_or_else(|_| "file:./leases".into());
    let store = tenure::open(&store).await?;
    let mut settings = Settings::new("shop")
        .name(address.replace(':', "-"))
        .address(address.parse()?)
        .formation(store.lease("shop.formation"));
    settings.plaintext_without_any_protection = true; // On loopback, to try it out.
    let cluster = Cluster::join(settings).await?;
    println!("{} is in", cluster.me());
    cluster.singleton("counter").lease(store.lease("shop.counter")).run(count)?;
    cluster.leave_when_terminated().await?; // SIGTERM, Ctrl-C: hands it over first.
    Ok(())
}
