//! Where messages wait for their receiver.
//!
//! What was read from a node in one go stays together, undecoded: one lock and one wake-up for all
//! of it. The receiver decodes in its own task, so that nodes that send much do not share one.

use std::any::{Any, TypeId};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, Semaphore, SemaphorePermit};

use super::driver::Excess;
use super::{Lost, Reply, telemetry};
use crate::Node;
use crate::telemetry::Depth;
use crate::transport::{Frames, SenderAccount};

#[derive(Debug)]
pub(crate) struct Mailbox {
    pub(crate) name: Arc<str>,
    /// The type of messages, which those of this process need not be decoded for.
    pub(crate) type_id: TypeId,
    room: usize,
    state: Mutex<State>,
    /// Wakes the receiver.
    filled: Notify,
    /// Wakes whoever is first in line for room.
    emptied: Notify,
    /// Who waits longest goes first.
    turn: Semaphore,
}

#[derive(Debug)]
struct State {
    entries: VecDeque<Entry>,
    messages: usize,
    bytes: usize,
    /// The receiver found nothing and waits for `filled`.
    parked: bool,
    /// How many entries were ever taken.
    taken: u64,
    /// How many wait for room; nobody overtakes them.
    waiting: usize,
    /// Somebody has waited for room for too long, and nothing was taken since.
    stuck: bool,
    closed: bool,
    depth: Depth,
}

/// What one node sent, in one go.
#[derive(Debug)]
pub(crate) enum Entry {
    /// Another node.
    Frames {
        from: Node,
        frames: Frames,
        /// Where they count, if they were told on the data lane.
        account: Option<Arc<SenderAccount>>,
        /// It was told beyond the mailbox's room, and counts as that while it is here.
        excess: Option<Excess>,
    },
    /// This one.
    Own { from: Node, message: Box<dyn Any + Send>, reply: Reply },
}

impl Entry {
    pub(crate) fn frames(from: Node, frames: Frames) -> Self {
        Self::Frames { from, frames, account: None, excess: None }
    }

    /// What a node told on the data lane.
    pub(crate) fn told(account: &Arc<SenderAccount>, frames: Frames) -> Self {
        let (from, account) = (account.node().clone(), Some(account.clone()));
        Self::Frames { from, frames, account, excess: None }
    }

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
            state: Mutex::new(State {
                entries: VecDeque::new(),
                messages: 0,
                bytes: 0,
                parked: false,
                taken: 0,
                waiting: 0,
                stuck: false,
                closed: false,
                depth: telemetry::waiting(),
            }),
            filled: Notify::new(),
            emptied: Notify::new(),
            turn: Semaphore::new(1),
        }
    }

    /// Puts an entry in as a whole, unless the mailbox is full before or somebody waits.
    pub(crate) fn try_put(&self, entry: Entry) -> Result<(), Refused> {
        let state = self.lock();
        let full = state.waiting > 0 || self.is_full(&state);
        self.put(state, entry, full)
    }

    /// Puts in what another node told, also beyond the room if `beyond` allows that for so many bytes:
    /// whoever brings it must not wait.
    pub(crate) fn put_told(
        &self,
        mut entry: Entry,
        beyond: impl FnOnce(usize) -> Option<Excess>,
    ) -> Result<(), Refused> {
        let state = self.lock();
        let mut full = state.waiting > 0 || self.is_full(&state);
        if full
            && !state.stuck
            && !state.closed
            && let Entry::Frames { frames, excess, .. } = &mut entry
        {
            *excess = beyond(frames.bytes());
            full = excess.is_none();
        }
        self.put(state, entry, full)
    }

    /// Nothing has been taken for too long: nothing more is put in until something is, and what was
    /// told beyond the room comes out again.
    pub(crate) fn give_up(&self) -> Vec<Entry> {
        let mut state = self.lock();
        state.stuck = true;
        let is_excess = |entry: &Entry| matches!(entry, Entry::Frames { excess: Some(_), .. });
        let (out, kept): (Vec<_>, Vec<_>) = state.entries.drain(..).partition(is_excess);
        state.entries = kept.into();
        for (messages, bytes) in out.iter().map(Entry::size) {
            state.messages -= messages;
            state.bytes -= bytes;
        }
        let all = state.messages;
        state.depth.set(all);
        out
    }

    fn put(
        &self,
        mut state: MutexGuard<'_, State>,
        entry: Entry,
        full: bool,
    ) -> Result<(), Refused> {
        let why = match full {
            _ if state.closed => Why::Closed,
            true if state.stuck => Why::Stuck,
            true => Why::Full,
            false => {
                let (messages, bytes) = entry.size();
                state.messages += messages;
                state.bytes += bytes;
                let all = state.messages;
                state.depth.set(all);
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

    /// Gets in line for room.
    pub(crate) fn wait(&self) -> Place<'_> {
        let mut state = self.lock();
        state.waiting += 1;
        Place { mailbox: self, behind: state.taken + state.entries.len() as u64 }
    }

    /// How many entries were ever taken.
    pub(crate) fn taken(&self) -> u64 {
        self.lock().taken
    }

    /// Waits until there is room, or so many entries were ever taken, or it is closed.
    async fn room(&self, behind: u64) {
        loop {
            let mut emptied = std::pin::pin!(self.emptied.notified());
            emptied.as_mut().enable(); // Before the look, so that nothing is missed after it.
            if self.has_room_or_closed(behind) {
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
        let all = state.messages;
        state.depth.set(all);
        state.taken += 1;
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

    fn has_room_or_closed(&self, behind: u64) -> bool {
        let state = self.lock();
        state.closed || !self.is_full(&state) || state.taken >= behind
    }

    fn is_full(&self, state: &State) -> bool {
        state.messages >= self.room || state.bytes >= BYTES
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // What is guarded is never left half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Somebody's place in the line for room.
pub(crate) struct Place<'a> {
    mailbox: &'a Mailbox,
    /// When so many entries were ever taken, all that were here before it are gone. Other nodes may have
    /// filled the room again by then, and more: they do not wait here.
    behind: u64,
}

impl<'a> Place<'a> {
    /// Waits until it is our turn and there is room, or all that was here before us is gone, or the
    /// mailbox is closed.
    pub(crate) async fn turn(&self) -> Turn<'a> {
        // Never closed.
        let turn = self.mailbox.turn.acquire().await.ok();
        self.mailbox.room(self.behind).await;
        Turn { mailbox: self.mailbox, _turn: turn }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.mailbox.lock().waiting -= 1;
    }
}

/// The right to put one entry in.
pub(crate) struct Turn<'a> {
    mailbox: &'a Mailbox,
    _turn: Option<SemaphorePermit<'a>>,
}

impl Turn<'_> {
    pub(crate) fn put(self, entry: Entry) -> Result<(), Refused> {
        self.mailbox.put(self.mailbox.lock(), entry, false)
    }
}

/// However few they are, a mailbox is full when messages of other nodes in it take so many bytes. What is
/// told beyond that is counted as overflow, which is bounded for each node.
const BYTES: usize = 4 << 20;
