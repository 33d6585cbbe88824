//! Pure: which numbered messages are handed out, and what their sender is told.
//!
//! All of it is memory that a crash may take: the first packet that is seen of a stream says from
//! where on it is not done. What was done without its sender knowing is handed out again, and known
//! from the ledger.

use std::collections::{BTreeMap, BTreeSet};

use super::packet::{Ack, Numbers};

/// One receiver's streams.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    streams: BTreeMap<Key, Stream>,
    /// Counts packets, to know which stream was quiet for longest.
    clock: u64,
}

/// A sender's name, and its stream.
pub(super) type Key = (std::sync::Arc<str>, u64);

#[derive(Debug)]
struct Stream {
    /// To be handed out next.
    next: u64,
    /// This one and all before it are done.
    done: u64,
    /// Done before one that comes before them.
    ahead: BTreeSet<u64>,
    /// The latest round that was answered.
    round: u64,
    /// The latest round in which a gap was told.
    gap_told: u64,
    used: u64,
}

impl Stream {
    fn ack(&self, gap: bool) -> Ack {
        Ack { round: self.round, done: self.done, next: self.next, gap }
    }

    fn settle(&mut self) {
        while self.ahead.remove(&(self.done + 1)) {
            self.done += 1;
        }
        self.next = self.next.max(self.done + 1);
        while self.ahead.contains(&self.next) {
            self.next += 1;
        }
    }

    fn in_hand(&self) -> bool {
        self.next - 1 - self.done > self.ahead.len() as u64
    }
}

impl Incoming {
    /// Whether a packet is to be handed out, and what to tell its sender.
    pub(super) fn packet(&mut self, key: &Key, numbers: Numbers) -> (bool, Option<Ack>) {
        let Numbers { round, base, number } = numbers;
        self.clock += 1;
        if !self.streams.contains_key(key) {
            self.make_room();
        }
        let stream = self.streams.entry(key.clone()).or_insert_with(|| Stream {
            next: base,
            done: base - 1,
            ahead: BTreeSet::new(),
            round: 0,
            gap_told: 0,
            used: 0,
        });
        stream.used = self.clock;
        if base - 1 > stream.done {
            // Done elsewhere.
            stream.done = base - 1;
            stream.ahead = stream.ahead.split_off(&base);
        }
        stream.settle();
        let hand_out = number == stream.next;
        if hand_out {
            stream.next += 1;
            stream.settle();
        }
        let gap = number > stream.next && !hand_out;
        let tell = round > stream.round || (gap && round > stream.gap_told);
        stream.round = stream.round.max(round);
        if gap && tell {
            stream.gap_told = stream.round;
        }
        (hand_out, tell.then(|| stream.ack(gap)))
    }

    /// A message that was handed out is done.
    pub(super) fn done(&mut self, key: &Key, number: u64) -> Option<Ack> {
        let stream = self.streams.get_mut(key)?;
        if number > stream.done {
            stream.ahead.insert(number);
            stream.settle();
        }
        Some(stream.ack(false))
    }

    /// A message that was handed out came back undone: it is wanted again.
    pub(super) fn returned(&mut self, key: &Key, number: u64) -> Option<Ack> {
        let stream = self.streams.get_mut(key)?;
        if number <= stream.done || number >= stream.next {
            return None;
        }
        stream.next = number;
        stream.gap_told = stream.round;
        Some(stream.ack(true))
    }

    /// Forgets the stream that was quiet for longest, if there are very many.
    fn make_room(&mut self) {
        if self.streams.len() < STREAMS {
            return;
        }
        let quiet = self.streams.iter().filter(|(_, stream)| !stream.in_hand());
        if let Some(key) = quiet.min_by_key(|(_, stream)| stream.used).map(|(key, _)| key.clone()) {
            self.streams.remove(&key);
        }
    }
}

/// How many streams are remembered. What is forgotten costs a round trip.
const STREAMS: usize = 4096;
