//! Measures the transport between two processes:
//! `cargo run --release -p tenure-cluster --features certs --example transport_bench [SECONDS]`

use std::error::Error;
use std::process::Command;
use std::time::Duration;

use tenure_cluster::transport::bench;

fn main() -> Result<(), Box<dyn Error>> {
    let argument = std::env::args().nth(1);
    if argument.as_deref() == Some("peer") {
        return Ok(bench::peer()?);
    }
    let seconds = argument.as_deref().unwrap_or("4").parse()?;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("peer");
    let figures = bench::run(command, Duration::from_secs(seconds))?;
    println!("{}", serde_json::to_string(&figures)?);
    Ok(())
}
