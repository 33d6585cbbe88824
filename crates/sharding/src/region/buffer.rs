//! Messages that wait until their shard has a home.

use std::collections::VecDeque;

use tenure_cluster::Node;
use tenure_lease::Moment;

use crate::Settings;

/// What waits for one shard.
#[derive(Clone, Debug)]
pub(super) struct Buffer<M> {
    /// Came back from a former home: older than the rest.
    returned: VecDeque<(M, usize)>,
    queued: VecDeque<(M, usize)>,
    bytes: usize,
    /// More may come back from there; waited for until then.
    pub(super) returning: Option<(Node, Moment)>,
}

/// Why a message could not be sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unroutable {
    /// Its shard has no home at the moment, and too much waits for it already.
    #[error("{messages} messages ({bytes} bytes) wait for this shard already: send less, or later")]
    BufferFull {
        /// How many wait.
        messages: usize,
        /// How large they are together.
        bytes: usize,
    },
    /// There is no such shard.
    #[error("there are {shards} shards only")]
    NoSuchShard {
        /// How many there are.
        shards: u32,
    },
    /// It came back from a former home of its shard, and later ones were sent to the next home already.
    #[error("it came back too late: later messages were sent on already")]
    Late,
    /// This node is in no cluster any more.
    #[error("this node has left the cluster")]
    Ended,
}

impl<M> Buffer<M> {
    pub(super) fn new() -> Self {
        Self { returned: VecDeque::new(), queued: VecDeque::new(), bytes: 0, returning: None }
    }

    pub(super) fn push(&mut self, message: M, bytes: usize, settings: &Settings) -> Result<(), M> {
        if !self.has_room(bytes, settings) {
            return Err(message);
        }
        self.bytes += bytes;
        self.queued.push_back((message, bytes));
        Ok(())
    }

    pub(super) fn push_returned(
        &mut self,
        message: M,
        bytes: usize,
        settings: &Settings,
    ) -> Result<(), M> {
        if !self.has_room(bytes, settings) {
            return Err(message);
        }
        self.bytes += bytes;
        self.returned.push_back((message, bytes));
        Ok(())
    }

    /// Puts back what had been taken out before all of this, in order. It was let in once: there is
    /// room for it.
    pub(super) fn put_back(&mut self, messages: Vec<(M, usize)>) {
        for (message, bytes) in messages.into_iter().rev() {
            self.bytes += bytes;
            self.returned.push_front((message, bytes));
        }
    }

    /// Throws out what is not to be kept.
    pub(super) fn retain(&mut self, keep: impl Fn(&M) -> bool) {
        let bytes = &mut self.bytes;
        for queue in [&mut self.returned, &mut self.queued] {
            queue.retain(|(message, size)| {
                let kept = keep(message);
                *bytes -= if kept { 0 } else { *size };
                kept
            });
        }
    }

    pub(super) fn has_room(&self, bytes: usize, settings: &Settings) -> bool {
        self.len() < settings.buffer_messages && self.bytes + bytes <= settings.buffer_bytes
    }

    pub(super) fn len(&self) -> usize {
        self.returned.len() + self.queued.len()
    }

    pub(super) fn full(&self) -> Unroutable {
        Unroutable::BufferFull { messages: self.len(), bytes: self.bytes }
    }

    /// Everything, in order.
    pub(super) fn into_messages(self) -> impl Iterator<Item = M> {
        self.returned.into_iter().chain(self.queued).map(|(message, _)| message)
    }
}
