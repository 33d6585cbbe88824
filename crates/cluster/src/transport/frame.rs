//! Frames: a length of four bytes, little-endian, then that many bytes.
//!
//! Nothing here waits or allocates for what a peer announces: a length is checked as soon as its four
//! bytes are there, and room is made only as bytes arrive. What comes out of a read are [`Frames`],
//! one shared buffer that holds whole frames, so that a thousand small messages cost one hand-over.

use bytes::{Buf, Bytes, BytesMut};

/// Bytes in front of each frame.
pub const HEADER: usize = 4;

/// Whole frames, as they were read, in order. Iterating yields their bodies without copying.
///
/// A body that is kept keeps the buffer that it arrived in, up to some 128 KiB; copy what you keep
/// for long.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frames {
    /// Lengths and bodies; every length was checked when it was read.
    bytes: Bytes,
    count: usize,
}

impl Frames {
    /// How many frames are left in it.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether none is left.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes of all that is left, lengths included.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// One frame that did not come from a peer.
    pub(crate) fn one(encode: impl FnOnce(&mut Vec<u8>)) -> Result<Self, FrameError> {
        let mut bytes = Vec::new();
        append(&mut bytes, usize::MAX, encode)?;
        Ok(Self { bytes: bytes.into(), count: 1 })
    }

    /// The first body, which stays.
    #[inline]
    pub(crate) fn first(&self) -> Option<&[u8]> {
        body(&self.bytes)
    }

    /// Takes the first frame and reads it where it lies, which is cheaper than [`Frames::next`].
    #[inline]
    pub(crate) fn read_next<T>(&mut self, read: impl FnOnce(&[u8]) -> T) -> Option<T> {
        let body = body(&self.bytes)?;
        let len = body.len();
        let output = read(body);
        self.bytes.advance(HEADER + len);
        self.count -= 1;
        Some(output)
    }

    /// Takes the first frame and those after it that are `same`.
    pub(crate) fn take_same(&mut self, same: impl Fn(&[u8], &[u8]) -> bool) -> Self {
        let (mut end, mut count) = (0, 0);
        if let Some(first) = self.first() {
            while let Some(body) = body(&self.bytes[end..]).filter(|body| same(first, body)) {
                end += HEADER + body.len();
                count += 1;
            }
        }
        self.count -= count;
        Self { bytes: self.bytes.split_to(end), count }
    }

    /// The same frames, in a buffer of their own if they are small: else a few bytes that wait for
    /// long would hold on to all that was read with them.
    pub(crate) fn compact(self) -> Self {
        if self.bytes.len() >= SMALL {
            return self;
        }
        Self { bytes: Bytes::copy_from_slice(&self.bytes), ..self }
    }
}

impl Iterator for Frames {
    type Item = Bytes;

    #[inline]
    fn next(&mut self) -> Option<Bytes> {
        let body = length(&self.bytes)?;
        self.bytes.advance(HEADER);
        self.count -= 1;
        Some(self.bytes.split_to(body))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.count, Some(self.count))
    }
}

impl ExactSizeIterator for Frames {}

/// Takes the whole frames from the front of what was read; what is left is the beginning of one.
///
/// Frames before a bad one are still given out; the bad one is met by the next call.
pub fn take(read: &mut BytesMut, max: usize) -> Result<Frames, FrameError> {
    let (mut end, mut count) = (0, 0);
    loop {
        match whole(&read[end..], max) {
            Ok(Some(bytes)) => {
                end += bytes;
                count += 1;
            }
            Ok(None) => break,
            Err(error) if count == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(Frames { bytes: read.split_to(end).freeze(), count })
}

/// What it means that the stream ended here: nothing, between two frames.
pub fn end(rest: &[u8]) -> Result<(), FrameError> {
    match rest.len() {
        0 => Ok(()),
        have => Err(FrameError::Truncated { have, need: length(rest).map(|body| body + HEADER) }),
    }
}

/// Appends one frame whose body `encode` appends, and says how many bytes it took. If the body is
/// empty or too long, `out` is as it was before.
pub fn append(
    out: &mut Vec<u8>,
    max: usize,
    encode: impl FnOnce(&mut Vec<u8>),
) -> Result<usize, FrameError> {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER]);
    encode(out);
    let body = out.len().saturating_sub(start + HEADER);
    if let Err(error) = check(body, max) {
        out.truncate(start);
        return Err(error);
    }
    // At most u32::MAX, see `check`.
    out[start..start + HEADER].copy_from_slice(&(body as u32).to_le_bytes());
    Ok(body + HEADER)
}

/// Why bytes are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// It says that it is longer than agreed.
    #[error("a frame of {len} bytes is longer than the {max} that are allowed")]
    TooLong {
        /// What it says.
        len: usize,
        /// What is allowed.
        max: usize,
    },
    /// It has no body, hence no kind.
    #[error("a frame must not be empty")]
    Empty,
    /// The stream ended within it.
    #[error("the stream ended after {have} bytes of a frame")]
    Truncated {
        /// Bytes that arrived, the length included.
        have: usize,
        /// Bytes that it has, if the length arrived.
        need: Option<usize>,
    },
}

/// The bytes of the first frame, its length included, if it is there as a whole.
#[inline]
fn whole(read: &[u8], max: usize) -> Result<Option<usize>, FrameError> {
    let Some(body) = length(read) else {
        return Ok(None);
    };
    check(body, max)?;
    Ok((read.len() - HEADER >= body).then_some(HEADER + body))
}

