//! What waits to be sent on a data lane.
//!
//! Senders append encoded frames to the last of a few segments, under a lock that is held for a copy;
//! the link's writer takes whole segments from the front, each about one system call's worth. So a
//! message costs no allocation and no wake-up of its own while the writer is busy, and frames leave
//! in the order in which they were appended.
//!
//! Room is counted by a fair semaphore, one permit for each byte: who waits longest goes first, a
//! sender that gives up gives its place up, and the bytes in memory never pass the limit.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, Semaphore, TryAcquireError};

use super::frame::{self, FrameError};
use super::{Closed, Lane, SendError, telemetry};
use crate::telemetry::Depth;

/// Messages that wait for one peer.
#[derive(Debug)]
pub(crate) struct Outbox {
    frame_max: usize,
    limit: usize,
    room: Semaphore,
    waiting: Mutex<Waiting>,
    /// Wakes the writer, which is the only one that waits for it.
    filled: Notify,
}

#[derive(Debug)]
struct Waiting {
    segments: VecDeque<Segment>,
    /// An emptied segment, to be filled again.
    spare: Vec<u8>,
    /// The writer found nothing and waits for `filled`.
    parked: bool,
    closed: Option<Arc<Closed>>,
    depth: Depth,
}

/// Whole frames, and how many.
#[derive(Debug, Default)]
pub(crate) struct Segment {
    pub(crate) bytes: Vec<u8>,
    pub(crate) frames: u64,
}

impl Outbox {
    pub(crate) fn new(limit: usize, frame_max: usize) -> Self {
        Self {
            frame_max,
            limit,
            room: Semaphore::new(limit),
            waiting: Mutex::new(Waiting {
                segments: VecDeque::new(),
                spare: Vec::new(),
                parked: false,
                closed: None,
                depth: telemetry::queued(Lane::Data),
            }),
            filled: Notify::new(),
        }
    }

    /// Appends a message if there is room now.
    #[inline]
    pub(crate) fn try_append(&self, encode: impl FnOnce(&mut Vec<u8>)) -> Result<(), SendError> {
        self.with_encoded(encode, |frame| self.try_append_frame(frame))
    }

    /// Appends a message, after waiting for room if need be. Dropping the future before it is done
    /// means that nothing was appended.
    pub(crate) async fn append(&self, encode: impl FnOnce(&mut Vec<u8>)) -> Result<(), SendError> {
        let frame = self.with_encoded(encode, |frame| match self.try_append_frame(frame) {
            // Only who has to wait makes a copy of its own.
            Err(SendError::Full) => Ok(Some(frame.to_vec())),
            done => done.map(|()| None),
        })?;
        let Some(frame) = frame else {
            return Ok(());
        };
        match self.room.acquire_many(frame.len() as u32).await {
            Ok(permit) => {
                self.push(&frame)?;
                permit.forget();
                Ok(())
            }
            Err(_) => Err(self.refusal()),
        }
    }

    /// Takes the next segment, or notes that the writer waits for [`Outbox::filled`].
    pub(crate) fn take(&self) -> Option<Segment> {
        let mut waiting = self.lock();
        let segment = waiting.segments.pop_front();
        waiting.parked = segment.is_none();
        segment
    }

    /// Whether there is nothing to take; if so, notes that the writer waits.
    pub(crate) fn is_empty_or_park(&self) -> bool {
        let mut waiting = self.lock();
        waiting.parked = waiting.segments.is_empty();
        waiting.parked
    }

    /// Waits until there may be something to take, or the outbox has been closed.
    pub(crate) async fn filled(&self) {
        self.filled.notified().await;
    }

    /// The writer is done with a segment: its room is free again.
    pub(crate) fn done(&self, mut segment: Segment) {
        self.room.add_permits(segment.bytes.len());
        segment.bytes.clear();
        let mut waiting = self.lock();
        waiting.depth.set(self.queued());
        if segment.bytes.capacity() <= SEGMENT * 2 {
            waiting.spare = segment.bytes;
        }
    }

