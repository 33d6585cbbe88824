//! A program as it runs in production: settings from a file, probes and metrics, one report worker,
//! four importers spread over the nodes, and an end in order. `docs/production.md` explains it.
//!
//! ```sh
//! cargo run -p tenure --features node,singleton,sharding --example service -- node.toml
//! ```
#![allow(clippy::disallowed_methods)] // an example is its own driver

use std::time::Duration;

use tenure::cluster::Cluster;
use tenure::manage::{Manage, Recorder};
use tenure::node::NodeFile;
use tenure::sharding::{Daemon, Shardings as _};
use tenure::singleton::{BoxError, Singletons as _};

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let path = std::env::args().nth(1).unwrap_or_else(|| "node.toml".into());
    let recorder = Recorder::install()?; // Before anything is measured.
    let file = NodeFile::load(path)?;
    let store = file.store().await?.ok_or("set store in the node's file")?;
    let cluster = Cluster::start(file.settings().await?)?;

    let report = cluster.singleton("report").lease(store.lease("shop.report")).run(report)?;
    let me = store.lease(&cluster.settings().name).kept_session()?;
    let importers = cluster.sharding("importer").lease(store.lease("shop.importers"));
    importers.session(&me).daemons(4, |part| Importer { part })?;

    // While the node still joins: probes ask from the first moment on.
    let manage = Manage::new(&cluster).singleton(&report).metrics(recorder);
    let _running = match file.manage()? {
        Some(settings) => Some(manage.settings(settings).start().await?),
        None => None,
    };

    // SIGTERM: hands all of it over, and leaves. Declared down: an error, and the process ends, so that
    // whoever runs it starts it again.
    cluster.leave_when_terminated().await?;
    Ok(())
}

async fn report(hosted: tenure::singleton::Hosted) -> Result<(), BoxError> {
    println!("reports, under token {}", hosted.token());
    let reason = hosted.stopping().await; // The work, in a real one, beside this.
    println!("reports no more: {reason}");
    Ok(())
}

struct Importer {
    part: u32,
}

impl Daemon for Importer {
    async fn run(&mut self, hosted: &tenure::sharding::Hosted) -> Result<(), BoxError> {
        println!("imports part {}, under token {}", self.part, hosted.token());
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await; // The work, which may be dropped here.
        }
    }
}
