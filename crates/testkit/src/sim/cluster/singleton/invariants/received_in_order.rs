//! An instance receives what a proxy was told in that order, and nothing twice.

use std::collections::BTreeMap;

pub(in super::super) const NAME: &str = "received in order";

/// The last number that each instance received from each proxy.
#[derive(Debug, Default)]
pub(in super::super) struct Memory(BTreeMap<(u64, u64), u64>);

impl Memory {
    pub(in super::super) fn check(&mut self, run: u64, proxy: u64, number: u64) -> Option<String> {
        let before = self.0.insert((run, proxy), number).filter(|before| *before >= number)?;
        Some(format!("run {run} received {number} of process {proxy} after {before}"))
    }
}
