//! What a proxy keeps is sent once there is a host, in order, and nothing overtakes it.

use std::collections::{BTreeMap, VecDeque};

pub(in super::super) const NAME: &str = "kept is sent";

/// What each proxy has kept and not sent, and what it sent last.
#[derive(Debug, Default)]
pub(in super::super) struct Memory(BTreeMap<u64, (VecDeque<u64>, u64)>);

impl Memory {
    pub(in super::super) fn kept(&mut self, proxy: u64, number: u64) {
        self.0.entry(proxy).or_default().0.push_back(number);
    }

    pub(in super::super) fn sent(&mut self, proxy: u64, number: u64) -> Option<String> {
        let (kept, last) = self.0.entry(proxy).or_default();
        let before = std::mem::replace(last, number);
        if number <= before {
            return Some(format!("the proxy of process {proxy} sent {number} after {before}"));
        }
        let first = kept.front().copied()?;
        if first == number {
            kept.pop_front();
            return None;
        }
        Some(format!("the proxy of process {proxy} sent {number} before {first}, which it kept"))
    }

    /// In the end, when every proxy knows the host.
    pub(in super::super) fn left(&self, proxy: u64) -> Option<String> {
        let first = self.0.get(&proxy)?.0.front()?;
        Some(format!("the proxy of process {proxy} never sent {first}, which it kept"))
    }
}
