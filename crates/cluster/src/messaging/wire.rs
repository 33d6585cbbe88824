//! Frames of the data lane: a byte that says what it is, then
//!
//! | kind | what follows |
//! |---|---|
//! | tell, try | the receiver's name (a length of one byte, and that many), the message |
//! | ask | the receiver's name, the question's number (8 bytes; the highest bit says that it is told, and only a receipt is expected), the message |
//! | answer | the question's number, the answer |
//! | refused | the question's number, why, what the receiver said of it if it could not read it |
//! | unanswered | the question's number |
//! | dead | why, how many (8 bytes), the receiver's name, the entity's id (a length of two bytes, 0 if there is none, and that many), what the receiver said of them |
//! | hold, release | the receiver's name; these are posted |
//!
//! Numbers are little-endian. Kinds that are not known are for a newer version.

use super::Lost;

pub(crate) const TELL: u8 = 1;
pub(crate) const TRY: u8 = 2;
pub(crate) const ASK: u8 = 3;
const ANSWER: u8 = 4;
const REFUSED: u8 = 5;
const UNANSWERED: u8 = 6;
const DEAD: u8 = 7;
pub(crate) const HOLD: u8 = 8;
pub(crate) const RELEASE: u8 = 9;

/// Set in the number of a question that expects no answer, but to hear that it was handled.
pub(crate) const RECEIPT: u64 = 1 << 63;

/// The longest name.
pub(crate) const NAME_MAX: usize = u8::MAX as usize;

/// A frame's beginning, as far as it decides where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Head<'a> {
    /// To a receiver. Two frames with the same head go the same way.
    To { kind: u8, name: &'a [u8] },
    /// To whoever asked, or sent.
    Back(Back<'a>),
    /// Whoever sends to this receiver is to wait.
    Hold(&'a [u8]),
    /// And need not any more.
    Release(&'a [u8]),
    /// Not understood.
    Other,
}

/// What comes back to a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Back<'a> {
    Answer {
        ask: u64,
        body: &'a [u8],
    },
    Refused {
        ask: u64,
        why: Lost,
        /// What the receiver said of it, or nothing.
        detail: &'a [u8],
    },
    Unanswered {
        ask: u64,
    },
    /// An empty id: there is none.
    Dead {
        why: Lost,
        count: u64,
        name: &'a [u8],
        id: &'a [u8],
        /// What the receiver said of them, or nothing.
        detail: &'a [u8],
    },
}

/// What a receiver is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Delivered<'a> {
    pub(crate) ask: Option<u64>,
    pub(crate) body: &'a [u8],
}

#[inline]
pub(crate) fn head(frame: &[u8]) -> Head<'_> {
    let Some((&kind, rest)) = frame.split_first() else {
        return Head::Other;
    };
    match kind {
        TELL | TRY | ASK => match name(rest) {
            Some((name, rest)) if kind != ASK || rest.len() >= NUMBER => Head::To { kind, name },
            _ => Head::Other,
        },
        HOLD => name(rest).map_or(Head::Other, |(name, _)| Head::Hold(name)),
        RELEASE => name(rest).map_or(Head::Other, |(name, _)| Head::Release(name)),
        ANSWER | REFUSED | UNANSWERED | DEAD => back(kind, rest).map_or(Head::Other, Head::Back),
        _ => Head::Other,
    }
}

fn back(kind: u8, rest: &[u8]) -> Option<Back<'_>> {
    if kind == DEAD {
        let (&why, rest) = rest.split_first()?;
        let (count, rest) = number(rest)?;
        let (name, rest) = name(rest)?;
        let (len, rest) = rest.split_first_chunk()?;
        let (id, detail) = rest.split_at_checked(usize::from(u16::from_le_bytes(*len)))?;
        return Some(Back::Dead { why: lost(why), count, name, id, detail });
    }
    let (ask, body) = number(rest)?;
    Some(match kind {
        ANSWER => Back::Answer { ask, body },
        REFUSED => {
            let (&why, detail) = body.split_first()?;
            Back::Refused { ask, why: lost(why), detail }
        }
        _ => Back::Unanswered { ask },
    })
}

/// Reads a frame for which [`head`] said that it is to a receiver.
#[inline]
pub(crate) fn delivered(frame: &[u8]) -> Option<Delivered<'_>> {
    let (&kind, rest) = frame.split_first()?;
    let (_, rest) = name(rest)?;
    if kind == ASK {
        let (ask, body) = number(rest)?;
        return Some(Delivered { ask: Some(ask), body });
    }
    Some(Delivered { ask: None, body: rest })
}

#[inline]
pub(crate) fn put_to(out: &mut Vec<u8>, kind: u8, name: &[u8]) {
    out.extend_from_slice(&[kind, name.len() as u8]);
    out.extend_from_slice(name);
}

pub(crate) fn put_ask(out: &mut Vec<u8>, name: &[u8], ask: u64) {
    put_to(out, ASK, name);
    out.extend_from_slice(&ask.to_le_bytes());
}

pub(crate) fn put_back(out: &mut Vec<u8>, back: Back<'_>) {
    match back {
        Back::Answer { ask, body } => {
            put_numbered(out, ANSWER, ask);
            out.extend_from_slice(body);
        }
        Back::Refused { ask, why, detail } => {
            put_numbered(out, REFUSED, ask);
            out.push(code(why));
            out.extend_from_slice(detail);
        }
        Back::Unanswered { ask } => put_numbered(out, UNANSWERED, ask),
        Back::Dead { why, count, name, id, detail } => {
            out.extend_from_slice(&[DEAD, code(why)]);
            out.extend_from_slice(&count.to_le_bytes());
            out.push(name.len() as u8);
            out.extend_from_slice(name);
            // Never cut: an id is much shorter.
            let id = &id[..id.len().min(u16::MAX.into())];
            out.extend_from_slice(&(id.len() as u16).to_le_bytes());
            out.extend_from_slice(id);
            out.extend_from_slice(detail);
        }
    }
}

