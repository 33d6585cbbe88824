//! `--metrics` of `tenure run` and `tenure cron`: the metrics of this process, where Prometheus reads them.

use std::net::SocketAddr;

use tenure_manage::{Recorder, Running, serve_metrics};

use crate::exit::{Failure, SYSTEM};

/// Serves them until it is dropped. To be called before anything is measured.
pub(crate) async fn serve(address: SocketAddr) -> Result<Running, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::new(SYSTEM, format!("metrics: {error}"));
    let recorder = Recorder::install().map_err(|error| failed(&error))?;
    let running = serve_metrics(address, recorder).await.map_err(|error| failed(&error))?;
    tracing::info!(url = format!("http://{}/metrics", running.address()), "metrics");
    Ok(running)
}

pub(crate) fn parse_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "no address to listen at; \"127.0.0.1:9464\" is one".to_owned())
}
