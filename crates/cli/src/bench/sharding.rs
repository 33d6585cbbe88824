//! How fast entities are talked to, here and in another process, and what they and their shards take.
#![allow(clippy::disallowed_methods)] // It measures real time.

mod here;
mod there;

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::exit::Failure;
pub(super) use there::peer;

/// What `--json` prints; its shape is stable.
#[derive(Serialize, Deserialize)]
pub(super) struct Figures {
    /// How many entities the first two figures are for.
    entities: usize,
    /// Told by one task, and handled on this node.
    local_tells_per_s: f64,
    /// The same number of counters in a hash map, in one task that is fed by one bounded channel.
    bare_loop_per_s: f64,
    /// Told by another process, 64 bytes each without serde or a tag, over mutual TLS, and handled here.
    remote_tells_per_s: f64,
    /// Asked by another process, one by one.
    ask_us_p50: f64,
    ask_us_p99: f64,
    /// The same bytes there and back over a bare connection, unencrypted: what the machine itself takes.
    bare_ping_us_p50: f64,
    /// Of a million, beyond what is their own.
    bytes_per_idle_entity: f64,
    /// From the start of a node until all are served.
    allocate_10k_shards_ms: f64,
    /// Writes to the store, with 10,000 shards, lease and session, at a ttl of 3 s.
    renewals_per_s: f64,
    /// The same with 10 shards.
    renewals_per_s_10_shards: f64,
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = 100.0 * self.local_tells_per_s / self.bare_loop_per_s;
        let many = self.entities;
        writeln!(f, "told on this node, {many} entities    {:.0} /s", self.local_tells_per_s)?;
        writeln!(
            f,
            "a bare loop                        {:.0} /s ({share:.0} %)",
            self.bare_loop_per_s
        )?;
        writeln!(f, "told by another process, 64 B raw  {:.0} /s", self.remote_tells_per_s)?;
        let (p50, p99) = (self.ask_us_p50, self.ask_us_p99);
        writeln!(f, "asked by it, one by one            p50 {p50:.1} µs, p99 {p99:.1} µs")?;
        writeln!(f, "as many bytes there and back, bare p50 {:.1} µs", self.bare_ping_us_p50)?;
        writeln!(f, "an idle entity of a million        {:.0} bytes", self.bytes_per_idle_entity)?;
        writeln!(f, "10,000 shards served after         {:.0} ms", self.allocate_10k_shards_ms)?;
        write!(
            f,
            "renewals with 10,000 shards        {:.2} /s (with 10: {:.2} /s)",
            self.renewals_per_s, self.renewals_per_s_10_shards
        )
    }
}

/// What the other process has found out.
#[derive(Serialize, Deserialize)]
struct There {
    remote_tells_per_s: f64,
    ask_us_p50: f64,
    ask_us_p99: f64,
    bare_ping_us_p50: f64,
}

pub(super) fn measure(how_long: Duration, entities: usize) -> Result<Figures, Failure> {
    let bare_loop_per_s = here::bare(how_long, entities)?;
    let local_tells_per_s = here::local(how_long, entities)?;
    let there = there::measure(how_long)?;
    let bytes_per_idle_entity = here::idle(1_000_000)?;
    let (allocate_10k_shards_ms, renewals_per_s) = here::shards(10_000)?;
    let (_, renewals_per_s_10_shards) = here::shards(10)?;
    Ok(Figures {
        entities,
        local_tells_per_s,
        bare_loop_per_s,
        remote_tells_per_s: there.remote_tells_per_s,
        ask_us_p50: there.ask_us_p50,
        ask_us_p99: there.ask_us_p99,
        bare_ping_us_p50: there.bare_ping_us_p50,
        bytes_per_idle_entity,
        allocate_10k_shards_ms,
        renewals_per_s,
        renewals_per_s_10_shards,
    })
}
