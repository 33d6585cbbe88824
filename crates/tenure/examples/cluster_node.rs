//! One node of a cluster. Start it in several terminals, each with an address of its own:
//!
//! ```sh
//! cargo run -p tenure --features cluster --example cluster_node -- 127.0.0.1:7400
//! cargo run -p tenure --features cluster --example cluster_node -- 127.0.0.1:7401
//! ```
//!
//! Ctrl-C leaves in order, and so does SIGTERM. Kill one of three with -9, and see the others get over
//! it.
#![allow(clippy::disallowed_methods)] // an example is its own driver

use tenure::cluster::downing::{LeaseMajority, Strategy};
use tenure::cluster::{Cluster, Settings};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7400".into());
    let store = std::env::var("STORE").unwrap_or_else(|_| "file:./leases".into());
    let store = tenure::open(&store).await?;
    let mut settings = Settings::new("shop")
        .name(address.replace(':', "-"))
        .address(address.parse()?)
        .formation(store.lease("shop.formation"))
        .downing(Strategy::LeaseMajority(LeaseMajority::default()))
        .arbitration(store.lease("shop.arbitration"));
    // On loopback, to try it out. Nodes of yours have certificates: `.identity("certs/shop-0")`.
    settings.plaintext_without_any_protection = true;

    let cluster = Cluster::join(settings).await?;
    println!("{} is in, with {} members", cluster.me(), cluster.view().members().len());
    let mut events = cluster.events();
    tokio::spawn(async move {
        while let Some(event) = events.next().await {
            println!("{event}");
        }
    });
    cluster.leave_when_terminated().await?; // An error if it is out for another reason.
    println!("out of the cluster: it left");
    Ok(())
}
