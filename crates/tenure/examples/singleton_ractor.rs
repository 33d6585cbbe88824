//! An actor of another framework, run as a singleton: here one of `ractor`. It is started when this node
//! becomes the host, and has ended before the lease is given back.
//!
//! ```sh
//! cargo run -p tenure --features singleton --example singleton_ractor -- 127.0.0.1:7400
//! ```
#![allow(clippy::disallowed_methods)] // an example is its own driver

use std::time::Duration;

use ractor::{Actor, ActorProcessingErr, ActorRef};
use tenure::cluster::{Cluster, Settings};
use tenure::singleton::{BoxError, Hosted, Singletons as _};

struct Greeter;

impl Actor for Greeter {
    type Msg = String;
    type State = u64;
    type Arguments = tenure::Token;

    async fn pre_start(
        &self,
        _: ActorRef<String>,
        token: tenure::Token,
    ) -> Result<u64, ActorProcessingErr> {
        println!("greets, under token {token}");
        Ok(0)
    }

    async fn handle(
        &self,
        _: ActorRef<String>,
        name: String,
        count: &mut u64,
    ) -> Result<(), ActorProcessingErr> {
        *count += 1;
        println!("hello {name}, for the {count}. time");
        Ok(())
    }
}

async fn greet(hosted: Hosted) -> Result<(), BoxError> {
    let (actor, mut ended) = Actor::spawn(None, Greeter, hosted.token()).await?;
    loop {
        tokio::select! {
            () = tokio::time::sleep(Duration::from_secs(1)) => actor.send_message("you".into())?,
            reason = hosted.stopping() => {
                actor.stop(Some(reason.to_string()));
                ended.await?;
                return Ok(());
            }
            ended = &mut ended => return Ok(ended?),
        }
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
    cluster.singleton("greeter").lease(store.lease("shop.greeter")).run(greet)?;
    cluster.leave_when_terminated().await?; // SIGTERM, Ctrl-C: hands it over first.
    Ok(())
}