#[inline]
fn check(body: usize, max: usize) -> Result<(), FrameError> {
    if body == 0 {
        return Err(FrameError::Empty);
    }
    if body > max || u32::try_from(body).is_err() {
        return Err(FrameError::TooLong { len: body, max });
    }
    Ok(())
}

/// The first body of whole frames.
#[inline]
fn body(frames: &[u8]) -> Option<&[u8]> {
    frames.get(HEADER..HEADER + length(frames)?)
}

#[inline]
fn length(read: &[u8]) -> Option<usize> {
    read.first_chunk::<HEADER>().map(|header| u32::from_le_bytes(*header) as usize)
}

/// Less is copied.
const SMALL: usize = 4 << 10;

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const MAX: usize = 300;

    fn stream(bodies: &[Vec<u8>]) -> Vec<u8> {
        let mut out = Vec::new();
        for body in bodies {
            append(&mut out, MAX, |out| out.extend_from_slice(body)).unwrap();
        }
        out
    }

    proptest! {
        /// Whatever the pieces in which a stream arrives, the same frames come out.
        #[test]
        fn frames_survive_any_cutting(
            bodies in vec(vec(any::<u8>(), 1..MAX), 0..20),
            cuts in vec(1usize..700, 1..50),
        ) {
            let stream = stream(&bodies);
            let (mut read, mut seen) = (BytesMut::new(), Vec::new());
            let (mut rest, mut cuts) = (&stream[..], cuts.iter().cycle());
            while !rest.is_empty() {
                let (piece, tail) = rest.split_at((*cuts.next().unwrap()).min(rest.len()));
                read.extend_from_slice(piece);
                rest = tail;
                let frames = take(&mut read, MAX).unwrap();
                let announced = frames.len();
                let bodies: Vec<_> = frames.map(|body| body.to_vec()).collect();
                prop_assert_eq!(bodies.len(), announced);
                seen.extend(bodies);
            }
            prop_assert_eq!(end(&read), Ok(()));
            prop_assert_eq!(seen, bodies);
        }

        /// Random bytes never make it panic, nor hold more than one frame back.
        #[test]
        fn garbage_is_refused_or_waits(bytes in vec(any::<u8>(), 0..2000)) {
            let mut read = BytesMut::from(&bytes[..]);
            while let Ok(frames) = take(&mut read, MAX) {
                if frames.is_empty() {
                    prop_assert!(read.len() < HEADER + MAX);
                    break;
                }
            }
        }
    }

    #[test]
    fn runs_of_frames_are_taken_together() {
        let mut read =
            BytesMut::from(&stream(&[b"a1", b"a2", b"b1", b"a3"].map(|b| b.to_vec()))[..]);
        let mut frames = take(&mut read, MAX).unwrap();
        let mut runs = Vec::new();
        while !frames.is_empty() {
            let mut run = frames.take_same(|first, other| first[0] == other[0]).compact();
            let count = run.len();
            let bodies: Vec<_> = std::iter::from_fn(|| run.read_next(|b| b.to_vec())).collect();
            assert!(run.is_empty() && bodies.len() == count);
            runs.push(bodies.concat());
        }
        assert_eq!(runs, [&b"a1a2"[..], b"b1", b"a3"]);
        assert!(frames.take_same(|_, _| true).is_empty());
    }

    #[test]
    fn a_stream_that_ends_is_judged_at_each_byte() {
        let stream = stream(&[b"one".to_vec(), b"second".to_vec()]);
        for cut in 0..=stream.len() {
            let mut read = BytesMut::from(&stream[..cut]);
            let frames = take(&mut read, MAX).unwrap();
            assert_eq!(frames.len(), [7, 17].iter().filter(|end| cut >= **end).count());
            assert_eq!(end(&read).is_ok(), [0, 7, 17].contains(&cut), "cut at {cut}");
        }
        assert_eq!(end(&stream[..3]), Err(FrameError::Truncated { have: 3, need: None }));
        assert_eq!(end(&stream[..5]), Err(FrameError::Truncated { have: 5, need: Some(7) }));
    }

    #[test]
    fn a_length_is_checked_before_anything_is_made_for_it() {
        let mut read = BytesMut::from(&[0xff, 0xff, 0xff, 0xff][..]);
        let capacity = read.capacity();
        let error = take(&mut read, MAX).unwrap_err();
        assert_eq!(error, FrameError::TooLong { len: u32::MAX as usize, max: MAX });
        assert_eq!(read.capacity(), capacity);
        assert_eq!(take(&mut BytesMut::from(&[0; 4][..]), MAX), Err(FrameError::Empty));
    }

    #[test]
    fn frames_before_a_bad_one_are_given_out() {
        let mut bytes = stream(&[b"good".to_vec()]);
        bytes.extend_from_slice(&[0; 4]);
        let mut read = BytesMut::from(&bytes[..]);
        assert_eq!(take(&mut read, MAX).unwrap().len(), 1);
        assert_eq!(take(&mut read, MAX), Err(FrameError::Empty));
    }

    #[test]
    fn a_body_that_does_not_fit_leaves_no_trace() {
        let mut out = b"before".to_vec();
        let long = append(&mut out, MAX, |out| out.resize(out.len() + MAX + 1, 7));
        assert_eq!(long, Err(FrameError::TooLong { len: MAX + 1, max: MAX }));
        assert_eq!(append(&mut out, MAX, |_| {}), Err(FrameError::Empty));
        assert_eq!(append(&mut out, MAX, |out| out.push(1)), Ok(5));
        assert_eq!(out, b"before\x01\0\0\0\x01");
    }
}
