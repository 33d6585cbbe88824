//! Where messages wait for their receiver.
//!
//! What was read from a node in one go stays together, undecoded: one lock and one wake-up for all
//! of it. The receiver decodes in its own task, so that nodes that send much do not share one.

use std::any::{Any, TypeId};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::{Lost, Reply};
use crate::Node;
use crate::transport::Frames;

#[derive(Debug)]
pub(crate) struct Mailbox {
    pub(crate) name: Arc<str>,
    /// The type of messages, which those of this process need not be decoded for.
    pub(crate) type_id: TypeId,
    room: usize,
    state: Mutex<State>,
    /// Wakes the receiver.
    filled: Notify,
    /// Wakes all who wait for room.
    emptied: Notify,
}

#[derive(Debug, Default)]
struct State {
    entries: VecDeque<Entry>,
    messages: usize,
    bytes: usize,
    /// The receiver found nothing and waits for `filled`.
    parked: bool,
    /// Somebody has waited for room for too long, and nothing was taken since.
    stuck: bool,
    closed: bool,
}

/// What one node sent, in one go.
#[derive(Debug)]
pub(crate) enum Entry {
    /// Another node.
    Frames { from: Node, frames: Frames },
    /// This one.
    Own { from: Node, message: Box<dyn Any + Send>, reply: Reply },
}

impl Entry {
    fn size(&self) -> (usize, usize) {
        match self {
            Self::Frames { frames, .. } => (frames.len(), frames.bytes()),
            Self::Own { .. } => (1, 0),
        }
    }
}

/// Nothing was put in.
pub(crate) struct Refused {
    pub(crate) entry: Entry,
    pub(crate) why: Why,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// There may be room soon.
    Full,
    /// There will not be room soon.
    Stuck,
    Closed,
}

impl From<Why> for Lost {
    fn from(why: Why) -> Self {
        match why {
            Why::Full | Why::Stuck => Self::Full,
            Why::Closed => Self::NoSuchReceiver,
        }
    }
}

impl Mailbox {
    pub(crate) fn new(name: Arc<str>, type_id: TypeId, room: usize) -> Self {
        Self {
            name,
            type_id,
            room,
            state: Mutex::default(),
            filled: Notify::new(),
            emptied: Notify::new(),
        }
    }

    /// Puts an entry in as a whole unless the mailbox is full before.
    pub(crate) fn try_put(&self, entry: Entry) -> Result<(), Refused> {
        let mut state = self.lock();
        let why = match () {
            () if state.closed => Why::Closed,
            () if self.is_full(&state) && state.stuck => Why::Stuck,
            () if self.is_full(&state) => Why::Full,
            () => {
                let (messages, bytes) = entry.size();
                state.messages += messages;
                state.bytes += bytes;
                state.entries.push_back(entry);
                let parked = std::mem::take(&mut state.parked);
                drop(state);
                if parked {
                    self.filled.notify_one();
                }
                return Ok(());
            }
        };
        Err(Refused { entry, why })
    }

    /// Waits until there is room, or it is closed.
    pub(crate) async fn room(&self) {
        loop {
            let mut emptied = std::pin::pin!(self.emptied.notified());
            emptied.as_mut().enable(); // Before the look, so that nothing is missed after it.
            if self.has_room_or_closed() {
                return;
            }
            emptied.await;
        }
    }

    /// Somebody has waited for too long.
    pub(crate) fn set_stuck(&self) {
        self.lock().stuck = true;
    }

    /// Takes an entry. If there is none, notes that the receiver waits for [`Mailbox::filled`].
    pub(crate) fn take(&self) -> Option<Entry> {
        let mut state = self.lock();
        let full = self.is_full(&state);
        let Some(entry) = state.entries.pop_front() else {
            state.parked = !state.closed;
            return None;
        };
        let (messages, bytes) = entry.size();
        state.messages -= messages;
        state.bytes -= bytes;
        state.stuck = false;
        drop(state);
        if full {
            self.emptied.notify_waiters();
        }
        Some(entry)
    }

    /// Waits until there may be something to take, or it has been closed.
    pub(crate) async fn filled(&self) {
        self.filled.notified().await;
    }

    /// Takes nothing more in; what is in it stays.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.filled.notify_one();
        self.emptied.notify_waiters();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    fn has_room_or_closed(&self) -> bool {
        let state = self.lock();
        state.closed || !self.is_full(&state)
    }

    fn is_full(&self, state: &State) -> bool {
        state.messages >= self.room || state.bytes >= BYTES
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // What is guarded is never left half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// However few they are, messages of other nodes that wait in one mailbox take no more memory than
/// this, and what is read in one go.
const BYTES: usize = 4 << 20;
