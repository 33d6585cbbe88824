//! Pure: what a sender still has to send, and when it sends again.
//!
//! Messages go out one after the other, without waiting for each. The sender goes back to the first
//! that is not done when it hears that something was lost: a cut, another target, a gap that the
//! receiver saw. When it hears nothing for a while it goes back, too, but with one message only, a
//! *probe*, until the receiver says where it stands: a receiver that is merely slow is not flooded.
//!
//! Each time it goes back a new *round* begins. The receiver answers the first packet of a round at
//! once; what it says about an earlier round, except what is done, comes too late to matter.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use tenure_lease::Moment;

use super::packet::{Ack, Numbers};

#[derive(Debug)]
pub(super) struct Outgoing {
    /// The first that is not known to be done.
    base: u64,
    /// From `base` on.
    waiting: VecDeque<Bytes>,
    /// To be sent next.
    cursor: u64,
    /// The highest that was ever sent.
    sent: u64,
    round: u64,
    /// Nothing but `base` is sent before the receiver has answered.
    probing: bool,
    /// Nothing is sent before.
    not_before: Moment,
    /// When to go back, if nothing is heard; while something is on its way.
    deadline: Option<Moment>,
    /// How long to wait for news; longer each time in vain.
    patience: Duration,
    /// Went back since something was done.
    went_back: bool,
}

impl Outgoing {
    pub(super) fn new() -> Self {
        Self {
            base: 1,
            waiting: VecDeque::new(),
            cursor: 1,
            sent: 0,
            round: 1,
            probing: false,
            not_before: Moment::ZERO,
            deadline: None,
            patience: PATIENCE_MIN,
            went_back: false,
        }
    }

    /// Adds a message; says its number.
    pub(super) fn push(&mut self, payload: Bytes) -> u64 {
        self.waiting.push_back(payload);
        self.last()
    }

    /// The number of the last message.
    pub(super) fn last(&self) -> u64 {
        self.base + self.waiting.len() as u64 - 1
    }

    /// This one and all before it are done.
    pub(super) fn done(&self) -> u64 {
        self.base - 1
    }

    /// What to send now.
    pub(super) fn next(&mut self, now: Moment) -> Option<(Numbers, Bytes)> {
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            self.go_back(self.base, now);
            self.probing = true;
            self.lengthen();
        }
        if now < self.not_before
            || self.cursor > self.last()
            || (self.probing && self.cursor > self.base)
        {
            return None;
        }
        let (round, base, number) = (self.round, self.base, self.cursor);
        let payload = self.waiting.get((number - base) as usize)?.clone();
        self.cursor += 1;
        self.sent = self.sent.max(number);
        self.deadline.get_or_insert(now + self.patience);
        Some((Numbers { round, base, number }, payload))
    }

    /// What `next` said last was not sent after all.
    pub(super) fn not_sent(&mut self) {
        self.cursor = self.cursor.saturating_sub(1).max(self.base);
    }

    /// The receiver said where it stands. Returns the payloads that are done.
    pub(super) fn heard(&mut self, ack: Ack, now: Moment) -> Vec<Bytes> {
        if ack.done > self.sent {
            return Vec::new(); // Of something that was never sent.
        }
        let count = (ack.done + 1).saturating_sub(self.base) as usize;
        let done: Vec<Bytes> = self.waiting.drain(..count).collect();
        if count > 0 {
            self.base = ack.done + 1;
            self.cursor = self.cursor.max(self.base);
            self.patience = PATIENCE_MIN;
            self.went_back = false;
            self.deadline = (self.cursor > self.base).then(|| now + self.patience);
        }
        if ack.round == self.round {
            let next = ack.next.clamp(self.base, self.sent + 1);
            if ack.gap {
                self.resend(next, now);
            } else if self.probing {
                self.probing = false;
                self.cursor = next;
                self.deadline = Some(now + self.patience);
            }
        }
        done
    }

    /// There is another receiver: everything that is not done goes out again.
    pub(super) fn retarget(&mut self, now: Moment) {
        self.patience = PATIENCE_MIN;
        self.go_back(self.base, now);
    }

    /// Something that was sent is lost: everything that is not done goes out again.
    pub(super) fn rewind(&mut self, now: Moment) {
        self.resend(self.base, now);
    }

    /// The receiver cannot be reached, or refuses: a probe, after a while.
    pub(super) fn back_off(&mut self, now: Moment) {
        if now < self.not_before {
            return; // That is what it does already.
        }
        self.go_back(self.base, now + self.patience);
        self.probing = true;
        self.lengthen();
    }

    /// When `next` should be asked again, if nothing else happens.
    pub(super) fn next_wake(&self, now: Moment) -> Option<Moment> {
        let held = (now < self.not_before && self.cursor <= self.last()).then_some(self.not_before);
        held.into_iter().chain(self.deadline).min()
    }

    /// Sends again from here; at once the first time, then less and less often.
    fn resend(&mut self, from: u64, now: Moment) {
        if self.went_back {
            let later = self.not_before.max(now + self.patience);
            self.go_back(from, later);
            self.lengthen();
        } else {
            self.went_back = true;
            self.go_back(from, now);
        }
    }

    fn go_back(&mut self, to: u64, not_before: Moment) {
        self.round += 1;
        self.cursor = to;
        self.probing = false;
        self.not_before = not_before;
        self.deadline = None;
        if self.cursor > self.base {
            // Nothing may be left to send, but something is still expected.
            self.deadline = Some(not_before + self.patience);
        }
    }

    fn lengthen(&mut self) {
        self.patience = (self.patience * 2).min(PATIENCE_MAX);
    }
}

/// Longer than a round trip and a transaction usually take.
const PATIENCE_MIN: Duration = Duration::from_millis(200);
/// How late a receiver may be noticed that came back without a word.
const PATIENCE_MAX: Duration = Duration::from_secs(5);
