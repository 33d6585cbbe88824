//! One cron worker among any number of processes. Start it in several terminals, then stop one:
//!
//! ```text
//! cargo run --example cron_singleton -- file:./leases
//! ```
#![allow(clippy::disallowed_methods)] // an example is its own driver

use std::time::Duration;

use tenure::LeaseError;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "file:./leases".to_owned());
    // How many ticks to run for; for ever, if nobody says.
    let ticks = std::env::args().nth(2).map_or(u64::MAX, |ticks| ticks.parse().unwrap_or(u64::MAX));
    let pid = std::process::id();
    let store = tenure::open(&url).await?;
    println!("{pid} waits for its turn");
    let lease = store.lease("cron").ttl(Duration::from_secs(5));
    // SIGTERM or Ctrl-C ends the work where it awaits, and gives the lease back.
    lease
        .run_until(tenure::signals::terminated(), async |tenure| {
            println!("{pid} is the one, with token {}", tenure.token());
            let mut timer = tokio::time::interval(Duration::from_secs(1));
            for tick in 0..ticks {
                tokio::select! {
                    _ = timer.tick() => println!("{pid} works on tick {tick}"),
                    reason = tenure.lost() => {
                        println!("{pid} has lost it ({reason}) and stops at once");
                        return Err(LeaseError::Over(reason));
                    }
                }
            }
            Ok(())
        })
        .await?;
    println!("{pid} has given it back");
    Ok(())
}
