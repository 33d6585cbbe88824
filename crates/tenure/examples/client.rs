//! A web tier that is no member: it tells and asks a singleton of the cluster, through whichever member
//! is there. Start two nodes, each in a terminal of its own, and then the client in a third; stop the
//! node that hosts the counter, and see it go on:
//!
//! ```sh
//! cargo run -p tenure --features singleton --example client -- node 127.0.0.1:7400
//! cargo run -p tenure --features singleton --example client -- node 127.0.0.1:7401
//! cargo run -p tenure --features singleton --example client -- web 127.0.0.1:7400 127.0.0.1:7401
//! ```
#![allow(clippy::disallowed_methods)] // an example is its own driver

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure::client::{Client, ClientSettings};
use tenure::cluster::messaging::{Ask, AskError, Received};
use tenure::cluster::{Cluster, Settings};
use tenure::singleton::{Actor, BoxError, Hosted, Singletons as _};

#[derive(Serialize, Deserialize)]
enum Count {
    Visit,
    HowMany,
}

struct HowMany;

impl Ask for HowMany {
    type Reply = (u64, String);
}

impl From<HowMany> for Count {
    fn from(_: HowMany) -> Self {
        Self::HowMany
    }
}

/// Counts visits, in memory: a new one begins at 0.
#[derive(Default)]
struct Counter {
    visits: u64,
}

impl Actor for Counter {
    type Message = Count;

    async fn receive(
        &mut self,
        received: Received<Count>,
        hosted: &Hosted,
    ) -> Result<(), BoxError> {
        match received.message {
            Count::Visit => self.visits += 1,
            Count::HowMany => {
                let node = hosted.cluster().me().address.to_string();
                received.reply.answer::<HowMany>((self.visits, node)).await?;
            }
        }
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.split_first() {
        Some((what, addresses)) if what == "node" && addresses.len() == 1 => {
            node(&addresses[0]).await
        }
        Some((what, contacts)) if what == "web" && !contacts.is_empty() => web(contacts).await,
        _ => Err("node ADDRESS, or web CONTACT...".into()),
    }
}

async fn node(address: &str) -> Result<(), Box<dyn std::error::Error>> {
    let store = tenure::open("file:./leases").await?;
    let mut settings = Settings::new("shop")
        .name(address.replace(':', "-"))
        .address(address.parse()?)
        .formation(store.lease("shop.formation"));
    // On loopback, to try it out. Nodes of yours have certificates: `.identity("certs/shop-0")`.
    settings.plaintext_without_any_protection = true;
    let cluster = Cluster::join(settings).await?;
    println!("{} is in", cluster.me());
    let _counter =
        cluster.singleton("counter").lease(store.lease("shop.counter")).start(Counter::default)?;
    cluster.leave_when_terminated().await?;
    Ok(())
}

async fn web(contacts: &[String]) -> Result<(), Box<dyn std::error::Error>> {
    let mut settings = ClientSettings::new("shop", "web");
    // Clients of yours have certificates: `.identity("certs/client/web")`.
    settings.plaintext_without_any_protection = true;
    for contact in contacts {
        settings = settings.contact(contact.parse()?);
    }
    let client = Client::connect(settings).await?;
    let counter = client.singleton::<Count>("counter");
    loop {
        match counter.tell(Count::Visit).await {
            Ok(()) => {}
            Err(AskError::NotDone(why)) => println!("not counted, and may be sent again: {why}"),
            Err(AskError::Unknown(why)) => println!("perhaps counted: {why}"),
        }
        match counter.ask(HowMany).within(Duration::from_secs(2)).await {
            Ok((visits, node)) => println!("{visits} visits, counted by {node}"),
            Err(error) => println!("{error}"),
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}
