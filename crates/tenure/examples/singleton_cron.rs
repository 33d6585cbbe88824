//! One cron worker in the whole cluster, guarded by a lease. Start it in several terminals, each with
//! an address of its own, then stop the one that works:
//!
//! ```sh
//! cargo run -p tenure --features singleton --example singleton_cron -- 127.0.0.1:7400
//! cargo run -p tenure --features singleton --example singleton_cron -- 127.0.0.1:7401
//! ```
//!
//! In Kubernetes, with `--features singleton,kubernetes`: STORE=k8s://default.
#![allow(clippy::disallowed_methods)] // an example is its own driver

use std::time::Duration;

use tenure::cluster::{Cluster, Settings};
use tenure::singleton::Singletons as _;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7400".into());
    let store = std::env::var("STORE").unwrap_or_else(|_| "file:./leases".into());
    let store = tenure::open(&store).await?;
    let mut settings = Settings::new("shop")
        .name(address.replace(':', "-"))
        .address(address.parse()?)
        .formation(store.lease("shop.formation"));
    // On loopback, to try it out. Nodes of yours have certificates: `.identity("certs/shop-0")`.
    settings.plaintext_without_any_protection = true;
    let cluster = Cluster::join(settings).await?;
    println!("{} is in", cluster.me());

    let cron = cluster.singleton("cron").lease(store.lease("shop.cron")).run(async |hosted| {
        while hosted.is_held() {
            println!("tick, under token {}", hosted.token());
            tokio::select! {
                () = tokio::time::sleep(Duration::from_secs(1)) => {}
                reason = hosted.stopping() => println!("stop: {reason}"),
            }
        }
        Ok(())
    })?;

    tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_secs(5)).await;
            println!("cron {}", cron.status());
        }
    });
    // SIGTERM or Ctrl-C: hands the cron over, and leaves. An error if the node is out of the cluster
    // for another reason; whoever runs the process starts it again then.
    cluster.leave_when_terminated().await?;
    Ok(())
}