fn put_numbered(out: &mut Vec<u8>, kind: u8, ask: u64) {
    out.push(kind);
    out.extend_from_slice(&ask.to_le_bytes());
}

#[inline]
fn name(rest: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&len, rest) = rest.split_first()?;
    rest.split_at_checked(usize::from(len))
}

#[inline]
fn number(rest: &[u8]) -> Option<(u64, &[u8])> {
    let (number, rest) = rest.split_first_chunk::<NUMBER>()?;
    Some((u64::from_le_bytes(*number), rest))
}

fn code(why: Lost) -> u8 {
    match why {
        Lost::NoSuchReceiver => 1,
        Lost::Full => 2,
        Lost::Unreadable => 3,
        Lost::Unfinished => 4,
        Lost::Late => 5,
        Lost::Cut | Lost::Unknown | Lost::Unsent | Lost::Refused => 0,
    }
}

fn lost(code: u8) -> Lost {
    match code {
        1 => Lost::NoSuchReceiver,
        2 => Lost::Full,
        3 => Lost::Unreadable,
        4 => Lost::Unfinished,
        5 => Lost::Late,
        _ => Lost::Refused,
    }
}

const NUMBER: usize = 8;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;
    use tenure_wire::samples;

    use super::*;

    #[test]
    fn what_is_put_is_read() {
        let mut out = Vec::new();
        put_to(&mut out, TELL, b"counter");
        out.extend_from_slice(b"body");
        assert_eq!(head(&out), Head::To { kind: TELL, name: b"counter" });
        assert_eq!(delivered(&out), Some(Delivered { ask: None, body: b"body" }));

        out.clear();
        put_ask(&mut out, b"c", 7);
        out.push(9);
        assert_eq!(head(&out), Head::To { kind: ASK, name: b"c" });
        assert_eq!(delivered(&out), Some(Delivered { ask: Some(7), body: &[9] }));

        for back in [
            Back::Answer { ask: 1, body: b"x" },
            Back::Refused { ask: 2, why: Lost::Full, detail: b"" },
            Back::Refused { ask: 2, why: Lost::Unreadable, detail: b"sent A@2" },
            Back::Unanswered { ask: u64::MAX },
            Back::Dead {
                why: Lost::Unreadable,
                count: 3,
                name: b"counter",
                id: b"",
                detail: b"sent A@2",
            },
            Back::Dead { why: Lost::Unfinished, count: 1, name: b"carts", id: b"7", detail: b"" },
        ] {
            out.clear();
            put_back(&mut out, back);
            assert_eq!(head(&out), Head::Back(back));
        }

        for (kind, read) in [(HOLD, Head::Hold(b"counter")), (RELEASE, Head::Release(b"counter"))] {
            out.clear();
            put_to(&mut out, kind, b"counter");
            assert_eq!(head(&out), read);
            assert_eq!(head(&out[..out.len() - 1]), Head::Other);
        }
    }

    /// Each kind has one form for ever; another form is another kind.
    #[test]
    fn samples_can_be_read() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("samples/data.txt");
        let mut current = Vec::new();
        let mut put = |name: &str, put: &dyn Fn(&mut Vec<u8>)| {
            let mut frame = Vec::new();
            put(&mut frame);
            current.push((format!("Data::{name}"), frame));
        };
        for (name, kind) in [("Tell", TELL), ("Try", TRY), ("Hold", HOLD), ("Release", RELEASE)] {
            put(name, &|out| put_to(out, kind, b"counter"));
        }
        put("Ask", &|out| put_ask(out, b"counter", RECEIPT | 7));
        put("Answer", &|out| put_back(out, Back::Answer { ask: 7, body: b"x" }));
        put("Refused", &|out| {
            put_back(out, Back::Refused { ask: 7, why: Lost::Full, detail: b"why" })
        });
        put("Unanswered", &|out| put_back(out, Back::Unanswered { ask: 7 }));
        let dead =
            Back::Dead { why: Lost::Late, count: 3, name: b"carts", id: b"7", detail: b"why" };
        put("Dead", &|out| put_back(out, dead));
        samples::check_bytes(&file, "Data", current, |frame| match head(frame) {
            Head::To { kind, name: b"counter" } if [TELL, TRY, ASK].contains(&kind) => {
                let ask = (kind == ASK).then_some(RECEIPT | 7);
                match delivered(frame) {
                    Some(Delivered { ask: read, body: b"" }) if read == ask => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            }
            Head::Hold(b"counter") | Head::Release(b"counter") => Ok(()),
            Head::Back(
                Back::Answer { ask: 7, body: b"x" }
                | Back::Refused { ask: 7, why: Lost::Full, detail: b"why" }
                | Back::Unanswered { ask: 7 },
            ) => Ok(()),
            Head::Back(back) if back == dead => Ok(()),
            other => Err(format!("{other:?}")),
        });
    }

    #[test]
    fn kinds_of_a_newer_version_are_others() {
        assert_eq!(head(&[99, 1, 2, 3]), Head::Other);
        assert_eq!(head(&[]), Head::Other);
        // A reason that is not known is a refusal nevertheless.
        assert_eq!(
            head(&[REFUSED, 1, 0, 0, 0, 0, 0, 0, 0, 200]),
            Head::Back(Back::Refused { ask: 1, why: Lost::Refused, detail: b"" })
        );
    }

    proptest! {
        #[test]
        fn garbage_never_panics(frame in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Head::To { .. } = head(&frame) {
                prop_assert!(delivered(&frame).is_some());
            }
        }
    }
}
