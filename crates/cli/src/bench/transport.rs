//! How fast the transport is, between this process and another.

use std::fmt;
use std::process::Command;
use std::time::Duration;

use serde::Serialize;
use tenure_cluster::transport::bench;

use crate::exit::{self, Failure};

/// What `--json` prints; its shape is stable.
#[derive(Serialize)]
#[serde(transparent)]
pub(super) struct Figures(bench::Figures);

pub(super) fn measure(how_long: Duration) -> Result<Figures, Failure> {
    let program =
        std::env::current_exe().map_err(|error| Failure::system("this program", &error))?;
    let mut command = Command::new(program);
    command.args(["bench", "transport", "--peer"]);
    bench::run(command, how_long).map(Figures).map_err(broken)
}

/// The other process.
pub(super) fn peer() -> Result<(), Failure> {
    bench::peer().map_err(broken)
}

fn broken(error: bench::BenchError) -> Failure {
    Failure::new(exit::SYSTEM, error.to_string())
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(figures) = self;
        writeln!(f, "messages of 64 bytes, one way      {:.0} /s", figures.messages_per_s)?;
        writeln!(
            f,
            "control, there and back, idle      p50 {:.2} ms",
            figures.control_ms_p50_idle
        )?;
        write!(
            f,
            "control while messages flow        p50 {:.2} ms, p99 {:.2} ms",
            figures.control_ms_p50_saturated, figures.control_ms_p99_saturated
        )
    }
}