    fn queued(&self) -> usize {
        self.limit.saturating_sub(self.room.available_permits())
    }

    /// Nothing more is appended; what waits stays until it is taken.
    pub(crate) fn close(&self, why: Closed) {
        let mut waiting = self.lock();
        waiting.closed.get_or_insert_with(|| Arc::new(why));
        waiting.parked = false;
        drop(waiting);
        self.room.close();
        self.filled.notify_one();
    }

    /// Whether it is closed, without a look at why.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.room.is_closed()
    }

    /// Why it is closed, if it is.
    pub(crate) fn closed(&self) -> Option<Arc<Closed>> {
        self.lock().closed.clone()
    }

    /// Throws away what waits, and says how many messages that were.
    pub(crate) fn discard(&self) -> u64 {
        let mut waiting = self.lock();
        let dropped = std::mem::take(&mut waiting.segments);
        self.room.add_permits(dropped.iter().map(|segment| segment.bytes.len()).sum());
        waiting.depth.set(self.queued());
        drop(waiting);
        dropped.iter().map(|segment| segment.frames).sum()
    }

    /// Runs `encode` outside of every lock: it is the user's code.
    #[inline]
    fn with_encoded<T>(
        &self,
        encode: impl FnOnce(&mut Vec<u8>),
        then: impl FnOnce(&[u8]) -> Result<T, SendError>,
    ) -> Result<T, SendError> {
        SCRATCH.with(|scratch| match scratch.try_borrow_mut() {
            Ok(mut scratch) => self.encode_in(&mut scratch, encode, then),
            // A message is sent while another one is encoded.
            Err(_) => self.encode_in(&mut Vec::new(), encode, then),
        })
    }

    #[inline]
    fn encode_in<T>(
        &self,
        scratch: &mut Vec<u8>,
        encode: impl FnOnce(&mut Vec<u8>),
        then: impl FnOnce(&[u8]) -> Result<T, SendError>,
    ) -> Result<T, SendError> {
        scratch.clear();
        let result = match frame::append(scratch, self.frame_max, encode) {
            Ok(_) => then(scratch),
            Err(FrameError::TooLong { len, max }) => Err(SendError::TooLong { len, max }),
            Err(_) => Err(SendError::Empty),
        };
        if scratch.capacity() > SCRATCH_MAX {
            *scratch = Vec::new();
        }
        result
    }

    #[inline]
    fn try_append_frame(&self, frame: &[u8]) -> Result<(), SendError> {
        match self.room.try_acquire_many(frame.len() as u32) {
            Ok(permit) => {
                self.push(frame)?;
                permit.forget();
                Ok(())
            }
            Err(TryAcquireError::NoPermits) => Err(SendError::Full),
            Err(TryAcquireError::Closed) => Err(self.refusal()),
        }
    }

    #[inline]
    fn push(&self, frame: &[u8]) -> Result<(), SendError> {
        let mut waiting = self.lock();
        if let Some(why) = &waiting.closed {
            return Err(SendError::Closed(why.clone()));
        }
        match waiting.segments.back_mut() {
            Some(last) if last.bytes.len() + frame.len() <= SEGMENT => {
                last.bytes.extend_from_slice(frame);
                last.frames += 1;
            }
            _ => {
                let mut bytes = std::mem::take(&mut waiting.spare);
                if !waiting.segments.is_empty() {
                    // The writer does not keep up: this one will be filled.
                    bytes.reserve(SEGMENT);
                }
                bytes.extend_from_slice(frame);
                waiting.segments.push_back(Segment { bytes, frames: 1 });
                // Not for every message: a segment is as exact as it needs to be.
                waiting.depth.set(self.queued());
            }
        }
        if std::mem::take(&mut waiting.parked) {
            drop(waiting);
            self.filled.notify_one();
        }
        Ok(())
    }

    fn refusal(&self) -> SendError {
        match self.closed() {
            Some(why) => SendError::Closed(why),
            // Not reached: the reason is set before the semaphore is closed.
            None => SendError::Closed(Arc::new(Closed::Transport)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // Nothing that could panic happens under the lock, short of running out of memory.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

thread_local! {
    /// Where a message is encoded before there is known to be room for it.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// What is written with one system call.
const SEGMENT: usize = 64 << 10;
/// A larger one is not kept, lest each thread holds on to its longest message.
const SCRATCH_MAX: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn put(outbox: &Outbox, byte: u8, len: usize) -> Result<(), SendError> {
        outbox.try_append(|out| out.resize(out.len() + len, byte))
    }

    #[test]
    fn segments_hold_whole_frames_in_order() {
        let outbox = Outbox::new(1 << 20, 100_000);
        for byte in 0..200u8 {
            put(&outbox, byte, 1000).unwrap();
        }
        put(&outbox, 200, 90_000).unwrap();
        let mut next = 0;
        while let Some(segment) = outbox.take() {
            let mut read = bytes::BytesMut::from(&segment.bytes[..]);
            let frames = frame::take(&mut read, 100_000).unwrap();
            assert!(read.is_empty() && frames.len() as u64 == segment.frames);
            assert!(segment.bytes.len() <= SEGMENT || segment.frames == 1);
            for body in frames {
                assert_eq!(body[0], next);
                next += 1;
            }
            outbox.done(segment);
        }
        assert_eq!(next, 201);
        assert_eq!(outbox.room.available_permits(), 1 << 20);
    }

    #[tokio::test]
    async fn senders_wait_their_turn_and_may_give_up() {
        let outbox = Arc::new(Outbox::new(100, 96));
        put(&outbox, 1, 86).unwrap();
        assert!(matches!(put(&outbox, 1, 86), Err(SendError::Full)));

        let mut given_up = Box::pin(outbox.append(|out| out.resize(out.len() + 86, 2)));
        assert!(poll_once(&mut given_up).is_none());
        let mut first = Box::pin(outbox.append(|out| out.resize(out.len() + 86, 3)));
        assert!(poll_once(&mut first).is_none());
        drop(given_up);
        // Room for a small one there is, but the first in line is not overtaken.
        assert!(matches!(put(&outbox, 4, 2), Err(SendError::Full)));

        let segment = outbox.take().unwrap();
        outbox.done(segment);
        first.await.unwrap();
        assert_eq!(outbox.take().unwrap().bytes[4], 3);
    }

    #[tokio::test]
    async fn who_waits_learns_of_the_closing() {
        let outbox = Outbox::new(100, 96);
        put(&outbox, 1, 96).unwrap();
        let mut waits = Box::pin(outbox.append(|out| out.push(2)));
        assert!(poll_once(&mut waits).is_none());
        outbox.close(Closed::Forgotten);
        assert!(matches!(waits.await, Err(SendError::Closed(why)) if *why == Closed::Forgotten));
        assert!(matches!(put(&outbox, 1, 1), Err(SendError::Closed(_))));
        assert_eq!(outbox.discard(), 1);
    }

    #[test]
    fn a_message_may_be_sent_while_another_is_encoded() {
        let outbox = Outbox::new(1000, 100);
        outbox
            .try_append(|out| {
                out.push(2);
                put(&outbox, 1, 1).unwrap();
            })
            .unwrap();
        assert_eq!(outbox.take().unwrap().bytes, [1, 0, 0, 0, 1, 1, 0, 0, 0, 2]);
    }

    #[test]
    fn what_cannot_be_sent_takes_no_room() {
        let outbox = Outbox::new(1000, 100);
        assert!(matches!(put(&outbox, 1, 101), Err(SendError::TooLong { len: 101, max: 100 })));
        assert!(matches!(put(&outbox, 1, 0), Err(SendError::Empty)));
        assert_eq!(outbox.room.available_permits(), 1000);
    }

    fn poll_once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match std::pin::Pin::new(future).poll(&mut context) {
            std::task::Poll::Ready(output) => Some(output),
            std::task::Poll::Pending => None,
        }
    }
}
