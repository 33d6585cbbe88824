//! What other nodes told receivers whose mailboxes were full.
//!
//! The reader of a connection never waits for a receiver: it would hold up everything else that the
//! node sends here, answers included. What finds its mailbox full goes in nevertheless, and is counted
//! as overflow. When much of it is one node's for one receiver, that node is asked to *hold* its
//! messages for that receiver back, so that those who send them wait where they are; when little of it
//! is left, to *release* them. Both are posted and may be lost: a hold is said again while it lasts, and
//! ends by itself when it is not.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use tokio::time::sleep;

use super::{Lost, Mailbox, Messaging, Node, PATIENCE, lock, telemetry};

/// The overflow of one node.
#[derive(Debug)]
pub(super) struct Overflows {
    messaging: Arc<Messaging>,
    from: Node,
    /// Bytes of all of it.
    bytes: Arc<AtomicUsize>,
    by_receiver: HashMap<Arc<str>, Arc<Overflow>>,
}

/// What one node told one receiver.
#[derive(Debug)]
pub(super) struct Overflow {
    messaging: Arc<Messaging>,
    from: Node,
    receiver: Arc<str>,
    bytes: AtomicUsize,
    /// Bytes of everything that this node told full mailboxes.
    all: Arc<AtomicUsize>,
    /// That node was asked to hold messages for this receiver back. Its lock is kept while it is told.
    held: Mutex<bool>,
}

/// Bytes of an entry that count as overflow until it is gone.
#[derive(Debug)]
pub(crate) struct Excess {
    overflow: Arc<Overflow>,
    bytes: usize,
}

impl Overflows {
    pub(super) fn new(messaging: &Arc<Messaging>, from: Node) -> Self {
        let (bytes, by_receiver) = (Arc::default(), HashMap::new());
        Self { messaging: messaging.clone(), from, bytes, by_receiver }
    }

    /// Counts an entry of so many bytes for a full mailbox; `None` if there is too much already.
    pub(super) fn add(&mut self, receiver: &Arc<str>, bytes: usize) -> Option<Excess> {
        let bytes = bytes + ENTRY;
        if self.bytes.load(SeqCst) + bytes > BYTES_MAX {
            return None;
        }
        if !self.by_receiver.contains_key(receiver) {
            if self.by_receiver.len() >= KEPT {
                self.by_receiver.retain(|_, overflow| overflow.bytes.load(SeqCst) > 0);
            }
            let overflow = Overflow {
                messaging: self.messaging.clone(),
                from: self.from.clone(),
                receiver: receiver.clone(),
                bytes: AtomicUsize::new(0),
                all: self.bytes.clone(),
                held: Mutex::new(false),
            };
            self.by_receiver.insert(receiver.clone(), Arc::new(overflow));
        }
        let overflow = self.by_receiver.get(receiver)?.clone();
        overflow.bytes.fetch_add(bytes, SeqCst);
        overflow.all.fetch_add(bytes, SeqCst);
        Some(Excess { overflow, bytes })
    }

    /// Has the node hold back what it sends to this mailbox, if much of that waits here.
    pub(super) fn hold_if_high(&self, mailbox: &Arc<Mailbox>) {
        if let Some(overflow) = self.by_receiver.get(&mailbox.name)
            && overflow.bytes.load(SeqCst) >= HIGH
            && overflow.hold()
        {
            self.messaging.runtime.spawn(watch(overflow.clone(), mailbox.clone()));
        }
    }
}

impl Overflow {
    /// False if it is held already.
    fn hold(&self) -> bool {
        let mut held = lock(&self.held);
        if *held || self.bytes.load(SeqCst) <= LOW {
            return false;
        }
        *held = true;
        telemetry::waited();
        self.messaging.post_hold(&self.from, &self.receiver, true);
        true
    }

    /// Says again that it is held; false if it is not any more.
    fn hold_on(&self) -> bool {
        let held = lock(&self.held);
        if *held {
            self.messaging.post_hold(&self.from, &self.receiver, true);
        }
        *held
    }

    /// Has the node go on if no more than this is left.
    fn release(&self, low: usize) {
        let mut held = lock(&self.held);
        if *held && self.bytes.load(SeqCst) <= low {
            *held = false;
            self.messaging.post_hold(&self.from, &self.receiver, false);
        }
    }
}

impl Drop for Excess {
    fn drop(&mut self) {
        let Self { overflow, bytes } = self;
        overflow.all.fetch_sub(*bytes, SeqCst);
        let before = overflow.bytes.fetch_sub(*bytes, SeqCst);
        if before > LOW && before - *bytes <= LOW {
            overflow.release(LOW);
        }
    }
}

/// Says again what is held while it is. A receiver that takes nothing for [`PATIENCE`] is stuck: it
/// loses what was told beyond its room, and nobody waits for it.
async fn watch(overflow: Arc<Overflow>, mailbox: Arc<Mailbox>) {
    // Twice: this process may have stood still, and the receiver with it.
    let (mut taken, mut halves) = (mailbox.taken(), 0);
    loop {
        sleep(PATIENCE / 2).await;
        if !overflow.hold_on() {
            return;
        }
        halves = if mailbox.taken() == taken { halves + 1 } else { 0 };
        taken = mailbox.taken();
        if halves == 2 {
            for entry in mailbox.give_up() {
                overflow.messaging.refuse_entry(&mailbox.name, entry, Lost::Full);
            }
            overflow.release(usize::MAX);
        }
    }
}

/// With so many bytes of one node's messages beyond the room of a mailbox, that node holds back what it
/// has for it.
const HIGH: usize = 1 << 20;
/// With so many it goes on: more than is handled until it hears of that.
const LOW: usize = 256 << 10;
/// So many bytes of one node's messages may be beyond the room of mailboxes. What was on its way when a
/// node is asked to hold messages back should fit: its buffer, those of the sockets, and `HIGH`
/// for some receivers.
const BYTES_MAX: usize = 32 << 20;
/// What an entry takes besides its bytes, about.
const ENTRY: usize = 128;
/// More receivers that had overflow are forgotten when they have none.
const KEPT: usize = 64;
