//! Control frames that wait for one peer.
//!
//! Heartbeats and gossip are repeated, and the newest says most. So the queue never makes anybody
//! wait: when it is full the oldest goes, and what has waited too long, because the peer could not
//! be reached, is not sent at all: a burst of old news after a cut would only mislead.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use tenure_lease::Moment;

use super::{Lane, telemetry};
use crate::Incarnation;
use crate::telemetry::Depth;

#[derive(Debug)]
pub(crate) struct ControlQueue {
    frames: VecDeque<Entry>,
    bytes: usize,
    count_max: usize,
    bytes_max: usize,
    depth: Depth,
}

#[derive(Debug)]
struct Entry {
    since: Moment,
    only_to: Option<Incarnation>,
    body: Bytes,
}

/// What became of queued frames.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    /// To be sent, lengths and bodies, oldest first.
    pub(crate) bytes: Vec<u8>,
    /// Too old.
    pub(crate) stale: u64,
    /// Meant for another process than the one that is there.
    pub(crate) misdirected: u64,
    /// The process that they were meant for.
    pub(crate) expected: Option<Incarnation>,
}

impl ControlQueue {
    pub(crate) fn new(count_max: usize, bytes_max: usize) -> Self {
        let depth = telemetry::queued(Lane::Control);
        Self { frames: VecDeque::new(), bytes: 0, count_max, bytes_max, depth }
    }

    /// Queues a frame and says how many older ones had to go for it.
    pub(crate) fn push(&mut self, now: Moment, only_to: Option<Incarnation>, body: Bytes) -> u64 {
        self.bytes += body.len();
        self.frames.push_back(Entry { since: now, only_to, body });
        let mut dropped = 0;
        // The new one stays, however long it is.
        while self.frames.len() > self.count_max
            || (self.bytes > self.bytes_max && self.frames.len() > 1)
        {
            self.pop();
            dropped += 1;
        }
        self.depth.set(self.bytes);
        dropped
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Takes what goes to `peer` with the next write: all that is not stale, up to about 64 KiB.
    pub(crate) fn take(&mut self, now: Moment, peer: Incarnation) -> Taken {
        let mut taken = Taken { stale: self.drop_stale(now), ..Taken::default() };
        while taken.bytes.len() < WRITE
            && let Some(entry) = self.pop()
        {
            if entry.only_to.is_some_and(|only| only != peer) {
                taken.misdirected += 1;
                taken.expected = entry.only_to;
                continue;
            }
            // Checked against the longest frame when it was pushed, so it fits in four bytes.
            taken.bytes.extend_from_slice(&(entry.body.len() as u32).to_le_bytes());
            taken.bytes.extend_from_slice(&entry.body);
        }
        self.depth.set(self.bytes);
        taken
    }

    /// Drops everything, and says how many frames that were, and for which process the last one was
    /// that was for a certain one.
    pub(crate) fn discard(&mut self) -> (u64, Option<Incarnation>) {
        let frames = std::mem::take(&mut self.frames);
        self.bytes = 0;
        self.depth.set(0);
        (frames.len() as u64, frames.iter().rev().find_map(|entry| entry.only_to))
    }

    /// Drops what is too old, and says how many that were.
    pub(crate) fn drop_stale(&mut self, now: Moment) -> u64 {
        let mut dropped = 0;
        while self.frames.front().is_some_and(|entry| now.since(entry.since) >= STALE) {
            self.pop();
            dropped += 1;
        }
        self.depth.set(self.bytes);
        dropped
    }

    fn pop(&mut self) -> Option<Entry> {
        let entry = self.frames.pop_front()?;
        self.bytes -= entry.body.len();
        Some(entry)
    }
}

/// Longer than a link takes to open in a network that works.
const STALE: Duration = Duration::from_secs(2);
const WRITE: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Moment {
        Moment::ZERO + Duration::from_millis(millis)
    }

    fn body(byte: u8, len: usize) -> Bytes {
        vec![byte; len].into()
    }

    #[test]
    fn the_newest_stay() {
        let mut queue = ControlQueue::new(2, 100);
        let dropped: u64 = (0..5).map(|byte| queue.push(at(0), None, body(byte, 1))).sum();
        assert_eq!(dropped, 3);
        let taken = queue.take(at(1), Incarnation(7));
        assert_eq!(taken.bytes, [1, 0, 0, 0, 3, 1, 0, 0, 0, 4]);
        assert!(queue.is_empty());

        assert_eq!(queue.push(at(1), None, body(1, 60)), 0);
        assert_eq!(queue.push(at(1), None, body(2, 200)), 1, "bytes are bounded too");
        assert_eq!(queue.take(at(1), Incarnation(7)).bytes.len(), 204);
    }

    #[test]
    fn old_news_is_not_sent() {
        let mut queue = ControlQueue::new(9, 100);
        queue.push(at(0), None, body(1, 1));
        queue.push(at(1500), None, body(2, 1));
        let taken = queue.take(at(2000), Incarnation(7));
        assert_eq!((taken.stale, taken.bytes), (1, vec![1, 0, 0, 0, 2]));
    }

    #[test]
    fn nothing_goes_to_a_successor() {
        let mut queue = ControlQueue::new(9, 100);
        queue.push(at(0), Some(Incarnation(1)), body(1, 1));
        queue.push(at(0), None, body(2, 1));
        let taken = queue.take(at(0), Incarnation(2));
        assert_eq!((taken.misdirected, taken.expected), (1, Some(Incarnation(1))));
        assert_eq!(taken.bytes, [1, 0, 0, 0, 2]);
    }
}
