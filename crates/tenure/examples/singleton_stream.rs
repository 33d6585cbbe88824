//! One leader that consumes a stream, and an actor that everybody can ask how far it is.
//!
//! ```sh
//! cargo run -p tenure --features singleton --example singleton_stream -- 127.0.0.1:7400
//! cargo run -p tenure --features singleton --example singleton_stream -- 127.0.0.1:7401
//! ```
#![allow(clippy::disallowed_methods)] // an example is its own driver

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure::cluster::messaging::{Ask, Received};
use tenure::cluster::{Cluster, Settings};
use tenure::singleton::{Actor, BoxError, Hosted, Proxy, Singletons as _, StopReason};

/// Reads the stream. A real one commits its offset together with its effect, under its token: see the
/// example `singleton_state`.
#[derive(Default)]
struct Leader {
    offset: u64,
}

#[derive(Serialize, Deserialize)]
enum LeaderMessage {
    Next,
    Offset,
}

struct Offset;
impl Ask for Offset {
    type Reply = u64;
}
impl From<Offset> for LeaderMessage {
    fn from(_: Offset) -> Self {
        Self::Offset
    }
}

impl Actor for Leader {
    type Message = LeaderMessage;

    async fn started(&mut self, hosted: &Hosted) -> Result<(), BoxError> {
        println!("leads, under token {}", hosted.token());
        Ok(())
    }

    async fn receive(
        &mut self,
        received: Received<LeaderMessage>,
        _: &Hosted,
    ) -> Result<(), BoxError> {
        match received.message {
            LeaderMessage::Next => self.offset += 1,
            LeaderMessage::Offset => received.reply.answer::<Offset>(self.offset).await?,
        }
        Ok(())
    }

    async fn stopped(&mut self, reason: StopReason) {
        println!("leads no more: {reason}");
    }
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
    let leader =
        cluster.singleton("stream").lease(store.lease("shop.stream")).start(Leader::default)?;

    tokio::spawn(feed(leader));
    cluster.leave_when_terminated().await?; // SIGTERM, Ctrl-C: hands it over first.
    Ok(())
}

/// Every node feeds it, and asks.
async fn feed(leader: Proxy<LeaderMessage>) {
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        if let Err(error) = leader.tell(LeaderMessage::Next).await {
            println!("not told: {error}");
        }
        match leader.ask(Offset).within(Duration::from_secs(2)).await {
            Ok(offset) => println!("offset {offset}; the leader {}", leader.status()),
            Err(error) => println!("{error}"),
        }
    }
}
