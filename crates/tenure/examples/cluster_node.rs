//! One node of a cluster. Start it in several terminals, each with an address of its own:
//!
//! ```sh
//! cargo run -p tenure --features cluster --example cluster_node -- 127.0.0.1:7400
//! cargo run -p tenure --features cluster --example cluster_node -- 127.0.0.1:7401
//! ```
//!
//! Ctrl-C leaves in order. Kill one of three with -9, and see the others get over it.

use tenure::cluster::downing::{LeaseMajority, Strategy};
use tenure::cluster::{Cluster, Settings};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7400".into());
    let store = tenure::store("file:./leases").await?;
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
    loop {
        tokio::select! {
            event = events.next() => match event {
                Some(event) => println!("{event}"),
                None => break,
            },
            _ = tokio::signal::ctrl_c() => cluster.leave().await,
            ending = cluster.ended() => {
                println!("out of the cluster: {ending}");
                break;
            }
        }
    }
    Ok(())
}
